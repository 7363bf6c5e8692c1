"""Columns that are written, and those that are refused because nobody would read them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from avro_columns.values.rows import columns_of
from spark_logbus.errors import InvalidRequestError, RecordBatchTooLargeError
from spark_logbus.model import Compression
from spark_logbus.record import verify
from spark_logbus.record.columns.decoder import decode_columns
from spark_logbus.record.columns.encoder import encode_columns
from spark_logbus.record.rows.arrow import TIMESTAMP

A = pa.struct([pa.field("a", pa.int32(), nullable=False)])
VALUES = pa.array([{"a": 1}, {"a": 2}], A)


def times(count: int) -> pa.Array:
    return pa.array(range(count), TIMESTAMP)


def encoded(value: pa.Array, schema_id: int = 7, **others: pa.Array) -> memoryview:
    columns = {"timestamp": times(len(value)), "value": value, **others}
    return encode_columns(pa.record_batch(columns), schema_id=schema_id)


def round_trip(value: pa.Array) -> pa.Array:
    record_batch = encoded(value)
    return decode_columns(verify(record_batch), record_batch, value.type)["value"]


@pytest.mark.parametrize(
    "columns",
    [
        {"timestamp": times(2)},
        {"value": VALUES},
        {"timestamp": times(2), "value": VALUES, "other": times(2)},
        {"timestamp": times(2), "value": VALUES, "tombstone": pa.array([True, False])},
        {"timestamp": pa.array([1, 2]), "value": VALUES},
        {"timestamp": times(2), "value": VALUES, "key": pa.array(["a", "b"])},
        {"timestamp": times(2), "value": VALUES, "offset_delta": pa.array([0, 1])},
    ],
)
def test_other_columns_are_refused(columns: dict[str, pa.Array]) -> None:
    with pytest.raises(InvalidRequestError, match="is made of the columns timestamp, value"):
        encode_columns(pa.record_batch(columns), schema_id=7)


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays(
        [times(2), VALUES, VALUES], names=["timestamp", "value", "value"]
    )
    with pytest.raises(InvalidRequestError, match="is made of the columns"):
        encode_columns(twice, schema_id=7)


@pytest.mark.parametrize("schema_id", [0, -1, 1 << 32])
def test_columns_need_the_id_of_their_schema(schema_id: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"from 1 to 4294967295; got {schema_id}"):
        encoded(VALUES, schema_id)


def test_no_records_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at least one record"):
        encoded(VALUES.slice(0, 0))


def test_a_record_without_a_timestamp_is_refused() -> None:
    columns = {"timestamp": pa.array([1, None], TIMESTAMP), "value": VALUES}
    with pytest.raises(InvalidRequestError, match="1 have none"):
        encode_columns(pa.record_batch(columns), schema_id=7)


def as_type(value: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns the same bytes under another type, unchecked."""
    return pa.Array.from_buffers(kind, len(value), value.buffers())


STRICT = pa.field("x", pa.int32(), nullable=False)


@pytest.mark.parametrize(
    ("field", "array", "why"),
    [
        (STRICT, pa.array([1, None], pa.int32()), "the field x is null"),
        (
            pa.field("s", pa.struct([STRICT])),
            pa.StructArray.from_arrays([pa.array([1, None], pa.int32())], fields=[STRICT]),
            "the field s.x is null",
        ),
        (
            pa.field("t", pa.time64("us")),
            as_type(pa.array([0, 86_400_000_000]), pa.time64("us")),
            "not within the acceptable range",
        ),
        (
            pa.field("u", pa.string()),
            as_type(pa.array([b"a", b"\xff"], pa.binary()), pa.string()),
            "UTF8",
        ),
    ],
)
def test_values_that_readers_would_refuse(field: pa.Field, array: pa.Array, why: str) -> None:
    value = pa.StructArray.from_arrays([array], fields=[field])
    with pytest.raises(InvalidRequestError, match=f"The column {field.name} holds .*{why}"):
        encoded(value)


def test_a_time_of_day_that_avro_can_write_and_no_column_holds() -> None:
    time = {"type": "long", "logicalType": "time-micros"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "at", "type": time}]}
    with pytest.raises(InvalidRequestError, match="The column at holds"):
        encoded(columns_of([{"at": 10**15}], json.dumps(schema)))


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_more_than_readers_decode_is_refused(compression: Compression) -> None:
    value = pa.array([{"a": bytes(1 << 20)}], pa.struct([pa.field("a", pa.binary())]))
    many = pa.concat_arrays([value] * 300)
    columns = {"timestamp": times(300), "value": many}
    with pytest.raises(RecordBatchTooLargeError, match="takes uncompressed"):
        encode_columns(pa.record_batch(columns), schema_id=7, compression=compression)


def test_more_columns_than_the_format_has_are_refused() -> None:
    fields = [pa.field(f"f{i}", pa.null()) for i in range(1 << 14)]
    value = pa.nulls(1, pa.struct(fields))
    with pytest.raises(InvalidRequestError, match="at most 16384 of them, got 16386"):
        encoded(value)


def test_a_schema_whose_metadata_is_beyond_the_limit_is_refused() -> None:
    deep = pa.struct([pa.field(f"x{i}", pa.int32()) for i in range(1_000)])
    value = pa.nulls(1, pa.struct([pa.field(f"f{i}", deep) for i in range(100)]))
    with pytest.raises(RecordBatchTooLargeError, match="use a schema with fewer fields"):
        encoded(value)


EDGES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.struct([]), [{}, None, {}]),
    (pa.struct([pa.field("n", pa.null())]), [{"n": None}, None]),
    (pa.struct([pa.field("e", pa.struct([]), nullable=False)]), [{"e": {}}, None]),
    (pa.null(), [None, None]),
    (pa.string(), ["", "text", None]),
    (pa.list_(pa.list_(pa.string())), [[], [[]], [["", None]], None]),
    (pa.map_(pa.string(), pa.struct([])), [[], [("", {})], None]),
]


@pytest.mark.parametrize(("kind", "values"), EDGES)
def test_edges(kind: pa.DataType, values: list[Any]) -> None:
    value = pa.array(values, kind)
    assert round_trip(value).to_pylist() == values
    for start in range(len(values)):
        assert round_trip(value.slice(start)).to_pylist() == values[start:]


def test_fields_that_cannot_be_null_are_null_under_a_tombstone() -> None:
    value = pa.array([{"a": 1}, None, {"a": 3}], A)
    for start in range(3):
        assert round_trip(value.slice(start)).to_pylist() == value.to_pylist()[start:]
