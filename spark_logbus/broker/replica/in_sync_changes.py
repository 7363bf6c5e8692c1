"""Has ZooKeeper note who joins and who leaves the in-sync sets of the partitions that are led here.

Theory of operation. A thread looks at all partitions every few seconds, and when brokers or topics
have changed: who is to leave, and who is to join. What a follower tells has it look at that
partition alone, and only when the follower has all that it takes. Many partitions are written at a
time. To drop a member: ZooKeeper first, then the watermark. To take one in: the watermark first. A
change of which nobody knows whether it was done is asked for again until ZooKeeper has answered,
and until then all are counted.

A leader that is cut off from ZooKeeper drops nobody. So its watermark rests as soon as a member
follows another leader.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from spark_logbus.broker.replica.followers import Follower, Followers
from spark_logbus.broker.replica.members import Change, Members
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.leader_rules import MembersChange
from spark_logbus.coordination.cluster.partition_states import MAX_CLAIMS, PartitionStates
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import InvalidRequestError, LogbusError, UnknownTopicError
from spark_logbus.metrics import Counter
from spark_logbus.model import TopicPartition
from spark_logbus.threads import Periodic

logger = logging.getLogger(__name__)

# Looks at all partitions in the time after which a follower counts as lagging.
_LOOKS: Final = 4
_MOST_PAUSE_S: Final = 2.5
# After a request that failed: ZooKeeper is away, say.
_RETRY_S: Final = 1.0


class InSyncStats:
    """Counts of brokers that left in-sync sets, and that joined them."""

    def __init__(self) -> None:
        self.left, self.joined = Counter(), Counter()


class InSyncChanges:
    """Changes of the in-sync sets, made on a thread of its own, which the broker starts and stops.
    Thread-safe.

    ``members`` gives the replicas of a partition as it is led here, ``all_members`` those of all.
    ``live`` are the brokers that are registered. ``is_certain`` tells if the broker has its id for
    certain, and reaches ZooKeeper.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        states: PartitionStates,
        followers: Followers,
        members: Callable[[LeaderPartition], Members | None],
        all_members: Callable[[], Collection[Members]],
        live: Callable[[], Collection[int]],
        is_certain: Callable[[], bool],
        lag_s: float,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._states = states
        self._followers = followers
        self._members = members
        self._all_members = all_members
        self._live = live
        self._is_certain = is_certain
        self._lag_s = lag_s
        self._pause_s = min(lag_s / _LOOKS, _MOST_PAUSE_S)
        self._clock = clock
        self._lock = threading.Lock()
        self._soon: set[Members] = set()  # to be looked at next
        self._all_at = -math.inf  # all are to be looked at then
        self._waiting: set[Members] = set()  # for followers
        self._looked_at = clock.monotonic()
        #: Changes that were asked for, and of which nobody knows whether they were done.
        self._doubts: dict[Members, Change] = {}
        self._not_before: dict[Members, float] = {}
        self.stats = InSyncStats()
        self.thread = Periodic(
            "in-sync",
            self._look,
            pause_s=self._pause_s,
            failure="The in-sync sets of partitions could not be kept.",
        )

    def look_at_all(self) -> None:
        """Look soon who is to join or to leave. It does not block."""
        with self._lock:
            self._all_at = -math.inf
        self.thread.wake()

    def may_join(self, members: Members, follower: Follower) -> None:
        """Take in, soon, a broker that is not in sync, and has told just now how far it is, if it
        has all that it takes; have the watermark wait for it if it will in a moment. It does not
        block."""
        if (
            members.is_in_sync(follower.copy.broker_id)
            or members in self._not_before
            or members in self._doubts  # it may be asked for just now
            or follower.copy.broker_id not in self._live()
            or not self._is_certain()
        ):
            return
        if members.wait_for(follower) or members.may_join(follower):
            with self._lock:
                self._soon.add(members)
            self.thread.wake()

    # -- the thread -----------------------------------------------------------------------

    def _look(self) -> float:
        """Looks at those that are due; returns the seconds until the next look."""
        now = self._clock.monotonic()
        if now - self._looked_at > self._pause_s + self._lag_s / 2:
            for each in self._all_members():  # this process was stopped: who kept up is not known
                each.forgive()
        due = self._due(now)
        self._end_waits(now)
        if self._is_certain():
            self._change_all(due)
        self._looked_at = now = self._clock.monotonic()
        self._waiting = {each for each in (*self._waiting, *due) if each.waits_until < math.inf}
        next_at = [self._all_at, *self._not_before.values()]
        next_at += [each.waits_until for each in self._waiting]
        return max(0.0, min(next_at) - now)

    def _end_waits(self, now: float) -> None:
        """Has the watermark, and who waits for staged bytes, wait no more for followers that have
        not got what it takes in time."""
        over = [each for each in self._waiting if not now < each.waits_until < math.inf]
        for members in over:
            members.end_waits()
            members.led.log.advance_high_watermark()
            members.staging.look()
        if over:
            self._followers.look_again()

    def _due(self, now: float) -> Collection[Members]:
        """The partitions that are to be looked at now."""
        retried = {each for each, at in self._not_before.items() if at <= now}
        for each in retried:
            del self._not_before[each]
        with self._lock:
            soon, self._soon = self._soon, set()
            if now < self._all_at:
                return {each for each in soon | retried if self._members(each.led) is each}
            self._all_at = now + self._pause_s
        return self._all_members()

    def _change_all(self, due: Iterable[Members]) -> None:
        live = self._live()
        wanted = []
        for each in due:
            if each in self._not_before:
                continue
            change = self._doubts.get(each) or each.wanted(live)
            if change:
                wanted.append((each, change))
        # Those from which somebody is to leave first: that is what appends wait for.
        wanted.sort(key=lambda each: not each[1].remove)
        for start in range(0, len(wanted), MAX_CLAIMS):
            if self.thread.stopping.is_set() or not self._is_certain():
                break
            begun = {
                members: change
                for members, change in map(self._begun, wanted[start : start + MAX_CLAIMS])
                if change and self._members(members.led) is members
            }
            if begun:
                self._change(begun)
        self._doubts = {
            each: change for each, change in self._doubts.items() if self._members(each.led) is each
        }

    def _begun(self, wanted: tuple[Members, Change]) -> tuple[Members, Change]:
        """A change that is to be asked for, of which the watermark has heard."""
        members, change = wanted
        return members, change if members in self._doubts else members.begin(change)

    def _change(self, begun: Mapping[Members, Change]) -> None:
        """Have ZooKeeper note who is in sync of partitions."""
        self._doubts |= begun
        states = self._states.change_in_sync_all(
            [
                MembersChange(
                    members.led.log.topic_partition,
                    members.led.log.topic_id,
                    members.led.leader_epoch,
                    change.add,
                    change.remove,
                    change.since_us,
                )
                for members, change in begun.items()
            ],
            leader=self._broker_id,
        )
        for members, change in begun.items():
            topic_partition = members.led.log.topic_partition
            state = states[topic_partition]
            if isinstance(state, PartitionState):
                del self._doubts[members]
                members.know(state)
                self._note(topic_partition, change, state)
            else:
                if isinstance(state, InvalidRequestError):  # for certain: the topic is another now
                    del self._doubts[members]
                    members.give_up()
                self._retry_later(members, state)
            members.led.log.advance_high_watermark()
            members.staging.look()
        self._followers.look_again()

    def _retry_later(self, members: Members, error: LogbusError) -> None:
        self._not_before[members] = self._clock.monotonic() + _RETRY_S
        logger.log(
            # The topic was deleted just now, which its leader hears of a moment later.
            logging.DEBUG if isinstance(error, UnknownTopicError) else logging.INFO,
            "The in-sync set of %s is changed later: %s", members.led.log.topic_partition, error,
        )  # fmt: skip

    def _note(self, topic_partition: TopicPartition, change: Change, state: PartitionState) -> None:
        self.stats.left.add(len(change.remove))
        self.stats.joined.add(len(change.add))
        what = [f"broker {each} has left" for each in sorted(change.remove)]
        what += [f"broker {each} has joined" for each in sorted(change.add)]
        logger.log(
            logging.WARNING if change.remove else logging.INFO,
            "The in-sync set of %s: %s; now it is %s.",
            topic_partition, ", ".join(what), ", ".join(map(str, state.in_sync)),
            extra=fields_about(topic_partition),
        )  # fmt: skip
