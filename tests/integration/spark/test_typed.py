"""Topics with a schema as typed columns in Spark."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from avro_columns.encode.encoder import Encoder
from spark_logbus.client import Producer, ProducerConfig
from spark_logbus.model import Compression, TopicPartition
from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from spark_logbus.zookeeper import Session
from tests.builders.typed import FLIGHT, flights
from tests.helpers import wait_until
from tests.servers.cluster import Logbus
from tests.servers.spark import finish

NEWER = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "carrier", "type": "string"},
            {"name": "number", "type": "long"},
            {"name": "delay", "type": ["null", "double"], "default": None},
            {"name": "gate", "type": "string", "default": "?"},
        ],
    }
)


def topic_of(logbus: Logbus, encoding: str, *, schema: str = FLIGHT, partitions: int = 1) -> str:
    name = logbus.topic_name()
    logbus.admin.create_topic(
        name, partitions=partitions, value_schema=schema, value_encoding=encoding
    )
    return name


def publish(logbus: Logbus, topic: str, rows: list[Any], **config: Any) -> None:
    publish_table(logbus, topic, pa.Table.from_pylist(rows), **config)


def publish_table(logbus: Logbus, topic: str, table: pa.Table, **config: Any) -> None:
    with Producer(logbus.cluster, ProducerConfig(**config)) as producer:
        for future in producer.send_arrow(topic, table):
            future.result()


def read(spark: SparkSession, logbus: Logbus, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("logbus").option("zookeeper", logbus.zookeeper)
    return reader.options(**options).load(topic)


def dicts(frame: DataFrame, order: str) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.orderBy(order).collect()]


@pytest.fixture(params=["columns", "avro"])
def encoding(request: pytest.FixtureRequest) -> str:
    encoding: str = request.param
    return encoding


def test_values_are_a_struct_of_the_fields(
    spark: SparkSession, logbus: Logbus, encoding: str
) -> None:
    topic = topic_of(logbus, encoding)
    publish(logbus, topic, flights(0, 3_000), compression=Compression.ZSTD)
    frame = read(spark, logbus, topic)
    assert frame.schema["value"].dataType.simpleString() == (
        "struct<carrier:string,number:int,delay:double,tail:string>"
    )
    rows = dicts(frame.select("offset", "value"), "offset")
    assert [row["value"] for row in rows] == flights(0, 3_000)


def test_fields_are_columns_and_few_of_them_are_read(
    spark: SparkSession, logbus: Logbus, encoding: str
) -> None:
    topic = topic_of(logbus, encoding)
    publish(logbus, topic, flights(0, 3_000))
    frame = read(spark, logbus, topic, flatten="true", columns="delay,carrier,offset")
    assert frame.columns == ["delay", "carrier", "offset"]
    expected = [
        {"delay": row["delay"], "carrier": row["carrier"], "offset": number}
        for number, row in enumerate(flights(0, 3_000))
    ]
    assert dicts(frame, "offset") == expected
    chosen = read(spark, logbus, topic, columns="tail,offset,number")
    assert chosen.schema.simpleString() == (
        "struct<value:struct<tail:string,number:int>,offset:bigint>"
    )
    named = (
        spark.read.format("logbus")
        .option("zookeeper", logbus.zookeeper)
        .schema("offset long, value struct<number int>")
        .load(topic)
    )
    assert [row["value"]["number"] for row in dicts(named, "offset")] == list(range(3_000))


def test_versions_are_read_under_the_latest_or_a_named_one(
    spark: SparkSession, logbus: Logbus, encoding: str
) -> None:
    topic = topic_of(logbus, encoding)
    publish(logbus, topic, flights(0, 5))
    logbus.register(f"{topic}-value", NEWER)
    publish(logbus, topic, [{"carrier": "XX", "number": 1 << 40, "delay": 1.0, "gate": "B"}])
    rows = dicts(read(spark, logbus, topic, flatten="true"), "offset")
    assert [row["gate"] for row in rows] == ["?"] * 5 + ["B"]
    assert rows[-1]["number"] == 1 << 40
    old = read(spark, logbus, topic, flatten="true", schemaVersion="1", endingOffsets=ends(topic))
    assert [row["tail"] for row in dicts(old, "offset")] == [f["tail"] for f in flights(0, 5)]


def ends(topic: str) -> str:
    return json.dumps({topic: {"0": 5}})


def test_tombstones_are_null(spark: SparkSession, logbus: Logbus, encoding: str) -> None:
    topic = topic_of(logbus, encoding)
    kind = pa.struct(list(pa.Table.from_pylist(flights(1, 1)).schema))
    value = pa.array([flights(0, 1)[0], None], kind)
    data = pa.table({"key": pa.array([b"a", b"b"]), "value": value})
    with Producer(logbus.cluster) as producer:
        producer.send_arrow(topic, data)
    rows = dicts(read(spark, logbus, topic).select("key", "value", "offset"), "offset")
    assert [(bytes(row["key"]), row["value"]) for row in rows] == [
        (b"a", flights(0, 1)[0]),
        (b"b", None),
    ]


def test_what_cannot_be_read_is_said(spark: SparkSession, logbus: Logbus) -> None:
    topic, plain = topic_of(logbus, "columns"), logbus.topic()
    for options, said in (
        ({"columns": "carier"}, "did you mean carrier"),
        ({"schemaVersion": "7"}, "7"),
    ):
        with pytest.raises(PySparkException, match=said):
            read(spark, logbus, topic, **options)
    with pytest.raises(PySparkException, match="The cluster has no topic nothing, whose schema"):
        read(spark, logbus, f"{topic},nothing", flatten="true")
    with pytest.raises(PySparkException, match="topics with a schema"):
        read(spark, logbus, plain, flatten="true")
    with pytest.raises(PySparkException, match="read them apart"):
        read(spark, logbus, f"{topic},{plain}")
    publish(logbus, topic, flights(0, 1))
    wrong = spark.read.format("logbus").option("zookeeper", logbus.zookeeper)
    with pytest.raises(PySparkException, match="value the type binary"):
        wrong.schema("value binary").load(topic).collect()


def test_fields_of_tombstones_are_null_columns(
    spark: SparkSession, logbus: Logbus, encoding: str
) -> None:
    topic = topic_of(logbus, encoding)
    kind = pa.struct(list(pa.Table.from_pylist(flights(1, 1)).schema))
    publish_table(logbus, topic, pa.table({"value": pa.array([flights(1, 1)[0], None], kind)}))
    frame = read(spark, logbus, topic, flatten="true")
    # Else Spark would leave the filter out, and fail at the null.
    assert frame.filter("carrier is null").count() == 1
    assert [row["carrier"] for row in dicts(frame, "offset")] == ["UA", None]


@pytest.mark.parametrize("prefetched", ["1m", "0"])
def test_undecodable_records_are_dropped_or_kept_with_their_offsets(
    spark: SparkSession, logbus: Logbus, group: str, tmp_path: Path, prefetched: str
) -> None:
    topic = topic_of(logbus, "avro")
    with Session(logbus.zookeeper, client_name="tests", expects_cluster=True) as session:
        schema_id = SchemaRegistry(session).version(f"{topic}-value").schema_id
    good = Encoder(FLIGHT).encode(pa.Table.from_pylist(flights(0, 1)))[0].as_py()
    values = [
        framed(schema_id, good),
        framed(1 << 30, good),
        framed(schema_id, good[:-1]),
        None,
        framed(schema_id, b""),
        framed(schema_id, good),
    ]
    with Producer(logbus.cluster) as producer:
        for value in values:
            producer.send(topic, value)
    for way, rows in (
        ("drop", [(0, 0), (3, None), (5, 0)]),
        ("keep", [(0, 0), (1, None), (2, None), (3, None), (4, None), (5, 0)]),
    ):
        frame = read(spark, logbus, topic, onUndecodable=way)
        assert [
            (row["offset"], row["value"] and row["value"]["number"])
            for row in dicts(frame, "offset")
        ] == rows
        assert frame.count() == len(rows)
        seen: list[Any] = []
        query = (
            spark.readStream.format("logbus")
            .option("zookeeper", logbus.zookeeper)
            .options(
                startingOffsets="earliest",
                onUndecodable=way,
                maxPrefetchBytes=prefetched,
                group=f"{group}-{way}",
            )
            .load(topic)
            .writeStream.foreachBatch(partial(collect, seen))
            .option("checkpointLocation", str(tmp_path / way))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)
        assert [row["offset"] for row in seen] == [offset for offset, _ in rows]
        assert logbus.committed(f"{group}-{way}") == {TopicPartition(topic, 0): len(values)}
    told = read(spark, logbus, topic, onUndecodable="keep", columns="undecodable,offset")
    assert [row["offset"] for row in told.collect() if row["undecodable"]] == [1, 2, 4]
    with pytest.raises(PySparkException, match="the first has offset 1: its schema id is"):
        read(spark, logbus, topic).collect()


def collect(seen: list[Any], frame: DataFrame, _: int) -> None:
    seen += frame.collect()


def framed(schema_id: int, datum: bytes) -> bytes:
    """Encodes in Confluent's wire format."""
    return bytes([0, *schema_id.to_bytes(4, "big")]) + datum


