"""What a load reads: planned purely from offsets, then read as a data frame."""

from __future__ import annotations

import json

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from spark_logbus.errors import ConfigError, DataLossError
from spark_logbus.load.commits import Commit
from spark_logbus.load.hadoop import reason
from spark_logbus.model import OffsetRange
from spark_logbus.offsets import Snapshot

#: What is kept of a record, besides its date. The topic is the directory's name.
COLUMNS = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
_MALFORMED = "malformed_value"
_RESERVED = ("key", "partition", "offset", "timestamp", "headers", "date", _MALFORMED)

# From the seconds since 1970, because a cast to date goes by the session's time zone.
_UTC_DATE = "date_from_unix_date(cast(floor(unix_seconds(timestamp) / 86400) as int))"


def plan(
    snapshot: Snapshot, topic: str, last: Commit | None, *, allow_gaps: bool
) -> list[OffsetRange]:
    """What is new: from the last commit (or the log's start) to the high watermark (pure).

    Raises DataLossError when that is not what follows the last commit.
    """
    if last is not None and last.topic_id != snapshot.topic_ids[topic]:
        raise DataLossError(
            f"Topic {topic} was deleted and created again since load {last.number}; its offsets "
            "start over. Load it into another warehouse directory."
        )
    ranges = []
    for tp, span in sorted(snapshot.spans.items()):
        # A partition that the last load did not know was added since, and starts at 0.
        start = span.start if last is None else last.ends.get(tp.partition, 0)
        if last is not None and start > span.end:
            raise DataLossError(
                f"{tp}: load {last.number} ended at offset {start:,}, but the log now ends at "
                f"{span.end:,}: records that are in the warehouse are gone from the log, and "
                "their offsets will be given to others. Load into another warehouse directory."
            )
        if last is not None and start < span.start and not allow_gaps:
            raise DataLossError(
                f"{tp}: load {last.number} ended at offset {start:,}, but the log now starts at "
                f"{span.start:,}: {span.start - start:,} records were deleted by retention before "
                "they were loaded. Use --allow-gaps to go on after them."
            )
        ranges.append(OffsetRange(tp, max(start, span.start), span.end))
    return ranges


def read(spark: SparkSession, ranges: list[OffsetRange], zookeeper: str, topic: str) -> DataFrame:
    """Exactly the records of ``ranges``, with a ``date`` column (UTC) to partition by."""

    def positions(pick: str) -> str:
        return json.dumps(
            {topic: {str(r.topic_partition.partition): getattr(r, pick) for r in ranges}}
        )

    return (
        spark.read.format("logbus")
        .schema(COLUMNS)
        .option("zookeeper", zookeeper)
        .option("assign", json.dumps({topic: [r.topic_partition.partition for r in ranges]}))
        .option("startingOffsets", positions("start"))
        .option("endingOffsets", positions("end"))
        .option("includeHeaders", "true")
        .load()
        .withColumn("date", F.expr(_UTC_DATE))
    )


def json_fields(ddl: str) -> StructType:
    """The fields that ``--json-schema`` names. Raises ConfigError; needs a Spark session."""
    try:
        schema = DataType.fromDDL(ddl)
    except PySparkException as error:
        raise ConfigError(
            f"--json-schema is {ddl!r}: {reason(error)} Name fields and types, as in "
            '"carrier string, delay int".'
        ) from error
    if not isinstance(schema, StructType):
        raise ConfigError(
            f"--json-schema is {ddl!r}, which is a single type; name fields and types, as in "
            '"carrier string, delay int".'
        )
    taken = sorted({name.lower() for name in schema.names} & set(_RESERVED))
    if taken:
        raise ConfigError(
            f"--json-schema names {', '.join(taken)}, which the load adds itself "
            f"({', '.join(_RESERVED)}). Leave it out, or load values as they are and select the "
            "field with from_json when reading."
        )
    return schema


def parse_json(frame: DataFrame, fields: StructType) -> DataFrame:
    """Add the fields of JSON values as columns; the value is kept only where it does not parse."""
    parsed = F.from_json(
        F.col("value").cast("string"),
        StructType(fields.fields).add(_MALFORMED, "string"),
        {"columnNameOfCorruptRecord": _MALFORMED},
    )
    frame = frame.withColumn("_parsed", parsed)
    bad = F.col("_parsed").isNull() | F.col("_parsed")[_MALFORMED].isNotNull()
    kept = [c for c in frame.columns if c not in ("_parsed", "value", "date")]
    return frame.select(
        *kept,
        *[F.col("_parsed")[name].alias(name) for name in fields.names],
        F.when(bad, F.col("value")).alias(_MALFORMED),
        "date",
    )
