"""Keeps the in-sync sets of the partitions that are led here, and with them how far consumers see.

Theory of operation. A partition with one replica costs nothing here. Of any other, each word of a
follower moves the watermark (see ``members``). A thread looks, when something has changed and
every few seconds, who is to leave in-sync sets or to join them, and has ZooKeeper note it, of many
partitions at a time. To drop a member: ZooKeeper first, then the watermark. To take one in:
the watermark first. A change of which nobody knows whether it was done is asked for again until
ZooKeeper has answered, and until then all are counted.

A leader that is cut off from ZooKeeper drops nobody. So its watermark rests as soon as a member
follows another leader.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from spark_logbus.broker.replica.followers import Follower, Followers
from spark_logbus.broker.replica.members import Change, Members
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.broker.replica.staging_waits import OnStaged
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.leader_rules import MembersChange
from spark_logbus.coordination.cluster.partition_states import MAX_CLAIMS, PartitionStates
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import (
    ConfigError,
    InvalidRequestError,
    LogbusError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    RequestTimeoutError,
)
from spark_logbus.metrics import Counter
from spark_logbus.model import TopicPartition
from spark_logbus.threads import Periodic
from spark_logbus.topic_replication import MIN_IN_SYNC, TopicReplication

logger = logging.getLogger(__name__)

# Passes over all partitions in the time after which a follower counts as lagging.
_LOOKS: Final = 4
_MOST_PAUSE_S: Final = 2.5
# After a request that failed: ZooKeeper is away, say.
_RETRY_S: Final = 1.0


class InSyncStats:
    """Counts of brokers that left in-sync sets, and that joined them."""

    def __init__(self) -> None:
        self.left, self.joined = Counter(), Counter()


class _Led(NamedTuple):
    led: LeaderPartition
    state: PartitionState
    log_end: int  # when the lead was taken


class InSync:
    """In-sync sets of the partitions that are led here. Thread-safe; lookups take no lock.

    ``topic`` gives a topic as this broker knows it, ``live`` the brokers that are registered.
    ``is_certain`` tells if the broker has its id for certain, and reaches ZooKeeper. The broker
    starts and stops ``thread``.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        states: PartitionStates,
        followers: Followers,
        watermarks: HighWatermarks,
        topic: Callable[[str], TopicRecord | None],
        live: Callable[[], Collection[int]],
        is_certain: Callable[[], bool],
        lag_max_ms: int,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._states = states
        self._live = live
        self._is_certain = is_certain
        self._lag_s = lag_max_ms / 1000
        self._pause_s = min(self._lag_s / _LOOKS, _MOST_PAUSE_S)
        self._followers = followers
        self._watermarks = watermarks
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._led: dict[TopicPartition, _Led] = {}
        self._members: dict[TopicPartition, Members] = {}
        #: Changes that were asked for, and of which nobody knows whether they were done.
        self._doubts: dict[Members, Change] = {}
        self._not_before: dict[Members, float] = {}
        self._looked_at = clock.monotonic()
        self.stats = InSyncStats()
        self.thread = Periodic(
            "in-sync",
            self._look,
            pause_s=self._pause_s,
            failure="The in-sync sets of partitions could not be kept.",
        )
        followers.listen(self._told)

    # -- who leads ------------------------------------------------------------------------

    def lead(self, led: LeaderPartition, state: PartitionState) -> None:
        """Keep the in-sync set of a partition that is led here from now on, by its state.

        Called before anybody finds the partition, so nothing is appended or read meanwhile. Raises
        StorageError.
        """
        topic_partition = led.log.topic_partition
        others = [each for each in state.in_sync if each != self._broker_id]
        led.log.replication.begin(None if not others else state.committed or 0)
        with self._lock:
            self._led[topic_partition] = _Led(led, state, led.log.ends().log_end_offset)
            self._members.pop(topic_partition, None)
            self._look_at(topic_partition)
            if topic_partition not in self._members:
                self._watermarks.lead(topic_partition)

    def end(self, led: LeaderPartition) -> None:
        """Keep it no more: the partition is not led any more as ``led``. Who waits for its records
        to be replicated is told so; the high watermark rests until it is led or followed."""
        topic_partition = led.log.topic_partition
        with self._lock:
            known = self._led.get(topic_partition)
            if known is None or known.led is not led:
                return
            del self._led[topic_partition]
            members = self._members.pop(topic_partition, None)
            if members is not None:
                self._watermarks.hold(topic_partition)
        self._followers.forget(topic_partition)
        if members is not None:
            members.staging.end(
                NotLeaderError(
                    f"Broker {self._broker_id} led {topic_partition} no longer when some replicas "
                    "in sync lacked what was staged; refresh the metadata and ask its leader."
                )
            )
        led.log.replication.end_waiting(
            NotLeaderError(
                f"The record batch was written to {topic_partition} and may become visible, but "
                f"broker {self._broker_id} does not lead that any more; refresh the metadata and "
                "ask its leader."
            )
        )

    def topics_changed(self) -> None:
        """Go by the topics as they are known now: partitions may have got replicas. It does not
        block."""
        with self._lock:
            for topic_partition in self._led:
                self._look_at(topic_partition)
        self.thread.wake()

    def brokers_changed(self) -> None:
        """Look at once whether members are gone. It does not block."""
        self.thread.wake()

    def _look_at(self, topic_partition: TopicPartition) -> None:
        """Note who may be in sync of a partition that is led here. ``_lock`` is held."""
        known = self._led[topic_partition]
        led, state = known.led, known.state
        record = self._topic(topic_partition.topic)
        assigned: Collection[int] = state.in_sync
        joining, least = assigned, 1
        if record is not None and record.topic_id == led.log.topic_id:
            assigned = record.partitions.get(topic_partition.partition, [self._broker_id])
            joining = {*assigned, *_targets(record, topic_partition.partition)}
            least = _least(record, len(assigned))
        members = self._members.get(topic_partition)
        if members is None:
            if not {*joining, *state.in_sync} - {self._broker_id}:
                return
            members = Members(
                led,
                state,
                broker_id=self._broker_id,
                followers=self._followers,
                epoch_start=known.log_end,
                now=self._clock.monotonic(),
            )
            self._watermarks.lead(topic_partition, members.replicated_end)
            members.go_on_from(led.log.replication.end)
            self._members[topic_partition] = members
        members.assigned, members.joining, members.least = assigned, joining, least

    # -- lookups --------------------------------------------------------------------------

    def members(self, led: LeaderPartition) -> Members | None:
        """The replicas of a partition that is led here; None where it has one."""
        members = self._members.get(led.log.topic_partition)
        return members if members is not None and members.led is led else None

    def has_enough(self, led: LeaderPartition) -> bool:
        """True if as many replicas are in sync as the topic asks for."""
        members = self._members.get(led.log.topic_partition)
        return members is None or members.led is not led or members.enough

    def require_enough(self, led: LeaderPartition) -> None:
        """Raise NotEnoughReplicasError if fewer replicas are in sync than the topic asks for."""
        members = self.members(led)
        if members is not None and not members.enough:
            raise NotEnoughReplicasError(
                f"Of {led.log.topic_partition} {len(members.in_sync)} replicas are in sync (on the "
                f"brokers {', '.join(map(str, members.in_sync))}), fewer than "
                f"{MIN_IN_SYNC}, {members.least}: nothing was written. Try again when its "
                "other brokers are back."
            )

    def hidden_until(self, led: LeaderPartition) -> int | None:
        """Offset up to which consumers may have seen a partition, of the leader before, as long as
        they see less of it here; else None."""
        members = self._members.get(led.log.topic_partition)
        if members is None or members.led is not led or not members.hides_what_was_seen:
            return None
        return members.epoch_start

    def require_ends(self, led: LeaderPartition) -> None:
        """Raise OffsetNotAvailableError as long as consumers may have seen more of a partition, of
        the leader before, than they see here."""
        if self.hidden_until(led) is not None:
            raise self.not_available(led)

    def not_available(self, led: LeaderPartition) -> OffsetNotAvailableError:
        return OffsetNotAvailableError(
            f"Broker {self._broker_id} has just taken the lead of {led.log.topic_partition} and "
            "does not know yet how far it is replicated; try again in a moment."
        )

    def under_replicated(self) -> int:
        """Counts the partitions led here of which not all assigned replicas are in sync."""
        return sum(each.is_under_replicated for each in list(self._members.values()))

    def lacking(self) -> list[Members]:
        """Returns the replicas of the partitions led here that are not all in sync, or too few."""
        all_members = list(self._members.values())
        return [each for each in all_members if each.is_under_replicated or not each.enough]

    def under_min_in_sync(self) -> int:
        """Counts those that have fewer replicas in sync than their topics ask for."""
        return sum(not each.enough for each in list(self._members.values()))

    # -- what followers tell --------------------------------------------------------------

    def _told(self, follower: Follower) -> None:
        members = self.members(follower.led)
        if members is None:
            return
        members.note(follower, self._clock.monotonic())
        if members.is_counted(follower.copy.broker_id):
            follower.led.log.advance_high_watermark()
            members.staging.look()
        elif members.may_join(follower) and members not in self._not_before:
            self.thread.wake()

    # -- changes --------------------------------------------------------------------------

    def _look(self) -> float:
        """One look at all partitions; returns the seconds until the next."""
        now = self._clock.monotonic()
        rested_s, all_members = now - self._looked_at, list(self._members.values())
        if rested_s > self._pause_s + self._lag_s / 2:
            for each in all_members:  # this process was stopped: who kept up is not known
                each.forgive(now)
        self._not_before = {each: at for each, at in self._not_before.items() if at > now}
        if self._is_certain():
            self._change_all(all_members, now)
        self._looked_at = self._clock.monotonic()
        return _RETRY_S if self._not_before else self._pause_s

    def _change_all(self, all_members: Iterable[Members], now: float) -> None:
        live = self._live()
        wanted = []
        for each in all_members:
            if each in self._not_before:
                continue
            change = self._doubts.get(each) or each.wanted(now=now, lag_s=self._lag_s, live=live)
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
                if change and self.members(members.led) is members
            }
            if begun:
                self._change(begun)
        self._doubts = {
            each: change for each, change in self._doubts.items() if self.members(each.led) is each
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
        logger.info(
            "The in-sync set of %s is changed later: %s", members.led.log.topic_partition, error
        )

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

    # -- what is staged -------------------------------------------------------------------

    def when_staged(self, led: LeaderPartition, write: int, callback: OnStaged) -> None:
        """Call back when all that a write has staged by now is on the disks of all that are in
        sync, or with the reason why that is not known."""
        members, position = self.members(led), led.log.staging.position_of(write)
        if members is None or position is None:
            callback(None)
        else:
            members.staging.wait(write, position.size_bytes, callback)

    def wait_until_staged(self, led: LeaderPartition, write: int, *, timeout_s: float) -> None:
        """Wait until all that a write has staged by now is on the disks of all that are in sync, or
        join just now. Raises RequestTimeoutError, NotEnoughReplicasError."""
        self.require_enough(led)
        members, position = self.members(led), led.log.staging.position_of(write)
        if members is None or position is None:
            return
        size_bytes = position.size_bytes

        def is_over() -> bool:
            return self.members(led) is not members or members.have_staged(write, size_bytes)

        done = self._followers.wait_until(is_over, timeout_s=timeout_s)
        if not done or self.members(led) is not members:
            raise RequestTimeoutError(
                f"What the write {write} has staged for {led.log.topic_partition} is not on the "
                "disks of all replicas that are in sync yet; prepare it again."
            )
        self.require_enough(led)


def _targets(record: TopicRecord, partition: int) -> Collection[int]:
    """Brokers that are to be replicas of a partition, by the move of it that stands. Where it is to
    have one replica and has one, the lead is handed over, and that broker never in sync before."""
    move = record.moves.get(partition)
    if move is None or move.error or len(move.to) == len(record.partitions.get(partition, ())) == 1:
        return ()
    return move.to


def _least(record: TopicRecord, replicas: int) -> int:
    """Number of replicas that have to be in sync for an append that is to be replicated."""
    try:
        replication = TopicReplication.from_topic_config(record.config)
    except ConfigError:  # written by hand, past all checks
        replication = TopicReplication()
    return replication.least_in_sync(replicas)
