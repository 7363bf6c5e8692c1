"""The replicate request: what a follower of partitions lacks of them, up to what is written.

It is a long poll as a fetch is, answered with slices of the log and of staged files; and one step
of a session (see ``replica_sessions``), so that it names only what has changed.

What it tells of a copy decides what counts as replicated, and whether the lead may be handed over.
So it is believed only of a broker to which the partition is assigned or is to move, by the topic as
this broker knows it, only if it follows this broker's leader epoch, and only if its log has nothing
that the log here has not. Whoever can reach the port can say that it is that broker: the port is
for those who are trusted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.replica_reads import (
    ReplicaRead,
    checked_copy,
    divergence,
    lacking_bytes,
    read_partition,
)
from spark_logbus.broker.handlers.replica_sessions import (
    FollowedHere,
    ReplicaSession,
    ReplicaSessions,
)
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.replica.followers import Followers
from spark_logbus.broker.replica.hand_over import StandingMove
from spark_logbus.broker.replica.holds import Holds
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    ReplicaSessionError,
    StorageError,
)
from spark_logbus.log import LogSlice
from spark_logbus.model import TopicPartition
from spark_logbus.network import Answer, DelayedResponse, Response
from spark_logbus.protocol import (
    Api,
    FollowedPartition,
    HighWatermark,
    ReplicateRequest,
    ReplicateResponse,
    ReplicateResult,
    encode_error,
    encode_response,
    error_info,
)

logger = logging.getLogger(__name__)

# So many partitions at most are answered for at a time.
_MAX_RESULTS: Final = 1_000

#: The brokers to which a partition of the topic with that id is assigned, as far as this one knows.
AssignedTo = Callable[[TopicPartition, str], Collection[int]]

#: The brokers that are in sync of a partition that is led here, this one among them.
MembersOf = Callable[[LeaderPartition], Collection[int]]


class _Poll(DelayedResponse):
    """One request that waits until a partition of its session has something for the follower."""

    def __init__(
        self,
        session: ReplicaSession,
        attempt: Callable[[float], Response | None],
        *,
        deadline: float,
    ) -> None:
        super().__init__(deadline=deadline)
        self._session = session
        self._attempt = attempt
        self._last = deadline

    def poll(self) -> Response | None:
        # Noted before looking, so that nothing can come unnoticed in between.
        self._session.wait(self)
        response = self._attempt(self._last)
        if response is not None:
            self._session.wait(None)
        elif self._session.behind:
            self.deadline = min(self._last, self._session.watermarks_due_at)
        else:
            self.deadline = self._last
        return response


class ReplicateHandler:
    """Answers followers. Thread-safe.

    ``standing`` finds the move of a partition that stands, and ``assigned`` the brokers to which
    one is assigned, in the topics as this broker has them.
    """

    def __init__(
        self,
        broker_id: int,
        replica_manager: ReplicaManager,
        sessions: ReplicaSessions,
        *,
        followers: Followers,
        holds: Holds,
        standing: StandingMove,
        assigned: AssignedTo,
        members: MembersOf,
        clock: Clock,
        max_wait_ms: int,
        max_fetch_bytes: int,
        metrics: RequestMetrics,
    ) -> None:
        self._broker_id = broker_id
        self._replica_manager = replica_manager
        self._sessions = sessions
        self._followers = followers
        self._holds = holds
        self._standing = standing
        self._assigned = assigned
        self._members = members
        self._clock = clock
        self._max_wait_ms = max_wait_ms
        self._max_fetch_bytes = max_fetch_bytes
        self._metrics = metrics
        self._ending = False

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.REPLICATE: self.handle}

    def handle(self, request: ReplicateRequest, context: RequestContext) -> Answer:
        if request.broker_id == self._broker_id:
            raise InvalidRequestError(
                f"Broker {request.broker_id} is this one, which follows no partition of its own."
            )
        named = {TopicPartition(each.topic, each.partition): each for each in request.partitions}
        if len(named) < len(request.partitions):
            raise InvalidRequestError("A request to replicate names a partition twice.")
        if not named and request.sequence == 1:
            raise InvalidRequestError(
                "The first request of a session to replicate names no partition."
            )
        session = self._sessions.of(request, context.connection)
        for left in request.left:
            self._sessions.take_out(session, TopicPartition(left.topic, left.partition))
        refused = [
            result
            for topic_partition, wanted in named.items()
            if (result := self._take(session, topic_partition, wanted)) is not None
        ]
        attempt = partial(self._attempt, session, request, refused)
        response = attempt(-math.inf if request.max_wait_ms <= 0 else math.inf)
        if response is not None:
            return response
        wait_ms = min(request.max_wait_ms, self._max_wait_ms)
        return _Poll(session, attempt, deadline=self._clock.monotonic() + wait_ms / 1000)

    def end_waiting(self) -> None:
        """Answer all that wait, now and from now on, with what there is."""
        self._ending = True
        self._sessions.wake_all()

    # -- what is told ---------------------------------------------------------------------

    def _take(
        self, session: ReplicaSession, topic_partition: TopicPartition, wanted: FollowedPartition
    ) -> ReplicateResult | None:
        """Notes how far the follower is, if it is believed; else returns why it is not."""
        try:
            led = self._led(session.broker_id, topic_partition, wanted)
            copy = checked_copy(led.log, session.broker_id, wanted)
            self._sessions.put(session, topic_partition, FollowedHere(wanted, copy))
            if copy is not None and divergence(led.log, wanted) is None:
                self._followers.tell(led, copy, lacking_bytes=lacking_bytes(led.log, copy))
        except LogbusError as error:
            refused = error
        except Exception as error:
            logger.exception("%s cannot be followed.", topic_partition)
            refused = _unforeseen(topic_partition, error)
        else:
            return None
        self._sessions.take_out(session, topic_partition)
        return self._refused(session.broker_id, topic_partition, wanted, refused)

    def _led(
        self, broker_id: int, topic_partition: TopicPartition, wanted: FollowedPartition
    ) -> LeaderPartition:
        """Raises NotLeaderError for what the broker does not follow, or cannot, for now."""
        led = self._replica_manager.leader_of(topic_partition).of_topic(wanted.topic_id)
        if not self._may_follow(broker_id, topic_partition, wanted):
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

    def _may_follow(
        self, broker_id: int, topic_partition: TopicPartition, wanted: FollowedPartition
    ) -> bool:
        if not wanted.since_us:
            return broker_id in self._assigned(topic_partition, wanted.topic_id)
        move = self._standing(topic_partition, wanted.topic_id)
        return move is not None and broker_id in move.to and move.since_us == wanted.since_us

    def _refused(
        self,
        broker_id: int,
        topic_partition: TopicPartition,
        wanted: FollowedPartition,
        error: LogbusError,
    ) -> ReplicateResult:
        """Returns the answer for a partition that is not in the session; whatever was met there is
        of that partition alone."""
        result = ReplicateResult(wanted.topic, wanted.partition)
        leads = self._replica_manager.find(topic_partition)
        if leads is not None and leads.log.topic_id == wanted.topic_id:
            result.leader_epoch = leads.leader_epoch  # also if it was handed over, and came back
        elif self._followers.was_handed_over(topic_partition, wanted.topic_id, broker_id):
            result.handed_over = True
            return result
        self._metrics.failed(Api.REPLICATE, error)
        result.error = error_info(error)
        return result

    # -- answers --------------------------------------------------------------------------

    def _attempt(
        self,
        session: ReplicaSession,
        request: ReplicateRequest,
        refused: list[ReplicateResult],
        deadline: float,
    ) -> Response | None:
        """The response if there is something to say, or no more time."""
        if session.ended:
            error = ReplicaSessionError(
                f"Broker {session.broker_id} began another session since: begin anew."
            )
            self._metrics.failed(Api.REPLICATE, error)
            return Response(encode_error(error))
        now = self._clock.monotonic()
        results, slices = [*refused], list[LogSlice]()
        room = max(1, min(request.max_bytes, self._max_fetch_bytes))
        marked = session.take_marked(now)
        for number, topic_partition in enumerate(marked):
            if len(results) >= _MAX_RESULTS or (slices and room <= 0):
                session.put_back(marked[number:])
                break
            followed = session.followed.get(topic_partition)
            if followed is None or followed.waits:
                continue
            found = self._read(session, topic_partition, followed, room, first=not slices)
            if self._is_news(session, topic_partition, followed, found):
                results.append(found.result)
                slices += found.slices
                room -= found.length
        watermarks = self._watermarks(session) if session.next_watermarks(now) else []
        is_over = self._ending or now >= deadline or session.sequence != request.sequence
        if not results and not watermarks and not is_over:
            return None
        return Response(encode_response(ReplicateResponse(results, watermarks)), slices)

    def _is_news(
        self,
        session: ReplicaSession,
        topic_partition: TopicPartition,
        followed: FollowedHere,
        found: ReplicaRead,
    ) -> bool:
        """Tells if the follower is to have what was found, and notes that it has it."""
        result = found.result
        if result.error is not None or result.handed_over:
            self._sessions.take_out(session, topic_partition)
            return True
        result.waits = followed.waits = found.settled or bool(found.slices)
        is_first = followed.log_start < 0
        starts_elsewhere = followed.log_start != result.log_start_offset
        if not (result.waits or is_first or starts_elsewhere):
            if followed.is_behind or followed.high_watermark != result.high_watermark:
                session.behind[topic_partition] = None
            return False
        followed.high_watermark, followed.log_start = (
            result.high_watermark, result.log_start_offset,
        )  # fmt: skip
        if followed.is_behind and not result.waits:
            session.behind[topic_partition] = None
        self._followers.sent(topic_partition, session.broker_id, found.length)
        return True

    def _watermarks(self, session: ReplicaSession) -> list[HighWatermark]:
        """Returns the high watermarks that have moved and that the follower is not told of yet."""
        found: list[HighWatermark] = []
        for topic_partition in list(session.behind):
            followed = session.followed.get(topic_partition)
            led = self._replica_manager.find(topic_partition)
            if (
                followed is None
                or followed.waits  # it comes back with the follower's word
                or led is None
                or led.leader_epoch != followed.wanted.leader_epoch
            ):
                del session.behind[topic_partition]
                continue
            if len(found) >= _MAX_RESULTS:
                break
            offset = led.log.ends().high_watermark
            if offset > followed.high_watermark:
                followed.high_watermark = offset
                found.append(
                    HighWatermark(topic_partition.topic, topic_partition.partition, offset)
                )
            if not followed.is_behind:
                del session.behind[topic_partition]
        return found

    def _read(
        self,
        session: ReplicaSession,
        topic_partition: TopicPartition,
        followed: FollowedHere,
        room: int,
        *,
        first: bool,
    ) -> ReplicaRead:
        wanted = followed.wanted
        try:
            led = self._led(session.broker_id, topic_partition, wanted)
            hold = self._holds.get(topic_partition)
            found = read_partition(
                led.log,
                wanted,
                followed.copy,
                ReplicateResult(wanted.topic, wanted.partition, leader_epoch=led.leader_epoch),
                room=room,
                first=first,
                hands_over=hold is not None,
                others_have_all=len(self._members(led)) > 1,
            )
            if hold is not None and followed.asked_in is not hold:
                # Its last word may be old: it says once more how far it is, and so that it works.
                followed.asked_in = hold
                found = replace(found, settled=True)
            return found
        except LogbusError as error:
            refused = error
        except Exception as error:
            logger.exception("%s cannot be sent.", topic_partition)
            refused = _unforeseen(topic_partition, error)
        return ReplicaRead(self._refused(session.broker_id, topic_partition, wanted, refused))


def _unforeseen(topic_partition: TopicPartition, error: Exception) -> LogbusError:
    return StorageError(f"{topic_partition} cannot be sent: {type(error).__name__}: {error}")