def test_a_stream_goes_on_under_the_schema_it_began_with(
    spark: SparkSession, logbus: Logbus, encoding: str, tmp_path: Any
) -> None:
    topic = topic_of(logbus, encoding)
    publish(logbus, topic, flights(0, 3))
    stream = (
        spark.readStream.format("logbus")
        .option("zookeeper", logbus.zookeeper)
        .option("startingOffsets", "earliest")
        .option("flatten", "true")
        .load(topic)
    )
    query = (
        stream.writeStream.format("memory")
        .queryName(f"typed_{encoding}")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )

    def seen() -> list[Any]:
        return spark.table(f"typed_{encoding}").orderBy("offset").collect()

    try:
        wait_until(lambda: len(seen()) == 3, deadline_s=60)
        logbus.register(f"{topic}-value", NEWER.replace('"long"', '"int"'))
        publish(logbus, topic, [{"carrier": "XX", "number": 9, "delay": None, "gate": "B"}])
        wait_until(lambda: len(seen()) == 4, deadline_s=60)
    finally:
        query.stop()
    assert [row["number"] for row in seen()] == [0, 1, 2, 9]
    assert seen()[-1]["tail"] is None


def test_a_schema_that_is_gone_is_told_on_the_driver_with_the_remedy(
    spark: SparkSession, logbus: Logbus, encoding: str
) -> None:
    topic = topic_of(logbus, encoding)
    publish(logbus, topic, flights(0, 3))
    logbus.register(f"{topic}-value", NEWER)
    publish(logbus, topic, [{"carrier": "XX", "number": 3, "delay": 1.0, "gate": "B"}])
    with Session(logbus.zookeeper, client_name="tests", expects_cluster=True) as session:
        for permanent in (False, True):
            SchemaAdministration(session).delete_version(f"{topic}-value", 1, permanent=permanent)
    with pytest.raises(PySparkException) as raised:
        read(spark, logbus, topic).collect()
    said = str(raised.value)
    assert "UndecodableRecordError" in said
    assert f"3 of the records {topic}-0[0, 3) do not decode" in said
    assert "register it with that id again, in the mode IMPORT of the subject" in said
    assert read(spark, logbus, topic, onUndecodable="drop").count() == 1
    kept = dicts(read(spark, logbus, topic, onUndecodable="keep"), "offset")
    assert [row["undecodable"] is None for row in kept] == [False] * 3 + [True]
    assert read(spark, logbus, topic, columns="offset").count() == 4
