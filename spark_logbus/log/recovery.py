"""Brings the log of one partition from its directory to a state that can be served.

Leftovers of a crash, and what is done about them:

* The last segment ends in a torn or lost write: it is cut back to its last whole record batch,
  unless valid record batches follow or the damage lies before the recovery point. Then it is
  not a crash's doing, so nothing is cut and the range becomes a ``DamagedRange``.
* No crash leaves a log that ends, undamaged, before the recovery point: that is an older copy,
  or one without its last segments. It is refused, not continued: its offsets would go to other
  records, and no reader could notice.
* Files of an interrupted deletion (``.deleted``) or replacement (``.tmp``) are removed, and so
  are segments before the log start offset, which was on disk before their deletion began.
* A compaction that was decided (``.swap``) is completed; one that was not (``.cleaned``) goes.
* An index that is missing, stale or torn is rebuilt.
* A part of the log that was given up (``PartitionLog.go_on_at``) is a gap between two segments,
  not damage.

Sealed segments were flushed before they were sealed, so damage in them is never a crash's.
Segments that end at or before the recovery point are not scanned if their index file is whole;
after a clean shutdown that holds for all.
"""

from __future__ import annotations

import itertools
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_logbus.clock import Clock
from spark_logbus.errors import StorageError
from spark_logbus.log.checkpoint import read_lost_offsets, write_lost_offsets
from spark_logbus.log.compaction.swap import complete as complete_swaps
from spark_logbus.log.disk import flush_failure, names
from spark_logbus.log.disk.filesystem import File, FileSystem
from spark_logbus.log.segment.index import Summary
from spark_logbus.log.segment.index_file import index_path, read_index, read_summary, save_index
from spark_logbus.log.segment.lookup import Lookup
from spark_logbus.log.segment.metadata import SegmentMetadata, scan_metadata
from spark_logbus.log.segment.scan import SegmentScan
from spark_logbus.log.segment.segment import (
    ActiveSegment,
    OpenSegments,
    SealedSegment,
    create_segment,
    damage_to_end,
    delete_segment,
    log_damage,
)
from spark_logbus.log.view import LogView
from spark_logbus.model import LostOffsets

logger = logging.getLogger(__name__)

_REWRITE_BYTES: Final = 1 << 20


class EndsTooEarlyError(Exception):
    """A log ends before its checkpoint says. Never leaves this package."""

    def __init__(self, end: int, known_end: int) -> None:
        super().__init__(end, known_end)
        self.end = end
        self.known_end = known_end


