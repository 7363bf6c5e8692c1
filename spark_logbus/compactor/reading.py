"""Reads sealed segments, record batch by record batch, verified, without a copy."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_logbus.compactor.messages import SourceSegment
from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.record import RecordBatchHeader, split
from spark_logbus.record import format as fmt
from spark_logbus.record.rows.arrow import decode, decoded_size
from spark_logbus.record.rows.plain import scalar

# What a record takes beside the bytes of its columns while its record batch is worked on: objects
# for its key and its offset, and their places in lists.
_RECORD_BYTES: Final = 200
# Even with a small map: most producers fill their record batches to 1 MiB.
_LEAST_WORK_BYTES: Final = 32 << 20


class DamagedSegmentError(Exception):
    """Raised for a segment that is not whole; the log's own scan finds out what is left of it."""

    def __init__(self, source: SourceSegment, why: str) -> None:
        super().__init__(f"{source.path}: {why}")
        self.source = source


def record_batches(source: SourceSegment) -> Iterator[tuple[RecordBatchHeader, memoryview]]:
    """The record batches of a segment in order, each with a view of its bytes.

    Raises DamagedSegmentError when they are not valid and dense from base to end, and OSError.
    """
    if source.size_bytes == 0:
        return
    fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size < source.size_bytes:
            raise DamagedSegmentError(source, "the file is too short")
        # Unmapped when the last view of it goes.
        data = memoryview(mmap.mmap(fd, source.size_bytes, prot=mmap.PROT_READ))
    finally:
        os.close(fd)
    expected = source.base_offset
    try:
        for header, record_batch in split(data, allow_tail=False):
            if header.base_offset != expected:
                break
            expected = header.next_offset
            yield header, record_batch
    except (CorruptRecordBatchError, UnsupportedVersionError) as error:
        raise DamagedSegmentError(source, error.message) from error
    if expected != source.end_offset:
        raise DamagedSegmentError(source, f"expected offset {source.end_offset}, got {expected}")


def decoded(header: RecordBatchHeader, record_batch: memoryview) -> pa.RecordBatch | None:
    """The records; None for a record batch that is to stay as it is.

    That is one for logbus itself (control), one of columns, which only its schema explains, and one
    whose producer put something into its payload that no reader can decode: brokers do not look, so
    it may be there.
    """
    if header.is_control or has_columns(header):
        return None
    try:
        return decode(header, record_batch)
    except CorruptRecordBatchError:
        return None


def has_columns(header: RecordBatchHeader) -> bool:
    """True of a record batch whose values are columns of a schema."""
    return header.layout == fmt.LAYOUT_COLUMNS


def is_too_large(header: RecordBatchHeader, record_batch: memoryview, *, map_bytes: int) -> bool:
    """True if decoding it would take more than half of the memory that the keys may take.

    A few kilobytes may claim to become a gigabyte, so this goes by what the record batch says of
    itself, before anything is decoded.
    """
    if header.is_control or has_columns(header):
        return False
    try:
        work_bytes = decoded_size(header, record_batch)
    except CorruptRecordBatchError:
        return False  # nobody decodes it
    work_bytes += header.record_count * _RECORD_BYTES
    return work_bytes > max(map_bytes // 2, _LEAST_WORK_BYTES)


def offsets_of(header: RecordBatchHeader, arrow_batch: pa.RecordBatch) -> Sequence[int]:
    """The offset of each record."""
    if not header.has_offset_delta:
        return range(header.base_offset, header.next_offset)
    deltas = arrow_batch.column("offset_delta").cast(pa.int64())
    offsets: list[int] = pc.add(deltas, scalar(header.base_offset, pa.int64())).to_pylist()
    return offsets


def keys_of(header: RecordBatchHeader, arrow_batch: pa.RecordBatch) -> list[bytes | None]:
    if not header.has_key:
        return [None] * arrow_batch.num_rows
    keys: list[bytes | None] = arrow_batch.column("key").to_pylist()
    return keys
