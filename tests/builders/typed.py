"""Record batches of a schema's columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from pyarrow import types

from avro_columns.values.rows import columns_of
from spark_logbus.model import Compression
from spark_logbus.record import checksum, parse_header, stamp
from spark_logbus.record import format as fmt
from spark_logbus.record.chunks import chosen_chunks, read_directory
from spark_logbus.record.columns.encoder import encode_columns
from spark_logbus.record.columns.join import column_run, joined_columns, verified_columns
from spark_logbus.record.columns.layout import ColumnSelection
from spark_logbus.record.rows.arrow import TIMESTAMP
from spark_logbus.record.run import RecordBatchRun, sound_run

T0: Final = 1_700_000_000_000_000

FLIGHT: Final = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "carrier", "type": "string"},
            {"name": "number", "type": "int"},
            {"name": "delay", "type": ["null", "double"], "default": None},
            {"name": "tail", "type": ["null", "string"], "default": None},
        ],
    }
)


def flight(number: int) -> dict[str, Any]:
    return {
        "carrier": ("AA", "UA", "DL")[number % 3],
        "number": number,
        "delay": None if number % 7 == 0 else number / 4,
        "tail": f"N{number:05}" * 3,
    }


def flights(first: int, count: int) -> list[dict[str, Any]]:
    return [flight(number) for number in range(first, first + count)]


_LABEL: Final = {"type": "enum", "name": "shop.Label", "symbols": ["NEW", "USED"]}
_DAY: Final = {"type": "int", "logicalType": "date"}
_AT: Final = {"type": "long", "logicalType": "timestamp-micros"}
_NAMED: Final = {"name": "name", "type": "string"}

#: Unions of all kinds, and types that JSON and Python have none for.
UNIONS: Final = json.dumps(
    {
        "type": "record",
        "name": "Unions",
        "fields": [
            {"name": "number", "type": "int"},
            {"name": "some", "type": ["null", "int", "long", "string", "bytes"], "default": None},
            {"name": "ratio", "type": ["float", "double"]},
            {"name": "at", "type": ["string", _DAY, _AT]},
            {
                "name": "who",
                "type": [
                    {"type": "record", "name": "shop.Firm", "fields": [_NAMED]},
                    {"type": "record", "name": "shop.Person", "fields": [
                        _NAMED, {"name": "born", "type": ["null", _DAY], "default": None}]},
                    "null",
                ],
            },
            {"name": "label", "type": _LABEL},
            {"name": "code", "type": {"type": "fixed", "name": "shop.Code", "size": 2}},
            {"name": "lasts", "type": {
                "type": "fixed", "name": "shop.Time", "size": 12, "logicalType": "duration"}},
            {"name": "tags", "type": {
                "type": "array", "items": ["null", "shop.Label", "boolean", "shop.Code"]}},
            {"name": "more", "type": {
                "type": "map", "values": ["long", {"type": "array", "items": [_DAY, "string"]}]}},
        ],
    }
)  # fmt: skip
_MOMENT: Final = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)


def union_rows() -> list[dict[str, Any]]:
    """Values of ``UNIONS`` as consumers have them."""
    day = _MOMENT.date()
    plain: dict[str, Any] = {
        "some": None, "ratio": 0.5, "at": "2026-01-31", "who": None, "label": "NEW",
        "code": b"\xff\x00", "lasts": {"months": 1, "days": 2, "millis": 3}, "tags": [], "more": {},
    }  # fmt: skip
    changes: list[dict[str, Any]] = [
        {},
        {"some": 5, "ratio": 0.1, "at": day, "who": {"name": "a", "born": None}},
        {"some": 1 << 40, "at": _MOMENT, "who": {"name": "b"}, "code": b"ab"},
        {"some": "text", "tags": [None, "USED", True, b"xy"], "who": {"name": "c", "born": day}},
        {"some": b"\xff", "more": {"a": -1, "b": ["2026-01-31", day], "c": []}},
        {"some": b"text", "label": "USED"},
    ]
    return [{"number": number, **plain, **change} for number, change in enumerate(changes)]


def typed_record_batch(
    rows: list[Any],
    *,
    schema: str = FLIGHT,
    schema_id: int = 1,
    keys: Sequence[bytes | None] | None = None,
    compression: Compression = Compression.NONE,
) -> memoryview:
    """A row that is None is a tombstone."""
    present = columns_of([row for row in rows if row is not None], schema)
    there = np.array([row is not None for row in rows])
    value = present.take(pa.array(np.cumsum(there) - 1, mask=~there))
    columns = {
        "timestamp": pa.array([T0 + number for number in range(len(rows))], TIMESTAMP),
        "value": value,
    }
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    arrow_batch = pa.RecordBatch.from_pydict(columns)
    return encode_columns(arrow_batch, schema_id=schema_id, compression=compression)


def cut(record_batch: bytes, selection: ColumnSelection) -> bytes:
    """The record batch as a broker sends it to who wants those columns only."""
    header = parse_header(record_batch)
    directory = read_directory(record_batch, header.size)
    chosen = chosen_chunks(
        header.attributes, len(directory), columns=selection.columns, fields=selection.fields
    )
    bounds = directory.bounds
    chunks = [record_batch[bounds[number] : bounds[number + 1]] for number in chosen]
    return b"".join([record_batch[: directory.body_start], *chunks])


def run_of(record_batches: Sequence[bytes], *, is_cut: bool = False) -> RecordBatchRun:
    """The record batches one after the other, whole or all cut, with their offsets."""
    data, offset, bounds = bytearray(), 0, [0]
    for one in record_batches:
        made = bytearray(one)
        stamp(made, base_offset=offset, leader_epoch=0, append_time_us=0)
        data += made
        offset = parse_header(made).next_offset
        bounds.append(len(data))
    return sound_run(memoryview(bytes(data)), bounds, [is_cut] * len(record_batches))


def joined_from(
    run: RecordBatchRun, selection: ColumnSelection, value_type: pa.DataType
) -> dict[str, pa.Array] | None:
    """The columns of those, which are sound, if they can be decoded together."""
    columns = column_run(run, selection)
    if columns is None:
        return None
    assert verified_columns(columns) == len(run)
    return joined_columns(columns, value_type, selection, max_decoded_bytes=1 << 24)


def reseal_columns(record_batch: bytearray) -> bytearray:
    """Put right checksums in, of each chunk that is in the record batch and of its beginning."""
    count, at = fmt.DIRECTORY.unpack_from(record_batch, fmt.DIRECTORY_AT)
    for number in range(min(count, (len(record_batch) - fmt.CHUNKS_AT) // fmt.CHUNK.size)):
        entry = fmt.CHUNKS_AT + number * fmt.CHUNK.size
        length = int(fmt.CHUNK.unpack_from(record_batch, entry)[0])
        fmt.CHUNK.pack_into(record_batch, entry, length, crc32c(record_batch[at : at + length]))
        at += length
    fmt.CRC.pack_into(record_batch, fmt.CRC_AT, checksum(record_batch))
    return record_batch


def rows_of(array: pa.Array) -> list[Any]:
    """Values of Python; times are the numbers that are stored."""
    kind = array.type
    if types.is_timestamp(kind) or types.is_time64(kind):
        return list(array.view(pa.int64()).to_pylist())
    if types.is_date32(kind):
        return list(array.view(pa.int32()).to_pylist())
    there = array.is_valid().to_pylist()
    if types.is_struct(kind):
        fields = [rows_of(array.field(number)) for number in range(kind.num_fields)]
        names = [field.name for field in kind]
        return [
            {name: field[row] for name, field in zip(names, fields, strict=True)} if valid else None
            for row, valid in enumerate(there)
        ]
    if types.is_map(kind):
        return _lists(array, list(zip(rows_of(array.keys), rows_of(array.items), strict=True)))
    return _lists(array, rows_of(array.values)) if types.is_list(kind) else array.to_pylist()


def _lists(array: pa.Array, items: list[Any]) -> list[Any]:
    bounds = pairwise(array.offsets.to_pylist())
    there = array.is_valid().to_pylist()
    return [
        items[start:stop] if valid else None
        for (start, stop), valid in zip(bounds, there, strict=True)
    ]
