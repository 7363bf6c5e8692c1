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
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    ProtocolError,
    RecordBatchOverlapError,
)
from spark_logbus.log import LogDirectory, PartitionLog, WantedLog
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

    def end(self) -> None:
        """Has no more applied, from the return of this on."""
        with self.lock:
            self.ended = True

    def request(self, max_bytes: int) -> FollowedPartition:
        """Returns what the leader is told, and asked for."""
        log, where = self.log, self.topic_partition
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
            max_bytes=min(max_bytes, segment_bytes),
            staged=[
                StagedCopy(each.write, each.size_bytes, each.flushed_bytes, each.digest)
                for each in staged
            ],
        )

    def apply(self, result: ReplicateResult, payload: memoryview) -> None:
        """Brings the log to where the answer to the last ``request`` has it.

        Raises StorageError where the disk refuses that, and what the log finds wrong with what
        came: CorruptRecordBatchError, InvalidRequestError, OutOfOrderSequenceError.
        """
        self._look_for_room(result.remaining_bytes, len(payload))
        self.remaining_bytes = max(0, result.remaining_bytes - len(payload))
        if result.diverges is not None:
            self._cut_back(result.diverges, result.log_start_offset)
            return
        if result.log_start_offset > self.log.ends().log_end_offset:
            self._start_over(result.log_start_offset)
            return
        if result.go_on_at is not None:
            self.log.pass_over(result.go_on_at)
        if result.length:
            self._append(payload[: result.length], result.log_start_offset)
        self._stage(result.staged, payload[result.length :])
        self._flush(len(payload), now=result.hand_over or self.is_near)
        self._watermarks.follow(self.topic_partition, result.high_watermark)
        self.log.advance_high_watermark()
        self.log.start_from(result.log_start_offset)

    def _look_for_room(self, wanted_bytes: int, size_bytes: int) -> None:
        if self._since_look is None or self._since_look >= _LOOK_FOR_ROOM_EVERY_BYTES:
            self._require_room(max(size_bytes, wanted_bytes))
            self._since_look = 0
        self._since_look += size_bytes

    def _append(self, data: memoryview, log_start: int) -> None:
        try:
            self.log.append_as_follower(data, flush=False)
        except RecordBatchOverlapError as error:
            # The leader has compacted what is the end of this log into larger record batches.
            self._cut_to(error.base_offset, log_start)

    def _cut_back(self, point: LogPoint, log_start: int) -> None:
        """Cuts off what the leader has lost, or never had."""
        log = self.log
        if not self.is_copy and point.leader_epoch < log.epochs.latest:
            # Another leader may have acknowledged these: one of before ZooKeeper was restored, say.
            self._start_over(log_start)
            return
        own = log.epochs.end_of(point.leader_epoch, log.ends().log_end_offset)
        self._cut_to(min(point.offset, own.end_offset), log_start)

    def _cut_to(self, offset: int, log_start: int) -> None:
        ends = self.log.ends()
        if offset >= ends.log_end_offset:
            raise ProtocolError(
                f"The leader has {self.topic_partition} cut back to {offset}, and it ends at "
                f"{ends.log_end_offset} already."
            )
        if offset <= ends.log_start_offset:
            self._start_over(log_start)
            return
        logger.info(
            "The copy of %s is cut back from %d to %d, to agree with its leader's log.",
            self.topic_partition, ends.log_end_offset, offset,
        )  # fmt: skip
        # Nobody reads a log that follows, so no more is lost by it than the leader has lost.
        self.log.truncate_to(offset, below_watermark=True)

    def _start_over(self, log_start: int) -> None:
        """Begins anew where the leader's log begins. What is not known to be a copy is kept."""
        wanted = WantedLog(
            self.topic_partition,
            self.wanted.topic_id,
            self.wanted.record.config,
            follows=True,
            base_offset=max(0, log_start),
        )
        self.log = self._logs.start_over(wanted, keep_files=not self.is_copy)
        self.is_copy = True

    # -- what is staged ---------------------------------------------------------------------

    def _stage(self, sources: list[StagedSource], payload: memoryview) -> None:
        """Brings each file to where the leader's is; drops those that the leader has not."""
        staging, at = self.log.staging, 0
        for source in sources:
            data = payload[at : at + source.length]
            at += source.length
            told = self._staged_at.pop(source.write, 0)
            if source.position < told:
                staging.drop_as_follower(source.write)
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

    def _flush(self, size_bytes: int, *, now: bool) -> None:
        self._unflushed_bytes += size_bytes
        if not self._unflushed_bytes or not (now or self._unflushed_bytes >= _FLUSH_EVERY_BYTES):
            return
        self.log.flush()
        self.log.staging.flush_as_follower()
        if self.log.flushed_end == self.log.ends().log_end_offset:
            self._unflushed_bytes = 0
