"""Runs one job, from the map to the last group."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_logbus.compactor.messages import (
    Compacted,
    CompactorReport,
    Finished,
    Group,
    Job,
    MapProgress,
)
from spark_logbus.compactor.newest import NewestOffsets
from spark_logbus.compactor.pieces import BatchPart, is_filler, size_of
from spark_logbus.compactor.reading import (
    decoded,
    has_columns,
    is_too_large,
    keys_of,
    offsets_of,
    record_batches,
)
from spark_logbus.compactor.retained_records import retained_records
from spark_logbus.compactor.rewriter import Rewriter
from spark_logbus.errors import StorageError
from spark_logbus.log import OS_FILES, index_cleaned
from spark_logbus.record import RecordBatchHeader
from spark_logbus.record.rows.plain import integers

# Flushed in steps: a gigabyte that goes to the disk at once would hold up the broker's flushes.
_SYNC_BYTES: Final = 32 << 20


def compact(job: Job, report: Callable[[CompactorReport], None]) -> None:
    """Do the job, and report on the way.

    Raises DamagedSegmentError, StorageError, OSError.
    """
    newest, end_offset = _map(job, report)
    undecodable = too_large = of_columns = 0
    delete_horizon = job.delete_horizon
    for number, group in enumerate(job.groups):
        if group.sources[0].base_offset >= end_offset:
            break
        work = _GroupCompaction(
            job, group, newest=newest, end_offset=end_offset, delete_horizon=delete_horizon
        )
        report(work.run(number))
        undecodable += work.undecodable
        too_large += work.too_large
        of_columns += work.of_columns
        delete_horizon = work.delete_horizon
    report(
        Finished(
            end_offset=end_offset,
            keys=len(newest),
            undecodable=undecodable,
            too_large=too_large,
            of_columns=of_columns,
        )
    )


def _map(job: Job, report: Callable[[CompactorReport], None]) -> tuple[NewestOffsets, int]:
    """The newest offset of each key in the dirty part, and where that ends for lack of memory."""
    newest = NewestOffsets(map_bytes=job.map_bytes)
    end_offset = job.first_dirty_offset
    for group in job.groups:
        for source in group.sources:
            if source.end_offset <= job.first_dirty_offset:
                continue
            records = 0
            for header, record_batch in record_batches(source):
                if header.next_offset <= job.first_dirty_offset:
                    continue
                if newest.full:
                    return newest, header.base_offset
                too_large = is_too_large(header, record_batch, map_bytes=job.map_bytes)
                arrow_batch = None if too_large else decoded(header, record_batch)
                if arrow_batch is not None:
                    _note(newest, header, arrow_batch)
                    records += arrow_batch.num_rows
                end_offset = header.next_offset
            report(MapProgress(records))
    return newest, end_offset


def _note(newest: NewestOffsets, header: RecordBatchHeader, arrow_batch: pa.RecordBatch) -> None:
    if header.has_key:
        newest.add(
            keys_of(header, arrow_batch),
            offsets_of(header, arrow_batch),
            key_bytes=arrow_batch.column("key").nbytes,
        )


class _GroupCompaction:
    """Reads the segments of one group and writes the new one. Used once.

    A record batch that is too large to be decoded, or one of columns, stays as it is. It may hold
    what tombstones after it delete; so those stay as well: ``delete_horizon`` is never after it.
    """

    def __init__(
        self,
        job: Job,
        group: Group,
        *,
        newest: NewestOffsets,
        end_offset: int,
        delete_horizon: int,
    ) -> None:
        self._job = job
        self._group = group
        self._newest = newest.by_key
        self._end_offset = end_offset
        self._records_before = 0
        self._records_after = 0
        self.delete_horizon = delete_horizon
        self.undecodable = 0
        self.too_large = 0
        self.of_columns = 0

    def run(self, number: int) -> Compacted:
        group = self._group
        base, end = group.sources[0].base_offset, group.sources[-1].end_offset
        target = Path(group.target)
        target.unlink(missing_ok=True)
        with _Output(target) as output:
            rewriter = Rewriter(base, write=output.write)
            for source in group.sources:
                for header, record_batch in record_batches(source):
                    self._record_batch(rewriter, header, record_batch)
            rewriter.finish(end)
        changed = rewriter.changed or len(group.sources) > 1
        if changed:
            self._index(target, base, end)
        else:
            target.unlink()
        return Compacted(
            number=number,
            changed=changed,
            records_before=self._records_before,
            records_after=self._records_after,
            bytes_before=sum(source.size_bytes for source in group.sources),
            bytes_after=output.size,
        )

    def _record_batch(
        self, rewriter: Rewriter, header: RecordBatchHeader, record_batch: memoryview
    ) -> None:
        if is_filler(header):
            rewriter.removed(header)
            return
        self._records_before += header.record_count
        too_large = is_too_large(header, record_batch, map_bytes=self._job.map_bytes)
        arrow_batch = None if too_large else decoded(header, record_batch)
        if arrow_batch is None:
            if too_large or has_columns(header):
                self.too_large += too_large
                self.of_columns += not too_large
                self.delete_horizon = min(self.delete_horizon, header.base_offset)
            else:
                self.undecodable += not header.is_control
            self._records_after += header.record_count
            rewriter.add(BatchPart(header, record_batch, None, (), header.size))
            return
        offsets = offsets_of(header, arrow_batch)
        stay = self._survivors(header, arrow_batch, offsets)
        count = sum(stay)
        self._records_after += count
        if count == 0:
            rewriter.removed(header)
        elif count == len(stay):
            size = size_of(header, arrow_batch)
            rewriter.add(BatchPart(header, record_batch, arrow_batch, offsets, size))
        else:
            rows = (row for row, stays in enumerate(stay) if stays)
            arrow_batch = arrow_batch.take(integers(rows, pa.int64()))  # without pandas
            offsets = [offset for offset, stays in zip(offsets, stay, strict=True) if stays]
            rewriter.add(
                BatchPart(header, None, arrow_batch, offsets, size_of(header, arrow_batch))
            )

    def _survivors(
        self, header: RecordBatchHeader, arrow_batch: pa.RecordBatch, offsets: Sequence[int]
    ) -> list[bool]:
        if not header.has_key:
            return [True] * len(offsets)
        values = arrow_batch.column("value")
        return retained_records(
            keys_of(header, arrow_batch),
            offsets,
            pc.is_null(values).to_pylist() if values.null_count else None,
            newest=self._newest,
            end_offset=self._end_offset,
            delete_horizon=self.delete_horizon,
        )

    def _index(self, target: Path, base: int, end: int) -> None:
        summary = index_cleaned(
            OS_FILES,
            target,
            Path(self._group.target_index),
            base_offset=base,
            end_offset=end,
            index_interval_bytes=self._job.index_interval_bytes,
        )
        if summary is None:
            raise StorageError(
                f"What compaction wrote to {target} does not hold the offsets {base} to {end} as "
                "valid record batches; check the disk and the memory."
            )


class _Output:
    """A new file, flushed to the disk when left."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=1 << 20)
        self._unsynced = 0
        self.size = 0

    def write(self, data: memoryview) -> None:
        self._file.write(data)
        self.size += len(data)
        self._unsynced += len(data)
        if self._unsynced >= _SYNC_BYTES:
            self._sync()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unsynced = 0

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._sync()
        self._file.close()
