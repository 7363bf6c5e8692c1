"""Staged record batches, copied to the end of a log with the leader's stamps in their headers."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final, NamedTuple

from spark_logbus.log.disk.filesystem import File
from spark_logbus.record import RecordBatchHeader, stamp, stamps_of

# Of a mean record batch: below this, reading it into memory and writing it stamped takes fewer
# calls and less time than having the kernel copy it and stamping it in place.
_COPY_IN_KERNEL_FROM: Final = 64 << 10


class StagedBatches(NamedTuple):
    """Record batches of one attempt of an atomic write that follow one another in a file."""

    producer_id: int
    file: File
    position: int
    headers: Sequence[RecordBatchHeader]

    def after(self, records: int) -> StagedBatches:
        """Returns those after the attempt's first ``records`` records."""
        position, headers = self.position, self.headers
        for number, header in enumerate(headers):
            if header.base_sequence >= records:
                return StagedBatches(self.producer_id, self.file, position, headers[number:])
            position += header.size
        return StagedBatches(self.producer_id, self.file, position, ())

    def copy_stamped(
        self,
        target: File,
        target_position: int,
        *,
        base_offset: int,
        leader_epoch: int,
        append_time_us: int,
    ) -> None:
        """Copy them into ``target``, with offsets from ``base_offset`` on.

        Raises OSError; any part of them may be there then.
        """
        size = sum(header.size for header in self.headers)
        if size // len(self.headers) < _COPY_IN_KERNEL_FROM:
            data = bytearray(self.file.pread(size, self.position))
            if len(data) < size:
                path = str(self.file.path)
                raise OSError(errno.EIO, "The file of staged records ends early", path)
            view, at = memoryview(data), 0
            for header in self.headers:
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
        target.copy_from(self.file, self.position, size, target_position)
        for header in self.headers:
            stamps = stamps_of(
                header,
                base_offset=base_offset,
                leader_epoch=leader_epoch,
                append_time_us=append_time_us,
            )
            target.pwrite(stamps, target_position)
            target_position += header.size
            base_offset += header.last_offset_delta + 1
