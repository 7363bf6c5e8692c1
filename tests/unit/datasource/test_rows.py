"""From record batches to Spark's columns, against a row-by-row model."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.client import FetchedBatch, FetchedColumns
from spark_logbus.datasource import rows as assemble
from spark_logbus.datasource.columns import ColumnChoice, full_schema
from spark_logbus.datasource.rows import RowAssembler
from spark_logbus.model import TimestampType, TopicPartition
from spark_logbus.record import verify
from spark_logbus.record.rows.arrow import decode, encode, payload_schema

TP = TopicPartition("t", 3)
Row = dict[str, Any]


def fetched(
    base_offset: int,
    rows: list[Row],
    *,
    kind: TimestampType = TimestampType.CREATE_TIME,
    deltas: list[int] | None = None,
) -> FetchedColumns:
    has_key = any("key" in row for row in rows)
    has_headers = any("headers" in row for row in rows)
    schema = payload_schema(
        has_key=has_key, has_headers=has_headers, has_offset_delta=deltas is not None
    )
    columns: Row = {name: [row.get(name) for row in rows] for name in schema.names}
    if deltas is not None:
        columns["offset_delta"] = deltas
    data = encode(pa.RecordBatch.from_pydict(columns, schema=schema), timestamp_type=kind)
    data[:8] = base_offset.to_bytes(8, "little")
    header = verify(data)
    first = base_offset + (deltas[0] if deltas else 0)
    one = FetchedBatch(TP, first, decode(header, data), header)
    return FetchedColumns.of([one], ["key", "value", "timestamp", "headers"], size_bytes=1)


def row(number: int, **more: Any) -> Row:
    return {"timestamp": number * 1_000, "value": f"v{number}".encode(), **more}


def build(batches: list[FetchedColumns], *, headers: bool = True) -> list[Row]:
    columns = ColumnChoice(full_schema(include_headers=headers))
    made = RowAssembler(columns).build(batches)
    made.validate(full=True)
    assert made.schema == columns.arrow_schema()
    return list(made.to_pylist())


def test_record_batches_of_different_shapes_join() -> None:
    header = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    rows = build(
        [
            fetched(10, [row(1), row(2)]),
            fetched(12, [row(3, key=b"k"), row(4)], kind=TimestampType.LOG_APPEND_TIME),
            fetched(14, [row(5, headers=header), {"timestamp": 6_000, "value": None}]),
        ]
    )
    assert [r["offset"] for r in rows] == [10, 11, 12, 13, 14, 15]
    assert [r["key"] for r in rows] == [None, None, b"k", None, None, None]
    assert [r["value"] for r in rows] == [b"v1", b"v2", b"v3", b"v4", b"v5", None]
    assert [r["timestampType"] for r in rows] == [0, 0, 1, 1, 0, 0]
    assert [r["headers"] for r in rows] == [None] * 4 + [header, None]
    assert {(r["topic"], r["partition"]) for r in rows} == {("t", 3)}
    assert [r["timestamp"].microsecond for r in rows] == [n * 1_000 for n in range(1, 7)]


def test_gaps_between_and_inside_record_batches() -> None:
    rows = build(
        [fetched(10, [row(1), row(2)], deltas=[0, 5]), fetched(20, [row(3)]), fetched(30, [row(4)])]
    )
    assert [r["offset"] for r in rows] == [10, 15, 20, 30]


def test_more_rows_than_the_cached_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "_CACHED_ROWS", 4)
    rows = build([fetched(0, [row(n) for n in range(9)])], headers=False)
    assert [r["offset"] for r in rows] == list(range(9))
    assert {r["topic"] for r in rows} == {"t"}
    assert {r["key"] for r in rows} == {None}


@pytest.mark.parametrize("count", [1, 3, 1_500, 9_000])
def test_an_arrow_batch_keeps_little_more_than_its_rows(count: int) -> None:
    """A micro-batch may have thousands of them at once, one of each partition."""
    columns = ColumnChoice(full_schema(include_headers=True))
    received = [fetched(0, [row(n) for n in range(count)])]
    made = RowAssembler(columns).build(received)
    assert made.get_total_buffer_size() < 2 * made.nbytes + 4_096


def test_values_of_a_lone_record_batch_are_not_copied() -> None:
    one = fetched(0, [row(n) for n in range(9)])
    columns = ColumnChoice(full_schema(include_headers=False))
    made = RowAssembler(columns).build([one])
    values = made.column(made.schema.names.index("value")), one.columns["value"]
    assert values[0].buffers()[2].address == values[1].buffers()[2].address
