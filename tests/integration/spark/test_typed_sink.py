"""DataFrames written to topics with a schema."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from avro_columns.values.rows import columns_of
from spark_logbus.client import Cluster, Consumer, Producer
from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.zookeeper import Session
from tests.builders.typed import UNIONS, flights, union_rows
from tests.helpers import wait_until
from tests.integration.spark.test_typed import dicts, read, topic_of
from tests.servers.cluster import Logbus

COLUMNS = "carrier string, number int, delay double, tail string"
EVERYTHING = {
    "type": "record",
    "name": "Everything",
    "fields": [
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "raw", "type": ["null", "bytes"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "place",
            "type": {
                "type": "record",
                "name": "Place",
                "fields": [{"name": "x", "type": "double"}, {"name": "y", "type": "float"}],
            },
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}


@pytest.fixture(params=["columns", "avro"])
def encoding(request: pytest.FixtureRequest) -> str:
    encoding: str = request.param
    return encoding


def write(frame: DataFrame, logbus: Logbus, topic: str, **options: str) -> None:
    writer = frame.write.format("logbus").option("zookeeper", logbus.zookeeper)
    writer.option("topic", topic).options(**options).mode("append").save()


def versions(logbus: Logbus, topic: str) -> list[int]:
    with Session(logbus.zookeeper, client_name="tests", expects_cluster=True) as session:
        return SchemaRegistry(session).versions(f"{topic}-value")


def test_columns_become_fields(spark: SparkSession, logbus: Logbus, encoding: str) -> None:
    topic = topic_of(logbus, encoding, partitions=2)
    write(spark.createDataFrame(flights(0, 2_000), COLUMNS), logbus, topic)
    assert dicts(read(spark, logbus, topic, columns="carrier,number,delay,tail", flatten="true"),
                 "number") == flights(0, 2_000)  # fmt: skip


def test_a_struct_comes_with_key_and_time(
    spark: SparkSession, logbus: Logbus, encoding: str
) -> None:
    topic = topic_of(logbus, encoding)
    at = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    row = flights(3, 1)[0]
    frame = spark.createDataFrame(
        [(b"k", at, tuple(row.values())), (b"gone", at, None)],
        f"key binary, timestamp timestamp, value struct<{COLUMNS}>",
    )
    write(frame, logbus, topic)
    seen = dicts(read(spark, logbus, topic).select("key", "timestamp", "value", "offset"), "offset")
    assert [bytes(each["key"]) for each in seen] == [b"k", b"gone"]
    assert [each["value"] for each in seen] == [row, None]
    assert seen[0]["timestamp"].astimezone(dt.UTC) == at


@pytest.mark.parametrize("flatten", ["true", "false"])
def test_unions_are_read_and_written_on(
    spark: SparkSession, logbus: Logbus, encoding: str, flatten: str
) -> None:
    source, target = (topic_of(logbus, encoding, schema=UNIONS) for _ in range(2))
    with Cluster.from_zookeeper(logbus.zookeeper) as cluster:
        with Producer(cluster) as producer:
            producer.send_many(source, union_rows())
        write(read(spark, logbus, source, flatten=flatten), logbus, target)
        with Consumer(cluster) as consumer:
            consumer.assign_topics(source)
            expected = consumer.to_arrow().column("value")
            consumer.assign_topics(target)
            written = consumer.to_arrow().column("value")
    assert written.equals(expected)
    assert written.to_pylist() == columns_of(union_rows(), UNIONS).to_pylist()


def test_two_members_of_a_union_are_refused_with_their_row(
    spark: SparkSession, logbus: Logbus, encoding: str
) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "u", "type": ["int", "string"]}]}
    topic = topic_of(logbus, encoding, schema=json.dumps(schema))
    frame = spark.createDataFrame([((1, "a"),)], "u struct<member0:int,member1:string>")
    with pytest.raises(PySparkException, match="u has member0 and member1 set in row 0"):
        write(frame, logbus, topic)
    other = spark.createDataFrame([((1, 2),)], "u struct<member0:int,member1:int>")
    with pytest.raises(PySparkException, match=r"u\.member1 is int32, which does not become"):
        write(other, logbus, topic)


def test_all_types_come_back(spark: SparkSession, logbus: Logbus, encoding: str) -> None:
    topic = topic_of(logbus, encoding, schema=json.dumps(EVERYTHING))
    row: dict[str, Any] = {
        "day": dt.date(1969, 7, 20),
        "at": dt.datetime.fromisoformat("1969-07-20T20:17:40.000005"),
        "local": dt.datetime.fromisoformat("2001-01-01T01:01:01.000001"),
        "price": Decimal("-12.34"),
        "raw": None,
        "tags": ["a", ""],
        "counts": {"x": 1 << 40},
        "place": {"x": 0.5, "y": 0.25},
        "kind": "B",
    }
    kinds = (
        "day date, at timestamp, local timestamp_ntz, price decimal(9,2), raw binary,"
        "tags array<string>, counts map<string,bigint>, place struct<x:double,y:float>, kind string"
    )
    frame = spark.createDataFrame([row], kinds)
    write(frame, logbus, topic)
    again = read(spark, logbus, topic, flatten="true", columns=",".join(row))
    assert again.schema.simpleString() == frame.schema.simpleString()
    assert dicts(again, "kind") == dicts(frame, "kind")
    write(again, logbus, topic)  # what was read can be written
    assert read(spark, logbus, topic).count() == 2


def test_what_does_not_fit_is_refused_before_a_task_runs(
    spark: SparkSession, logbus: Logbus
) -> None:
    topic = topic_of(logbus, "columns")
    for columns, said in (
        ("carrier string, number string, delay double, tail string", "number"),
        ("carrier string, delay double, tail string", "number is missing"),
        (COLUMNS + ", gate string", "gate.*evolve"),
        ("value binary", "value"),
        ("key int, " + COLUMNS, "key has the type int"),
    ):
        frame = spark.createDataFrame([], columns)
        with pytest.raises(PySparkException, match=said):
            write(frame, logbus, topic)
    with pytest.raises(PySparkException, match="for a topic with a schema"):
        write(spark.createDataFrame([("a",)], "value string"), logbus, logbus.topic(),
              evolve="true")  # fmt: skip
    wrong = spark.createDataFrame([], "carrier string, number string, gate string")
    with pytest.raises(PySparkException, match="number"):
        write(wrong, logbus, topic, evolve="true")
    assert versions(logbus, topic) == [1]


def test_a_null_where_none_may_be_fails_and_nothing_is_written(
    spark: SparkSession, logbus: Logbus
) -> None:
    topic = topic_of(logbus, "columns")
    frame = spark.createDataFrame([(None, 1, 2.0, "x")], COLUMNS)
    with pytest.raises(PySparkException, match="carrier has 1 nulls"):
        write(frame, logbus, topic)
    assert read(spark, logbus, topic).count() == 0


def test_new_columns_become_a_new_version_when_asked_for(
    spark: SparkSession, logbus: Logbus, encoding: str
) -> None:
    topic = topic_of(logbus, encoding)
    write(spark.createDataFrame(flights(0, 2), COLUMNS), logbus, topic)
    row = {**flights(2, 1)[0], "gate": "B7", "stops": [{"at": "ORD"}]}
    wider = spark.createDataFrame([row], COLUMNS + ", gate string, stops array<struct<at:string>>")
    write(wider, logbus, topic, evolve="true")
    write(wider, logbus, topic, evolve="true")
    assert versions(logbus, topic) == [1, 2]
    seen = dicts(read(spark, logbus, topic).select("offset", "value"), "offset")
    assert [each["value"]["gate"] for each in seen] == [None, None, "B7", "B7"]
    assert seen[-1]["value"]["stops"] == [{"at": "ORD"}]


def test_a_stream_writes_exactly_once(
    spark: SparkSession, logbus: Logbus, encoding: str, tmp_path: Path
) -> None:
    source, target = topic_of(logbus, encoding), topic_of(logbus, encoding)
    write(spark.createDataFrame(flights(0, 50), COLUMNS), logbus, source)
    stream = (
        spark.readStream.format("logbus")
        .option("zookeeper", logbus.zookeeper)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "20")
        .load(source)
    )
    query = (
        stream.select("value")
        .writeStream.format("logbus")
        .option("zookeeper", logbus.zookeeper)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        wait_until(lambda: read(spark, logbus, target).count() == 50, deadline_s=90)
    finally:
        query.stop()
    seen = dicts(read(spark, logbus, target).select("offset", "value"), "offset")
    assert [each["value"] for each in seen] == flights(0, 50)
