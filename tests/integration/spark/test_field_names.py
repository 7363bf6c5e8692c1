"""Topics whose values have fields named as columns of a record: flattened, written, loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_logbus.client import Producer
from spark_logbus.errors import ConfigError
from spark_logbus.load import LoadConfig, run_load
from tests.integration.load.loaded_table import LoadedTable
from tests.integration.spark.test_typed import publish, read, topic_of
from tests.servers.cluster import Logbus

NAMES = ["timestamp", "key", "Offset", "partition", "headers", "topic", "timestampType", "value"]
SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        *({"name": name, "type": "string"} for name in NAMES),
        {"name": "undecodable", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
ROW = {name: f"the field {name}" for name in NAMES}


def readings(logbus: Logbus, encoding: str) -> str:
    topic = topic_of(logbus, encoding, schema=json.dumps(SCHEMA))
    rows = pa.table({name: [text] for name, text in ROW.items()} | {
        "undecodable": pa.array([7], pa.timestamp("us", "UTC"))
    })  # fmt: skip
    with Producer(logbus.cluster) as producer:
        for future in producer.send_arrow(topic, pa.table({"value": rows.to_struct_array()})):
            future.result()
    return topic


def only(frame: DataFrame) -> dict[str, Any]:
    [row] = frame.collect()
    return row.asDict()


@pytest.mark.parametrize("encoding", ["columns", pytest.param("avro", marks=pytest.mark.long)])
def test_fields_named_as_columns_of_a_record_are_flattened_and_written(
    spark: SparkSession, logbus: Logbus, encoding: str
) -> None:
    topic = readings(logbus, encoding)
    frame = read(spark, logbus, topic, flatten="true")
    row = only(frame)
    for name, text in ROW.items():
        assert row[name if name == "value" else f"value_{name}"] == text
    assert (row["offset"], row["partition"], row["topic"]) == (0, 0, topic)
    [in_other_case] = frame.select("value_offset", "OFFSET").collect()
    assert tuple(in_other_case) == ("the field Offset", 0)
    some = read(spark, logbus, topic, flatten="true", columns="value_timestamp,timestamp")
    assert only(some)["value_timestamp"] == "the field timestamp"
    copy = topic_of(logbus, encoding, schema=json.dumps(SCHEMA))
    options = {"zookeeper": logbus.zookeeper, "topic": copy}
    frame.write.format("logbus").options(**options).mode("append").save()
    copied = read(spark, logbus, copy)
    assert only(copied.select("value")) == only(read(spark, logbus, topic).select("value"))
    assert only(copied.select("timestamp")) == only(frame.select("timestamp"))


def test_fields_named_as_columns_of_a_record_are_loaded(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    topic = readings(logbus, "columns")
    run_load(spark, LoadConfig(topic, str(tmp_path), logbus.zookeeper, dead_letters=True))
    row = only(spark.read.parquet(str(tmp_path / topic)))
    own = ("value", "topic", "timestampType")  # of which a load adds none
    for name, text in ROW.items():
        assert row[name if name in own else f"value_{name}"] == text
    assert (row["offset"], row["partition"]) == (0, 0)
    assert row["value_undecodable"].timestamp() == 7e-6


@pytest.mark.long
def test_fields_named_as_columns_of_a_record_are_loaded_into_a_table(
    loaded_table: LoadedTable,
) -> None:
    loaded_table.topic = readings(loaded_table.logbus, "columns")
    assert loaded_table.load().to_json()["records"] == 1
    found = loaded_table.query('SELECT "offset", "value_Offset", "value_timestamp", topic FROM {}')
    assert found == [("0", "the field Offset", "the field timestamp", "the field topic")]


def test_json_fields_named_as_columns_of_a_record_are_loaded(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, ['{"timestamp": "then", "malformed_value": 1, "_event_time": 2}', "{"])
    config = LoadConfig(
        topic, str(tmp_path), logbus.zookeeper,
        json_schema="timestamp string, malformed_value int, _event_time int, `a.b c` int",
    )  # fmt: skip
    run_load(spark, config)
    frame = spark.read.parquet(str(tmp_path / topic)).orderBy("offset")
    first, second = (row.asDict() for row in frame.collect())
    assert first["value_timestamp"] == "then"
    assert (first["value_malformed_value"], first["value__event_time"]) == (1, 2)
    assert (first["malformed_value"], second["malformed_value"]) == (None, b"{")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (("ID", "id"), "has the fields ID and id, which differ only in case"),
        (("key", "value_KEY"), "has the fields key and value_KEY. The first would be the column"),
    ],
)
def test_fields_that_would_be_one_column_of_a_warehouse_are_refused(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, fields: tuple[str, str], said: str
) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": "int"} for name in fields],
    }
    topic = topic_of(logbus, "columns", schema=json.dumps(schema))
    publish(logbus, topic, [dict.fromkeys(fields, 1)])
    with pytest.raises(ConfigError, match=said):
        run_load(spark, LoadConfig(topic, str(tmp_path), logbus.zookeeper))
    assert not (tmp_path / topic).exists()
