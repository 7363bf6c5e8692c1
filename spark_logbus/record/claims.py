"""Sizes of record batches when they are decoded, by what they say of themselves.

For readers that stop before they have decoded too much. Nothing here is believed: one that lies is
refused by who decodes it, so whatever cannot be understood counts with the size that it has.
"""

from __future__ import annotations

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.record import format as fmt
from spark_logbus.record.chunks import ChunkError, read_directory
from spark_logbus.record.header import RecordBatchHeader
from spark_logbus.record.rows.arrow import decoded_size
from spark_logbus.record.rows.ipc import EnvelopeError, claims_of_buffers, read_message
from spark_logbus.record.run import RecordBatchRun


def claimed_bytes(run: RecordBatchRun) -> int:
    """Bytes, about, that the first record batch of ``run``, which came whole, takes when it is
    decoded: those of its compressed buffers, or its own, of which the others are views."""
    attributes = int(run.headers["checked_prefix"][0]) >> fmt.ATTRIBUTES_SHIFT
    size = int(run.bounds[1] - run.bounds[0])
    if not attributes & fmt.COMPRESSION_MASK:
        return size
    header, data = run.header(0), run.record_batch(0)
    try:
        if header.layout == fmt.LAYOUT_COLUMNS:
            return max(size, _claimed_columns(header, data))
        return max(size, decoded_size(header, data))
    except (ChunkError, EnvelopeError, CorruptRecordBatchError):
        return size


def _claimed_columns(header: RecordBatchHeader, record_batch: memoryview) -> int:
    directory = read_directory(record_batch, header.size)
    room = fmt.CHUNKS_AT + len(directory) * fmt.CHUNK.size
    buffers = read_message(record_batch[room : directory.body_start]).buffers.tolist()
    body = directory.body_start
    return claims_of_buffers(record_batch, ((body + place, size) for place, size in buffers))
