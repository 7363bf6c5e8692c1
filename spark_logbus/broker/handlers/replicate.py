"""The replicate request: what a follower of a partition lacks of it, up to what is written.

It is a long poll as a fetch is, answered with slices of the log and of staged files. What it tells
of the follower's copy decides what counts as replicated, and whether the lead may be handed over.
So it is believed only of a broker to which the partition is assigned or is to move, by the topic
as this broker knows it, only if it follows this broker's leader epoch, and only if its log has
nothing that the log here has not. Whoever can reach the port can say that it is that broker: the
port is for those who are trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.long_poll import DelayedFetches, LongPoll
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.replica.followers import Copy, Followers
from spark_logbus.broker.replica.hand_over import StandingMove
from spark_logbus.broker.replica.holds import Holds
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
)
from spark_logbus.log import LogSlice, PartitionLog, StagedPosition
from spark_logbus.model import TopicPartition
from spark_logbus.network import Answer, Response
from spark_logbus.protocol import (
    Api,
    FollowedPartition,
    LogPoint,
    ReplicateRequest,
    ReplicateResponse,
    ReplicateResult,
    StagedSource,
    encode_response,
    error_info,
)

# A follower has copies of what the leader has staged, and of some that are over there: more than
# twice as many as the leader takes make no sense.
_MAX_COPIES: Final = 1_000
_MAX_ID_CHARS: Final = 100

#: The brokers to which a partition of the topic with that id is assigned, as far as this one knows.
AssignedTo = Callable[[TopicPartition, str], Collection[int]]


@dataclass(frozen=True, slots=True)
class _Read:
    """One partition's part of an answer; ``settled``: it is to be said at once."""

    result: ReplicateResult
    slices: Sequence[LogSlice] = ()
    settled: bool = False


