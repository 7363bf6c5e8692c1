"""Hands over the lead of partitions to the brokers to which they move, or to others in sync.

Theory of operation. A follower tells with each request what it has on disk (see ``followers``).
When it lacks little, the leader takes nothing more for the partition: no appends, nothing staged,
prepared or published. It waits until the follower has told that everything is on its disk, and then
gives the lead away by one transaction in ZooKeeper. So whatever was acknowledged here is there, and
a record batch that waits for its flush here may be acknowledged afterwards too. A follower that
takes too long is left alone for a while, and appends go on.

The same is done, without a move, where the lead is to go to another broker that is in sync: to the
preferred leader, or because this broker stops (see ``preferred_leaders``).

The transaction holds only if the move stands, or the other is in sync, and the lead is this
broker's; whoever cancels a move or takes the lead meanwhile wins. If nobody knows whether it was
done, the partition takes nothing until ZooKeeper has said so: else it could acknowledge what the
new leader does not have.

What was prepared of atomic writes is promised by the broker that prepared it. So that promise is
let go before, and what is not decided by then is prepared again at the new leader.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from spark_logbus.broker.replica.finishing import MoveEnds
from spark_logbus.broker.replica.followers import Copy, Follower, Followers
from spark_logbus.broker.replica.holds import Hold, Holds
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.lease import Lease
from spark_logbus.coordination.cluster.moves import HandOver, MoveEndedError, PartitionMoves
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.coordination.writes.promises import Promises
from spark_logbus.errors import (
    BrokerUnavailableError,
    LogbusError,
    NotLeaderError,
    UnknownTopicError,
)
from spark_logbus.log import RECOVERED, PartitionLog
from spark_logbus.metrics import Counter, Histogram
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff
from spark_logbus.threads import Periodic
from spark_logbus.zookeeper import Session, SessionState

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_DOUBT_EVERY_S: Final = 0.2
# A follower that lacks little has it in some tens of milliseconds. One that does not, because its
# disk is slow or it is gone, costs writers this pause, and less and less often.
_LONGEST_PAUSE_S: Final = 1.0
# Then they are refused, which costs them more than to wait, but holds up nobody else.
_LONGEST_WAIT_S: Final = 4.0
# One that follows tells something twice as often.
_FRESH_S: Final = 1.0
# To wait for a publication that is under way, while everything else goes on.
_PUBLICATION_S: Final = 0.2
_RETRY: Final = Backoff(first_ms=500, max_ms=60_000)
# Of those that were asked for: each mostly waits, for a follower and for ZooKeeper.
_SIDE_BY_SIDE: Final = 8
_ASKED_EVERY_S: Final = 0.05

#: The move of a partition of the topic with that id, if one stands as far as this broker knows.
StandingMove = Callable[[TopicPartition, str], MovePayload | None]


class _Outcome(enum.Enum):
    NOT_DONE = "not done"
    DONE = "done"
    UNKNOWN = "unknown"


class _Asked(NamedTuple):
    """Hand-over that was asked for, to a broker that is in sync; given up after ``until``. With
    ``to_full`` also to one whose disk takes nothing more."""

    to: int
    until: float
    done: Future[None]
    to_full: bool = False


class HandOverStats:
    """Counts of hand-overs, and how long partitions took nothing, in seconds."""

    def __init__(self) -> None:
        self.done, self.put_off, self.pauses = Counter(), Counter(), Histogram()


class HandOvers:
    """Hands over partitions that move one after the other, on a thread of its own, and a few side
    by side of those that it was asked for. The broker starts and stops ``thread``; the rest is its
    alone, but for ``ask`` and ``end_waiting``.

    ``ends`` tells to whom leads are to go by moves. ``changed`` is called with a partition when its
    followers, and later its clients, are to look
    at it again.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        *,
        broker_id: int,
        followers: Followers,
        holds: Holds,
        moves: PartitionMoves,
        ends: MoveEnds,
        promises: Promises,
        lease: Lease,
        session: Session,
        clock: Clock,
        changed: Callable[[TopicPartition], None],
    ) -> None:
        self._replica_manager = replica_manager
        self._broker_id = broker_id
        self._followers = followers
        self._holds = holds
        self._moves = moves
        self._ends = ends
        self._promises = promises
        self._lease = lease
        self._session = session
        self._clock = clock
        self._changed = changed
        self._not_before: dict[TopicPartition, float] = {}
        self._failures: dict[TopicPartition, tuple[int, str]] = {}
        self._lock = threading.Lock()  # for _asked
        self._asked: dict[TopicPartition, _Asked] = {}
        self._doubts: dict[TopicPartition, tuple[LeaderPartition, HandOver]] = {}
        self.stats = HandOverStats()
        self.thread = Periodic(
            "hand-overs",
            self._look,
            pause_s=_LOOK_EVERY_S,
            failure="The lead of partitions that move could not be handed over.",
        )
        followers.listen(self._told)

    def ask(
        self, topic_partition: TopicPartition, to: int, *, within_s: float, to_full: bool = False
    ) -> Future[None]:
        """Hand over a partition to a broker that is in sync, as soon as it can be; with ``to_full``
        also to one whose disk takes nothing more. Thread-safe.

        The future raises NotLeaderError if it is not led here, BrokerUnavailableError if it could
        not be handed over in time, or is to go to another broker by now.
        """
        asked = _Asked(to, self._clock.monotonic() + within_s, Future(), to_full)
        with self._lock:
            before = self._asked.get(topic_partition)
            self._asked[topic_partition] = asked
        if before is not None:
            before.done.set_exception(
                BrokerUnavailableError(f"{topic_partition} is to go to broker {to} now.")
            )
        self.thread.wake()
        return asked.done

    def end_waiting(self) -> None:
        """Begin no other hand-over, and have requests wait for none."""
        self.thread.end()
        self._holds.let_go_all()

    def _told(self, follower: Follower) -> None:
        if self._is_due(follower):
            self.thread.wake()

    def _is_due(self, follower: Follower) -> bool:
        """True if the lead may go to the follower now, for all that it has told."""
        now = self._clock.monotonic()
        return (
            bool(follower.copy.since_us)
            and follower.is_ready
            and (now - follower.told_at <= _FRESH_S or follower.has_all)
            and now >= self._not_before.get(follower.led.log.topic_partition, -1.0)
            and self._ends.is_next(follower)
        )

    # -- looking --------------------------------------------------------------------------

    def _look(self) -> float:
        for led, lead in list(self._doubts.values()):
            self._settle(led, lead)
        for follower in self._followers.all():
            topic_partition = follower.led.log.topic_partition
            if self.thread.stopping.is_set():
                break
            if not self._stands(follower):
                self._followers.forget(topic_partition, follower.copy.broker_id)
                self._not_before.pop(topic_partition, None)
                self._failures.pop(topic_partition, None)
            elif self._is_due(follower) and self._may_begin():
                self._try_or_warn(follower)
        self._followers.forget_handed_over()
        self._try_asked()
        if self._asked:
            return _ASKED_EVERY_S
        return _DOUBT_EVERY_S if self._doubts else _LOOK_EVERY_S

    def _try_asked(self) -> None:
        with self._lock:
            asked = list(self._asked.items())
        if not asked:
            return
        with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(asked)), "hand-over") as executor:
            list(executor.map(self._try_one_asked, asked))

    def _try_one_asked(self, entry: tuple[TopicPartition, _Asked]) -> None:
        topic_partition, asked = entry
        led, why = self._replica_manager.find(topic_partition), None
        if led is not None:
            follower = self._followers.find(led, asked.to)
            if follower is None or follower.copy.since_us or not follower.is_ready:
                why = f"broker {asked.to} does not follow closely yet; try again in some seconds"
            elif self._clock.monotonic() >= self._not_before.get(topic_partition, -1.0):
                if self._may_begin():
                    self._try_or_warn(follower)
                why = self._failures.get(topic_partition, (0, "this broker is stopping"))[1]
            if self._replica_manager.find(topic_partition) is led:
                self._put_off(topic_partition, asked, why or "it is tried again after a pause")
            elif self._is_over(topic_partition, asked):
                asked.done.set_result(None)
        elif self._is_over(topic_partition, asked):
            asked.done.set_exception(
                NotLeaderError(f"Broker {self._broker_id} does not lead {topic_partition}.")
            )

    def _put_off(self, topic_partition: TopicPartition, asked: _Asked, why: str) -> None:
        if self._clock.monotonic() < asked.until and not self.thread.stopping.is_set():
            return
        if self._is_over(topic_partition, asked):
            asked.done.set_exception(
                BrokerUnavailableError(
                    f"Broker {asked.to} did not become the leader of {topic_partition}: {why}."
                )
            )

    def _is_over(self, topic_partition: TopicPartition, asked: _Asked) -> bool:
        """Forgets what was asked for, of which the outcome is known; False if it was replaced."""
        with self._lock:
            is_that = self._asked.get(topic_partition) is asked
            if is_that:
                del self._asked[topic_partition]
            return is_that

    def _stands(self, follower: Follower) -> bool:
        """True if the partition is still led as the follower has it, and moves to that broker or
        is assigned to it."""
        led, copy = follower.led, follower.copy
        if self._replica_manager.find(led.log.topic_partition) is not led:
            return False
        if not copy.since_us or self._ends.has_replica(follower):
            return True
        standing = self._ends.standing(led)
        return (
            standing is not None
            and copy.broker_id in standing.move.to
            and copy.since_us == standing.move.since_us
        )

    def _may_begin(self) -> bool:
        return (
            self._session.state is SessionState.CONNECTED
            and self._lease.current()
            and not self.thread.stopping.is_set()
        )

    # -- one hand-over --------------------------------------------------------------------

    def _try_or_warn(self, follower: Follower) -> None:
        """Tries, so that what was not foreseen of one partition holds up no other."""
        try:
            self._try(follower)
        except Exception as error:
            topic_partition = follower.led.log.topic_partition
            logger.exception("Another broker could not become the leader of %s.", topic_partition)
            self._failed(topic_partition, f"{type(error).__name__}: {error}")

    def _try(self, follower: Follower) -> None:
        led, topic_partition = follower.led, follower.led.log.topic_partition
        if topic_partition in self._doubts:
            return
        if (offline := led.log.offline) is not None:
            self._failed(topic_partition, offline.message)
            return
        try:  # before anybody waits: it may be that ZooKeeper does not answer, or disagrees
            if self._moves.handed_over(self._lead(led, follower.copy, end=0)):
                self._failed(topic_partition, "the lead is another broker's in ZooKeeper")
                return
        except LogbusError as error:
            self._failed(topic_partition, error.message)
            return
        began = self._clock.monotonic()
        hold = self._holds.begin(topic_partition)
        too_long = threading.Timer(_LONGEST_WAIT_S, hold.let_go)
        too_long.daemon = True
        too_long.start()
        try:
            self._hand_over(led, follower, hold)
        finally:
            too_long.cancel()
            if topic_partition not in self._doubts:
                self._holds.end(topic_partition)
                self.stats.pauses.observe(self._clock.monotonic() - began)

    def _hand_over(self, led: LeaderPartition, follower: Follower, hold: Hold) -> None:
        log, to = led.log, follower.copy.broker_id
        topic_partition = log.topic_partition
        busy = BrokerUnavailableError(
            f"{topic_partition} takes nothing for the moment in which broker {to} becomes its "
            "leader; try again."
        )
        if not log.fence(led.leader_epoch, busy, within_s=_PUBLICATION_S):
            self._failed(topic_partition, "an atomic write is being published")
            return
        outcome = _Outcome.NOT_DONE
        end = log.ends().log_end_offset
        lead = self._lead(led, follower.copy, end=end)
        try:
            why_not = self._prepare(led, lead)
            if why_not is not None:
                self._failed(topic_partition, why_not)
                return
            outcome = _Outcome.UNKNOWN
            outcome = self._write(lead)
        finally:
            if outcome is _Outcome.UNKNOWN:
                self._doubts[topic_partition] = (led, lead)
                self._settle(led, lead)
                if topic_partition in self._doubts:
                    hold.let_go()
                    logger.warning(
                        "%s takes nothing until ZooKeeper says whether broker %d has its lead.",
                        topic_partition, to, extra=fields_about(topic_partition),
                    )  # fmt: skip
            else:
                self._end(led, lead, done=outcome is _Outcome.DONE)

    def _prepare(self, led: LeaderPartition, lead: HandOver) -> str | None:
        """Wait until the follower has everything, and let go of what was promised; returns the
        reason why the lead cannot be handed over now, if there is one."""
        log, began = led.log, self._clock.monotonic()

        def is_whole(follower: Follower) -> bool:
            copy = follower.copy
            return (
                follower.told_at >= began  # what it told before may be of a disk that has died
                and (copy.log_id, copy.since_us) == (lead.log_id, lead.since_us or 0)
                and copy.has(lead.end, log.staging.replica_state())
            )

        self._changed(lead.topic_partition)  # the follower may be waiting for something to come
        copy = self._followers.wait_for(led, lead.to, is_whole, timeout_s=_LONGEST_PAUSE_S)
        if copy is None:
            return f"broker {lead.to} did not have everything in {_LONGEST_PAUSE_S:g} s"
        if copy.refuses and self._avoids_full(lead):
            return f"the disk of broker {lead.to} takes nothing more: it is full, say"
        try:
            # The first promise of this process takes the place of one of an earlier process.
            if _is_promised(log, RECOVERED) and _is_promised(log, self._promises.current().number):
                self._promises.renew()
        except LogbusError as error:
            return error.message
        if self._replica_manager.find(lead.topic_partition) is not led or not self._may_begin():
            return "this broker is not certain any more that it leads the partition"
        return None

    def _avoids_full(self, lead: HandOver) -> bool:
        """True if a lead is not to go to a broker whose disk takes nothing more."""
        asked = self._asked.get(lead.topic_partition)
        return lead.since_us is None and asked is not None and not asked.to_full

    def _write(self, lead: HandOver) -> _Outcome:
        try:
            self._moves.hand_over(lead)
        except UnknownTopicError:
            return _Outcome.NOT_DONE  # deleted just now; the news of it is under way
        except (MoveEndedError, LogbusError) as error:
            logger.info("The hand-over of %s is to be looked up: %s", lead.topic_partition, error)
            return _Outcome.UNKNOWN
        return _Outcome.DONE

    def _lead(self, led: LeaderPartition, copy: Copy, *, end: int) -> HandOver:
        return HandOver(
            led.log.topic_partition,
            led.log.topic_id,
            leader=self._broker_id,
            leader_epoch=led.leader_epoch,
            to=copy.broker_id,
            log_id=copy.log_id,
            end=end,
            since_us=copy.since_us or None,
            old_log_id=led.log.log_id or "",
        )

    def _settle(self, led: LeaderPartition, lead: HandOver) -> None:
        """Have ZooKeeper settle whether a lead is handed over of which that is not known."""
        try:
            done = self._moves.settle(lead)
        except UnknownTopicError:
            done = False  # deleted just now; the news of it is under way
        except LogbusError as error:
            logger.debug("Whether %s is handed over is not known: %s", lead.topic_partition, error)
            return
        del self._doubts[lead.topic_partition]
        if not done:
            self._failed(lead.topic_partition, "its move was ended, or ZooKeeper was away")
        self._end(led, lead, done=done)
        self._holds.end(lead.topic_partition)

    def _end(self, led: LeaderPartition, lead: HandOver, *, done: bool) -> None:
        """Serve the partition on, or leave it to its new leader."""
        topic_partition = lead.topic_partition
        gone = NotLeaderError(
            f"Broker {self._broker_id} does not lead {topic_partition} any more; refresh the "
            "metadata and ask its leader."
        )
        if not done:
            if self._replica_manager.find(topic_partition) is led:
                led.log.unfence(led.leader_epoch)
                if self._replica_manager.find(topic_partition) is not led:
                    # It was stepped down from just then, and its log follows another leader's.
                    led.log.fence(led.leader_epoch, gone)
            return
        led.log.fence(led.leader_epoch, gone)
        self._replica_manager.let_go(topic_partition, led, follows=lead.since_us is None)
        if self._replica_manager.find(topic_partition) is None:  # else it came back meanwhile
            self._followers.hand_over(topic_partition, lead.topic_id, lead.to)
        self._not_before.pop(topic_partition, None)
        self._failures.pop(topic_partition, None)
        self._changed(topic_partition)
        self.stats.done.add()
        logger.info(
            "Broker %d is the leader of %s now, from offset %d on.",
            lead.to, topic_partition, lead.end, extra=fields_about(topic_partition),
        )  # fmt: skip

    def _failed(self, topic_partition: TopicPartition, why: str) -> None:
        self.stats.put_off.add()
        logger.info(
            "%s gets its new leader later: %s",
            topic_partition,
            why,
            extra=fields_about(topic_partition),
        )
        failures = self._failures.get(topic_partition, (0, ""))[0] + 1
        self._failures[topic_partition] = failures, why
        self._not_before[topic_partition] = self._clock.monotonic() + _RETRY.pause_s(failures)


def _is_promised(log: PartitionLog, promise: int) -> bool:
    """True if anything was prepared here under that promise or a later one."""
    staging = log.staging
    return any(staging.is_promised(each.write, promise) for each in staging.replica_state())
