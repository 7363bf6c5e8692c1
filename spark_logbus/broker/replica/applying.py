"""Applies what a leader answers to the log that follows it.

A log that follows ends where it agrees with its leader's, and goes on from there: the leader tells
where the two part (``diverges``), which ranges have no records (``go_on_at``), and where its own
log begins. What atomic writes have staged at the leader comes along, file by file. The leader is
told what is on the disk here, and gives the partition away by that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from spark_logbus.broker.replica.assignments import WantedReplica
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProtocolError,
    RecordBatchOverlapError,
    StorageError,
)
from spark_logbus.log import FlushPolicy, LogDirectory, PartitionLog, PurgedLog, WantedLog
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import (
    FollowedPartition,
    LogPoint,
    ReplicateResult,
    StagedCopy,
    StagedSource,
)

logger = logging.getLogger(__name__)

# So near to its leader a log is flushed after each answer: the leader waits for it, or soon will.
NEAR_BYTES: Final = 1 << 20
# As long as more is missing, so much is written between two flushes; the disk works all the while.
_FLUSH_EVERY_BYTES: Final = 64 << 20
_LOOK_FOR_ROOM_EVERY_BYTES: Final = 32 << 20
# What is read of a staged file just when the leader uses that for another write. It cannot happen
# often.
_NOT_THAT_FILE: Final = (InvalidRequestError, CorruptRecordBatchError, OutOfOrderSequenceError)
_MAX_COPIED_ANEW: Final = 20
# High watermarks of the leader that are kept for a log that is on its way to them.
_MAX_WATERMARKS: Final = 64


class FollowedLog:
    """The log of a partition that this broker follows.

    Used by one thread, which holds ``lock`` while it applies an answer; others ``end`` it.
    ``require_room`` raises StorageError unless so many bytes more have room on the disk.
    """

    def __init__(
        self,
        wanted: WantedReplica,
        log: PartitionLog,
        *,
        leader: int,
        leader_epoch: int,
        logs: LogDirectory,
        watermarks: HighWatermarks,
        is_copy: bool,
        require_room: Callable[[int], None],
    ) -> None:
        self.lock = threading.Lock()
        self.wanted = wanted
        self.log = log
        self.leader = leader
        self.leader_epoch = leader_epoch
        #: True if all that is in the log was copied from leaders (see ``PartitionLog.is_copy``).
        self.is_copy = is_copy
        #: What the leader has and this log has not, as it told last; None before that.
        self.remaining_bytes: int | None = None
        self.ended = False
        self._logs = logs
        self._watermarks = watermarks
        self._require_room = require_room
        self._unflushed_bytes = 0
        self._unflushed_staged = False
        self._flushes_all = False  # the leader waits for it
        self._log_start = 0
        self._told_watermarks: list[int] = []  # of the leader, to which the log is to come yet
        self._since_look: int | None = None  # for room; None before the first
        self._staged_at: dict[int, int] = {}  # what was told of each write
        self._copied_anew = 0

    @property
    def topic_partition(self) -> TopicPartition:
        return self.wanted.topic_partition

    @property
    def is_near(self) -> bool:
        return self.remaining_bytes is not None and self.remaining_bytes <= NEAR_BYTES

    def is_for(self, wanted: WantedReplica) -> bool:
        """Tells if it goes on as it does when it is followed as ``wanted``."""
        state = wanted.state
        return self.wanted.is_same(wanted) and (
            state is None or (state.leader, state.leader_epoch) == (self.leader, self.leader_epoch)
        )

    @property
    def is_move(self) -> bool:
        return self.wanted.move is not None

    def end(self) -> None:
        """Has no more applied, from the return of this on."""
        with self.lock:
            self.ended = True

    def request(self, max_bytes: int) -> FollowedPartition:
        """Returns what the leader is told, and asked for. Raises StorageError."""
        log, where = self.log, self.topic_partition
        if (offline := log.offline) is not None:
            raise offline.again()
        if damaged := log.damaged:
            raise StorageError(
                f"The records {damaged[0]} are damaged on the disk of this replica, in "
                f"{log.directory}; it counts no more as one that has them, and copies them and "
                "what follows them again."
            )
        log.staging.renew_as_follower()
        staged = log.staging.replica_state()
        self._staged_at = {each.write: each.size_bytes for each in staged}
        # A record batch does not go over the end of a segment.
        segment_bytes = max(1, log.config.segment_bytes)
        return FollowedPartition(
            topic=where.topic,
            partition=where.partition,
            topic_id=self.wanted.topic_id,
            since_us=self.wanted.since_us,
            leader_epoch=self.leader_epoch,
            log_id=log.log_id or "",
            offset=log.ends().log_end_offset,
            last_epoch=log.epochs.latest,
            flushed_end=log.flushed_end,
            safe_end=self.safe_end,
            max_bytes=min(max_bytes, segment_bytes),
            staged=[
                StagedCopy(each.write, each.size_bytes, each.flushed_bytes, each.digest)
                for each in staged
            ],
            refuses=log.refusing is not None,
        )

    def apply(self, result: ReplicateResult, payload: memoryview) -> None:
        """Brings the log to where the answer to the last ``request`` has it, as far as that is
        written; ``flush`` and ``settle`` do the rest.

        Raises StorageError where the disk refuses that, and what the log finds wrong with what
        came: CorruptRecordBatchError, InvalidRequestError, OutOfOrderSequenceError.
        """
        self._look_for_room(result.remaining_bytes, len(payload))
        self.remaining_bytes = max(0, result.remaining_bytes - len(payload) - self._unflushed_bytes)
        if result.diverges is not None:
            self._cut_back(result.diverges, result)
            return
        ends = self.log.ends()
        if result.log_start_offset > ends.log_end_offset:
            if self._may_be_last:
                self._tell_cut(
                    ends.log_start_offset, ends.log_end_offset, leader_end=result.log_end
                )
            self._start_over(result.log_start_offset)
            return
        cleaned = PurgedLog(result.clean_end, result.purged_end)
        if not self.log.compaction.goes_on_as(cleaned):
            self._lack_tombstones(result)
            return
        if result.go_on_at is not None:
            self.log.pass_over(result.go_on_at)
        if result.length:
            self._append(payload[: result.length], result.log_start_offset)
        self._stage(result.staged, payload[result.length :])
        self._unflushed_bytes += len(payload)
        self._unflushed_staged |= len(payload) > result.length
        self._flushes_all |= result.hand_over
        self._log_start = result.log_start_offset
        self.take_watermark(result.high_watermark)

    @property
    def is_to_be_flushed(self) -> bool:
        if not self._unflushed_bytes:
            return self._flushes_all and self.log.flushed_end < self.log.ends().log_end_offset
        return self._flushes_log or (self._unflushed_staged and self.is_near)

    @property
    def _flushes_log(self) -> bool:
        is_left_to_os = self.log.config.flush_policy is FlushPolicy.OS and not self.is_move
        return (
            self._flushes_all
            or self._unflushed_bytes >= _FLUSH_EVERY_BYTES
            or (self.is_near and not is_left_to_os)
        )

    def flush(self) -> None:
        """Brings to the disk what was written, as the flush policy of the topic has it."""
        log = self.log
        if self._flushes_log:
            log.flush()
            if (offline := log.offline) is not None:
                raise offline.again()
            if log.flushed_end == log.ends().log_end_offset:
                self._unflushed_bytes, self._flushes_all = 0, False
        log.staging.flush_as_follower()
        self._unflushed_staged = False

    def take_watermark(self, offset: int) -> None:
        """Takes a high watermark of the leader's, to which the log may not have come yet."""
        told = self._told_watermarks
        if told and (offset <= told[-1] or len(told) >= _MAX_WATERMARKS):
            told[-1] = max(told[-1], offset)  # the earlier ones are sooner reached
        else:
            told.append(offset)

    def settle(self) -> None:
        """Moves the high watermark to the last one of the leader's to which this log has come, and
        the start of the log to the leader's.

        It is never elsewhere: between two of them an atomic write may lie of which this log has a
        part.
        """
        safe_end, log = self.safe_end, self.log
        reached = [offset for offset in self._told_watermarks if offset <= safe_end]
        if reached:
            del self._told_watermarks[: len(reached)]
            self._watermarks.follow(self.topic_partition, reached[-1])
            log.advance_high_watermark()
        if self._log_start > log.ends().log_start_offset:
            log.start_from(self._log_start)

    @property
    def safe_end(self) -> int:
        """The end of what is as safe here as the topic's flush policy asks."""
        if self.log.config.flush_policy is FlushPolicy.OS:
            return self.log.ends().log_end_offset
        return self.log.flushed_end

    def _look_for_room(self, wanted_bytes: int, size_bytes: int) -> None:
        if self._since_look is None or self._since_look >= _LOOK_FOR_ROOM_EVERY_BYTES:
            self._require_room(max(size_bytes, wanted_bytes))
            self._since_look = 0
        self._since_look += size_bytes

    def _append(self, data: memoryview, log_start: int) -> None:
        try:
            self.log.append_as_follower(data, flush=False)
        except RecordBatchOverlapError as error:
            # The leader has compacted what is the end of this log into larger record batches, and
            # it comes again with them: nothing of it is lost.
            self._cut(error.base_offset, log_start, keep_files=self._may_be_last)

    def _lack_tombstones(self, result: ReplicateResult) -> None:
        logger.warning(
            "%s is copied anew: its log here ends at offset %d, and tombstones up to %d may be "
            "gone with broker %d, so that what they deleted would stay here. A replica that is "
            "away for longer than delete.retention.ms has to begin anew.",
            self.topic_partition, self.log.ends().log_end_offset, result.purged_end, self.leader,
            extra=fields_about(self.topic_partition),
        )  # fmt: skip
        self._start_over(result.log_start_offset, keep_files=self._may_be_last)

    def _cut_back(self, point: LogPoint, result: ReplicateResult) -> None:
        """Cuts off what the leader has lost, or never had."""
        log = self.log
        if self.is_move and not self.is_copy and point.leader_epoch < log.epochs.latest:
            # Another leader may have acknowledged these: one of before ZooKeeper was restored, say.
            self._start_over(result.log_start_offset)
            return
        own = log.epochs.end_of(point.leader_epoch, log.ends().log_end_offset)
        self._cut_to(min(point.offset, own.end_offset), result)

    def _cut_to(self, offset: int, result: ReplicateResult) -> None:
        ends = self.log.ends()
        if offset >= ends.log_end_offset:
            before = self.log.epochs.latest
            self.log.truncate_to(ends.log_end_offset)  # an epoch of which nothing was written
            if self.log.epochs.latest < before:
                return
            raise ProtocolError(
                f"The leader has {self.topic_partition} cut back to {offset}, and it ends at "
                f"{ends.log_end_offset} already."
            )
        self._tell_cut(offset, ends.log_end_offset, leader_end=result.log_end)
        if offset <= ends.log_start_offset:
            self._start_over(result.log_start_offset)
            return
        # What counts is the leader's log: it was in sync, or an operator has it lead all the same.
        self._cut(offset, result.log_start_offset)

    def _cut(self, offset: int, log_start: int, *, keep_files: bool | None = None) -> None:
        """Cuts the log off at ``offset`` or before, or starts it over where it begins later."""
        try:
            self.log.truncate_to(offset, below_watermark=True)
        except OffsetOutOfRangeError:
            self._start_over(log_start, keep_files=keep_files)
        else:
            self._told_watermarks.clear()

    def _tell_cut(self, offset: int, end: int, *, leader_end: int) -> None:
        """Says what goes. It is an error if all replicas that were in sync had it: then the leader
        was not in sync, or has lost its disk."""
        state = self.wanted.state
        committed = 0 if state is None else state.committed or 0
        if leader_end >= committed:
            committed = 0  # these may be other records at the same offsets, of leaders since
        committed = max(committed, self.log.replication.known_end)
        what = (
            f"Broker {self.leader}, which leads it in epoch {self.leader_epoch}, has none of them"
        )
        where = self.topic_partition
        if self._may_be_last:
            logger.error(
                "The records of %s from offset %d up to %d are cut off here. %s: it was elected "
                "though it was not in sync, or went on with a log that was given up. They may have "
                "been acknowledged, and are lost.",
                where, offset, end, what, extra=fields_about(where),
            )  # fmt: skip
        elif offset < committed:
            logger.error(
                "The records of %s from offset %d up to %d are cut off here. %s, though those up "
                "to %d were replicated: they are lost, unless a broker that is away has them.",
                where, offset, end, what, committed, extra=fields_about(where),
            )  # fmt: skip
        else:
            logger.info(
                "The records of %s from offset %d up to %d are cut off here. %s, and they were not "
                "replicated.", where, offset, end, what, extra=fields_about(where),
            )  # fmt: skip

    def _start_over(self, log_start: int, *, keep_files: bool | None = None) -> None:
        """Begins anew where the leader's log begins. What is not known to be a copy is kept, unless
        the leader is known to have all that counts of it."""
        wanted = WantedLog(
            self.topic_partition,
            self.wanted.topic_id,
            self.wanted.record.config,
            follows=True,
            base_offset=max(0, log_start),
        )
        if keep_files is None:
            keep_files = self._keeps_files(log_start)
        self.log = self._logs.start_over(wanted, keep_files=keep_files)
        self.is_copy = True
        self._unflushed_bytes = 0
        self._told_watermarks.clear()

    @property
    def _may_be_last(self) -> bool:
        """True if the log may have what the leader has lost: that was given up, or was elected
        though it was not in sync, after all that is here. So it may be for a copy, too."""
        state, log = self.wanted.state, self.log
        return (
            state is not None
            and state.given_up is not None
            and log.epochs.latest <= state.given_up
            and log.ends().log_end_offset > log.ends().log_start_offset
        )

    def _keeps_files(self, log_start: int) -> bool:
        """True for a log that may have what the leader has lost, or is not known to be a copy,
        unless all that is in it has expired with the leader, which was never given up."""
        if self._may_be_last:
            return True
        if self.is_copy:
            return False
        state = self.wanted.state
        has_expired = self.log.ends().log_end_offset <= log_start
        return self.is_move or not has_expired or state is None or state.given_up is not None

    # -- what is staged ---------------------------------------------------------------------

    def _stage(self, sources: list[StagedSource], payload: memoryview) -> None:
        """Brings each file to where the leader's is; drops those that the leader has not."""
        staging, at = self.log.staging, 0
        for source in sources:
            data = payload[at : at + source.length]
            at += source.length
            told = self._staged_at.pop(source.write, 0)
            if source.position < told:
                # It may be prepared, and this broker elected before all of it has come again.
                points = [(each.position, each.digest) for each in source.points]
                staging.cut_back_as_follower(source.write, points)
            if data:
                try:
                    staging.append_as_follower(source.write, source.position, data)
                except _NOT_THAT_FILE as error:
                    self._copied_anew += 1
                    if self._copied_anew > _MAX_COPIED_ANEW:
                        raise
                    logger.info("What a write has staged is copied anew: %s", error)
                    staging.drop_as_follower(source.write)
        for write in self._staged_at:  # over at the leader
            staging.drop_as_follower(write)
        self._staged_at = {}
