"""Writes the sample of record batches, version 1, that later releases must still read.

    python -m tests.compat.make_record_batches

The files are kept as they are; this program refuses to replace them and says how they came about.
``record-batches-v1.bin`` is a run of record batches; ``record-batches-v1.json`` says what is in it,
from the values that went in, not from what was decoded.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_logbus.model import Compression, TimestampType
from spark_logbus.record import parse_header, stamp
from spark_logbus.record.rows.arrow import (
    HEADERS,
    NO_STAMP,
    TIMESTAMP,
    ProducerStamp,
    encode,
    payload_schema,
)

DATA = Path(__file__).parent / "data"
BINARY = DATA / "record-batches-v1.bin"
EXPECTED = DATA / "record-batches-v1.json"

Header = tuple[str, bytes | None]
T0 = 1_700_000_000_000_000  # 2023-11-14 22:13:20 UTC


@dataclass(frozen=True)
class Sample:
    """One record batch: its records as (timestamp µs, key, value, headers)."""

    name: str
    records: list[tuple[int, bytes | None, bytes | None, list[Header] | None]]
    compression: Compression = Compression.NONE
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    producer: ProducerStamp = NO_STAMP
    schema_id: int = 0
    offset_deltas: list[int] | None = field(default=None)


def plain(count: int) -> list[Any]:
    return [(T0 + i * 1_000, None, b"record %d" % i, None) for i in range(count)]


def rich(count: int) -> list[Any]:
    """Every third key, every fifth value and most headers are null."""
    return [
        (
            T0 - i * 7,
            None if i % 3 == 0 else b"key-%d" % (i % 10),
            None if i % 5 == 0 else b"value %d \xff\x00" % i * (i % 4),
            [("trace", b"\x00\x01"), ("größe", None), ("trace", b"")] if i % 4 == 0 else None,
        )
        for i in range(count)
    ]


SAMPLES = [
    Sample("one plain record", plain(1)),
    Sample("plain records", plain(20)),
    Sample("a tombstone without a key", [(T0, None, None, None)]),
    Sample("keys, nulls and headers", rich(40)),
    Sample("lz4", rich(120), compression=Compression.LZ4),
    Sample("zstd", rich(120), compression=Compression.ZSTD),
    Sample("lz4 of plain records", plain(60), compression=Compression.LZ4),
    Sample("zstd of plain records", plain(60), compression=Compression.ZSTD),
    Sample("too few records to compress", plain(49), compression=Compression.ZSTD),
    Sample("a schema id", plain(3), schema_id=4_000_000_000),
    Sample("a producer stamp", rich(3), producer=ProducerStamp(1 << 40, 7, 2_000_000_000)),
    Sample("log append time", plain(3), timestamp_type=TimestampType.LOG_APPEND_TIME),
    Sample("extreme timestamps", [(t, None, b"", None) for t in (-(1 << 63), 0, (1 << 63) - 1)]),
    Sample("empty key, value and headers", [(0, b"", b"", [("", b"")]), (1, b"k", b"v", [])]),
    Sample("compacted", rich(4), offset_deltas=[0, 3, 4, 90]),
]


def main() -> None:
    for path in (BINARY, EXPECTED):
        if path.exists():
            raise SystemExit(f"{path} is there already; old samples are never replaced.")
    data = b""
    described = []
    for number, sample in enumerate(SAMPLES):
        record_batch = encode(
            _arrow_batch(sample),
            compression=sample.compression,
            timestamp_type=sample.timestamp_type,
            stamp=sample.producer,
            schema_id=sample.schema_id,
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
    DATA.mkdir(exist_ok=True)
    BINARY.write_bytes(data)
    expected = {"sha256": hashlib.sha256(data).hexdigest(), "record_batches": described}
    EXPECTED.write_text(json.dumps(expected, indent=1, ensure_ascii=True) + "\n")


def _arrow_batch(sample: Sample) -> pa.RecordBatch:
    times, keys, values, headers = (list(column) for column in zip(*sample.records, strict=True))
    has_key = any(key is not None for key in keys)
    has_headers = any(row is not None for row in headers)
    columns = [pa.array(times, pa.int64()).cast(TIMESTAMP)]
    if has_key:
        columns.append(pa.array(keys, pa.binary()))
    columns.append(pa.array(values, pa.binary()))
    if has_headers:
        rows = [row and [{"key": k, "value": v} for k, v in row] for row in headers]
        columns.append(pa.array(rows, HEADERS))
    if sample.offset_deltas is not None:
        columns.append(pa.array(sample.offset_deltas, pa.int32()))
    schema = payload_schema(
        has_key=has_key,
        has_headers=has_headers,
        has_offset_delta=sample.offset_deltas is not None,
    )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _describe(sample: Sample, number: int, crc: int) -> dict[str, Any]:
    times = [record[0] for record in sample.records]
    deltas = sample.offset_deltas or list(range(len(times)))
    compression = sample.compression if len(times) >= 50 else Compression.NONE
    return {
        "name": sample.name,
        "header": {
            "base_offset": 1_000_000 * number,
            "leader_epoch": number,
            "append_time_us": T0 + number,
            "crc": crc,
            "record_count": len(times),
            "last_offset_delta": deltas[-1],
            "base_timestamp_us": min(times),
            "max_timestamp_us": max(times),
            "producer_id": sample.producer.producer_id,
            "producer_epoch": sample.producer.producer_epoch,
            "base_sequence": sample.producer.base_sequence,
            "schema_id": sample.schema_id,
            "compression": int(compression),
            "timestamp_type": int(sample.timestamp_type),
        },
        "records": [
            {
                "offset_delta": delta,
                "timestamp_us": timestamp,
                "key": _hex(key),
                "value": _hex(value),
                "headers": headers and [[name, _hex(data)] for name, data in headers],
            }
            for delta, (timestamp, key, value, headers) in zip(deltas, sample.records, strict=True)
        ],
    }


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


if __name__ == "__main__":
    main()
