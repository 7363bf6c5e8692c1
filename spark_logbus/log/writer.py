"""Appends to one log, rolls its segments and flushes them.

Theory of operation. An append writes at the tail of the active segment and publishes a new
``Tail``. A flush takes the tail, syncs its file, and moves the view's flushed end to the tail's.
The high watermark follows by the broker's rule (see ``LogState``); readers take the view without
a lock and never see more. A roll flushes the active segment before the next one exists. So all
but the active segment is always on disk, and a crash can tear nothing but the last file.

The leader's log stamps what it appends; a follower's takes record batches as they were stamped.
Both have a leader epoch on disk before they write the first record batch of it.

A flush that failed is not tried again (see ``FlushedFile``): the log goes offline, with its high
watermark where it was.

Locks, in the order in which they are taken: ``_writing`` (append and roll), ``_flushing``,
``LogState``'s.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    PartitionOfflineError,
    RecordBatchOverlapError,
    StorageError,
)
from spark_logbus.log import checkpoint as checkpoints
from spark_logbus.log.append_info import LogAppendInfo, Tail
from spark_logbus.log.config import FlushPolicy, LogConfig
from spark_logbus.log.disk import flush_failure
from spark_logbus.log.disk.filesystem import File, NotOpenedError, storage_error, storage_errors
from spark_logbus.log.disk.flushed_file import FlushedFile
from spark_logbus.log.environment import LogEnvironment
from spark_logbus.log.epoch_fence import EpochFence
from spark_logbus.log.epochs import EpochEntry, LeaderEpochs
from spark_logbus.log.producers.snapshots import save_producers
from spark_logbus.log.producers.states import ProducerStateManager
from spark_logbus.log.segment.index_file import save_index
from spark_logbus.log.segment.lookup import BatchPosition
from spark_logbus.log.segment.metadata import RollTimer
from spark_logbus.log.segment.segment import (
    ActiveSegment,
    SealedSegment,
    create_segment,
    delete_segment,
)
from spark_logbus.log.staged_batches import StagedBatches
from spark_logbus.log.state import LogState
from spark_logbus.log.validate import ValidatedBatch, validate_append
from spark_logbus.log.view import LogView
from spark_logbus.model import LostOffsets
from spark_logbus.record import RecordBatchHeader, split, stamp
from spark_logbus.record import format as fmt

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LogWriter(FlushedFile):
    """Writing side of one log. Thread-safe."""

    def __init__(
        self,
        state: LogState,
        producers: ProducerStateManager,
        epochs: LeaderEpochs,
        *,
        directory: Path,
        config: LogConfig,
        environment: LogEnvironment,
    ) -> None:
        view = state.view
        super().__init__(
            state.topic_partition,
            directory,
            flushed_end=view.active.metadata.end_offset,
            flusher=environment.flusher,
            clock=environment.clock,
            stats=environment.stats,
        )
        self._state = state
        self._producers = producers
        self._epochs = epochs
        self.fence = EpochFence()
        #: Called after each append, and each staging, for who follows the partition.
        self.on_written: Callable[[], None] | None = None
        self._files = environment.files
        self._write_checkpoint = environment.write_checkpoint
        self.time = environment.time
        self._pool = environment.pool
        self.config = config
        # Totals since the log was opened; changed with _writing held.
        self.record_batches = self.records = self.size_bytes = 0
        self.tail = Tail(view.active, self.flushed_end, view.active.metadata.size_bytes)
        producers.lost_before = view.lost[-1].end if view.lost else 0
        self._age = RollTimer(
            self._clock,
            first_append_us=view.active.metadata.first_append_us,
            limit_ms=config.roll_ms,
        )

    # -- appending ----------------------------------------------------------------------

    def append_as_leader(self, data: memoryview, leader_epoch: int) -> LogAppendInfo:
        config = self.config
        batches = validate_append(
            self.topic_partition,
            data,
            max_record_batch_bytes=config.max_record_batch_bytes,
            needs_keys=config.compacts,
            schemas=config.schemas,
        )
        with self._writing:
            self.raise_if_failed()
            self.fence.check(leader_epoch)
            duplicate_offsets = self._producers.duplicate_offsets([header for header, _ in batches])
            if duplicate_offsets:
                appended = self._append_rest(duplicate_offsets, batches, data, leader_epoch)
            else:
                appended = self._append_new(batches, data, leader_epoch)
        self._after_append(config)
        return appended

    def append_as_follower(self, data: memoryview, *, flush: bool) -> LogAppendInfo:
        batches = [ValidatedBatch(*each) for each in split(data, allow_tail=False)]
        if not batches:
            raise InvalidRequestError(
                f"An append to {self.topic_partition} holds no record batch; send at least one."
            )
        config = self.config
        with self._writing:
            self.raise_if_failed()
            self._check_continues(batches)
            tail = self._tail_for(len(data))
            append_time_us = batches[-1].header.append_time_us
            self._begin_epochs(
                [EpochEntry(header.leader_epoch, header.base_offset) for header, _ in batches]
            )
            self._write(tail, batches, data)
            appended = LogAppendInfo(
                tail.end_offset,
                self.tail.end_offset,
                append_time_us,
                truncations=self.truncations,
            )
        if flush or config.flush_policy is FlushPolicy.OS:
            self._after_append(config)
        return appended

    def tell_written(self) -> None:
        if (on_written := self.on_written) is not None:
            on_written()

    def _after_append(self, config: LogConfig) -> None:
        self.tell_written()
        if config.flush_policy is FlushPolicy.OS:
            self.notify()  # it is to be seen already, and the operating system flushes
        elif config.flushes_at_once or (
            config.flush_records is not None
            and self.tail.end_offset - self.flushed_end >= config.flush_records
        ):
            self.request_flush()
        elif config.flush_ms is not None:
            self._flush_within(config.flush_ms / 1000)

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
            return LogAppendInfo(
                first,
                end_offset,
                self._clock.now_us(),
                tuple(duplicate_offsets),
                truncations=self.truncations,
            )
        rest = data[sum(len(batch) for _, batch in old) :]
        appended = self._append_new(new, rest, leader_epoch)
        offsets = [*duplicate_offsets, appended.base_offset]
        for header, _ in new[:-1]:
            offsets.append(offsets[-1] + header.last_offset_delta + 1)
        return replace(appended, base_offset=first, base_offsets=tuple(offsets))

    def _append_new(
        self, batches: list[ValidatedBatch], data: memoryview, leader_epoch: int
    ) -> LogAppendInfo:
        tail = self._tail_for(len(data))
        self._begin_epochs([EpochEntry(leader_epoch, tail.end_offset)])
        now_us = self.time.stamp_us()
        offset = tail.end_offset
        for header, batch in batches:
            stamp(batch, base_offset=offset, leader_epoch=leader_epoch, append_time_us=now_us)
            offset += header.last_offset_delta + 1
        self._write(tail, batches, data, now_us)
        return LogAppendInfo(tail.end_offset, offset, now_us, truncations=self.truncations)

    def _check_continues(self, batches: list[ValidatedBatch]) -> None:
        """Refuse a gap, an overlap and a leader epoch before the one that wrote last."""
        offset, epoch = self.tail.end_offset, max(self._epochs.latest, 0)
        first = batches[0].header
        if first.base_offset < offset < first.next_offset:
            raise RecordBatchOverlapError(
                f"The follower's log of {self.topic_partition} ends at offset {offset}, within "
                f"what the leader has joined to one record batch since, from {first.base_offset} "
                f"up to {first.next_offset}; cut the log back to {first.base_offset}, and fetch "
                "from its end on.",
                base_offset=first.base_offset,
            )
        for header, _ in batches:
            if header.base_offset != offset:
                raise InvalidRequestError(
                    f"A record batch for the follower's log of {self.topic_partition} "
                    f"does not continue it: expected base offset {offset}, got "
                    f"{header.base_offset}; fetch from {offset} on."
                )
            if header.leader_epoch < epoch:
                raise InvalidRequestError(
                    f"A record batch at offset {offset} for the follower's log of "
                    f"{self.topic_partition} has leader epoch {header.leader_epoch}, and "
                    f"the one before it {epoch}: it is of a leader that was replaced. Fetch from "
                    "the present one."
                )
            offset, epoch = header.next_offset, header.leader_epoch

    def _begin_epochs(self, begun: list[EpochEntry]) -> None:
        """Have on disk what epochs begin with the record batches that are written next."""
        try:
            self._epochs.begin(begun)
        except StorageError as error:
            if isinstance(error.__cause__, OSError):
                self._note_refused(error.__cause__, 1)
            raise

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
        doing = f"append to {self.topic_partition} in"
        failure = storage_error(doing, tail.segment.path, error)
        if self._take_back(file, tail.position, error, size_bytes):
            return failure
        return self.go_offline(f"{failure} What was written of the append could not be removed.")

    def written_view(self) -> LogView:
        """The log's view up to the end of what is written, which other replicas may see."""
        while (view := self._state.give_out(self._written_end)) is None:
            pass  # in the middle of a change, and what is missing follows at once
        return view

    def _written_end(self, view: LogView) -> BatchPosition | None:
        tail = self.tail
        if tail.segment is view.active:
            return BatchPosition(tail.end_offset, tail.position)
        if tail.end_offset == view.active.base_offset:
            return BatchPosition(tail.end_offset, 0)  # it rolls, and the tail follows at once
        return None

    # -- publishing what was staged -----------------------------------------------------

    def append_copied(self, staged: StagedBatches, leader_epoch: int) -> None:
        """Append record batches of one attempt of an atomic write, copied from where they are
        staged: all or none. Those at the head that the log has already are passed over."""
        with self._writing:
            self.raise_if_failed()
            self.fence.check(leader_epoch)
            staged = staged.after(self._producers.records_of(staged.producer_id))
            if not staged.headers:
                return
            size = sum(header.size for header in staged.headers)
            tail = self._tail_for(size)
            self._begin_epochs([EpochEntry(leader_epoch, tail.end_offset)])
            file = tail.segment.file
            now_us = self.time.stamp_us()
            try:
                staged.copy_stamped(
                    file,
                    tail.position,
                    base_offset=tail.end_offset,
                    leader_epoch=leader_epoch,
                    append_time_us=now_us,
                )
            except OSError as error:
                raise self._withdrawn(tail, file, error, size) from error
            self._account(tail, staged.headers, now_us)
        self._after_append(self.config)

    def set_fence(self, leader_epoch: int, error: LogbusError) -> None:
        """Refuse what is appended in that leader epoch, with ``error``, when this has returned."""
        with self._writing:
            self.fence.set(leader_epoch, error)

    def between_appends(self, do: Callable[[ProducerStateManager, int], T]) -> T:
        """Call ``do`` with the log's producers and its end; nothing is appended meanwhile."""
        with self._writing:
            return do(self._producers, self.tail.end_offset)

    # -- rolling ------------------------------------------------------------------------

    def forget_silent_producers(self, now_us: int) -> None:
        with self._writing:
            self._producers.forget_silent(
                since_us=now_us - self.config.producer_expiration_ms * 1000
            )

    @property
    def rolls_at(self) -> float:
        """Monotonic time from which ``roll_if_aged`` rolls; infinite while nothing is to be."""
        return self._age.reached_at(self.config.roll_ms) if self.tail.position else math.inf

    def roll_if_aged(self) -> None:
        """Roll if the active segment is older than ``roll_ms``."""
        with self._writing:
            if (
                self.failure is None
                and self.tail.position
                and self._age.reaches(self.config.roll_ms)
            ):
                self._roll()

    def roll_if_unchanged(self, end_offset: int) -> bool:
        """Roll, unless something was appended at or after ``end_offset``."""
        with self._writing:
            if self.failure is not None or self.tail.end_offset != end_offset:
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
            self.raise_if_failed()
            self._sync_tail()
            old, end, _ = self.tail
            self._save_producers(end, sync=True, keep_from=self._state.first_to_be_cut(end))
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
            self.raise_if_failed()
            if not self.tail.end_offset < offset <= fmt.MAX_OFFSET:
                raise InvalidRequestError(
                    f"The log of {self.topic_partition} cannot go on at offset {offset}: it has "
                    f"come to {self.tail.end_offset}, and offsets end at {fmt.MAX_OFFSET}."
                )
            self._sync_tail()
            old, end, position = self.tail
            before = self._state.view.lost
            lost = LostOffsets(end, offset)
            if before and before[-1].end == end:  # nothing has come since the last time
                lost, before = LostOffsets(before[-1].start, offset), before[:-1]
            noted = (*self._state.view.lost, lost)  # what is merged counts until it is done
            checkpoints.write_lost_offsets(self._files, self.directory, noted)
            new = self._create_segment(offset)
            self._save_producers(offset, sync=True, keep_from=offset)
            sealed = []
            if position:
                save_index(self._files, old.path, old.metadata, old.damaged)
                sealed.append(self._sealed(old))
            self.flushed_end = offset
            self._state.skip(sealed, new, (*before, lost))
            self._producers.lost_before = offset
            self.tail = Tail(new, offset, 0)
            self._state.advance_high_watermark()
            if not position:
                old.retire()
                with storage_errors("remove the empty segment", old.path):
                    delete_segment(self._files, old.path)
                    self._files.sync_directory(self.directory)
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
        partition = self.topic_partition
        try:
            segment = create_segment(
                self._files,
                self.directory,
                base_offset=base_offset,
                index_interval_bytes=self.config.index_interval_bytes,
            )
        except OSError as error:
            self._note_refused(error, 1)
            doing = f"start a segment of {partition} in"
            raise storage_error(doing, self.directory, error) from error
        try:
            self.flush_or_fail(self.directory, lambda: self._files.sync_directory(self.directory))
        except NotOpenedError as error:
            with storage_errors("remove what was begun,", segment.path):
                self._files.remove(segment.path)  # the next append starts it again
            doing = f"start a segment of {partition} in"
            raise storage_error(doing, self.directory, error) from error
        return segment

    def _save_producers(self, offset: int, *, sync: bool, keep_from: int) -> None:
        """Write a snapshot; the directory is synced later."""
        save_producers(
            self._files,
            self.directory,
            self._producers,
            offset=offset,
            sync=sync,
            keep_from=keep_from,
        )

    def stop(self, error: LogbusError) -> bool:
        """Refuse appends with ``error`` and flush; False if not all could be flushed."""
        with self._writing, self._flushing:  # an append under way ends first
            try:
                self.raise_if_failed()
                self._sync_tail()
                flushed = True
                end, base = self.tail.end_offset, self.tail.segment.base_offset
                self._save_producers(end, sync=False, keep_from=base)
            except LogbusError:
                flushed = False
            self._end(error)
        self.notify()
        return flushed

    def abandon(self, error: LogbusError) -> None:
        """Refuse appends with ``error``; those that wait for their flush get it too."""
        with self._writing, self._flushing:
            self._end(error)
        self.notify()

    def _end(self, error: LogbusError) -> None:
        self._producers.forget_all()
        self.fail(error)

    # -- truncation: for ``LogTruncation`` ------------------------------------------------

    @contextmanager
    def paused(self) -> Iterator[ProducerStateManager]:
        """Keeps appends and rolls out; the log's producers. Raises what ``offline`` says."""
        with self._writing:
            self.raise_if_failed()
            yield self._producers

    def go_back(self, tail: Tail, swap: Callable[[Callable[[], None]], bool]) -> bool:
        """Go on at ``tail``, which lies before the end, once the checkpoint says no more; while
        ``paused``. ``swap`` changes the view and calls what it gets, so that nobody sees the one
        without the other; or changes nothing, and is False.

        Raises StorageError if the checkpoint could not be written; then nothing has changed.
        """
        with self._flushing:
            self.raise_if_failed()
            # What a flush under way may say no more; of what is on disk it is none too much.
            self.flushed_end = min(self.flushed_end, tail.end_offset)
            self._write_checkpoint()
            if not swap(partial(setattr, self, "tail", tail)):
                return False
            self._age = RollTimer(
                self._clock,
                first_append_us=tail.segment.metadata.first_append_us,
                limit_ms=self.config.roll_ms,
            )
            where = self.topic_partition
            self._take_back_to(
                tail.end_offset,
                NotLeaderError(
                    f"The records of {where} from offset {tail.end_offset} on were cut off here: "
                    "they were not replicated before another broker took the lead. Refresh the "
                    "metadata and send them to that one."
                ),
            )
            return True

    def finish_truncation(self, sync: Callable[[], None]) -> None:
        """Have ``sync`` bring to the disk what was done to the files, while ``paused``; all before
        the tail is on disk then. PartitionOfflineError if that failed, as for a flush."""
        with self._flushing:
            self.raise_if_failed()
            segment, end_offset, position = self.tail
            try:
                self.flush_or_fail(segment.path, sync)
            except NotOpenedError as error:
                raise self.go_offline(
                    f"{storage_error('truncate', segment.path, error)}"
                ) from error
            self.flushed_end = end_offset
        self._state.advance_durable_position(end_offset, position)

    # -- flushing -----------------------------------------------------------------------

    def notify(self) -> None:
        super().notify()
        self._state.tell_listeners(offline=self.failure is not None)

    def _sync_tail(self) -> None:
        segment, end_offset, position = self.tail
        if end_offset > self.flushed_end:
            self.flush_or_fail(segment.path, partial(self._sync, segment.file, end_offset))
            self._state.advance_durable_position(end_offset, position)

    def flush_or_fail(self, path: Path, sync: Callable[[], None]) -> None:
        """PartitionOfflineError when ``sync`` failed, NotOpenedError when it began nothing."""
        try:
            sync()
        except NotOpenedError:
            raise
        except OSError as error:
            flush_failure.remember(self._files, self.directory)
            raise self.go_offline(f"{storage_error('flush', path, error)}") from error

    def go_offline(self, why: str) -> PartitionOfflineError:
        """Take the log offline for good, and have those who wait notified; what to raise."""
        where = self.topic_partition
        error = PartitionOfflineError(
            f"Partition {where} is offline. {why} Records before offset "
            f"{self._state.view.high_watermark} stay readable; mend the disk and restart the "
            "broker."
        )
        if self.fail(error):
            logger.critical("%s", error, extra={"topic": where.topic, "partition": where.partition})
        self.request_flush()
        return error.again()
