"""The timestamps of a record batch, and nothing else of it.

Arrow decompresses all buffers of a message. Who only counts records by their time needs one of
them, which is small beside the values.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import format as fmt
from spark_logbus.record.columns.decoder import decode_columns
from spark_logbus.record.columns.layout import ColumnSelection
from spark_logbus.record.header import Buffer, RecordBatchHeader
from spark_logbus.record.rows.arrow import TIMESTAMP, decode
from spark_logbus.record.rows.ipc import (
    TIME_BYTES,
    TIMES,
    EnvelopeError,
    message_metadata,
    read_message,
)
from spark_logbus.record.rows.serialize import CODECS

_ONLY_TIMES: Final = ColumnSelection(frozenset({"timestamp"}), ())
_CLAIM: Final = struct.Struct("<q")  # the decoded length before a compressed buffer
_UNCOMPRESSED: Final = -1  # as a claim


def decode_timestamps(header: RecordBatchHeader, record_batch: Buffer) -> pa.Array:
    """Decodes the timestamps, in µs, of one verified record batch of any layout, whether its schema
    is known or not. What is not compressed is a view of ``record_batch``.

    Raises CorruptRecordBatchError.
    """
    if header.layout == fmt.LAYOUT_COLUMNS:
        return decode_columns(header, record_batch, None, selection=_ONLY_TIMES)["timestamp"]
    if header.compression is Compression.NONE:  # nothing is saved
        return decode(header, record_batch).column("timestamp")
    payload = memoryview(record_batch)[fmt.HEADER_SIZE :]
    try:
        times = _decompressed(payload, header)
    except MemoryError:  # also one of Arrow's exceptions; the record batch is not to blame
        raise
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise CorruptRecordBatchError(
            f"Record batch at offset {header.base_offset}: its timestamps cannot be decoded "
            f"({error})."
        ) from error
    return pa.Array.from_buffers(TIMESTAMP, header.record_count, [None, times])


def _decompressed(payload: memoryview, header: RecordBatchHeader) -> pa.Buffer:
    """The buffer of timestamps. Nothing that the payload says is believed."""
    metadata = message_metadata(payload)
    numbers = read_message(metadata)
    if numbers.compression is not header.compression:
        raise EnvelopeError(f"its buffers have compression {numbers.compression.name.lower()}")
    if len(numbers.buffers) <= TIMES or numbers.nodes[:1].tolist() != [[header.record_count, 0]]:
        raise EnvelopeError(f"it has not {header.record_count} timestamps")
    place, size = numbers.buffers[TIMES].tolist()
    body = payload[len(metadata) :]
    if place < 0 or size < 0 or place + size > len(body):
        raise EnvelopeError("they are outside of it")
    buffer = body[place : place + size]
    (claim,) = _CLAIM.unpack_from(buffer)
    frame = buffer[_CLAIM.size :]
    needed = header.record_count * TIME_BYTES
    if claim == _UNCOMPRESSED:
        found = pa.py_buffer(frame)
    elif needed <= claim and needed <= fmt.MAX_DECODED_BYTES:
        with pa.CompressedInputStream(pa.BufferReader(frame), CODECS[header.compression]) as stream:
            found = stream.read_buffer(needed)  # it may be padded
    else:
        raise EnvelopeError(f"they claim to take {claim} bytes, expected {needed}")
    if found.size < needed:
        raise EnvelopeError(f"they take {found.size} bytes, expected {needed}")
    return found