class ReplicateHandler:
    """Answers followers. Thread-safe, keeps nothing between requests but those that wait.

    ``standing`` finds the move of a partition that stands, and ``assigned`` the brokers to which
    one is assigned, in the topics as this broker has them.
    """

    def __init__(
        self,
        broker_id: int,
        replica_manager: ReplicaManager,
        waiting: DelayedFetches,
        *,
        followers: Followers,
        holds: Holds,
        standing: StandingMove,
        assigned: AssignedTo,
        clock: Clock,
        max_wait_ms: int,
        max_fetch_bytes: int,
        metrics: RequestMetrics,
    ) -> None:
        self._broker_id = broker_id
        self._replica_manager = replica_manager
        self._waiting = waiting
        self._followers = followers
        self._holds = holds
        self._standing = standing
        self._assigned = assigned
        self._clock = clock
        self._max_wait_ms = max_wait_ms
        self._max_fetch_bytes = max_fetch_bytes
        self._metrics = metrics
        self._ending = False

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.REPLICATE: self.handle}

    def handle(self, request: ReplicateRequest, _: RequestContext) -> Answer:
        if request.broker_id == self._broker_id:
            raise InvalidRequestError(
                f"Broker {request.broker_id} is this one, which follows no partition of its own."
            )
        wanted: dict[TopicPartition, FollowedPartition] = {}
        for each in request.partitions:
            topic_partition = TopicPartition(each.topic, each.partition)
            if topic_partition in wanted:
                raise InvalidRequestError(f"A request to replicate names {topic_partition} twice.")
            wanted[topic_partition] = each
        if not wanted:
            raise InvalidRequestError("A request to replicate names no partition.")
        for each in request.partitions:
            self._note(request.broker_id, each)
        attempt = partial(self._attempt, request)
        response = attempt(-math.inf if request.max_wait_ms <= 0 else math.inf)
        if response is not None:
            return response
        wait_ms = min(request.max_wait_ms, self._max_wait_ms)
        deadline = self._clock.monotonic() + wait_ms / 1000
        return LongPoll(wanted, attempt, self._waiting, deadline=deadline)

    def end_waiting(self) -> None:
        """Answer all that wait, now and from now on, with what there is."""
        self._ending = True
        self._waiting.wake_all()

    # -- what is told ---------------------------------------------------------------------

    def _note(self, broker_id: int, wanted: FollowedPartition) -> None:
        """Note how far the follower is, if it is believed; else its part of the answer says why it
        is not."""
        try:
            led = self._led(broker_id, wanted)
            log, copy = led.log, _checked(broker_id, wanted)
            if copy is None or _divergence(log, wanted) is not None:
                return
            self._followers.tell(led, copy, lacking_bytes=_lacking(log, copy))
        except LogbusError:
            return

    def _led(self, broker_id: int, wanted: FollowedPartition) -> LeaderPartition:
        """Raises NotLeaderError for what the broker does not follow, or cannot, for now."""
        topic_partition = TopicPartition(wanted.topic, wanted.partition)
        led = self._replica_manager.leader_of(topic_partition).of_topic(wanted.topic_id)
        if not self._may_follow(broker_id, wanted):
            what = (
                f"to move to broker {broker_id} since {wanted.since_us} µs"
                if wanted.since_us
                else f"assigned to broker {broker_id}"
            )
            raise NotLeaderError(
                f"{topic_partition} is not {what}, as far as broker {self._broker_id} knows, which "
                "leads it; ask again when it has heard of it."
            )
        if wanted.leader_epoch != led.leader_epoch:
            raise NotLeaderError(
                f"Broker {self._broker_id} leads {topic_partition} in epoch {led.leader_epoch}, "
                f"broker {broker_id} follows epoch {wanted.leader_epoch}; ask again in that one."
            )
        if (offline := led.log.offline) is not None:
            raise offline.again()
        return led

    def _may_follow(self, broker_id: int, wanted: FollowedPartition) -> bool:
        topic_partition = TopicPartition(wanted.topic, wanted.partition)
        if not wanted.since_us:
            return broker_id in self._assigned(topic_partition, wanted.topic_id)
        move = self._standing(topic_partition, wanted.topic_id)
        return move is not None and broker_id in move.to and move.since_us == wanted.since_us

    # -- answers --------------------------------------------------------------------------

    def _attempt(self, request: ReplicateRequest, deadline: float) -> Response | None:
        """The response if there is something to say, or no more time."""
        final = self._ending or self._clock.monotonic() >= deadline
        results: list[ReplicateResult] = []
        slices: list[LogSlice] = []
        room = max(1, min(request.max_bytes, self._max_fetch_bytes))
        for wanted in request.partitions:
            found = self._read(request.broker_id, wanted, room, first=not slices)
            results.append(found.result)
            slices += found.slices
            room -= sum(each.length for each in found.slices)
            final = final or found.settled or bool(found.slices)
        if not final:
            return None
        for wanted, result in zip(request.partitions, results, strict=True):
            sent = result.length + sum(each.length for each in result.staged)
            where = TopicPartition(wanted.topic, wanted.partition)
            self._followers.sent(where, request.broker_id, sent)
        return Response(encode_response(ReplicateResponse(results)), slices)

    def _read(self, broker_id: int, wanted: FollowedPartition, room: int, *, first: bool) -> _Read:
        topic_partition = TopicPartition(wanted.topic, wanted.partition)
        result = ReplicateResult(wanted.topic, wanted.partition)
        leads = self._replica_manager.find(topic_partition)
        if leads is not None and leads.log.topic_id == wanted.topic_id:
            result.leader_epoch = leads.leader_epoch  # also if it was handed over, and came back
        elif self._followers.was_handed_over(topic_partition, wanted.topic_id, broker_id):
            result.handed_over = True
            return _Read(result, settled=True)
        try:
            led = self._led(broker_id, wanted)
            return self._read_led(led, broker_id, wanted, result, room, first=first)
        except LogbusError as error:
            self._metrics.failed(Api.REPLICATE, error)
            result.error = error_info(error)
            return _Read(result, settled=True)

    def _read_led(
        self,
        led: LeaderPartition,
        broker_id: int,
        wanted: FollowedPartition,
        result: ReplicateResult,
        room: int,
        *,
        first: bool,
    ) -> _Read:
        log, copy = led.log, _checked(broker_id, wanted)
        ends, start = log.ends(), log.first_offset
        result.log_start_offset, result.log_end = start, ends.log_end_offset
        result.high_watermark = ends.high_watermark
        if copy is None or copy.offset < start:
            result.remaining_bytes = ends.size_bytes + log.staging.totals.size_bytes
            return _Read(result, settled=True)
        result.diverges = _divergence(log, wanted)
        if result.diverges is not None:
            return _Read(result, settled=True)
        result.remaining_bytes = _lacking(log, copy)
        slices: list[LogSlice] = []
        most = max(1, min(wanted.max_bytes, room))
        if room > 0 or first:
            found = _read_log(log, copy.offset, result, max_bytes=most)
            if found is not None and (first or found.length <= room):
                slices.append(found)
                result.length = found.length
        staged, drops = log.staging.replica_state(), {*copy.staged}
        settled = result.go_on_at is not None
        for each in staged:
            drops.discard(each.write)
            source, piece = _staged(
                log, each, copy.staged.get(each.write),
                room=most - sum(one.length for one in slices), first=first and not slices,
            )  # fmt: skip
            settled = settled or source.position < _position(copy, each.write)
            result.staged.append(source)
            if piece is not None:
                slices.append(piece)
        if led.log.topic_partition in self._holds:
            result.hand_over = True
            settled = settled or copy.is_unflushed
        return _Read(result, slices, settled=settled or bool(drops))


