"""Record batches that no honest writer makes, with a right checksum all the same."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from spark_logbus.model import Compression
from spark_logbus.record import checksum
from spark_logbus.record import format as fmt
from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP, canonical, encode

METADATA_AT = fmt.HEADER_SIZE + 8  # after the continuation and the metadata size


def forge(
    payload: bytes,
    *,
    record_count: int = 1,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    base_timestamp_us: int = 0,
    max_timestamp_us: int = 0,
) -> bytearray:
    """A record batch around ``payload``, padded to 8 bytes, that passes ``verify``."""
    payload += bytes(-len(payload) % fmt.ALIGNMENT)
    forged = bytearray(fmt.HEADER_SIZE) + payload
    if last_offset_delta is None:
        last_offset_delta = record_count - 1
    fmt.HEADER.pack_into(
        forged, 0, 0, len(forged) - fmt.LENGTH_FIELD_END, 0, 0, fmt.MAGIC_V1, 0, attributes, 0,
        record_count, last_offset_delta, base_timestamp_us, max_timestamp_us, -1, -1, -1, 0,
    )  # fmt: skip
    return reseal(forged)


def reseal(record_batch: bytearray) -> bytearray:
    """Put the right checksum in, in place."""
    fmt.CRC.pack_into(record_batch, fmt.CRC_AT, checksum(record_batch))
    return record_batch


def body_start(record_batch: bytes | bytearray | memoryview) -> int:
    size = int(struct.unpack_from("<i", record_batch, fmt.HEADER_SIZE + 4)[0])
    return METADATA_AT + size


def message(columns: dict[str, pa.Array], *, codec: str | None = None, old: bool = False) -> bytes:
    """One Arrow record batch message of any columns; ``old`` writes metadata version 4."""
    batch = pa.record_batch(columns)
    version = pa.ipc.MetadataVersion.V4 if old else pa.ipc.MetadataVersion.V5
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec, metadata_version=version)
    with pa.RecordBatchStreamWriter(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = pa.BufferReader(sink.getvalue())
    while True:
        start = stream.tell()
        if pa.ipc.read_message(stream).type == "record batch":
            return bytes(sink.getvalue()[start : stream.tell()])


def timestamps(*values: int | None) -> pa.Array:
    return pa.array(values, TIMESTAMP)


def mixed_records(count: int) -> pa.RecordBatch:
    """Records with and without key, value and headers, with names that repeat or are not ASCII."""
    headers: list[Any] = [
        None if i % 5 == 3 else [("h", b"x" * (i % 9)), ("größe", None), ("h", b"")]
        for i in range(count)
    ]
    columns = {
        "timestamp": timestamps(*(1_700_000_000_000_000 + i * 997 for i in range(count))),
        "key": pa.array([None if i % 4 == 1 else b"key %d" % i for i in range(count)]),
        "value": pa.array([None if i % 7 == 2 else b"value %d " % i * 3 for i in range(count)]),
        "headers": pa.array(
            [row and [{"key": name, "value": value} for name, value in row] for row in headers],
            HEADERS,
        ),
    }
    return canonical(pa.record_batch(columns), now_us=0)


def encoded(count: int = 60, compression: Compression = Compression.NONE) -> bytearray:
    return bytearray(encode(mixed_records(count), compression=compression))
