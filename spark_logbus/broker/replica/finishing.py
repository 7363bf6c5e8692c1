"""Ends moves of partitions that have several replicas, or are to have.

Theory of operation. The brokers that a partition gets follow its leader, and are taken in sync as
any replica is (see ``in_sync``). When all to which it moves are in sync, each with the log of which
it has told in this move, the leader ends it: where it is one of them, by a transaction that assigns
the partition to them and leaves nobody else in sync. Where it is not, it first hands over the lead
to one that has a replica already, which then ends the move; or, where all are new, to the first of
them, in one transaction with the end of the move (see ``hand_over``).

Whoever loses its replica hears of it by the topic, and lets go of its log by the rules for old ones
(see ``leaving``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from spark_logbus.broker.replica.followers import Follower, Followers
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.moves import MoveEndedError, PartitionMoves
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.errors import LogbusError, UnknownTopicError
from spark_logbus.metrics import Counter
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff
from spark_logbus.threads import Periodic

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.5
_RETRY: Final = Backoff(first_ms=500, max_ms=30_000)
# For a hand-over to a replica that has everything but what has just come.
_HAND_OVER_S: Final = 5.0


class _HandOver(Protocol):
    def __call__(self, topic_partition: TopicPartition, to: int, *, within_s: float) -> object: ...


class _Standing(NamedTuple):
    """A move that stands of a partition that is led here, and the brokers that have it."""

    led: LeaderPartition
    replicas: list[int]
    move: MovePayload

    @property
    def is_of_one(self) -> bool:
        """True if the partition has one replica, and is to have one."""
        return len(self.replicas) == len(self.move.to) == 1


class MoveEnds:
    """Tells when a move can end, and how. Thread-safe, keeps nothing.

    ``topic`` gives a topic as this broker knows it.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        followers: Followers,
        in_sync: InSync,
        topic: Callable[[str], TopicRecord | None],
    ) -> None:
        self._broker_id = broker_id
        self._followers = followers
        self._in_sync = in_sync
        self._topic = topic

    def has_replica(self, follower: Follower) -> bool:
        """True if the partition is assigned to the follower, whatever move it has told of."""
        log = follower.led.log
        record = self._topic(log.topic_partition.topic)
        if record is None or record.topic_id != log.topic_id:
            return False
        return follower.copy.broker_id in record.partitions.get(log.topic_partition.partition, ())

    def is_next(self, follower: Follower) -> bool:
        """True if the lead is to go to the follower, by the move of which it has told, as soon as
        it has everything."""
        led = follower.led
        standing = self.standing(led)
        if standing is None or standing.move.since_us != follower.copy.since_us:
            return False
        if standing.is_of_one:
            return standing.move.to == [follower.copy.broker_id]
        to = standing.move.to
        return (
            follower.copy.broker_id == to[0]
            and {*to}.isdisjoint({*standing.replicas, self._broker_id})
            and self._are_in_sync(standing)
        )

    def next_step(self, led: LeaderPartition) -> int | None:
        """Returns the broker that is to lead before the move of the partition can end: this one, if
        it is to be ended now. None if nothing can be done yet, or a new broker gets the lead."""
        standing = self.standing(led)
        if standing is None or standing.is_of_one or not self._are_in_sync(standing):
            return None
        to = standing.move.to
        if self._broker_id in to:
            return self._broker_id
        return next((each for each in to if each in standing.replicas), None)

    def standing(self, led: LeaderPartition) -> _Standing | None:
        """Returns the move of a partition that stands, as far as this broker knows."""
        where = led.log.topic_partition
        record = self._topic(where.topic)
        if record is None or record.topic_id != led.log.topic_id:
            return None
        move, replicas = record.moves.get(where.partition), record.partitions.get(where.partition)
        if move is None or move.error or replicas is None:
            return None
        return _Standing(led, replicas, move)

    def _are_in_sync(self, standing: _Standing) -> bool:
        """True if all to which the partition moves are in sync, each with the log of which it has
        told last, and one that is new in this move: an earlier one may have left it in sync."""
        members = self._in_sync.members(standing.led)
        for broker_id in standing.move.to:
            if broker_id == self._broker_id:
                continue
            follower = None if members is None else members.in_sync_follower(broker_id)
            if follower is None:
                return False
            is_new = broker_id not in standing.replicas
            if is_new and follower.copy.since_us != standing.move.since_us:
                return False
        return True


