"""Warehouse loads of topics with a schema."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_logbus.client import Producer
from spark_logbus.errors import ConfigError
from spark_logbus.load import LoadConfig, run_load
from tests.builders.typed import FLIGHT, flights
from tests.integration.spark.test_typed import dicts, publish, topic_of
from tests.servers.cluster import Logbus

WITH_GATE = json.loads(FLIGHT)
WITH_GATE["fields"].append({"name": "gate", "type": ["null", "string"], "default": None})


@pytest.mark.parametrize("encoding", ["columns", pytest.param("avro", marks=pytest.mark.long)])
def test_fields_are_columns_and_versions_add_some(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, encoding: str
) -> None:
    topic = topic_of(logbus, encoding)
    config = LoadConfig(topic, str(tmp_path), logbus.zookeeper)
    publish(logbus, topic, flights(0, 30))
    first = run_load(spark, config).commit
    assert first is not None
    assert first.records == 30
    logbus.register(f"{topic}-value", json.dumps(WITH_GATE))
    publish(logbus, topic, [{**flights(30, 1)[0], "gate": "B7"}])
    second = run_load(spark, config).commit
    assert second is not None
    assert second.records == 1
    frame = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / topic))
    rows = dicts(frame.drop("date", "timestamp"), "offset")
    assert [row["gate"] for row in rows] == [None] * 30 + ["B7"]
    names = ("carrier", "number", "delay", "tail")
    assert [{name: row[name] for name in names} for row in rows] == flights(0, 31)
    assert {row["partition"] for row in rows} == {0}
    assert "value" not in frame.columns


def test_what_is_for_other_topics_or_taken_is_refused(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    topic = topic_of(logbus, "columns")
    publish(logbus, topic, flights(0, 1))
    config = LoadConfig(topic, str(tmp_path), logbus.zookeeper, json_schema="carrier string")
    with pytest.raises(ConfigError, match="for values of topics without a schema"):
        run_load(spark, config)
    fields = [{"name": name, "type": "long"} for name in ("offset", "value_offset")]
    clash = json.dumps({"type": "record", "name": "R", "fields": fields})
    other = topic_of(logbus, "columns", schema=clash)
    with Producer(logbus.cluster) as producer:
        producer.send_arrow(other, pa.table({"offset": [1], "value_offset": [2]}))
    with pytest.raises(ConfigError, match="the fields offset and value_offset"):
        run_load(spark, LoadConfig(other, str(tmp_path), logbus.zookeeper))
