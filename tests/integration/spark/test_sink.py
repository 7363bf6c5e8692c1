"""``df.write`` and ``df.writeStream`` into topics, and back."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_logbus.client.producer.partitioner import partition_of
from spark_logbus.model import TopicPartition
from tests.servers.cluster import Logbus
from tests.servers.spark import Streams, finish


def write(frame: DataFrame, logbus: Logbus, **options: str) -> None:
    writer = frame.write.format("logbus").option("zookeeper", logbus.zookeeper).mode("append")
    writer.options(**options).save()


def read(spark: SparkSession, logbus: Logbus, topic: str) -> DataFrame:
    reader = spark.read.format("logbus").option("zookeeper", logbus.zookeeper)
    return reader.option("includeHeaders", "true").load(topic)


def test_round_trip_of_every_column(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic(partitions=3)
    moment = dt.datetime(2024, 5, 6, 7, 8, 9, 123_456, tzinfo=dt.UTC)
    rows = [
        ("k1", b"v1", 2, moment, [("h", b"1"), ("h", None)]),
        (None, None, 0, moment, []),
        ("k3", b"v3", 2, moment, None),
    ]
    schema = (
        "key string, value binary, partition int, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>"
    )
    write(spark.createDataFrame(rows, schema), logbus, topic=topic)
    got = [
        (
            None if row.key is None else row.key.decode(),
            row.value,
            row.partition,
            row.timestamp.astimezone(dt.UTC),
            None if row.headers is None else [tuple(header) for header in row.headers],
        )
        for row in read(spark, logbus, topic).collect()
    ]
    assert sorted(got, key=str) == sorted(rows, key=str)


def test_keys_go_where_the_producer_sends_them(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic(partitions=4)
    frame = spark.range(200).selectExpr(
        "cast(id % 10 as string) AS key", "cast(id as string) AS value"
    )
    write(frame, logbus, topic=topic)
    places = read(spark, logbus, topic).select("key", "partition").distinct().collect()
    assert {row.key: row.partition for row in places} == {
        str(n).encode(): partition_of(str(n).encode(), 4) for n in range(10)
    }


def test_the_column_topic_and_the_option(spark: SparkSession, logbus: Logbus) -> None:
    one, two = logbus.topic(), logbus.topic()
    frame = spark.createDataFrame([(one, "a"), (two, "b")], "topic string, value string")
    write(frame, logbus)
    assert [row.value for row in read(spark, logbus, one).collect()] == [b"a"]
    assert [row.value for row in read(spark, logbus, two).collect()] == [b"b"]
    write(frame, logbus, topic=two)
    assert sum(logbus.ends(one).values()) == 1
    assert sum(logbus.ends(two).values()) == 3


@pytest.mark.long
def test_writes_from_several_threads_at_once(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic(partitions=2)
    frames = [spark.range(n, n + 1000).selectExpr("cast(id AS string) AS value")
              for n in (0, 1000, 2000)]  # fmt: skip

    def in_thread(frame: DataFrame) -> None:
        spark.createDataFrame([], "a int")  # or Spark does not find the sink: docs/spark.md
        write(frame, logbus, topic=topic)

    with ThreadPoolExecutor() as pool:
        list(pool.map(in_thread, frames))
    got = read(spark, logbus, topic)
    assert got.selectExpr("count(*)", "count(distinct value)").first() == (3000, 3000)


@pytest.mark.parametrize(
    "compression",
    [
        pytest.param("none", marks=pytest.mark.long),
        pytest.param("lz4", marks=pytest.mark.long),
        "zstd",
    ],
)
def test_many_rows_arrive_once_each(spark: SparkSession, logbus: Logbus, compression: str) -> None:
    topic = logbus.topic(partitions=2)
    frame = spark.range(60_000).selectExpr("repeat(cast(id as string), 60) AS value")
    write(
        frame,
        logbus,
        topic=topic,
        compression=compression,
        acks="written",
        delivery="at-least-once",
    )
    got = read(spark, logbus, topic)
    assert got.selectExpr("count(*)", "count(distinct value)").first() == (60_000, 60_000)
    assert all(logbus.ends(topic).values())


@pytest.mark.long
def test_values_larger_than_a_record_batch_usually_is(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic()
    write(spark.range(3).selectExpr("repeat('x', 5000000) AS value"), logbus, topic=topic)
    assert read(spark, logbus, topic).agg({"value": "max"}).first() == (b"x" * 5_000_000,)


def frame_of(spark: SparkSession, columns: str) -> DataFrame:
    return spark.range(5).selectExpr(*columns.split(";"))


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("'v' AS value", {"topic": "no-such"}, "no topic no-such; it has:"),
        ("'v' AS value;'no-such' AS topic", {}, "no topic 'no-such'"),
        ("'v' AS value", {}, "set the option topic, or add a column topic"),
        ("'v' AS valu", {"topic": "plain"}, "needs a column value"),
        ("id AS value", {"topic": "plain"}, "Column value has the type bigint"),
        ("'v' AS value;id AS key", {"topic": "plain"}, "Column key has the type bigint"),
        ("'v' AS value", {"topic": "t", "akcs": "none"}, "did you mean acks"),
        ("'v' AS value", {"topic": "t", "acks": "all"}, "Option acks: expected one of"),
        ("'v' AS value;cast(null as string) AS topic", {}, "Column topic is null in"),
    ],
)
@pytest.mark.long
def test_mistakes_of_a_write_are_named(
    spark: SparkSession, logbus: Logbus, columns: str, options: dict[str, str], said: str
) -> None:
    if options.get("topic") == "plain":  # of its schema it depends which columns it takes
        options = {**options, "topic": logbus.topic()}
    with pytest.raises(PySparkException, match=said):
        write(frame_of(spark, columns), logbus, **options)


def test_rows_for_a_partition_that_is_not_there(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic(partitions=2)
    with pytest.raises(PySparkException, match="has the partitions 0 to 1, not 7"):
        write(frame_of(spark, "'v' AS value;7 AS partition"), logbus, topic=topic)


def test_a_log_is_not_overwritten(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic()
    frame = frame_of(spark, "'v' AS value")
    writer = frame.write.format("logbus").options(zookeeper=logbus.zookeeper, topic=topic)
    with pytest.raises(PySparkException, match="appended to and never overwritten"):
        writer.mode("overwrite").save()
    assert sum(logbus.ends(topic).values()) == 0


@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_save_modes_that_python_sinks_do_not_have(
    spark: SparkSession, logbus: Logbus, mode: str
) -> None:
    topic = logbus.topic()
    frame = frame_of(spark, "'v' AS value")
    writer = frame.write.format("logbus").options(zookeeper=logbus.zookeeper, topic=topic)
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writer.mode(mode).save()


@pytest.mark.long
def test_stream_from_topic_to_topic(
    spark: SparkSession, logbus: Logbus, streams: Streams, tmp_path: Path
) -> None:
    source, target = logbus.topic(partitions=2), logbus.topic(partitions=2)

    def run() -> None:
        frame = streams.source(
            subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="40"
        )
        doubled = frame.withColumn("value", f.concat("value", "value"))
        query = (
            doubled.writeStream.format("logbus")
            .options(zookeeper=logbus.zookeeper, topic=target)
            .option("checkpointLocation", str(tmp_path / "copy"))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)
        rows = [one["numInputRows"] for one in query.recentProgress]
        assert sum(rows) == sum(one["sink"]["numOutputRows"] for one in query.recentProgress)

    logbus.produce(source, [str(n) for n in range(100)], partition=1)
    run()
    assert logbus.ends(target) == {TopicPartition(target, 0): 0, TopicPartition(target, 1): 100}
    logbus.produce(source, ["x"], partition=0)
    run()
    got = sorted(row.value.decode() for row in read(spark, logbus, target).collect())
    assert got == sorted([*(str(n) * 2 for n in range(100)), "xx"])


@pytest.mark.long
def test_a_stream_into_an_unknown_topic(logbus: Logbus, streams: Streams, tmp_path: Path) -> None:
    source = logbus.topic()
    logbus.produce(source, ["v"])
    writer = (
        streams.source(subscribe=source, startingOffsets="earliest")
        .writeStream.format("logbus")
        .options(zookeeper=logbus.zookeeper, topic="no-such")
        .option("checkpointLocation", str(tmp_path / "copy"))
        .trigger(availableNow=True)
    )
    with pytest.raises(PySparkException, match="no topic no-such"):
        finish(writer.start())
