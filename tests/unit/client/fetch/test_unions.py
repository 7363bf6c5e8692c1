"""Unions of a topic's values, from a producer's columns or datums to a reader's."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.client.fetch.batches import received_run
from spark_logbus.client.fetch.columns import take_columns
from spark_logbus.client.fetch.values import ValueReader
from spark_logbus.client.producer.values import ValueWriter
from spark_logbus.client.schemas.topic import ValueSchemas, WriterSchema
from spark_logbus.model import Compression, TopicPartition
from spark_logbus.record import stamp
from spark_logbus.topic_schemas import Encoding
from tests.builders.avro_types import (
    ALL_PAIRS,
    all_unions,
    rows_of_all_unions,
)

TP = TopicPartition("t", 0)
SCHEMA_ID = 7
LONG = pytest.mark.long


def read_under(reader: Any, writer: Any, values: pa.Array, encoding: Encoding) -> pa.Array:
    """``values`` through a record batch, as consumers and Spark take them."""
    source = ValueWriter(WriterSchema(encoding, SCHEMA_ID, json.dumps(writer)))
    records = source.records(pa.RecordBatch.from_pydict({"value": values}), now_us=0)
    data = bytearray(source.encode(records, Compression.NONE))
    stamp(data, base_offset=0, leader_epoch=1, append_time_us=1)
    run = received_run(TP, memoryview(bytes(data)), position=0)
    assert run is not None
    schemas = ValueSchemas("t", encoding, json.dumps(reader), {SCHEMA_ID: json.dumps(writer)})
    _, taken = take_columns(
        TP, run, ("value",), start=0, end=len(values), enough_rows=100, enough_bytes=1 << 30,
        values=ValueReader(schemas),
    )  # fmt: skip
    assert taken is not None
    found: pa.Array = dict(taken.columns)["value"]
    return found


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize(
    ("context", "nullable"),
    [
        ("a field", False),
        pytest.param("a field", True, marks=LONG),
        pytest.param("an array", False, marks=LONG),
        pytest.param("an array", True, marks=LONG),
        pytest.param("a map", False, marks=LONG),
        pytest.param("a map", True, marks=LONG),
        pytest.param("a record", False, marks=LONG),
        pytest.param("a record", True, marks=LONG),
    ],
)
def test_unions_that_did_not_change_keep_value_and_member(
    context: str, nullable: bool, encoding: Encoding
) -> None:
    writer, reader = (
        all_unions(context, nullable=nullable, newer=newer) for newer in (False, True)
    )
    written = rows_of_all_unions(context, nullable=nullable)
    read = read_under(reader, writer, written, encoding)
    assert read.field("count").to_pylist() == written.field("count").to_pylist()
    changed = [
        pair
        for number, pair in enumerate(ALL_PAIRS)
        if not read.field(f"f{number}").equals(written.field(f"f{number}"))
    ]
    assert changed == []
