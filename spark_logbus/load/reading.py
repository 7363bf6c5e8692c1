"""The ranges of a load: planned purely from offsets, then read as a data frame."""

from __future__ import annotations

import json

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from spark_logbus.errors import ConfigError, DataLossError
from spark_logbus.load.commits import Commit
from spark_logbus.load.hadoop import reason
from spark_logbus.model import OffsetRange
from spark_logbus.offsets.snapshot import Snapshot

#: What is kept of a record, besides its date. The topic is the directory's name.
COLUMNS = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
_NAMES = ("key", "value", "partition", "offset", "timestamp", "headers")
_VALUE = "value"
_MALFORMED = "malformed_value"
_RESERVED = ("key", "partition", "offset", "timestamp", "headers", "date", _MALFORMED)

# From the seconds since 1970, because a cast to date goes by the session's time zone.
_UTC_DATE = "date_from_unix_date(cast(floor(unix_seconds(timestamp) / 86400) as int))"


def plan(
    snapshot: Snapshot, topic: str, last: Commit | None, *, allow_gaps: bool
) -> list[OffsetRange]:
    """The new records: from the last commit (or the log's start) to the high watermark (pure).

    Raises DataLossError when that is not what follows the last commit.
    """
    if last is not None and last.topic_id != snapshot.topic_ids[topic]:
        raise DataLossError(
            f"Topic {topic} was deleted and created again since load {last.number}; its offsets "
            "start over. Load it into another warehouse directory."
        )
    ranges = []
    for topic_partition, span in sorted(snapshot.spans.items()):
        # A partition that the last load did not know was added since, and starts at 0.
        start = span.start if last is None else last.ends.get(topic_partition.partition, 0)
        if last is not None and start > span.end:
            raise DataLossError(
                f"{topic_partition}: load {last.number} ended at offset {start:,}, but the log "
                "now ends at "
                f"{span.end:,}: records that are in the warehouse are gone from the log, and "
                "their offsets will be given to others. Load into another warehouse directory."
            )
        if last is not None and start < span.start and not allow_gaps:
            raise DataLossError(
                f"{topic_partition}: load {last.number} ended at offset {start:,}, but the log "
                "now starts at "
                f"{span.start:,}: the offsets between were not loaded and are gone, deleted by "
                "retention or given up with their log. Use --allow-gaps to go on after them."
            )
        ranges.append(OffsetRange(topic_partition, max(start, span.start), span.end))
    return ranges


def read(
    spark: SparkSession,
    ranges: list[OffsetRange],
    zookeeper: str,
    topic: str,
    *,
    has_schema: bool = False,
) -> DataFrame:
    """Exactly the records of ``ranges``, with a ``date`` column (UTC) to partition by.

    The fields of values that have a schema are columns. Raises ConfigError where one of them has
    the name of a column that a load adds.
    """

    reader = spark.read if has_schema else spark.read.schema(COLUMNS)
    frame = of_ranges(reader, ranges, zookeeper, topic).option("includeHeaders", "true").load()
    if has_schema:
        frame = _with_fields(frame.select(*_NAMES))
    return frame.withColumn("date", F.expr(_UTC_DATE))


def of_ranges(
    reader: DataFrameReader, ranges: list[OffsetRange], zookeeper: str, topic: str
) -> DataFrameReader:
    """A reader of exactly the records of ``ranges``."""

    def positions(pick: str) -> str:
        return json.dumps(
            {topic: {str(r.topic_partition.partition): getattr(r, pick) for r in ranges}}
        )

    return (
        reader.format("logbus")
        .option("zookeeper", zookeeper)
        .option("assign", json.dumps({topic: [r.topic_partition.partition for r in ranges]}))
        .option("startingOffsets", positions("start"))
        .option("endingOffsets", positions("end"))
    )


def _with_fields(frame: DataFrame) -> DataFrame:
    """``frame`` with the fields of ``value`` in its place, if it has any."""
    value = frame.schema[_VALUE].dataType
    if not isinstance(value, StructType):
        return frame
    taken = sorted({name.lower() for name in value.names} & set(_RESERVED))
    if taken:
        raise ConfigError(
            f"The schema of the topic has the fields {', '.join(taken)}, which are columns that "
            f"the load adds itself ({', '.join(_RESERVED)}). Give them other names in a new "
            "version of the schema, with aliases."
        )
    fields = [F.col(_VALUE)[name].alias(name) for name in value.names]
    return frame.select(*(name for name in _NAMES if name != _VALUE), *fields)


def json_fields(ddl: str, *, drop_value: bool) -> StructType:
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
    names = {name.lower() for name in schema.names}
    taken = sorted(names & set(_RESERVED))
    if taken:
        raise ConfigError(
            f"--json-schema names {', '.join(taken)}, which the load adds itself "
            f"({', '.join(_RESERVED)}). Leave it out, or load values as they are and select the "
            "field with from_json when reading."
        )
    if _VALUE in names and not drop_value:
        raise ConfigError(
            f"--json-schema names {_VALUE}, the column that keeps each value as it came. Leave it "
            "out and select the field with from_json when reading, or give the column up with "
            "--drop-value."
        )
    return schema


def parse_json(frame: DataFrame, fields: StructType, *, drop_value: bool) -> DataFrame:
    """Add the fields of JSON values as columns, beside the values as they came.

    ``malformed_value`` repeats those that do not parse. With ``drop_value`` they are all that is
    kept of values: what the fields do not name is dropped.
    """
    parsed = F.from_json(
        F.col(_VALUE).cast("string"),
        StructType(fields.fields).add(_MALFORMED, "string"),
        {"columnNameOfCorruptRecord": _MALFORMED},
    )
    frame = frame.withColumn("_parsed", parsed)
    bad = F.col("_parsed").isNull() | F.col("_parsed")[_MALFORMED].isNotNull()
    apart = ("_parsed", "date", _VALUE) if drop_value else ("_parsed", "date")
    kept = [name for name in frame.columns if name not in apart]
    return frame.select(
        *kept,
        *[F.col("_parsed")[name].alias(name) for name in fields.names],
        F.when(bad, F.col(_VALUE)).alias(_MALFORMED),
        "date",
    )