def _read_log(
    log: PartitionLog, offset: int, result: ReplicateResult, *, max_bytes: int
) -> LogSlice | None:
    """Reads record batches, or sets where the follower is to go on because there are none."""
    if (lost := log.lost_at(offset)) is None:
        try:
            return log.read_as_replica(offset, max_bytes=max_bytes)
        except (CorruptRecordBatchError, OffsetOutOfRangeError):
            if (lost := log.lost_at(offset)) is None:
                raise
    result.go_on_at = lost.end
    return None


def _staged(
    log: PartitionLog, there: StagedPosition, told: StagedPosition | None, *, room: int, first: bool
) -> tuple[StagedSource, LogSlice | None]:
    """Reads what the follower lacks of what a write has staged, as far as there is room."""
    position = 0
    if told is not None and log.staging.agrees(there.write, told.size_bytes, told.digest):
        position = told.size_bytes
    source = StagedSource(there.write, there.size_bytes, position)
    if room <= 0 and not first:
        return source, None
    piece = log.staging.read_as_replica(there.write, position, max_bytes=max(1, room))
    if piece is None or (piece.length > room and not first):
        return source, None
    source.length = piece.length
    return source, piece


def _position(copy: Copy, write: int) -> int:
    told = copy.staged.get(write)
    return 0 if told is None else told.size_bytes


def _lacking(log: PartitionLog, copy: Copy) -> int:
    """Estimates how many bytes the follower lacks, of the log and of what is staged."""
    end = log.ends().log_end_offset
    lacking = log.bytes_from(copy.flushed_end) if copy.flushed_end < end else 0
    for each in log.staging.replica_state():
        told = copy.staged.get(each.write)
        lacking += each.size_bytes - min(each.size_bytes, 0 if told is None else told.flushed_bytes)
    return lacking


def _divergence(log: PartitionLog, wanted: FollowedPartition) -> LogPoint | None:
    """Returns where the follower's log is to be cut back to, if it has what this one has not."""
    end = log.ends().log_end_offset
    last = log.epochs.end_of(wanted.last_epoch, end)
    if wanted.last_epoch >= 0 and (
        last.end_offset < wanted.offset or last.epoch < wanted.last_epoch
    ):
        return LogPoint(last.epoch, last.end_offset)
    return LogPoint(log.epochs.latest, end) if wanted.offset > end else None


def _checked(broker_id: int, wanted: FollowedPartition) -> Copy | None:
    """Returns the copy that is told of; None if there is none yet. Raises InvalidRequestError for
    what no copy can be."""
    if not wanted.log_id:
        return None
    where = f"The copy of {wanted.topic}-{wanted.partition} on broker {broker_id}"
    if len(wanted.log_id) > _MAX_ID_CHARS:
        raise InvalidRequestError(f"{where} has a log id of {len(wanted.log_id)} characters.")
    if not 0 <= wanted.flushed_end <= wanted.offset or wanted.last_epoch < -1:
        raise InvalidRequestError(
            f"{where} cannot end at {wanted.offset}, with {wanted.flushed_end} as the end of what "
            f"is on its disk and {wanted.last_epoch} as its last leader epoch."
        )
    if len(wanted.staged) > _MAX_COPIES:
        raise InvalidRequestError(
            f"{where} has {len(wanted.staged)} staged writes, expected {_MAX_COPIES} at most."
        )
    staged: dict[int, StagedPosition] = {}
    for each in wanted.staged:
        if not 0 <= each.flushed <= each.position or each.write in staged:
            raise InvalidRequestError(
                f"{where} has {each.position} bytes of the write {each.write}, {each.flushed} of "
                "them on its disk: that cannot be, or is told twice."
            )
        staged[each.write] = StagedPosition(each.write, each.position, each.flushed, each.digest)
    return Copy(
        broker_id, wanted.log_id, wanted.offset, wanted.flushed_end, wanted.since_us, staged
    )
