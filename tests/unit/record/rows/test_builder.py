"""The builder: single records into columns; a bad record must not spoil the others."""

from __future__ import annotations

from typing import Any

import pytest

from spark_logbus.errors import InvalidRequestError
from spark_logbus.record.rows.arrow import payload_schema
from spark_logbus.record.rows.builder import ArrowBatchBuilder, record_size


def add(builder: ArrowBatchBuilder, **changes: Any) -> int:
    record: dict[str, Any] = {"value": b"v", "key": None, "timestamp_us": 5, "headers": None}
    return builder.add(**(record | changes))


def test_records_keep_their_order_and_number() -> None:
    builder = ArrowBatchBuilder()
    assert [add(builder, value=b"%d" % i) for i in range(3)] == [0, 1, 2]
    assert len(builder) == 3
    assert builder.build()["value"].to_pylist() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("key", [None, b"k", b""])
@pytest.mark.parametrize("headers", [None, [], [("n", b"1"), ("n", None), ("ü", b"")]])
def test_columns_appear_when_a_record_needs_them(key: bytes | None, headers: Any) -> None:
    builder = ArrowBatchBuilder()
    add(builder)
    add(builder, key=key, headers=headers, value=None)
    arrow_batch = builder.build()
    schema = payload_schema(has_key=key is not None, has_headers=bool(headers))
    assert arrow_batch.schema.equals(schema)
    assert arrow_batch["value"].to_pylist() == [b"v", None]
    if key is not None:
        assert arrow_batch["key"].to_pylist() == [None, key]
    if headers:
        rows = [{"key": name, "value": value} for name, value in headers]
        assert arrow_batch["headers"].to_pylist() == [None, rows]


def test_build_keeps_the_records() -> None:
    builder = ArrowBatchBuilder()
    add(builder)
    assert builder.build().equals(builder.build())
    assert builder.build().num_rows == 1


def test_a_size_is_of_all_parts() -> None:
    assert record_size(value=b"x" * 100, key=b"yy", headers=[("abc", b"12")]) >= 107


def test_keys_and_headers_of_some_records_stand_with_theirs() -> None:
    builder = ArrowBatchBuilder()
    keys = [None, None, b"a", None, b"", None]
    headers = [None, [("n", b"1")], None, None, None, []]
    for key, pairs in zip(keys, headers, strict=True):
        add(builder, key=key, headers=pairs)
    arrow_batch = builder.build()
    assert arrow_batch["key"].to_pylist() == keys
    assert [bool(row) for row in arrow_batch["headers"].to_pylist()] == list(map(bool, headers))


@pytest.mark.parametrize(
    "changes",
    [
        {"value": "text"},
        {"value": 5},
        {"key": "text"},
        {"timestamp_us": 1 << 63},
        {"timestamp_us": -(1 << 63) - 1},
        {"headers": [("name", "text")]},
        {"headers": [(b"name", b"")]},
        {"headers": [("\udcff", b"")]},
    ],
)
def test_a_record_that_arrow_would_refuse_is_refused_alone(changes: dict[str, Any]) -> None:
    builder = ArrowBatchBuilder()
    add(builder)
    with pytest.raises(InvalidRequestError):
        add(builder, **changes)
    assert len(builder) == 1
    assert builder.build().num_rows == 1


@pytest.mark.parametrize("timestamp_us", [-(1 << 63), (1 << 63) - 1, 0])
def test_all_timestamps_of_64_bits_are_taken(timestamp_us: int) -> None:
    builder = ArrowBatchBuilder()
    add(builder, timestamp_us=timestamp_us)
    assert builder.build()["timestamp"].view("int64").to_pylist() == [timestamp_us]


def test_values_with_times_in_nanoseconds_stand_behind_the_others() -> None:
    builder = ArrowBatchBuilder()
    add(builder, value=b"a", timestamp_us=-1)
    builder.extend_values([b"b", b"c"], [1_999, -1])
    builder.extend_values([], [])
    arrow_batch = builder.build()
    assert len(builder) == 3
    assert arrow_batch["value"].to_pylist() == [b"a", b"b", b"c"]
    assert arrow_batch["timestamp"].view("int64").to_pylist() == [-1, 1, -1]
