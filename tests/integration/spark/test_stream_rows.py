"""The rows of a stream: their columns and types, the tasks that read them, and their watermark."""

from __future__ import annotations

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.helpers import spanning
from tests.servers.cluster import Logbus
from tests.servers.spark import MODES, Streams, finish


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{number:05d}" for number in range(start, start + count)]


@pytest.mark.parametrize(
    ("streams", "include_headers"), spanning([*MODES], ["true", "false"]), indirect=["streams"]
)
@pytest.mark.long
def test_a_stream_has_the_rows_of_a_batch_read(
    spark: SparkSession, logbus: Logbus, streams: Streams, include_headers: str
) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, ["a"], key="k", timestamp_us=1_700_000_000_123_456)
    logbus.produce(topic, ["b", None], partition=1, headers=[("h", b"1"), ("h", None), ("", b"")])
    logbus.produce(topic, ["c"], headers=[])
    options = {"subscribe": topic, "includeHeaders": include_headers}
    reader = spark.read.format("logbus").options(zookeeper=logbus.zookeeper, **options)
    batch = reader.load()
    source = streams.source(**options, startingOffsets="earliest")
    assert ("headers" in source.columns) is (include_headers == "true")
    finish(streams.start(source))
    assert len(streams.rows) == 4
    streamed = spark.createDataFrame(streams.rows, source.schema)
    assert_df_equality(streamed, batch, ignore_row_order=True)


@pytest.mark.long
def test_a_stream_with_a_choice_of_columns(
    spark: SparkSession, logbus: Logbus, streams: Streams
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(3))
    options = {"zookeeper": logbus.zookeeper, **MODES[streams.mode]}
    reader = spark.readStream.format("logbus").options(**options)
    source = reader.option("startingOffsets", "earliest").schema("offset long, value binary")
    finish(streams.start(source.load(topic)))
    assert sorted(tuple(row) for row in streams.rows) == [
        (0, b"00000"),
        (1, b"00001"),
        (2, b"00002"),
    ]


@pytest.mark.long
def test_null_keys_and_null_values(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic()
    logbus.produce(topic, [None, "b"], key="k")
    logbus.produce(topic, [None, "d"])
    finish(streams.start(streams.source(subscribe=topic, startingOffsets="earliest")))
    found = [(row["key"], row["value"], row["offset"]) for row in streams.rows]
    assert found == [(b"k", None, 0), (b"k", b"b", 1), (None, None, 2), (None, b"d", 3)]


@pytest.mark.parametrize(
    ("streams", "option"),
    spanning([*MODES], ["minPartitions", "maxRecordsPerPartition"]),
    indirect=["streams"],
)
@pytest.mark.long
def test_more_tasks_than_partitions(logbus: Logbus, streams: Streams, option: str) -> None:
    wanted, tasks = {
        "minPartitions": ("7", range(7, 12)), "maxRecordsPerPartition": ("20", range(6, 7)),
    }[option]  # fmt: skip
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(50))
    logbus.produce(topic, numbered(50, 100), partition=1)
    source = streams.source(subscribe=topic, startingOffsets="earliest", **{option: wanted})
    finish(streams.start(source.select("value", f.spark_partition_id().alias("task"))))
    assert streams.values() == numbered(50) + numbered(50, 100)
    assert len({row["task"] for row in streams.rows}) in tasks


@pytest.mark.long
def test_a_watermark_on_the_timestamp(logbus: Logbus, streams: Streams) -> None:
    """Windows are given out when the records' timestamps have passed them, and then are closed."""
    topic = logbus.topic()
    began_us, minute_us = 1_700_000_040_000_000, 60_000_000

    def counted(minute: int, count: int) -> tuple[list[int], int]:
        logbus.produce(topic, numbered(count), timestamp_us=began_us + minute * minute_us)
        source = streams.source(subscribe=topic, startingOffsets="earliest")
        windows = source.withWatermark("timestamp", "1 minute").groupBy(
            f.window("timestamp", "1 minute")
        )
        query = finish(streams.start(windows.count()))
        dropped = sum(
            operator["numRowsDroppedByWatermark"]
            for progress in query.recentProgress
            for operator in progress["stateOperators"]
        )
        return [row["count"] for row in streams.rows], dropped

    assert counted(0, 3) == ([], 0)
    assert counted(10, 2) == ([3], 0)
    assert counted(1, 1) == ([], 1)
    assert counted(20, 1) == ([2], 0)