class Finishing:
    """Ends moves, on a thread of its own. The broker starts and stops ``thread``.

    ``topics`` are all that this broker knows, ``find`` gives a partition as it is led here,
    ``hand_over`` has the lead of one go to a broker that is in sync, within so many seconds, and
    ``is_certain`` tells if the broker has its id for certain, and reaches ZooKeeper.
    """

    def __init__(
        self,
        broker_id: int,
        ends: MoveEnds,
        *,
        moves: PartitionMoves,
        topics: Callable[[], Mapping[str, TopicRecord]],
        find: Callable[[TopicPartition], LeaderPartition | None],
        hand_over: _HandOver,
        is_certain: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._ends = ends
        self._moves = moves
        self._topics = topics
        self._find = find
        self._hand_over = hand_over
        self._is_certain = is_certain
        self._clock = clock
        self._not_before: dict[TopicPartition, float] = {}
        self._failures: dict[TopicPartition, int] = {}
        #: Moves that were ended here, the leader being one of the new replicas.
        self.done = Counter()
        self.thread = Periodic(
            "finishing-moves",
            self.look,
            pause_s=_LOOK_EVERY_S,
            failure="Moves of partitions with several replicas could not be ended.",
        )

    def look(self) -> None:
        """Ends what can be ended, one move after the other."""
        moving = [
            TopicPartition(record.name, partition)
            for record in self._topics().values()
            for partition in record.moves
        ]
        for over in self._not_before.keys() - {*moving}:
            del self._not_before[over]
            self._failures.pop(over, None)
        for where in moving:
            if self.thread.stopping.is_set() or not self._is_certain():
                return
            if self._clock.monotonic() >= self._not_before.get(where, -1.0):
                led = self._find(where)
                if led is not None:
                    self._step_or_warn(led)

    def _step_or_warn(self, led: LeaderPartition) -> None:
        """Tries, so that what was not foreseen of one partition holds up no other."""
        where = led.log.topic_partition
        try:
            self._step(led)
        except Exception:
            logger.exception("The move of %s could not be ended.", where, extra=fields_about(where))
            self._later(where)

    def _step(self, led: LeaderPartition) -> None:
        leader, standing = self._ends.next_step(led), self._ends.standing(led)
        if leader is None or standing is None:
            return
        where = led.log.topic_partition
        if leader != self._broker_id:
            self._hand_over(where, leader, within_s=_HAND_OVER_S)
            self._later(where)
            return
        try:
            state = self._moves.finish(
                where,
                topic_id=led.log.topic_id,
                leader=self._broker_id,
                leader_epoch=led.leader_epoch,
                since_us=standing.move.since_us,
                end=led.log.flushed_end,
            )
        except (MoveEndedError, UnknownTopicError) as error:
            logger.info("%s", error, extra=fields_about(where))
            self._later(where)
        except LogbusError as error:
            logger.info("The move of %s is ended later: %s", where, error)
            self._later(where)
        else:
            # Who leads, and for whom its watermark waits, follow when the news of this has come.
            self.done.add()
            self._later(where)
            logger.info(
                "The move of %s has ended: brokers %s have it.",
                where, ", ".join(map(str, state.in_sync)), extra=fields_about(where),
            )  # fmt: skip

    def _later(self, where: TopicPartition) -> None:
        failures = self._failures[where] = self._failures.get(where, 0) + 1
        self._not_before[where] = self._clock.monotonic() + _RETRY.pause_s(failures)
