"""Copies staged record batches to the end of a log, with the leader's stamps in their headers."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from spark_logbus.log.disk.filesystem import File
from spark_logbus.record import RecordBatchHeader, stamp, stamps_of

# Of a mean record batch: below this, reading it into memory and writing it stamped takes fewer
# calls and less time than having the kernel copy it and stamping it in place.
_COPY_IN_KERNEL_FROM: Final = 64 << 10


def copy_stamped(
    source: File,
    position: int,
    headers: Sequence[RecordBatchHeader],
    *,
    target: File,
    target_position: int,
    base_offset: int,
    leader_epoch: int,
    append_time_us: int,
) -> None:
    """Copy the record batches at ``position``, whose headers these are, with offsets from
    ``base_offset`` on. Raises OSError; any part of them may be there then.
    """
    size = sum(header.size for header in headers)
    if size // len(headers) < _COPY_IN_KERNEL_FROM:
        data = bytearray(source.pread(size, position))
        if len(data) < size:
            raise OSError(errno.EIO, "The file of staged records ends early", str(source.path))
        view, at = memoryview(data), 0
        for header in headers:
            stamp(
                view[at : at + header.size],
                base_offset=base_offset,
                leader_epoch=leader_epoch,
                append_time_us=append_time_us,
            )
            at += header.size
            base_offset += header.last_offset_delta + 1
        target.pwrite(data, target_position)
        return
    target.copy_from(source, position, size, target_position)
    for header in headers:
        stamps = stamps_of(
            header,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            append_time_us=append_time_us,
        )
        target.pwrite(stamps, target_position)
        target_position += header.size
        base_offset += header.last_offset_delta + 1
