"""``spark.read.format("logbus")`` against real brokers."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_logbus.client import Producer
from spark_logbus.model import TopicPartition
from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP, encode
from tests.helpers import wait_until
from tests.servers.cluster import Logbus


def read(spark: SparkSession, logbus: Logbus, **options: str) -> DataFrame:
    return (
        spark.read.format("logbus").option("zookeeper", logbus.zookeeper).options(**options).load()
    )


def values(frame: DataFrame) -> list[str]:
    return sorted(row["value"].decode() for row in frame.select("value").collect())


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{number:05d}" for number in range(start, start + count)]


def test_all_columns_as_the_kafka_source_has_them(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, ["a"], key="k", timestamp_us=1_700_000_000_123_456)
    logbus.produce(topic, [None], partition=1, headers=[("h", b"1"), ("h", None)])
    frame = read(spark, logbus, subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second = (row.asDict(recursive=True) for row in frame.orderBy("partition").collect())
    # Python shows timestamps in its own timezone, whatever the session's.
    moment = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC).replace(microsecond=123_456)
    assert first.pop("timestamp").astimezone(dt.UTC) == moment
    assert first == {
        "key": b"k", "value": b"a", "topic": topic, "partition": 0, "offset": 0,
        "timestampType": 0, "headers": None,
    }  # fmt: skip
    assert (second["key"], second["value"], second["partition"]) == (None, None, 1)
    assert second["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def test_headers_without_names_reach_spark(spark: SparkSession, logbus: Logbus) -> None:
    """Reads them as they are, whoever has stored them: producers refuse them."""
    topic = logbus.topic()
    rows = [[None], [{"key": None, "value": b"x"}], None]
    stored = pa.record_batch(
        {
            "timestamp": pa.array([1, 2, 3], pa.int64()).cast(TIMESTAMP),
            "value": pa.array([b"a", b"b", b"c"], pa.binary()),
            "headers": pa.array(rows, HEADERS),
        }
    )
    with Producer(logbus.cluster) as producer:
        producer.append_encoded(topic, encode(stored), partition=0)
    frame = read(spark, logbus, subscribe=topic, includeHeaders="true").orderBy("offset")
    assert [row.asDict(recursive=True)["headers"] for row in frame.collect()] == rows


def test_a_schema_chooses_columns(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(3))
    reader = spark.read.format("logbus").option("zookeeper", logbus.zookeeper)
    frame = reader.schema("offset long, value binary").load(topic)
    assert frame.columns == ["offset", "value"]
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [
        (0, b"00000"),
        (1, b"00001"),
        (2, b"00002"),
    ]


def test_selections(spark: SparkSession, logbus: Logbus) -> None:
    one = logbus.topic(partitions=2, name="pick-one")
    two = logbus.topic(name="pick-two")
    logbus.produce(one, ["one-0"])
    logbus.produce(one, ["one-1"], partition=1)
    logbus.produce(two, ["two-0"])
    assert values(read(spark, logbus, subscribe=f"{one}, {two}")) == ["one-0", "one-1", "two-0"]
    assert values(read(spark, logbus, subscribePattern="pick-.*")) == ["one-0", "one-1", "two-0"]
    assert values(read(spark, logbus, subscribePattern="pick")) == []
    assert values(read(spark, logbus, assign=json.dumps({one: [1]}))) == ["one-1"]


def test_offsets_and_their_mixtures(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(10))
    logbus.produce(topic, numbered(10, 100), partition=1)
    frame = read(
        spark,
        logbus,
        subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": 7, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "1": 2}}),
    )
    assert values(frame) == ["00007", "00008", "00009", "00100", "00101"]


def test_a_frame_keeps_the_records_it_was_planned_with(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic()
    frame = read(spark, logbus, subscribe=topic)
    assert frame.count() == 0  # no input partition at all
    logbus.produce(topic, numbered(5))
    frame = read(spark, logbus, subscribe=topic)
    assert frame.count() == 5
    logbus.produce(topic, numbered(5))
    assert frame.count() == 5
    assert frame.union(frame).count() == 10
    assert frame.filter("offset > 2").count() == 2
    assert frame.count() == 5
    assert read(spark, logbus, subscribe=topic).count() == 10


def test_min_partitions_above_the_partition_count(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(50))
    logbus.produce(topic, numbered(50, 100), partition=1)
    frame = read(spark, logbus, subscribe=topic, minPartitions="7")
    assert frame.rdd.getNumPartitions() >= 7
    assert values(frame) == numbered(50) + numbered(50, 100)


@pytest.mark.long
def test_a_large_range_is_cut(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic()
    for start in range(0, 500, 50):
        logbus.produce(topic, [value * 200 for value in numbered(50, start)])
    frame = read(spark, logbus, subscribe=topic, maxBytesPerInputPartition="100k")
    assert frame.rdd.getNumPartitions() >= 4
    assert frame.selectExpr("count(*)", "count(distinct offset)").first() == (500, 500)


def test_start_at_a_groups_committed_offsets(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(5))
    logbus.produce(topic, numbered(5, 100), partition=1)
    logbus.rewind("batch-group", {TopicPartition(topic, 0): 3})
    frame = read(spark, logbus, subscribe=topic, group="batch-group", startingOffsets="committed")
    assert values(frame) == ["00003", "00004", *numbered(5, 100)]
    assert logbus.committed("batch-group") == {TopicPartition(topic, 0): 3}


def test_sql_view(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(4))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING logbus "
        f"OPTIONS (zookeeper '{logbus.zookeeper}', subscribe '{topic}')"
    )
    assert spark.sql("SELECT max(offset) FROM v").first() == (3,)


@pytest.mark.long
def test_retention_that_was_faster(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic(segment_bytes="2048")
    topic_partition = TopicPartition(topic, 0)
    for first in range(0, 100, 10):
        logbus.produce(topic, [value * 50 for value in numbered(10, first)])
    strict = read(spark, logbus, subscribe=topic)
    calm = read(spark, logbus, subscribe=topic, failOnDataLoss="false")
    assert (strict.count(), calm.count()) == (100, 100)
    logbus.admin.alter_topic(topic, put={"retention.bytes": "4096"})
    start, end = 80, 100  # what fits: two segments, each of ten records
    wait_until(
        lambda: logbus.spans(topic)[topic_partition] == (start, end),
        deadline_s=90,
        message="retention",
    )
    left = [value * 50 for value in numbered(20, start)]
    lost = (
        rf"Records may have been lost: {topic_partition}: offset 0 was to be read.*log now "
        rf"starts at {start}"
    )
    # Planned while the records were there: the tasks find that they are gone.
    with pytest.raises(PySparkException, match=lost):
        strict.count()
    assert values(calm) == left
    # Asked for by offset when they are gone already: so does the plan.
    planned = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 0}})}
    with pytest.raises(PySparkException, match=lost):
        read(spark, logbus, **planned).count()
    assert values(read(spark, logbus, **planned, failOnDataLoss="false")) == left


def test_a_schema_that_does_not_fit(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic()
    reader = spark.read.format("logbus").option("zookeeper", logbus.zookeeper)
    with pytest.raises(PySparkException, match="column value the type string"):
        reader.schema("value string").load(topic).count()


def test_an_unknown_partition(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic()
    with pytest.raises(PySparkException, match=f"no partition {topic}-5"):
        read(spark, logbus, assign=json.dumps({topic: [5]})).count()


@pytest.mark.long
def test_a_topic_that_goes_between_plan_and_read(spark: SparkSession, logbus: Logbus) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(3))
    strict = read(spark, logbus, subscribe=topic)
    calm = read(spark, logbus, subscribe=topic, failOnDataLoss="false")
    assert (strict.count(), calm.count()) == (3, 3)
    logbus.admin.delete_topic(topic)
    with pytest.raises(PySparkException, match=f"topic {topic} was deleted"):
        strict.count()
    assert calm.count() == 0
