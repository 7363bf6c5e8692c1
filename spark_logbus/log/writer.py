"""Appends to one log, rolls its segments and flushes them.

Theory of operation. An append writes at the tail of the active segment and publishes a new
``Tail``. A flush takes the tail, syncs its file, and moves the view's high watermark to the
tail's end; readers take the view without a lock and never see more. A roll flushes the active
segment before the next one exists. So all but the active segment is always on disk, and a crash
can tear nothing but the last file.

A flush that failed is not tried again: the kernel drops pages that it could not write, and the
next ``fsync`` would succeed without them. The log goes offline instead, with its high watermark
where it was.

Locks, in the order in which they are taken: ``_writing`` (append and roll), ``_flushing`` (one
``fsync`` at a time, because Linux reports a failed one to one caller only), ``LogState``'s.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spark_logbus.errors import LogbusError, PartitionOfflineError, StorageError
from spark_logbus.log import flush_failure
from spark_logbus.log.config import FlushPolicy, LogConfig
from spark_logbus.log.environment import LogEnvironment
from spark_logbus.log.filesystem import File, NotOpenedError, storage_error, storage_errors
from spark_logbus.log.flush_schedule import FlushSchedule
from spark_logbus.log.producers.snapshots import save_producers
from spark_logbus.log.producers.states import ProducerStateManager
from spark_logbus.log.segment.index_file import save_index
from spark_logbus.log.segment.metadata import RollTimer
from spark_logbus.log.segment.segment import ActiveSegment, SealedSegment, create_segment
from spark_logbus.log.state import LogState
from spark_logbus.log.validate import ValidatedBatch, validate_append
from spark_logbus.log.watermark import OnFlushed
from spark_logbus.record import stamp

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an append is: its first record at ``base_offset``, its last before ``end_offset``.

    ``base_offsets`` are those of its record batches if they do not follow one another: when
    some of them were appended before, and are not appended again.
    """

    base_offset: int
    end_offset: int
    append_time_us: int
    base_offsets: tuple[int, ...] = ()


class Tail(NamedTuple):
    """Where the next append goes; all before it is written, not necessarily flushed."""

    segment: ActiveSegment
    end_offset: int
    position: int


