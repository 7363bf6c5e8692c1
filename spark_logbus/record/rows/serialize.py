"""An arrow batch as one Arrow IPC message, behind room for what a record batch begins with."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from spark_logbus.errors import RecordBatchTooLargeError
from spark_logbus.model import Compression
from spark_logbus.record import format as fmt

CODECS: Final = {Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}

# Always given, because pyarrow's defaults depend on environment variables. No threads: handing
# the buffers of a few columns to a pool costs more than it saves.
_WRITE_OPTIONS: Final = {
    compression: pa.ipc.IpcWriteOptions(compression=CODECS.get(compression), use_threads=False)
    for compression in Compression
}
_COPIED_BYTES: Final = 64 << 10


def serialized(
    arrow_batch: pa.RecordBatch, *, room: int, schema_message_size: int, compression: Compression
) -> memoryview:
    """The message of ``arrow_batch``, preceded by ``room`` bytes to be filled in; a large one
    without a copy. Writable and 8-byte aligned. Raises RecordBatchTooLargeError.

    Arrow's stream writer puts a schema message, of ``schema_message_size``, before the first
    batch. That is larger than what a record batch begins with, so its tail is the room for it.
    """
    if compression is Compression.NONE and (
        bytes_of(arrow_batch, enough=_COPIED_BYTES) <= _COPIED_BYTES or schema_message_size < room
    ):
        # The same bytes for less: to make a writer costs as much as to copy this.
        return memoryview(bytearray().join((bytes(room), arrow_batch.serialize())))
    size = pa.ipc.get_record_batch_size(arrow_batch)
    options = _WRITE_OPTIONS[compression]
    if compression is Compression.NONE:
        _check_size("takes", schema_message_size + size, fmt.MAX_RECORD_BATCH_BYTES)
        buffer = pa.allocate_buffer(schema_message_size + size)
        sink = pa.FixedSizeBufferWriter(buffer)
    else:
        _check_size("takes uncompressed", size, fmt.MAX_DECODED_BYTES)
        sink = pa.BufferOutputStream()
    pa.RecordBatchStreamWriter(sink, arrow_batch.schema, options=options).write_batch(arrow_batch)
    if compression is not Compression.NONE:
        buffer = sink.getvalue()
    written = memoryview(buffer).cast("B")
    if schema_message_size < room:
        return memoryview(bytearray().join((bytes(room), written[schema_message_size:])))
    return written[schema_message_size - room :]


def _check_size(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise RecordBatchTooLargeError(
            f"The record batch {what} {size} bytes, the format allows {limit}; "
            "send fewer records at a time."
        )


def bytes_of(arrow_batch: pa.RecordBatch, *, enough: int) -> int:
    """The bytes of an arrow batch's records; or more, if that is no more than ``enough``.

    ``nbytes`` of a small one takes long when other threads are busy, for it lets go of the
    interpreter. Buffers count whole here, also those of a slice.
    """
    buffers = [buffer for column in arrow_batch.columns for buffer in column.buffers()]
    at_most = sum([buffer.size for buffer in buffers if buffer is not None])
    return at_most if at_most <= enough else int(arrow_batch.nbytes)
