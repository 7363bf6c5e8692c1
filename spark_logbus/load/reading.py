"""What a load reads: planned purely from offsets, then read as a data frame."""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_logbus.errors import DataLossError
from spark_logbus.load.warehouse import Commit
from spark_logbus.model import OffsetRange
from spark_logbus.offsets import Snapshot


def plan(
    snapshot: Snapshot, topic: str, last: Commit | None, *, allow_gaps: bool
) -> list[OffsetRange]:
    """What is new: from the last commit (or the log's start) to the high watermark."""
    if last is not None and last.topic_id != snapshot.topic_ids[topic]:
        raise DataLossError(
            f"Topic {topic} was deleted and created again since load {last.number}; its offsets "
            "start over. Load it into another warehouse directory."
        )
    ranges = []
    for tp, span in sorted(snapshot.spans.items()):
        start = span.start if last is None else last.ends.get(tp.partition, span.start)
        if start < span.start and not allow_gaps:
            raise DataLossError(
                f"{tp}: load {last.number if last else 0} ended at offset {start}, but the log now "
                f"starts at {span.start}: {span.start - start} records were deleted by retention "
                "before they were loaded. Use --allow-gaps to go on after them."
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
        .option("zookeeper", zookeeper)
        .option("assign", json.dumps({topic: [r.topic_partition.partition for r in ranges]}))
        .option("startingOffsets", positions("start"))
        .option("endingOffsets", positions("end"))
        .option("includeHeaders", "true")
        .load()
        .drop("topic", "timestampType")
        .withColumn("date", F.to_date("timestamp"))
    )


def parse_json(frame: DataFrame, ddl: str) -> DataFrame:
    """Add the fields of JSON values as columns; ``value`` is kept only where it does not parse."""
    parsed = F.from_json(
        F.col("value").cast("string"),
        f"{ddl}, _malformed string",
        {"columnNameOfCorruptRecord": "_malformed"},
    )
    frame = frame.withColumn("_parsed", parsed)
    bad = F.col("_parsed").isNull() | F.col("_parsed._malformed").isNotNull()
    names = [f.name for f in frame.schema["_parsed"].dataType.fields]  # type: ignore[attr-defined]
    kept = [c for c in frame.columns if c not in ("_parsed", "value", "date")]
    return frame.select(
        *kept,
        *[F.col("_parsed")[name].alias(name) for name in names if name != "_malformed"],
        F.when(bad, F.col("value")).alias("malformed_value"),
        "date",
    )
