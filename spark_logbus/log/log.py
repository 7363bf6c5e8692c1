"""The log of one partition, as the broker sees it."""

from __future__ import annotations

import logging
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    LogbusError,
    OffsetOutOfRangeError,
)
from spark_logbus.log.append_info import AppendTotals, LogAppendInfo, LogEnds
from spark_logbus.log.checkpoint import LogCheckpoint
from spark_logbus.log.compaction.log_compaction import LogCompaction
from spark_logbus.log.compaction.notes import CompactionNotes
from spark_logbus.log.config import LogConfig
from spark_logbus.log.disk.filesystem import storage_error
from spark_logbus.log.disk.flushed_file import OnFlushed
from spark_logbus.log.environment import LogEnvironment
from spark_logbus.log.epochs import LeaderEpochs
from spark_logbus.log.producers.states import ProducerStateManager
from spark_logbus.log.replication import LogReplication
from spark_logbus.log.retention import expired_segments
from spark_logbus.log.segment.index_file import save_index
from spark_logbus.log.segment.lookup import DamageFoundError
from spark_logbus.log.segment.segment import SealedSegment, delete_segment
from spark_logbus.log.staging.publishing import PartitionPublishing
from spark_logbus.log.staging.staged_file import StagedFile
from spark_logbus.log.staging.staging import PartitionStaging
from spark_logbus.log.state import Listener, LogState
from spark_logbus.log.truncation import LogTruncation
from spark_logbus.log.upkeep import UpkeepState
from spark_logbus.log.view import KnownDamageError, LogSlice, LogView, NewDamageError
from spark_logbus.log.writer import LogWriter
from spark_logbus.model import LostOffsets, OffsetRange, TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A view may be outdated by retention, and damage be found, while a read is under way. Each
# leads to another try; more than a few in a row cannot happen by chance.
_READ_TRIES = 4


