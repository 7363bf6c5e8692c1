"""Unions of a topic whose schema gets another version: consumers, Spark and a warehouse."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from avro_columns.values.rows import rows_of
from spark_logbus.client import Consumer, ConsumerConfig, Producer
from spark_logbus.load import LoadConfig, run_load
from spark_logbus.model import Earliest
from tests.builders.avro_types import ALL_PAIRS, all_unions, rows_of_all_unions
from tests.integration.spark.test_typed import read
from tests.servers.cluster import Logbus

pytestmark = pytest.mark.long

TIMES = {"time-millis", "time-micros"}  # of which Spark writes no files

#: What was seen to change, and some of all others.
SAMPLE = [
    ("double", "long"),
    ("timestamp-micros", "date"),
    ("bytes", "string"),
    ("string", "bytes"),
    ("uuid of a string", "decimal of bytes"),
    *[pair for pair in ALL_PAIRS if not TIMES & {*pair}][::43],
]
FIELDS = [f"f{number}" for number in range(len(SAMPLE))]
ROWS = 5


@pytest.mark.parametrize(("encoding", "context"), [("columns", "a field"), ("avro", "a map")])
def test_a_newer_version_changes_no_value_of_a_union(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, encoding: str, context: str
) -> None:
    older, newer = (
        all_unions(context, nullable=True, newer=newer, of=SAMPLE) for newer in (False, True)
    )
    values = rows_of_all_unions(context, nullable=True, of=SAMPLE)
    topic = logbus.topic_name()
    logbus.admin.create_topic(
        topic, partitions=1, value_schema=json.dumps(older), value_encoding=encoding
    )
    with Producer(logbus.cluster) as producer:
        for future in producer.send_arrow(topic, pa.table({"value": values})):
            future.result()
    before = unions(read(spark, logbus, topic, flatten="true"))
    logbus.register(f"{topic}-value", json.dumps(newer))

    with Consumer(logbus.cluster, config=ConsumerConfig(start=Earliest())) as consumer:
        consumer.assign_topics(topic)
        consumed = [record.value for record in itertools.islice(consumer, ROWS)]
    assert [record.pop("more") for record in consumed] == [""] * ROWS
    assert repr(consumed) == repr(rows_of(values, older))

    frame = read(spark, logbus, topic, flatten="true")
    assert "more" in frame.columns
    assert unions(frame) == before
    run_load(spark, LoadConfig(topic, str(tmp_path), logbus.zookeeper))
    loaded = spark.read.parquet(str(tmp_path / topic))
    assert "more" in loaded.columns
    assert unions(loaded) == before


def unions(frame: DataFrame) -> str:
    rows = frame.select("offset", *FIELDS).orderBy("offset").collect()
    assert len(rows) == ROWS
    return "\n".join(map(repr, rows))
