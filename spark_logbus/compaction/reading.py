"""Reads sealed segments, record batch by record batch, verified, without a copy."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from spark_logbus.compaction.messages import Source
from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.record import RecordBatchHeader, split
from spark_logbus.record.arrow import decode


class DamagedSegmentError(Exception):
    """The segment is not whole; the log's own scan will find out what is left of it."""

    def __init__(self, source: Source, why: str) -> None:
        super().__init__(f"{source.path}: {why}")
        self.source = source


def record_batches(source: Source) -> Iterator[tuple[RecordBatchHeader, memoryview]]:
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

    That is one for logbus itself (control), and one whose producer put something into its payload
    that no reader can decode: brokers do not look, so it may be there.
    """
    if header.is_control:
        return None
    try:
        return decode(header, record_batch)
    except CorruptRecordBatchError:
        return None


def offsets_of(header: RecordBatchHeader, arrow_batch: pa.RecordBatch) -> list[int]:
    """The offset of each record."""
    if not header.has_offset_delta:
        return list(range(header.base_offset, header.next_offset))
    deltas = arrow_batch.column("offset_delta").cast(pa.int64())
    offsets: list[int] = pc.add(deltas, header.base_offset).to_pylist()
    return offsets


def keys_of(header: RecordBatchHeader, arrow_batch: pa.RecordBatch) -> list[bytes | None]:
    if not header.has_key:
        return [None] * arrow_batch.num_rows
    keys: list[bytes | None] = arrow_batch.column("key").to_pylist()
    return keys
