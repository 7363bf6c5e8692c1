"""Writes the sample of record batches of columns, layout 1, that later releases must still read.

    python -m tests.compat.make_column_record_batches

The files are kept as they are; this program refuses to replace them and says how they came about.
``record-batches-columns-v1.bin`` is a run of record batches; ``record-batches-columns-v1.json`` has
their schemas by id, and says what is in them, from the values that went in. Times are the numbers
that columns hold, bytes are in hexadecimal.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.rows import columns_of
from spark_logbus.model import Compression, TimestampType
from spark_logbus.record import parse_header, stamp
from spark_logbus.record.columns.encoder import encode_columns
from spark_logbus.record.rows.arrow import HEADERS, NO_STAMP, TIMESTAMP, ProducerStamp

DATA: Final = Path(__file__).parent / "data"
BINARY: Final = DATA / "record-batches-columns-v1.bin"
EXPECTED: Final = DATA / "record-batches-columns-v1.json"
T0: Final = 1_700_000_000_000_000  # 2023-11-14 22:13:20 UTC


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


_TYPES: Final = {
    "nothing": "null",
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
    "enum": {"type": "enum", "name": "Suit", "symbols": ["CLUBS", "HEARTS"]},
    "fixed": {"type": "fixed", "name": "Four", "size": 4},
    "array": {"type": "array", "items": ["null", "string"]},
    "map": {"type": "map", "values": {"type": "array", "items": "int"}},
    "record": {"type": "record", "name": "Point", "fields": [
        {"name": "x", "type": "double"}, {"name": "label", "type": ["null", "string"]}]},
    "maybe_record": ["null", "Point"],
    "union": ["null", "int", "string"],
    "decimal": logical("bytes", "decimal", precision=9, scale=2),
    "fixed_decimal": {"type": "fixed", "name": "Money", "size": 12, "logicalType": "decimal",
                      "precision": 28, "scale": 5},
    "date": logical("int", "date"),
    "time_millis": logical("int", "time-millis"),
    "time_micros": logical("long", "time-micros"),
    "timestamp_millis": logical("long", "timestamp-millis"),
    "timestamp_micros": logical("long", "timestamp-micros"),
    "timestamp_nanos": logical("long", "timestamp-nanos"),
    "local_timestamp_millis": logical("long", "local-timestamp-millis"),
    "local_timestamp_micros": logical("long", "local-timestamp-micros"),
    "local_timestamp_nanos": logical("long", "local-timestamp-nanos"),
    "duration": {"type": "fixed", "name": "Span", "size": 12, "logicalType": "duration"},
    "uuid": logical("string", "uuid"),
}  # fmt: skip

SCHEMAS: Final[dict[int, Any]] = {
    1: {"type": "record", "name": "All",
        "fields": [{"name": name, "type": kind} for name, kind in _TYPES.items()]},
    2: {"type": "record", "name": "Word", "fields": [{"name": "word", "type": "string"}]},
    3: {"type": "record", "name": "Empty", "fields": []},
    4: "long",
    5: {"type": "map", "values": ["null", "string"]},
    6: ["null", "string", "boolean"],
    4_000_000_000: {"type": "record", "name": "Nothing",
                    "fields": [{"name": "nothing", "type": "null"}]},
}  # fmt: skip


def of_all_types(i: int) -> dict[str, Any]:
    """A value for ``columns_of``. Numbers stand for times: the ones that Avro writes."""
    point = {"x": i / 8, "label": None if i % 2 else f"größe {i}"}
    return {
        "nothing": None,
        "boolean": i % 3 == 0,
        "int": (-1) ** i * (i << 20),
        "long": (-1) ** i * (i << 50),
        "float": i / 4,
        "double": i / 3,
        "bytes": bytes([i, 0xFF]) * (i % 3),
        "string": "text" * (i % 3),
        "enum": ("CLUBS", "HEARTS")[i % 2],
        "fixed": bytes([i, 1, 2, 3]),
        "array": ["item", None, ""][: i % 4],
        "map": {f"k{n}": list(range(n)) for n in range(i % 3)},
        "record": point,
        "maybe_record": None if i % 5 == 0 else point,
        "union": (None, i, f"text {i}")[i % 3],
        "decimal": Decimal(i * 100 + 7).scaleb(-2),
        "fixed_decimal": Decimal(-i * 10**20 - 1).scaleb(-5),
        "date": 19_000 + i,
        "time_millis": 1_000 * i + 7,
        "time_micros": 1_000_000 * i + 7,
        "timestamp_millis": T0 // 1_000 + i,
        "timestamp_micros": T0 + i,
        "timestamp_nanos": T0 * 1_000 + i,
        "local_timestamp_millis": -i,
        "local_timestamp_micros": T0 - i,
        "local_timestamp_nanos": -T0 * 1_000 + i,
        "duration": (i, 2 * i, 3 * i),
        "uuid": f"00000000-0000-4000-8000-{i:012}",
    }


def in_columns(value: dict[str, Any]) -> dict[str, Any]:
    """Returns what columns hold of a value."""
    found = {
        name: each * 1_000 if name.endswith("_millis") else each for name, each in value.items()
    }
    found["duration"] = dict(zip(("months", "days", "millis"), value["duration"], strict=True))
    found["map"] = [[key, items] for key, items in value["map"].items()]
    one = value["union"]
    members = {"member0": None, "member1": None}
    members |= {"member1" if isinstance(one, str) else "member0": one}
    found["union"] = None if one is None else members
    return found


@dataclass(frozen=True)
class Sample:
    """One record batch. ``rows`` are values for ``columns_of``, None for a tombstone; ``values``
    what the column ``value`` holds of them."""

    name: str
    schema_id: int
    rows: list[Any]
    values: list[Any]
    keys: list[bytes | None] | None = None
    headers: list[list[tuple[str, bytes | None]] | None] | None = None
    offset_deltas: list[int] | None = None
    compression: Compression = Compression.NONE
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    producer: ProducerStamp = NO_STAMP


def all_types(name: str, count: int, *, tombstones: bool = False, **more: Any) -> Sample:
    rows = [None if tombstones and i % 7 == 3 else of_all_types(i) for i in range(count)]
    return Sample(name, 1, rows, [row and in_columns(row) for row in rows], **more)


def rich(count: int) -> dict[str, Any]:
    return {
        "keys": [None if i % 3 == 0 else b"key-%d" % (i % 10) for i in range(count)],
        "headers": [[("größe", None), ("h", b"\x00")] if i % 4 == 0 else None
                    for i in range(count)],
    }  # fmt: skip


def words(*words: str | None) -> dict[str, Any]:
    rows = [None if word is None else {"word": word} for word in words]
    return {"schema_id": 2, "rows": rows, "values": rows}


MAPS: Final = [{"a": None, "b": "text"}, {}, None]
EITHER: Final = ["text", True, None]
SAMPLES: Final = [
    Sample("one word", **words("text")),
    Sample("words, one of them empty", **words("one", "", "three")),
    Sample("a tombstone alone", **words(None), keys=[b"gone"]),
    all_types("all types", 20),
    all_types("all types, tombstones, keys, headers", 40, tombstones=True, **rich(40)),
    all_types("lz4", 52, tombstones=True, **rich(52), compression=Compression.LZ4),
    all_types("zstd", 52, tombstones=True, **rich(52), compression=Compression.ZSTD),
    all_types("too few records to compress", 49, compression=Compression.ZSTD),
    all_types("gaps", 9, tombstones=True, **rich(9),
              offset_deltas=[0, 3, 4, 5, 60, 61, 62, 90, 91]),
    all_types("gaps, zstd", 50, offset_deltas=list(range(5, 155, 3)),
              compression=Compression.ZSTD),
    Sample("records without fields", 3, [{}, None, {}], [{}, None, {}]),
    Sample("longs", 4, [1, -(1 << 63), (1 << 63) - 1], [1, -(1 << 63), (1 << 63) - 1]),
    Sample("maps", 5, [MAPS[0], MAPS[1]], [[["a", None], ["b", "text"]], []]),
    Sample("a union, with null as its tombstone", 6, EITHER,
           [{"member0": "text", "member1": None}, {"member0": None, "member1": True}, None]),
    Sample("fields of null and a large id", 4_000_000_000, [{"nothing": None}] * 60,
           [{"nothing": None}] * 60, compression=Compression.LZ4),
    Sample("a producer stamp", **words("a", "b"),
           producer=ProducerStamp(1 << 40, 7, 2_000_000_000)),
    Sample("log append time", **words("a"), timestamp_type=TimestampType.LOG_APPEND_TIME),
]  # fmt: skip


def main() -> None:
    for path in (BINARY, EXPECTED):
        if path.exists():
            raise SystemExit(f"{path} is there already; old samples are never replaced.")
    data = b""
    described = []
    for number, sample in enumerate(SAMPLES):
        record_batch = encode_columns(
            _arrow_batch(sample),
            schema_id=sample.schema_id,
            compression=sample.compression,
            timestamp_type=sample.timestamp_type,
            stamp=sample.producer,
        )
        stamp(
            record_batch,
            base_offset=1_000_000 * number,
            leader_epoch=number,
            append_time_us=T0 + number,
        )
        described.append(_describe(sample, number, parse_header(record_batch).crc))
        described[-1]["size"] = len(record_batch)
        data += record_batch
    BINARY.write_bytes(data)
    expected = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "schemas": {str(schema_id): schema for schema_id, schema in SCHEMAS.items()},
        "record_batches": described,
    }
    EXPECTED.write_text(json.dumps(expected, separators=(",", ":")) + "\n")


def _arrow_batch(sample: Sample) -> pa.RecordBatch:
    schema = json.dumps(SCHEMAS[sample.schema_id])
    count = len(sample.rows)
    there = np.array([row is not None for row in sample.rows])
    present = columns_of([row for row in sample.rows if row is not None], schema)
    value = present.take(pa.array(np.cumsum(there) - 1, mask=~there))
    assert value.type == arrow_type(schema)
    columns = {
        "timestamp": pa.array([T0 + i for i in range(count)], pa.int64()).cast(TIMESTAMP),
        "value": value,
    }
    if sample.keys is not None:
        columns["key"] = pa.array(sample.keys, pa.binary())
    if sample.headers is not None:
        rows = [
            None if row is None else [{"key": k, "value": v} for k, v in row]
            for row in sample.headers
        ]
        columns["headers"] = pa.array(rows, HEADERS)
    if sample.offset_deltas is not None:
        columns["offset_delta"] = pa.array(sample.offset_deltas, pa.int32())
    return pa.record_batch(columns)


def _describe(sample: Sample, number: int, crc: int) -> dict[str, Any]:
    count = len(sample.rows)
    deltas = sample.offset_deltas or list(range(count))
    compression = sample.compression if count >= 50 else Compression.NONE
    return {
        "name": sample.name,
        "header": {
            "base_offset": 1_000_000 * number,
            "leader_epoch": number,
            "append_time_us": T0 + number,
            "crc": crc,
            "record_count": count,
            "last_offset_delta": deltas[-1],
            "base_timestamp_us": T0,
            "max_timestamp_us": T0 + count - 1,
            "producer_id": sample.producer.producer_id,
            "producer_epoch": sample.producer.producer_epoch,
            "base_sequence": sample.producer.base_sequence,
            "schema_id": sample.schema_id,
            "layout": 1,
            "compression": int(compression),
            "timestamp_type": int(sample.timestamp_type),
        },
        "columns": plain({
            "timestamp": [T0 + i for i in range(count)],
            "key": sample.keys,
            "value": sample.values,
            "headers": sample.headers
            and [row and [{"key": k, "value": v} for k, v in row] for row in sample.headers],
            "offset_delta": sample.offset_deltas,
        }),
    }  # fmt: skip


def plain(value: Any) -> Any:
    """Returns a value as JSON holds it."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, Decimal) else value


if __name__ == "__main__":
    main()
