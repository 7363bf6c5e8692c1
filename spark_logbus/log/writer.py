"""Appends to one log, rolls its segments and flushes them.

Theory of operation. An append writes at the tail of the active segment and publishes a new
``Tail``. A flush takes the tail, syncs its file, and moves the view's flushed end to the tail's.
The high watermark follows by the broker's rule (see ``LogState``); readers take the view without
a lock and never see more. A roll flushes the active segment before the next one exists. So all
but the active segment is always on disk, and a crash can tear nothing but the last file.

The leader's log stamps what it appends; a follower's takes record batches as they were stamped.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    PartitionOfflineError,
    StorageError,
)
from spark_logbus.log import checkpoint as checkpoints
from spark_logbus.log.config import FlushPolicy, LogConfig
from spark_logbus.log.disk import flush_failure
from spark_logbus.log.disk.filesystem import File, NotOpenedError, storage_error, storage_errors
from spark_logbus.log.environment import LogEnvironment
from spark_logbus.log.flusher import FlushSchedule
from spark_logbus.log.producers.snapshots import save_producers
from spark_logbus.log.producers.states import ProducerStateManager
from spark_logbus.log.segment.index_file import save_index
from spark_logbus.log.segment.metadata import RollTimer
from spark_logbus.log.segment.segment import (
    ActiveSegment,
    SealedSegment,
    create_segment,
    delete_segment,
)
from spark_logbus.log.staging.copy import copy_stamped
from spark_logbus.log.staging.staged_file import StagedBatches
from spark_logbus.log.state import LogState, OnFlushed
from spark_logbus.log.validate import ValidatedBatch, validate_append
from spark_logbus.model import LostOffsets
from spark_logbus.record import RecordBatchHeader, split, stamp
from spark_logbus.record.stage_id import StageIds

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogAppendInfo:
    """Place of an append: its first record at ``base_offset``, its last before ``end_offset``.

    ``base_offsets`` are those of its record batches if they do not follow one another: when
    some of them were appended before, and are not appended again.
    """

    base_offset: int
    end_offset: int
    append_time_us: int
    base_offsets: tuple[int, ...] = ()


class AppendTotals(NamedTuple):
    """Appended to one log since it was opened."""

    record_batches: int
    records: int
    size_bytes: int


class Tail(NamedTuple):
    """Place of the next append; all before it is written, not necessarily flushed."""

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
        # Totals since the log was opened; changed with _writing held.
        self.record_batches = self.records = self.size_bytes = 0
        self._writing = threading.Lock()
        self._flushing = threading.Lock()
        view = state.view
        self.tail = Tail(view.active, view.flushed_end, view.active.metadata.size_bytes)
        producers.lost_before = view.lost[-1].end if view.lost else 0
        self._last_epoch: int | None = None  # of the record batch before the tail, once known
        self._age = RollTimer(
            self._clock,
            first_append_us=view.active.metadata.first_append_us,
            limit_ms=config.roll_ms,
        )
        self._schedule = FlushSchedule(self, flusher=environment.flusher, clock=environment.clock)

    # -- appending ----------------------------------------------------------------------

    def append_as_leader(self, data: memoryview, leader_epoch: int) -> LogAppendInfo:
        config = self.config
        batches = validate_append(
            self._state.topic_partition,
            data,
            max_record_batch_bytes=config.max_record_batch_bytes,
            needs_keys=config.compacts,
            schemas=config.schemas,
        )
        with self._writing:
            self._state.raise_if_offline()
            duplicate_offsets = self._producers.duplicate_offsets([header for header, _ in batches])
            if duplicate_offsets:
                appended = self._append_rest(duplicate_offsets, batches, data, leader_epoch)
            else:
                appended = self._append_new(batches, data, leader_epoch)
        self._after_append(config)
        return appended

    def append_as_follower(self, data: memoryview) -> LogAppendInfo:
        batches = [ValidatedBatch(*each) for each in split(data, allow_tail=False)]
        if not batches:
            raise InvalidRequestError(
                f"An append to {self._state.topic_partition} holds no record batch; send at "
                "least one."
            )
        config = self.config
        with self._writing:
            self._state.raise_if_offline()
            self._check_continues(batches)
            tail = self._tail_for(len(data))
            append_time_us = batches[-1].header.append_time_us
            self._write(tail, batches, data)
            self._last_epoch = batches[-1].header.leader_epoch
            appended = LogAppendInfo(tail.end_offset, self.tail.end_offset, append_time_us)
        self._after_append(config)
        return appended

    def _after_append(self, config: LogConfig) -> None:
        if config.flush_policy is FlushPolicy.OS:
            self._state.notify()  # it is to be seen already
        unflushed = self.tail.end_offset - self._state.view.flushed_end
        self._schedule.after_append(config, unflushed=unflushed)

    def _append_rest(
        self,
        duplicate_offsets: list[int],
        batches: list[ValidatedBatch],
        data: memoryview,
        leader_epoch: int,
    ) -> LogAppendInfo:
        """Append the record batches after those that are in the log already."""
        old, new = batches[: len(duplicate_offsets)], batches[len(duplicate_offsets) :]
        first = duplicate_offsets[0]
        if not new:
            end_offset = duplicate_offsets[-1] + old[-1].header.last_offset_delta + 1
            return LogAppendInfo(first, end_offset, self._clock.now_us(), tuple(duplicate_offsets))
        rest = data[sum(len(batch) for _, batch in old) :]
        appended = self._append_new(new, rest, leader_epoch)
        offsets = [*duplicate_offsets, appended.base_offset]
        for header, _ in new[:-1]:
            offsets.append(offsets[-1] + header.last_offset_delta + 1)
        return LogAppendInfo(first, appended.end_offset, appended.append_time_us, tuple(offsets))

    def _append_new(
        self, batches: list[ValidatedBatch], data: memoryview, leader_epoch: int
    ) -> LogAppendInfo:
        tail = self._tail_for(len(data))
        now_us = self._time.stamp_us()
        offset = tail.end_offset
        for header, batch in batches:
            stamp(batch, base_offset=offset, leader_epoch=leader_epoch, append_time_us=now_us)
            offset += header.last_offset_delta + 1
        self._write(tail, batches, data, now_us)
        self._last_epoch = leader_epoch
        return LogAppendInfo(tail.end_offset, offset, now_us)

    def _check_continues(self, batches: list[ValidatedBatch]) -> None:
        """Refuse a gap, an overlap and a leader epoch before the one that wrote last."""
        offset, epoch = self.tail.end_offset, self._epoch_before_tail()
        for header, _ in batches:
            if header.base_offset != offset:
                raise InvalidRequestError(
                    f"A record batch for the follower's log of {self._state.topic_partition} "
                    f"does not continue it: expected base offset {offset}, got "
                    f"{header.base_offset}; fetch from {offset} on."
                )
            if header.leader_epoch < epoch:
                raise InvalidRequestError(
                    f"A record batch at offset {offset} for the follower's log of "
                    f"{self._state.topic_partition} has leader epoch {header.leader_epoch}, and "
                    f"the one before it {epoch}: it is of a leader that was replaced. Fetch from "
                    "the present one."
                )
            offset, epoch = header.next_offset, header.leader_epoch

    def _epoch_before_tail(self) -> int:
        if self._last_epoch is None:
            with storage_errors("read the last leader epoch in", self._directory):
                self._last_epoch = self._state.view.last_epoch()
        return self._last_epoch

    def _tail_for(self, size: int) -> Tail:
        """The tail for an append of ``size`` bytes, after a roll if one is due."""
        tail = self.tail
        return self._roll() if tail.position and self._must_roll(tail, size) else tail

    def _write(
        self,
        tail: Tail,
        batches: list[ValidatedBatch],
        data: memoryview,
        append_time_us: int | None = None,
    ) -> None:
        """Write ``data``, stamped, and account for its record batches; appended at the time that
        their headers say unless ``append_time_us`` is given, for headers from before the stamp."""
        file = tail.segment.file
        try:
            file.pwrite(data, tail.position)
        except OSError as error:
            raise self._withdrawn(tail, file, error, len(data)) from error
        self._account(tail, [header for header, _ in batches], append_time_us)

    def _account(
        self, tail: Tail, headers: Sequence[RecordBatchHeader], append_time_us: int | None
    ) -> None:
        """Move the tail over record batches that were written there."""
        if tail.position == 0:
            self._age.begin()
        note, note_producer = tail.segment.metadata.note, self._producers.note
        position, offset = tail.position, tail.end_offset
        for header in headers:
            time_us = header.append_time_us if append_time_us is None else append_time_us
            note(header, offset=offset, position=position, append_time_us=time_us)
            note_producer(header, offset=offset, append_time_us=time_us)
            offset += header.last_offset_delta + 1
            position += header.size
        self.tail = Tail(tail.segment, offset, position)
        self.record_batches += len(headers)
        self.records += offset - tail.end_offset
        self.size_bytes += position - tail.position
        if self.config.flush_policy is FlushPolicy.OS:
            self._state.advance_durable_position(offset, position)

    def _withdrawn(self, tail: Tail, file: File, error: OSError, size_bytes: int) -> StorageError:
        """Remove what was written of an append that failed with ``error``; what to raise."""
        self._note_refused(error, size_bytes)
        partition = self._state.topic_partition
        failure = storage_error(f"append to {partition} in", tail.segment.path, error)
        try:
            file.truncate(tail.position)
        except OSError:
            return self._fail(f"{failure} What was written of the append could not be removed.")
        return failure

    def _note_refused(self, error: OSError, size_bytes: int) -> None:
        where, now = self._state.topic_partition, self._clock.monotonic()
        self._stats.note_write_error(where, self._directory, error, size_bytes=size_bytes, now=now)

    # -- publishing what was staged -----------------------------------------------------

    def publish(self, staged: StagedBatches, leader_epoch: int) -> None:
        """Append record batches of one staged share, copied from its file: all or none.

        Those at the head that an earlier publishing has appended are passed over.
        """
        with self._writing:
            self._state.raise_if_offline()
            held = self._producers.records_of(staged.producer_id)
            position, headers = staged.after(held)
            if not headers:
                return
            size = sum(header.size for header in headers)
            tail = self._tail_for(size)
            file = tail.segment.file
            now_us = self._time.stamp_us()
            try:
                copy_stamped(
                    staged.file,
                    position,
                    headers,
                    target=file,
                    target_position=tail.position,
                    base_offset=tail.end_offset,
                    leader_epoch=leader_epoch,
                    append_time_us=now_us,
                )
            except OSError as error:
                raise self._withdrawn(tail, file, error, size) from error
            self._account(tail, headers, now_us)
            self._last_epoch = leader_epoch
        self._after_append(self.config)

    def cap_high_watermark(self, write: int) -> None:
        """Keep what is appended from now on from consumers, until the write is all there."""
        with self._writing:
            self._state.cap_high_watermark(write, self.tail.end_offset)

    def appended_records(self, attempts: StageIds) -> dict[int, int]:
        """How many records of each attempt the log has; without those of which it has none."""
        with self._writing:
            return self._producers.appended_records(attempts)

    def first_offset(self, attempts: StageIds) -> int:
        """The lowest offset of what the log has of these attempts."""
        with self._writing:
            return self._producers.first_offset(attempts)

    def protect(self, write: int) -> None:
        """Do not forget what the log has of the attempts of a write."""
        with self._writing:
            self._producers.protect(write)

    def release(self, attempts: StageIds) -> None:
        """Forget these attempts: none of them comes again."""
        with self._writing:
            self._producers.release(attempts)

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
            or tail.segment.metadata.index.full
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
            save_index(self._files, old.path, old.metadata, old.damaged)
            self._state.roll(self._sealed(old), new)
            self.tail = Tail(new, end, 0)
        self.request_flush()  # nothing is left to flush, but there are those who wait to hear
        return self.tail

    def go_on_at(self, offset: int) -> int:
        """Begin a segment at ``offset``, behind the end; the offsets between are lost from now on.

        They are noted before the segment is there: a log that ends before them has not lost them
        yet, and recovery passes the note over.
        """
        with self._writing, self._flushing:
            self._state.raise_if_offline()
            self._sync_tail()
            old, end, position = self.tail
            before = self._state.view.lost
            lost = LostOffsets(end, offset)
            if before and before[-1].end == end:  # nothing has come since the last time
                lost, before = LostOffsets(before[-1].start, offset), before[:-1]
            noted = (*self._state.view.lost, lost)  # what is merged counts until it is done
            checkpoints.write_lost_offsets(self._files, self._directory, noted)
            new = self._create_segment(offset)
            self._save_producers(offset, sync=True)
            sealed = []
            if position:
                save_index(self._files, old.path, old.metadata, old.damaged)
                sealed.append(self._sealed(old))
            self._state.skip(sealed, new, (*before, lost))
            self._producers.lost_before = offset
            self.tail = Tail(new, offset, 0)
            if not position:
                old.retire()
                with storage_errors("remove the empty segment", old.path):
                    delete_segment(self._files, old.path)
                    self._files.sync_directory(self._directory)
        self.request_flush()
        return lost.start

    def _sealed(self, old: ActiveSegment) -> SealedSegment:
        return SealedSegment(
            old.path,
            old.summary,
            files=self._files,
            pool=self._pool,
            index_interval_bytes=self.config.index_interval_bytes,
            lookup=old.lookup(),
        )

    def _create_segment(self, base_offset: int) -> ActiveSegment:
        partition = self._state.topic_partition
        try:
            segment = create_segment(
                self._files,
                self._directory,
                base_offset=base_offset,
                index_interval_bytes=self.config.index_interval_bytes,
            )
        except OSError as error:
            self._note_refused(error, 1)
            doing = f"start a segment of {partition} in"
            raise storage_error(doing, self._directory, error) from error
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
        self._state.notify()
        return flushed

    def abandon(self, error: LogbusError) -> None:
        """Refuse appends with ``error``; those that wait for their flush get it too."""
        with self._writing, self._flushing:
            self._end(error)
        self._state.notify()

    def _end(self, error: LogbusError) -> None:
        self._producers.forget_all()
        self._state.stop(error)

    # -- flushing -----------------------------------------------------------------------

    def when_flushed(self, end_offset: int, callback: OnFlushed) -> None:
        if self._state.wait(end_offset, callback):
            self.request_flush()

    def request_flush(self) -> None:
        self._schedule.request()

    def flush(self) -> None:
        """Flush what is written, then notify those who wait. For the flusher's thread.

        A failure takes the log offline and reaches those who wait; it is not raised.
        """
        self._schedule.begin()
        with self._flushing:
            if self._state.offline is None:
                with contextlib.suppress(PartitionOfflineError):
                    self._sync_tail()
        self._state.notify()

    def flush_if_due(self) -> float | None:
        """Flush if ``flush_ms`` has passed; else the monotonic time when it will have."""
        due = self._schedule.due
        if due is None or self._clock.monotonic() < due:
            return due
        self.flush()
        return None

    def _sync_tail(self) -> None:
        """Flush up to the tail. ``_flushing`` is held."""
        segment, end_offset, position = self.tail
        if end_offset > self._state.view.flushed_end:
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
        """Take the log offline, and have those who wait notified; what to raise."""
        failure = self._state.fail(why)
        self.request_flush()
        return failure
