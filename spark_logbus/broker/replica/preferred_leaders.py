"""Gives leads to other brokers that are in sync: to preferred leaders, those of damaged logs, where
the disk here is full (see ``full_disks``), and all when a broker stops.

The first broker to which a partition is assigned is its preferred leader, so that leads are spread
over the brokers. After a restart it leads nothing: others were elected, or got its leads when it
stopped. It gets them back when it has been in sync for a while, or when an operator says so.

Records that are damaged on the disk here are not lost while others are in sync: one of these takes
the lead, and this broker copies what is damaged from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from typing import Final

from spark_logbus.broker.replica.full_disks import FullDisks
from spark_logbus.broker.replica.hand_over import HandOvers
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.errors import BrokerUnavailableError, LogbusError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff, Deadline
from spark_logbus.threads import Periodic

logger = logging.getLogger(__name__)

_MOST_PAUSE_S: Final = 10.0
_LEAST_PAUSE_S: Final = 0.1
# To hand over one partition takes some tens of milliseconds; what could not be in this time is
# tried again after the next pause.
_WITHIN_S: Final = 5.0
# Brokers to which leads were to go may stop as well: then there is nothing to wait for.
_LOOK_S: Final = 0.1
# One that cannot be given back costs its writers a pause each time.
_AGAIN: Final = Backoff(first_ms=5_000, max_ms=300_000)
# As many at a time, so that the first of them to be asked for are not given up before their turn.
_AT_A_TIME: Final = 200


class PreferredLeaders:
    """Looks after the leads of this broker, on a thread of its own; the broker starts and stops
    ``thread``. Thread-safe.

    ``members`` gives the brokers that are in sync of a partition that is led here, ``topic`` a
    topic as this broker knows it, and ``live`` the brokers that are registered. ``is_certain``
    tells if that is known for certain: ZooKeeper is reached.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        replica_manager: ReplicaManager,
        hand_overs: HandOvers,
        members: Callable[[LeaderPartition], Collection[int]],
        topic: Callable[[str], TopicRecord | None],
        live: Callable[[], Collection[int]],
        is_certain: Callable[[], bool],
        clock: Clock,
        after_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._replica_manager = replica_manager
        self._hand_overs = hand_overs
        self._members = members
        self._topic = topic
        self._live = live
        self._is_certain = is_certain
        self._clock = clock
        self._after_s = after_ms / 1000
        self._since: dict[LeaderPartition, float] = {}  # when its preferred leader was seen in sync
        self._tries: dict[LeaderPartition, int] = {}
        self._not_before: dict[LeaderPartition, float] = {}
        self._full_disks = FullDisks(clock)
        self.thread = Periodic(
            "preferred-leaders",
            self.look,
            pause_s=min(_MOST_PAUSE_S, max(_LEAST_PAUSE_S, self._after_s / 5)),
            failure="Partitions could not be given back to their preferred leaders.",
        )

    def look(self) -> None:
        """Gives back what could have been given back for long enough, and gives away what is
        damaged here, or what the disk here takes no more."""
        if not self._is_certain():
            return
        self._give_back()
        self._give_away_full()

    def _give_back(self) -> None:
        now = self._clock.monotonic()
        due: list[tuple[TopicPartition, int, str]] = []
        since: dict[LeaderPartition, float] = {}
        for led in self._replica_manager.led().values():
            to, why, after_s = self._preferred(led), "its preferred leader", self._after_s
            if damaged := led.log.damaged:
                to = self._any_able(led)
                why, after_s = f"for the records {damaged[0]} are damaged on the disk here", 0.0
            if to is None or to not in self._able(led):
                continue
            since[led] = self._since.get(led, now)
            if (
                now - since[led] >= after_s
                and now >= self._not_before.get(led, now)
                and len(due) < _AT_A_TIME
            ):
                due.append((led.log.topic_partition, to, why))
                self._tries[led] = self._tries.get(led, 0) + 1
                self._not_before[led] = now + _AGAIN.pause_s(self._tries[led])
        self._since = since
        for led in self._tries.keys() - since.keys():
            del self._tries[led], self._not_before[led]
        for topic_partition, to, why in due:
            logger.info("%s goes to broker %d, %s.", topic_partition, to, why)
            self._hand_overs.ask(topic_partition, to, within_s=_WITHIN_S)

    def _give_away_full(self) -> None:
        """Gives away what cannot be written to here, to one of those in sync after the other."""
        all_led = self._replica_manager.led()
        for where, tries in self._full_disks.due(all_led).items():
            able = self._able(all_led[where])
            if not able:
                continue
            order = [each for each in self._assigned(all_led[where]) if each in able]
            to = order[tries % len(order)]
            logger.warning("%s goes to broker %d: the disk here takes nothing more.", where, to)
            self._hand_overs.ask(where, to, within_s=_WITHIN_S)

    def elect(self, topic_partition: TopicPartition, topic_id: str | None) -> Future[None] | None:
        """Gives a partition that is led here to its preferred leader now; None if that is this
        broker. Raises NotLeaderError, UnknownTopicError, and BrokerUnavailableError if the
        preferred leader is not in sync."""
        led = self._replica_manager.leader_of(topic_partition).of_topic(topic_id)
        preferred = self._preferred(led)
        if preferred is None:
            return None
        able = self._able(led)
        if preferred not in able:
            others = ", ".join(map(str, sorted({*able, self._broker_id})))
            raise BrokerUnavailableError(
                f"Broker {preferred}, the preferred leader of {topic_partition}, is not in sync or "
                f"not running; in sync are: {others}. Try again when it has caught up."
            )
        return self._hand_overs.ask(topic_partition, preferred, within_s=_WITHIN_S)

    def hand_over_all(self, within_s: float) -> None:
        """Gives all leads away for which another broker is in sync, as this one stops. What cannot
        be given away in time, or only to brokers that stop as well, is left to an election."""
        until = self._clock.monotonic() + within_s
        asked: dict[Future[None], int] = {}  # and the broker that is to lead
        for led in self._replica_manager.led().values():
            if (to := self._any_able(led)) is not None:
                where = led.log.topic_partition
                given = self._hand_overs.ask(where, to, within_s=within_s, to_full=True)
                asked[given] = to
        if not asked:
            return
        while (left_s := until - self._clock.monotonic()) > 0:
            live = {*self._live()}
            waits_for = [each for each, to in asked.items() if not each.done() and to in live]
            if not waits_for:
                break
            wait(waits_for, min(left_s, _LOOK_S))
        done = sum(each.done() and each.exception() is None for each in asked)
        logger.info("Handed over %d of the %d partitions that others have in sync.",
                    done, len(asked))  # fmt: skip

    def _assigned(self, led: LeaderPartition) -> list[int]:
        where = led.log.topic_partition
        record = self._topic(where.topic)
        if record is None or record.topic_id != led.log.topic_id:
            return []
        return record.partitions.get(where.partition, [])

    def _preferred(self, led: LeaderPartition) -> int | None:
        """Returns the preferred leader of a partition; None if that is this broker."""
        assigned = self._assigned(led)
        return assigned[0] if len(assigned) > 1 and assigned[0] != self._broker_id else None

    def _any_able(self, led: LeaderPartition) -> int | None:
        """Returns the first of the other brokers that may lead a partition; None without one."""
        able = self._able(led)
        return next((each for each in self._assigned(led) if each in able), None)

    def _able(self, led: LeaderPartition) -> set[int]:
        """Returns the other brokers that may lead a partition."""
        members = {*self._members(led)} - {self._broker_id}
        # Those to which it is to move are in sync too, and lead when the move ends.
        return members & {*self._live()} & {*self._assigned(led)} if members else set()


def outcome(done: Future[None] | None, deadline: Deadline) -> LogbusError | None:
    """Waits for a hand-over; returns the reason why it was not done, if there is one."""
    if done is None:
        return None
    try:
        done.result(deadline.remaining_s)
    except LogbusError as error:
        return error
    except TimeoutError:
        return BrokerUnavailableError("The hand-over was not done in time; it may be done still.")
    return None