class LogWriter:
    """The writing side of one log. Thread-safe."""

    def __init__(
        self,
        state: LogState,
        producers: ProducerStateManager,
        *,
        directory: Path,
        config: LogConfig,
        environment: LogEnvironment,
    ) -> None:
        self._state = state
        self._producers = producers
        self._directory = directory
        self._files = environment.files
        self._clock = environment.clock
        self._time = environment.time
        self._pool = environment.pool
        self._stats = environment.stats
        self.config = config
        # What was appended since the log was opened; changed with _writing held.
        self.record_batches = self.records = self.size_bytes = 0
        self._writing = threading.Lock()
        self._flushing = threading.Lock()
        view = state.view
        self.tail = Tail(view.active, view.high_watermark, view.visible_position)
        self._age = RollTimer(
            self._clock,
            first_append_us=view.active.contents.first_append_us,
            limit_ms=config.roll_ms,
        )
        self._plan = FlushSchedule(self, flusher=environment.flusher, clock=environment.clock)

    # -- appending ----------------------------------------------------------------------

    def append(self, data: memoryview, leader_epoch: int) -> Appended:
        config = self.config
        batches = validate_append(
            self._state.topic_partition,
            data,
            max_record_batch_bytes=config.max_record_batch_bytes,
            needs_keys=config.compacts,
        )
        with self._writing:
            self._state.raise_if_offline()
            there = self._producers.duplicates([header for header, _ in batches])
            if there:
                appended = self._append_rest(there, batches, data, leader_epoch)
            else:
                appended = self._append_new(batches, data, leader_epoch)
        if config.flush_policy is FlushPolicy.OS:
            self._state.tell()  # it is to be seen already
        self._plan.after_append(config, unflushed=self.tail.end_offset - self._state.flushed_end)
        return appended

    def _append_rest(
        self, there: list[int], batches: list[ValidatedBatch], data: memoryview, leader_epoch: int
    ) -> Appended:
        """Append what is behind the record batches that are at the offsets ``there`` already."""
        old, new = batches[: len(there)], batches[len(there) :]
        if not new:
            end_offset = there[-1] + old[-1].header.last_offset_delta + 1
            return Appended(there[0], end_offset, self._clock.now_us(), tuple(there))
        rest = data[sum(len(batch) for _, batch in old) :]
        appended = self._append_new(new, rest, leader_epoch)
        offsets = [*there, appended.base_offset]
        for header, _ in new[:-1]:
            offsets.append(offsets[-1] + header.last_offset_delta + 1)
        return Appended(there[0], appended.end_offset, appended.append_time_us, tuple(offsets))

    def _append_new(
        self, batches: list[ValidatedBatch], data: memoryview, leader_epoch: int
    ) -> Appended:
        tail = self.tail
        if tail.position and self._must_roll(tail, len(data)):
            tail = self._roll()
        now_us = self._time.stamp_us()
        offset = tail.end_offset
        for header, batch in batches:
            stamp(batch, base_offset=offset, leader_epoch=leader_epoch, append_time_us=now_us)
            offset += header.last_offset_delta + 1
        self._write(tail, data)
        if tail.position == 0:
            self._age.begin()
        note, note_producer = tail.segment.contents.note, self._producers.note
        position, next_offset = tail.position, tail.end_offset
        for header, _ in batches:
            note(header, offset=next_offset, position=position, append_time_us=now_us)
            note_producer(header, offset=next_offset, append_time_us=now_us)
            next_offset += header.last_offset_delta + 1
            position += header.size
        self.tail = Tail(tail.segment, offset, position)
        self.record_batches += len(batches)
        self.records += offset - tail.end_offset
        self.size_bytes += len(data)
        if self.config.flush_policy is FlushPolicy.OS:
            self._state.advance_high_watermark(offset, position)
        return Appended(tail.end_offset, offset, now_us)

    def _write(self, tail: Tail, data: memoryview) -> None:
        file = tail.segment.file
        try:
            file.pwrite(data, tail.position)
        except OSError as error:
            raise self._withdrawn(tail, file, error) from error

    def _withdrawn(self, tail: Tail, file: File, error: OSError) -> StorageError:
        """Remove what was written of an append that failed with ``error``; what to raise."""
        partition = self._state.topic_partition
        failure = storage_error(f"append to {partition} in", tail.segment.path, error)
        try:
            file.truncate(tail.position)
        except OSError:
            return self._fail(f"{failure} What was written of the append could not be removed.")
        return failure

    # -- rolling ------------------------------------------------------------------------

    def forget_silent_producers(self, now_us: int) -> None:
        with self._writing:
            self._producers.forget_silent(
                since_us=now_us - self.config.producer_expiration_ms * 1000
            )

    def roll_if_aged(self) -> None:
        """Roll if the active segment is older than ``roll_ms``."""
        with self._writing:
            if (
                self._state.offline is None
                and self.tail.position
                and self._age.reaches(self.config.roll_ms)
            ):
                self._roll()

    def roll_if_unchanged(self, end_offset: int) -> bool:
        """Roll, unless something was appended at or after ``end_offset``."""
        with self._writing:
            if self._state.offline is not None or self.tail.end_offset != end_offset:
                return False
            self._roll()
            return True

    def _must_roll(self, tail: Tail, size: int) -> bool:
        return (
            tail.position + size > self.config.segment_bytes
            or tail.segment.contents.index.full
            or self._age.reaches(self.config.roll_ms)
        )

    def _roll(self) -> Tail:
        """Flush the active segment, seal it, start the next one. ``_writing`` is held."""
        with self._flushing:
            self._state.raise_if_offline()
            self._sync_tail()
            old, end, _ = self.tail
            self._save_producers(end, sync=True)  # the directory is synced later
            new = self._create_segment(end)
            save_index(self._files, old.path, old.contents, old.holes)
            sealed = SealedSegment(
                old.path,
                old.summary,
                files=self._files,
                pool=self._pool,
                index_interval_bytes=self.config.index_interval_bytes,
                lookup=old.lookup(),
            )
            self._state.roll(sealed, new)
            self.tail = Tail(new, end, 0)
        self.request_flush()  # nothing is left to flush, but there are those who wait to hear
        return self.tail

    def _create_segment(self, base_offset: int) -> ActiveSegment:
        partition = self._state.topic_partition
        with storage_errors(f"start a segment of {partition} in", self._directory):
            segment = create_segment(
                self._files,
                self._directory,
                base_offset=base_offset,
                index_interval_bytes=self.config.index_interval_bytes,
            )
        try:
            self._flush_or_fail(
                self._directory, lambda: self._files.sync_directory(self._directory)
            )
        except NotOpenedError as error:
            with storage_errors("remove what was begun,", segment.path):
                self._files.remove(segment.path)  # the next append starts it again
            doing = f"start a segment of {partition} in"
            raise storage_error(doing, self._directory, error) from error
        return segment

    def _save_producers(self, offset: int, *, sync: bool, keep: int | None = None) -> None:
        save_producers(
            self._files, self._directory, self._producers, offset=offset, sync=sync, keep=keep
        )

    def stop(self, error: LogbusError) -> bool:
        """Refuse appends with ``error`` and flush; False if not all could be flushed."""
        with self._writing, self._flushing:  # an append under way ends first
            try:
                self._state.raise_if_offline()
                self._sync_tail()
                flushed = True
                end, base = self.tail.end_offset, self.tail.segment.base_offset
                self._save_producers(end, sync=False, keep=base)
            except LogbusError:
                flushed = False
            self._end(error)
        self._state.tell()
        return flushed

    def abandon(self, error: LogbusError) -> None:
        """Refuse appends with ``error``; those that wait for their flush get it too."""
        with self._writing, self._flushing:
            self._end(error)
        self._state.tell()

    def _end(self, error: LogbusError) -> None:
        self._producers.forget_all()
        self._state.stop(error)

    # -- flushing -----------------------------------------------------------------------

    def when_flushed(self, end_offset: int, callback: OnFlushed) -> None:
        if self._state.wait(end_offset, callback):
            self.request_flush()

    def request_flush(self) -> None:
        self._plan.request()

    def flush(self) -> None:
        """Flush what is written, then tell those who wait. For the flusher's thread.

        A failure takes the log offline and reaches those who wait; it is not raised.
        """
        self._plan.begin()
        with self._flushing:
            if self._state.offline is None:
                with contextlib.suppress(PartitionOfflineError):
                    self._sync_tail()
        self._state.tell()

    def flush_if_due(self) -> float | None:
        """Flush if ``flush_ms`` has passed; else the monotonic time when it will have."""
        due = self._plan.due
        if due is None or self._clock.monotonic() < due:
            return due
        self.flush()
        return None

    def _sync_tail(self) -> None:
        """Flush up to the tail and move the high watermark. ``_flushing`` is held."""
        segment, end_offset, position = self.tail
        if end_offset > self._state.flushed_end:
            began = self._clock.monotonic()
            self._flush_or_fail(segment.path, segment.file.sync)
            self._stats.flushes.observe(self._clock.monotonic() - began)
            self._state.flushed(end_offset, position)

    def _flush_or_fail(self, path: Path, sync: Callable[[], None]) -> None:
        """PartitionOfflineError when ``sync`` failed, NotOpenedError when it began nothing."""
        try:
            sync()
        except NotOpenedError:
            raise
        except OSError as error:
            flush_failure.remember(self._files, self._directory)
            raise self._fail(f"{storage_error('flush', path, error)}") from error

    def _fail(self, why: str) -> PartitionOfflineError:
        """Take the log offline, and have those who wait told; what to raise."""
        failure = self._state.fail(why)
        self.request_flush()
        return failure
