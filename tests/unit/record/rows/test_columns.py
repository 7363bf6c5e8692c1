"""The canonical form: what becomes of other arrow batches, and which are refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.errors import InvalidRequestError
from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP, canonical, payload_schema

VALUE = pa.array([b"a", b"b"])
NOW = 1_700_000_000_000_000


def micros(column: pa.Array) -> list[int]:
    return list(column.cast(pa.int64()).to_pylist())


def made(**columns: pa.Array) -> pa.RecordBatch:
    return canonical(pa.record_batch(columns), now_us=NOW)


def test_a_lone_value_gets_the_time_of_now() -> None:
    arrow_batch = made(value=VALUE)
    assert arrow_batch.schema.equals(payload_schema(has_key=False, has_headers=False))
    assert micros(arrow_batch["timestamp"]) == [NOW, NOW]


def test_columns_come_in_the_order_of_the_format() -> None:
    headers = pa.array([[{"key": "a", "value": b"1"}], None], HEADERS)
    arrow_batch = made(headers=headers, value=VALUE, key=VALUE, timestamp=pa.array([1, 2]))
    assert arrow_batch.schema.equals(payload_schema(has_key=True, has_headers=True))


@pytest.mark.parametrize("name", ["key", "headers"])
def test_columns_of_nulls_are_dropped(name: str) -> None:
    assert name not in made(value=VALUE, **{name: pa.nulls(2)}).schema.names


def test_a_value_of_nulls_stays() -> None:
    assert made(value=pa.nulls(2))["value"].equals(pa.nulls(2, pa.binary()))


def test_empty_headers_are_not_absent_headers() -> None:
    assert made(value=VALUE, headers=pa.array([[], None], HEADERS))["headers"].to_pylist() == [
        [],
        None,
    ]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", "b"]),
        pa.array(["a", "b"], pa.large_string()),
        pa.array(["a", "b"], pa.string_view()),
        pa.array([b"a", b"b"], pa.large_binary()),
        pa.array([b"a", b"b"], pa.binary_view()),
        pa.array([b"a", b"b"], pa.binary(1)),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([b"a", b"b"]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_strings_and_bytes_of_all_kinds(values: pa.Array) -> None:
    arrow_batch = made(key=values, value=values)
    assert arrow_batch["key"].equals(VALUE)
    assert arrow_batch["value"].equals(VALUE)


@pytest.mark.parametrize(
    ("timestamps", "expected"),
    [
        (pa.array([7, None]), [7, NOW]),
        (pa.nulls(2), [NOW, NOW]),
        (pa.array([7, -7], pa.timestamp("us")), [7, -7]),
        (pa.array([7, None], pa.timestamp("us", tz="Asia/Tokyo")), [7, NOW]),
        (pa.array([7, None], pa.timestamp("s", tz="UTC")), [7_000_000, NOW]),
        (pa.array([7_000, None], pa.timestamp("ns", tz="UTC")), [7, NOW]),
        (pa.array([-(1 << 63), (1 << 63) - 1]), [-(1 << 63), (1 << 63) - 1]),
        (pa.array([1, None], pa.date32()), [86_400_000_000, NOW]),
    ],
)
def test_timestamps(timestamps: pa.Array, expected: list[int]) -> None:
    column = made(value=VALUE, timestamp=timestamps)["timestamp"]
    assert column.type == TIMESTAMP
    assert micros(column) == expected


@pytest.mark.parametrize(
    "rows",
    [
        pa.array([[{"key": "k", "value": "v"}], None]),
        pa.array([[{"value": b"v", "key": "k"}], None]),
        pa.array([[{"key": b"k", "value": b"v"}], None]),
        pa.array([[("k", b"v")], None], pa.map_(pa.string(), pa.binary())),
        pa.array([[{"key": "k", "value": b"v"}], None], pa.large_list(HEADERS.value_type)),
    ],
    ids=lambda rows: str(rows.type),
)
def test_headers_of_other_types(rows: pa.Array) -> None:
    headers = made(value=VALUE, headers=rows)["headers"]
    assert headers.to_pylist() == [[{"key": "k", "value": b"v"}], None]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({}, "got none"),
        ({"key": VALUE}, "got key"),
        ({"value": VALUE, "offset": VALUE}, "got value, offset"),
        ({"value": pa.array([1, 2])}, "Column value has type int64"),
        ({"value": pa.array([{"a": 1}, None])}, "Column value has type struct"),
        ({"value": VALUE, "key": pa.array([1.5, None])}, "Column key has type double"),
        ({"value": VALUE, "timestamp": pa.array([1.5, None])}, "Column timestamp has type double"),
        ({"value": VALUE, "timestamp": pa.array(["x", None])}, "Column timestamp has type string"),
        ({"value": VALUE, "timestamp": pa.array([1, 2], pa.timestamp("ns"))}, "would lose data"),
        ({"value": VALUE, "timestamp": pa.array([1 << 62] * 2, pa.timestamp("s"))}, "out of bound"),
        ({"value": VALUE, "headers": pa.array(["a", "b"])}, "Column headers has type string"),
        ({"value": VALUE, "headers": pa.array([["a"], None])}, "Column headers has type list"),
        ({"value": VALUE, "headers": pa.array([[{"key": b"\xff", "value": b""}], None])}, "UTF8"),
        ({"value": VALUE, "headers": pa.array([[{"k": "a", "v": b""}], None])}, "got k, v"),
        ({"value": VALUE, "headers": pa.array([[{"key": "a"}], None])}, "got key"),
        (
            {"value": VALUE, "headers": pa.array([[{"key": "a", "value": b"", "x": 1}], None])},
            "got key, value, x",
        ),
    ],
)
def test_what_cannot_become_canonical_is_refused(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        made(**columns)


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([VALUE, VALUE], names=["value", "value"])
    with pytest.raises(InvalidRequestError, match="each once; got value, value"):
        canonical(twice, now_us=NOW)