class PartitionLog:
    """The log of one partition. Thread-safe: one append at a time; reads take no lock."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: str,
        *,
        directory: Path,
        view: LogView,
        producers: ProducerStateManager,
        epochs: LeaderEpochs,
        compaction_notes: CompactionNotes,
        log_id: str | None,
        is_copy: bool = False,
        config: LogConfig,
        environment: LogEnvironment,
        staged: Collection[StagedFile] = (),
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.directory = directory
        self._files = environment.files
        self._stats = environment.stats
        self._state = LogState(topic_partition, view, watermark=environment.watermark)
        #: The leader epochs in which its records were appended.
        self.epochs = epochs
        #: What no other log of the partition is called, nor this one before it may have lost
        #: records; None while its disk refuses to keep one. The log directory's to set.
        self.log_id = log_id
        #: True if all that is in it was copied from leaders since it was made, and it never led.
        #: The log directory's to set.
        self.is_copy = is_copy
        self._writer = LogWriter(
            self._state,
            producers,
            epochs,
            directory=directory,
            config=config,
            environment=environment,
        )
        #: How much of it is where the broker wants it, on this disk or on others too.
        self.replication = LogReplication(self._state, self._writer)
        #: What atomic writes have staged here.
        self.staging = PartitionStaging(self._writer, environment=environment, files=staged)
        #: What of that is decided, on its way into the log.
        self.publishing = PartitionPublishing(self._state, self._writer, self.staging)
        #: The topic's own configuration as it stands beside the log; the log directory's to set.
        self.kept_config: Mapping[str, str] = {}
        self._deletion_paused = True  # changed under _reshaping
        self._follows = False  # changed under _reshaping
        self._start_moved = False  # since ``expire`` told of it; changed under _reshaping
        self._pending_deletes: list[SealedSegment] = []
        self._reshaping = threading.Lock()  # retention, compaction and the end, one at a time
        self.compaction = LogCompaction(
            self._state,
            self._writer,
            compaction_notes,
            directory,
            files=environment.files,
            pool=environment.pool,
            reshaping=self._reshaping,
            deletion_paused=lambda: self._deletion_paused,
        )
        self._truncation = LogTruncation(
            self._state,
            self._writer,
            epochs,
            self.compaction,
            self.publishing,
            directory=directory,
            files=environment.files,
            reshaping=self._reshaping,
        )

    # -- state --------------------------------------------------------------------------

    @property
    def offline(self) -> LogbusError | None:
        """The reason why the log takes no appends any more; None while it does."""
        return self._writer.failure

    @property
    def refusing(self) -> str | None:
        """The reason why its disk refuses what is appended now, a sentence or two; else None."""
        return self._stats.refused.reason(self.directory)

    @property
    def config(self) -> LogConfig:
        return self._writer.config

    @property
    def damaged(self) -> tuple[OffsetRange, ...]:
        """Ranges known to be damaged on disk; reading into one raises."""
        view = self._state.view
        return tuple(
            OffsetRange(self.topic_partition, each.start, each.end)
            for segment in view.segments
            for each in segment.damaged
            if each.end > view.log_start_offset
        )

    @property
    def appended(self) -> AppendTotals:
        writer = self._writer
        return AppendTotals(writer.record_batches, writer.records, writer.size_bytes)

    @property
    def segment_count(self) -> int:
        return len(self._state.view.base_offsets)

    def ends(self) -> LogEnds:
        tail, view = self._writer.tail, self._state.view
        return LogEnds(
            log_start_offset=view.log_start_offset,
            high_watermark=view.high_watermark,
            log_end_offset=max(tail.end_offset, view.high_watermark),
            size_bytes=view.sealed_bytes + tail.position,
            lost=view.lost,
        )

    def configure(self, config: LogConfig) -> None:
        """Use ``config`` from the next append on; a new index interval from the next segment.

        When it returns, nothing is deleted any more by the configuration before.
        """
        with self._reshaping:
            self._writer.config = config
        self._writer.request_flush()  # what waited for the old interval

    @property
    def deletion_paused(self) -> bool:
        """True while nothing is deleted from the log, neither by retention nor by compaction.

        It is so when a log is opened: that its configuration is its topic's has to be known first.
        """
        return self._deletion_paused

    def pause_deletion(self) -> None:
        """Delete nothing more, from the return of this on."""
        with self._reshaping:
            self._deletion_paused = True

    def resume_deletion(self) -> None:
        """Let go what the configuration does not keep, which is known to be the topic's."""
        with self._reshaping:
            self._deletion_paused = False

    @property
    def follows(self) -> bool:
        """True while the log starts where its leader's does: nothing is deleted by age or size.
        Compaction goes on, below the high watermark."""
        return self._follows

    def set_follows(self, follows: bool) -> None:
        """Leave the log's start to a leader, or not; on return nothing more is deleted by age."""
        with self._reshaping:
            self._follows = follows

    # -- appending ----------------------------------------------------------------------

    def append_as_leader(self, data: memoryview, *, leader_epoch: int) -> LogAppendInfo:
        """Append the record batches in ``data``, which is stamped in place: all or none.

        On return they are written, not flushed (see ``when_flushed``). Raises
        CorruptRecordBatchError, UnsupportedVersionError, RecordBatchTooLargeError or
        InvalidRequestError for what ``data`` is; OutOfOrderSequenceError, ProducerFencedError,
        UnknownProducerError or DuplicateSequenceError for an idempotent producer's sequence;
        StorageError when the disk refuses it, after which the next append may succeed; and once
        the log is offline, what ``offline`` says.

        What an idempotent producer appended before is not appended again: the result has its
        offsets.
        """
        return self._writer.append_as_leader(data, leader_epoch)

    def append_as_follower(self, data: memoryview, *, flush: bool = True) -> LogAppendInfo:
        """Append the record batches in ``data`` as the leader stamped and sent them: all or none.

        They must continue the log without a gap, in leader epochs that do not go back; else
        InvalidRequestError. There is none where the leader has compacted: its record batches stand
        for what was removed. But it joins some, so the first may begin before the end of this log:
        RecordBatchOverlapError says to where that is to be cut back. Raises
        CorruptRecordBatchError, StorageError, and what ``offline`` says. The topic's limits and the
        sequences of producers were the leader's to check.
        Without ``flush`` it is left to the caller when they are flushed.
        """
        return self._writer.append_as_follower(data, flush=flush)

    def pass_over(self, offset: int) -> None:
        """Go on at ``offset``, for the leader has nothing from the end of this log up to there (see
        ``lost_at``); the offsets between are lost here as well.

        On disk when it returns. Raises InvalidRequestError for what is not behind the end, and
        StorageError, after which it may be tried again.
        """
        self.go_on_at(offset)

    def fence(self, leader_epoch: int, error: LogbusError, *, within_s: float = -1) -> bool:
        """Refuse all that is appended, staged, prepared or published in that leader epoch, or an
        earlier one, with ``error``.

        Nothing of it comes any more when this has returned True; False: a publication is under way
        that takes more than ``within_s``, and nothing is refused. -1: it is waited for.
        """
        if not self.publishing.fence(leader_epoch, error, within_s=within_s):
            return False
        self.staging.wait_for_appends()
        return True

    def unfence(self, leader_epoch: int) -> None:
        """Take what comes in that leader epoch again."""
        self._writer.fence.lift(leader_epoch)

    @property
    def flushed_end(self) -> int:
        """End of what is on disk."""
        return self._writer.flushed_end

    def advance_high_watermark(self) -> None:
        """Ask the broker's rule for the high watermark, for it has news of other replicas.

        After each flush here the log asks by itself. Listeners run in this thread.
        """
        self._state.advance_high_watermark()
        self._writer.notify()

    def when_flushed(
        self, end_offset: int, callback: OnFlushed, *, truncations: int | None = None
    ) -> None:
        """Ask for a flush and call back once all before ``end_offset`` is on disk, or cannot be.

        NotLeaderError if that was cut off. Who gives the ``truncations`` of the append is told so
        even if the log has grown to ``end_offset`` again by other records.
        The callback gets None or the error, must not block, and runs at once if the answer is
        known, else in the flusher's thread.
        """
        self._writer.when_flushed(end_offset, callback, truncations=truncations)

    def when_written(self, listener: Listener | None) -> None:
        """Call ``listener``, in place of the one before, after each append and staging, flushed or
        not. It runs in the thread that appends, and must not block."""
        self._writer.on_written = listener

    def add_listener(self, listener: Listener) -> None:
        """Call ``listener`` after the high watermark moved or the log went offline.

        It runs in the flusher's thread, or that of ``advance_high_watermark``, and must not block.
        """
        self._state.listen(listener)

    def go_on_at(self, offset: int) -> int:
        """Give up what came behind the end of the log, and have the next append at ``offset``.

        The offsets between are lost: reading one raises OffsetOutOfRangeError. Returns where they
        begin. On disk when it returns; after a StorageError it is not done, and may be tried again.
        """
        with self._reshaping:
            return self._writer.go_on_at(offset)

    def truncate_to(self, offset: int, *, below_watermark: bool = False) -> int:
        """Cut the log off at ``offset``, or where the record batch that holds it begins; its end.

        For a follower whose log has diverged from its leader's. On disk when it returns. Raises
        OffsetOutOfRangeError below the log start; BelowWatermarkError below the high watermark,
        unless ``below_watermark`` says that what consumers may have seen is to go; StorageError,
        after which nothing is cut off; and what ``offline`` says. See ``LogTruncation``.
        """
        return self._truncation.truncate_to(offset, below_watermark=below_watermark)

    # -- reading ------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int, end: int | None = None) -> LogSlice | None:
        """The record batches from the one that holds ``offset`` on, as a slice of one segment.

        At most ``max_bytes``, but at least one record batch; only such below the high watermark
        and, if given, with a base offset below ``end``. None when there is nothing (yet).
        Raises OffsetOutOfRangeError, CorruptRecordBatchError for a damaged range, StorageError.
        """

        def look_up(view: LogView) -> LogSlice | None:
            if not view.log_start_offset <= offset <= view.high_watermark:
                raise OffsetOutOfRangeError(
                    f"Offset {offset} of {self.topic_partition} is out of range: expected "
                    f"{view.log_start_offset} to {view.high_watermark}."
                )
            if offset == view.high_watermark or (end is not None and end <= offset):
                return None
            if view.lost and (lost := view.lost_at(offset)) is not None:
                raise OffsetOutOfRangeError(
                    f"Offset {offset} of {self.topic_partition} is out of range: the records from "
                    f"{lost.start} on were lost with a part of the log that was given up; those "
                    f"from {lost.end} on came since."
                )
            return view.segment_of(offset).read(offset, max_bytes, end)

        return self._look_up(look_up, offset)

    def read_as_replica(self, offset: int, *, max_bytes: int) -> LogSlice | None:
        """The record batches from the one that holds ``offset`` on, for another replica.

        Like ``read``, but from ``first_offset`` on, up to the end of what is written: beyond the
        high watermark, and beyond where that is held back for an atomic write, for the replica's
        own watermark hides what is not to be seen. Where the log has nothing for a replica,
        ``lost_at`` says how far.
        """

        def look_up(view: LogView) -> LogSlice | None:
            if not view.base_offsets[0] <= offset <= view.high_watermark:
                raise OffsetOutOfRangeError(
                    f"Offset {offset} of {self.topic_partition} is out of range for a replica: "
                    f"expected {view.base_offsets[0]} to {view.high_watermark}."
                )
            if offset == view.high_watermark:
                return None
            if (lost := view.lost_at(offset)) is not None:
                raise OffsetOutOfRangeError(
                    f"Offset {offset} of {self.topic_partition} is out of range for a replica: "
                    f"the records from {lost.start} up to {lost.end} were lost; go on behind them."
                )
            return view.segment_of(offset).read(offset, max_bytes, None)

        return self._look_up(look_up, offset, view_of=self._writer.written_view)

    def bytes_from(self, offset: int) -> int:
        """Bytes of the record batches from ``offset`` on, flushed or not; as exact as the index."""
        return self._look_up(
            lambda view: view.split(offset, view.high_watermark, sys.maxsize)[1],
            None,
            view_of=self._writer.written_view,
        )

    @property
    def first_offset(self) -> int:
        """Offset at which a replica's log is to begin, with the record batch that holds the start.

        A start that a leader gave may lie within one that was joined here. Raises StorageError.
        """

        def look_up(view: LogView) -> int:
            start = view.log_start_offset
            is_there = start < view.high_watermark and self.lost_at(start) is None
            if start == view.base_offsets[0] or not is_there:
                return start
            try:
                return view.boundary_at(start, view.visible_position).offset
            except DamageFoundError:
                raise NewDamageError(view.segment_of(start)) from None

        return self._look_up(look_up, None, view_of=self._writer.written_view)

    def lost_at(self, offset: int) -> LostOffsets | None:
        """The offsets around ``offset`` of which this log has no record: they were given up, or are
        known to be damaged on disk. None if there are none."""
        view = self._state.view
        lost = view.lost_at(offset)
        if lost is not None or not view.base_offsets[0] <= offset < self._writer.tail.end_offset:
            return lost
        for damage in view.segments[bisect_right(view.base_offsets, offset) - 1].damaged:
            if damage.start <= offset < damage.end:
                return LostOffsets(damage.start, damage.end)
        return None

    def offset_at(self, timestamp_us: int) -> int | None:
        """Base offset of the first visible record batch with a record at or after the time."""
        return self._look_up(lambda view: view.offset_at(timestamp_us), None)

    def split(self, start: int, end: int, *, target_bytes: int) -> tuple[list[int], int]:
        """Offsets strictly within ``[start, end)`` that cut it into about ``target_bytes``.

        Cuts are base offsets of record batches. The second value is the size of the range in
        bytes. Both are as exact as the index. Records that are not visible do not count.
        """
        if target_bytes < 1:
            raise InvalidRequestError(f"target_bytes is {target_bytes}; use at least 1.")
        return self._look_up(lambda view: view.split(start, end, target_bytes), None)

    def _look_up(
        self,
        look_up: Callable[[LogView], T],
        offset: int | None,
        *,
        view_of: Callable[[], LogView] | None = None,
    ) -> T:
        """Runs ``look_up`` in the current view, or that of ``view_of``; again if it was outdated or
        met new damage."""
        for _ in range(_READ_TRIES):
            view = self._state.view
            try:
                try:
                    return look_up(view if view_of is None else view_of())
                except NewDamageError as damaged:
                    visible = damaged.visible
                    visible.segment.inspect(visible.limit, visible.end)
                except KnownDamageError as known:
                    raise self._damage_error(offset, known) from None
            except FileNotFoundError as error:
                if self._state.view is view:
                    self._writer.raise_if_failed()  # deleted with its topic, say
                    raise storage_error("read from", self.directory, error) from error
            except OSError as error:
                raise storage_error("read from", self.directory, error) from error
        raise CorruptRecordBatchError(
            f"{self.topic_partition} cannot be read at offset {offset}: its files in "
            f"{self.directory} keep changing or are damaged; run logbus dump."
        )

    def _damage_error(self, offset: int | None, known: KnownDamageError) -> CorruptRecordBatchError:
        damaged = OffsetRange(self.topic_partition, known.damage.start, known.damage.end)
        return CorruptRecordBatchError(
            f"The records {damaged} are damaged on the broker's disk (asked for offset {offset}). "
            f"Those before, and from offset {damaged.end} on, are readable: continue there, or "
            f"restore {known.path} from a copy."
        )

    # -- upkeep: by the log directory ---------------------------------------------------

    def flush(self) -> None:
        """Flush now; the outcome shows in ``offline`` and ``flushed_end``."""
        self._writer.flush()

    def flush_and_roll_if_due(self) -> None:
        """Flush if ``flush_ms`` has passed, roll if ``segment_ms`` has."""
        self._writer.flush_if_due()
        self._writer.roll_if_aged()

    def upkeep_state(self) -> UpkeepState | None:
        """Returns what upkeep goes by; None while something is due at a set time, or to be done."""
        writer = self._writer
        if writer.flushes_later or self._pending_deletes or self._start_moved:
            return None
        return UpkeepState(
            writer.rolls_at, self._state.view, writer.tail, writer.config, self._deletion_paused,
            self._follows,
        )  # fmt: skip

    def expire(self, now_us: int) -> bool:
        """Move the log start offset over what retention no longer keeps; True if it moved.

        Producers that have been silent for too long are forgotten as well. Nothing of that while
        deletion is paused; and a follower's log keeps what its leader's does.

        The files stay until ``delete_expired``: first the new log start offset must be on disk.
        """
        with self._reshaping:
            moved, self._start_moved = self._start_moved, False
            if self._deletion_paused:
                return moved
            self._writer.forget_silent_producers(now_us)
            return (not self._follows and self._expire(now_us)) or moved

    def start_from(self, offset: int) -> bool:
        """Start the log at ``offset``, where its leader's does; True if the start moved.

        No further than the high watermark and what is flushed, and not while deletion is paused.
        Segments that lie before it go once the new start is in the checkpoint, see
        ``LogDirectory.maintain``. Raises StorageError.
        """
        with self._reshaping:
            if self._deletion_paused:
                return False
            tail = self._writer.tail
            if tail.position and self._state.view.high_watermark >= tail.end_offset <= offset:
                self._writer.roll_if_unchanged(tail.end_offset)
            count = len(self._pending_deletes)
            before = self._state.view.log_start_offset
            # The checkpoint does not take a start beyond what is on disk.
            flushed = min(offset, self._writer.flushed_end)
            self._pending_deletes.extend(self._state.start_from(flushed))
            start = self._state.view.log_start_offset
            if start == before:
                return False
            self._start_moved = True
        logger.info(
            "The log of %s starts at offset %d, as its leader's; %d segments go.",
            self.topic_partition, start, len(self._pending_deletes) - count,
        )  # fmt: skip
        return True

    def _expire(self, now_us: int) -> bool:
        tail, view, config = self._writer.tail, self._state.view, self.config
        count = expired_segments(
            [segment.summary for segment in view.segments],
            now_us=now_us,
            retention_ms=config.retention_ms if config.deletes else None,
            retention_bytes=config.retention_bytes if config.deletes else None,
        )
        if count > len(view.sealed) and not self._writer.roll_if_unchanged(tail.end_offset):
            count = len(view.sealed)  # it was appended to meanwhile, so it is not that old
        # Consumers are still to see what lies beyond the high watermark.
        count = min(count, len(self._state.view.visible_sealed))
        if count == 0:
            return False
        dropped = self._state.drop_head(count)
        self._pending_deletes.extend(dropped)
        size_bytes = sum(segment.summary.size_bytes for segment in dropped)
        self._stats.expired_segments.add(count)
        self._stats.expired_bytes.add(size_bytes)
        logger.info(
            "Retention deletes %d segments (%d bytes) of %s; its log now starts at offset %d.",
            count,
            size_bytes,
            self.topic_partition,
            self._state.view.log_start_offset,
            extra={
                "topic": self.topic_partition.topic,
                "partition": self.topic_partition.partition,
            },
        )
        return True

    def checkpoint(self) -> LogCheckpoint:
        # In this order: the start only rises, and the end never falls to before what the start was.
        start = self._state.view.log_start_offset
        return LogCheckpoint(self.topic_partition, self.topic_id, start, self.flushed_end)

    def delete_expired(self) -> None:
        """Delete the files of retired segments, oldest first; what fails stays for next time.

        Each deletion is on disk before the next begins, so that whatever a crash leaves is the
        end of the log without a gap. Raises StorageError.
        """
        if not self._pending_deletes:
            return
        with self._reshaping:
            if self._pending_deletes:
                self.epochs.drop_before(self._state.view.log_start_offset)
            while self._pending_deletes:
                segment = self._pending_deletes[0]
                try:
                    delete_segment(self._files, segment.path)
                    self._files.sync_directory(self.directory)
                except OSError as error:
                    raise storage_error("delete", segment.path, error) from error
                segment.retire()
                del self._pending_deletes[0]

    def stop(self, error: LogbusError) -> bool:
        """Refuse appends with ``error``, flush and save the index; True if all is on disk.

        Flushed records stay readable, by slices that are held beyond the end of the process.
        """
        with self._reshaping:
            flushed = self._writer.stop(error)
        if not flushed:
            return False
        active = self._state.view.active
        if active.metadata.size_bytes:
            save_index(self._files, active.path, active.metadata, active.damaged)
        return True

    def abandon(self, error: LogbusError) -> None:
        """Refuse appends with ``error``, and flush nothing: the log is about to be deleted."""
        with self._reshaping:
            self._writer.abandon(error)

    def close_files(self) -> None:
        """Close the files of a stopped log, so that they take no space once they are deleted.

        Slices that were handed out stay readable, and their files open until those are done.
        """
        with self._reshaping:
            self._close_files()

    def replaced_by(self, opened: Callable[[LogCheckpoint], PartitionLog]) -> PartitionLog:
        """Have a log that is offline ``opened`` anew from its files, and close those here. Its high
        watermark is no further than it was. Raises what ``opened`` does, and StorageError: then
        all is as before, but that nothing is deleted any more."""
        with self._reshaping:
            self._deletion_paused = True
            new = opened(self.checkpoint())
            new.replication.begin(self.ends().high_watermark)
            self._close_files()
            return new

    def _close_files(self) -> None:
        """``_reshaping`` is held."""
        view = self._state.view
        for sealed in (*self._pending_deletes, *view.sealed):
            sealed.replace()  # a topic made anew takes over the paths
        self._pending_deletes.clear()  # and its files are not to be deleted in their place
        view.active.retire()
        self.staging.close_files()