class RecoveryProgress:
    """Progress of recovery, as numbers and now and then in the log. Thread-safe."""

    REPORT_EVERY_S: Final = 5.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reported = clock.monotonic()
        self.logs_total = 0
        self.logs_done = 0
        self.bytes_scanned = 0

    def scanned(self, count: int) -> None:
        self._advance(logs=0, count=count)

    def log_done(self) -> None:
        self._advance(logs=1, count=0)

    def _advance(self, *, logs: int, count: int) -> None:
        with self._lock:
            self.logs_done += logs
            self.bytes_scanned += count
            now = self._clock.monotonic()
            if now - self._reported < self.REPORT_EVERY_S:
                return
            self._reported = now
        logger.info(
            "Recovery has opened %d of %d logs and scanned %d MB.",
            self.logs_done, self.logs_total, self.bytes_scanned // 1_000_000,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LogRecovery:
    """Recovers one log; what it knows about it beforehand. For one thread, used once."""

    files: FileSystem
    directory: Path
    pool: OpenSegments
    index_interval_bytes: int
    log_start_offset: int  # 0 when not known
    recovery_point: int  # 0 when not known
    clean: bool  # the last stop was orderly, and the recovery point is the end of the log
    progress: RecoveryProgress

    def run(self) -> LogView:
        """The log, all of it flushed and visible. Raises OSError, and EndsTooEarlyError when it
        is not the whole log that the checkpoint knows; no record of it was touched then."""
        base_offsets = self._tidy_up()
        lost = self._lost(base_offsets)
        if not base_offsets:
            if self.recovery_point > self.log_start_offset:
                raise EndsTooEarlyError(0, self.recovery_point)
            return self._begin((), self.log_start_offset)
        sealed: list[SealedSegment] = []
        try:
            ends = {each.end: each.start for each in lost}
            for base, end in itertools.pairwise(base_offsets):
                sealed.append(self._open_sealed(base, ends.get(end, end)))
            view = self._open_last(tuple(sealed), base_offsets[-1])
            self._forget_stale(lost)
            return view._replace(lost=tuple(at for at in lost if at.end > view.log_start_offset))
        except (OSError, EndsTooEarlyError):
            for segment in sealed:
                segment.retire()
            raise

    def _tidy_up(self) -> list[int]:
        """Remove leftovers and what lies before the log start; the remaining base offsets."""
        complete_swaps(self.files, self.directory)
        listed = self.files.names(self.directory)
        removed = False
        for name in filter(names.is_leftover, listed):
            self.files.remove(self.directory / name)
            removed = True
        base_offsets = sorted(
            base for name in listed if (base := names.parse_segment(name)) is not None
        )
        while len(base_offsets) > 1 and base_offsets[1] <= self.log_start_offset:
            delete_segment(self.files, self.directory / names.segment(base_offsets.pop(0)))
            removed = True
        for name in listed:
            base = names.parse_index(name)
            if (
                base is not None
                and base not in base_offsets
                and self.files.exists(self.directory / name)
            ):
                self.files.remove(self.directory / name)
        if removed:
            self.files.sync_directory(self.directory)
        return base_offsets

    def _lost(self, base_offsets: list[int]) -> tuple[LostOffsets, ...]:
        """The ranges that were given up, as far as a segment begins behind them: before that is
        there, nothing is lost yet. An empty segment in one goes, for nothing can come to be in
        it."""
        noted = read_lost_offsets(self.files, self.directory)
        for each in noted:
            inside = [base for base in base_offsets if each.start <= base < each.end]
            for base in inside if each.end in base_offsets else ():
                path = self.directory / names.segment(base)
                if not self.files.open_read_only(path).size():
                    delete_segment(self.files, path)
                    base_offsets.remove(base)
        return tuple(each for each in noted if each.end in base_offsets)

    def _forget_stale(self, lost: tuple[LostOffsets, ...]) -> None:
        """Forget ranges that are noted and are not lost: a later segment could begin where one of
        them ends. Where the disk refuses that, the next start tries it again."""
        try:
            if lost != read_lost_offsets(self.files, self.directory):
                write_lost_offsets(self.files, self.directory, lost)
        except StorageError as error:
            logger.warning("%s", error)

    def _open_sealed(self, base_offset: int, end_offset: int) -> SealedSegment:
        path = self.directory / names.segment(base_offset)
        file = self.files.open_read_only(path)
        summary = read_summary(self.files, index_path(path))
        if (
            summary is not None
            and summary.is_of(
                base_offset=base_offset, end_offset=end_offset, size_bytes=file.size()
            )
            and (self.clean or end_offset <= self.recovery_point)
        ):
            return self._sealed(path, summary, None)
        metadata, result = self._scan(file, base_offset, end_offset)
        damaged = damage_to_end(result, end=end_offset, end_position=result.file_bytes)
        log_damage(path, damaged)
        save_index(self.files, path, metadata, damaged)
        return self._sealed(path, metadata.summary(), Lookup(file, metadata.index, damaged))

    def _sealed(self, path: Path, summary: Summary, lookup: Lookup | None) -> SealedSegment:
        return SealedSegment(
            path,
            summary,
            files=self.files,
            pool=self.pool,
            index_interval_bytes=self.index_interval_bytes,
            lookup=lookup,
        )

    def _open_last(self, sealed: tuple[SealedSegment, ...], base_offset: int) -> LogView:
        path = self.directory / names.segment(base_offset)
        file = self.files.open(path)
        trusted = self._trusted_metadata(path, file, base_offset) if self.clean else None
        if trusted is not None:
            return self._view(sealed, ActiveSegment(path, file, trusted))
        metadata, result = self._scan(file, base_offset, None)
        damaged = tuple(result.damaged)
        if metadata.end_offset < self.recovery_point:
            if metadata.size_bytes == result.file_bytes:
                # Whole up to its end: not damaged, but an older copy, or segments are missing.
                raise EndsTooEarlyError(metadata.end_offset, self.recovery_point)
            return self._keep_damaged_end(sealed, path, file, metadata, result)
        log_damage(path, damaged)
        cut = result.file_bytes - metadata.size_bytes
        if cut:
            logger.warning(
                "The last %d bytes of %s were no whole record batches and were cut off: they "
                "were being written when the broker stopped. The log ends at offset %d.",
                cut, path, metadata.end_offset,
            )  # fmt: skip
            file.truncate(metadata.size_bytes)
        self._put_on_disk(file, metadata)
        return self._view(sealed, ActiveSegment(path, file, metadata, damaged))

    def _keep_damaged_end(
        self,
        sealed: tuple[SealedSegment, ...],
        path: Path,
        file: File,
        metadata: SegmentMetadata,
        result: SegmentScan,
    ) -> LogView:
        """Flushed records are lost at the end: keep the file, continue after them in a new one.

        Their offsets may have been read, so they are not given to other records.
        """
        damaged = damage_to_end(result, end=self.recovery_point, end_position=result.file_bytes)
        log_damage(path, damaged)
        save_index(self.files, path, metadata, damaged)
        lookup = Lookup(file, metadata.index, damaged)
        last = self._sealed(path, metadata.summary(), lookup)
        return self._begin((*sealed, last), self.recovery_point)

    def _begin(self, sealed: tuple[SealedSegment, ...], base_offset: int) -> LogView:
        active = create_segment(
            self.files,
            self.directory,
            base_offset=base_offset,
            index_interval_bytes=self.index_interval_bytes,
        )
        self.files.sync_directory(self.directory)
        return self._view(sealed, active)

    def _view(self, sealed: tuple[SealedSegment, ...], active: ActiveSegment) -> LogView:
        first = sealed[0].base_offset if sealed else active.base_offset
        start = max(self.log_start_offset, first)
        return LogView.flushed(sealed, active, log_start_offset=start)

    def _scan(
        self, file: File, base_offset: int, end_offset: int | None
    ) -> tuple[SegmentMetadata, SegmentScan]:
        return scan_metadata(
            file,
            base_offset=base_offset,
            end_offset=end_offset,
            index_interval_bytes=self.index_interval_bytes,
            on_progress=self.progress.scanned,
        )

    def _put_on_disk(self, file: File, metadata: SegmentMetadata) -> None:
        """Make sure that what was scanned is on disk, though an earlier flush may have failed.

        After a failed flush the kernel may hold pages that it takes for written, and a flush
        alone would pass over them. So what is not known to be on disk is written again then.
        """
        if flush_failure.is_remembered(self.files, self.directory):
            self._write_again(file, metadata)
        try:
            file.sync()
        except OSError:
            flush_failure.remember(self.files, self.directory)
            raise
        flush_failure.forget(self.files, self.directory)

    def _write_again(self, file: File, metadata: SegmentMetadata) -> None:
        position = 0
        if self.recovery_point > metadata.base_offset:
            position = metadata.index.at_offset(self.recovery_point)[1]
        while position < metadata.size_bytes:
            length = min(_REWRITE_BYTES, metadata.size_bytes - position)
            file.pwrite(file.pread(length, position), position)
            position += length

    def _trusted_metadata(self, path: Path, file: File, base_offset: int) -> SegmentMetadata | None:
        if file.size() == 0 and base_offset == self.recovery_point:
            return SegmentMetadata(
                base_offset=base_offset, index_interval_bytes=self.index_interval_bytes
            )
        found = read_index(self.files, index_path(path))
        if found is None or found.summary is None or found.index is None:
            return None
        if not found.summary.is_of(
            base_offset=base_offset, end_offset=self.recovery_point, size_bytes=file.size()
        ):
            return None
        return SegmentMetadata.resume(
            found.summary, found.index, index_interval_bytes=self.index_interval_bytes
        )
