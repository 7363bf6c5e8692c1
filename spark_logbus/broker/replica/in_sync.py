"""Keeps who is in sync of the partitions that are led here, and with them how far consumers see.

A partition with one replica costs nothing here. Of any other, each word of a follower moves the
watermark (see ``members``), and may be what it takes to be in sync (see ``in_sync_changes``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import NamedTuple

from spark_logbus.broker.replica.followers import Follower, Followers
from spark_logbus.broker.replica.in_sync_changes import InSyncChanges
from spark_logbus.broker.replica.members import Members
from spark_logbus.broker.replica.staging_waits import OnStaged
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.errors import (
    ConfigError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    RequestTimeoutError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.topic_replication import MIN_IN_SYNC, TopicReplication


class _Led(NamedTuple):
    led: LeaderPartition
    state: PartitionState
    log_end: int  # when the lead was taken
    seen_end: int  # up to where consumers may have seen it by then


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
        self._lag_s = lag_max_ms / 1000
        self._followers = followers
        self._watermarks = watermarks
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._led: dict[TopicPartition, _Led] = {}
        self._members: dict[TopicPartition, Members] = {}
        self._changes = InSyncChanges(
            broker_id,
            states=states,
            followers=followers,
            members=self.members,
            all_members=lambda: list(self._members.values()),
            live=live,
            is_certain=is_certain,
            lag_s=self._lag_s,
            clock=clock,
        )
        self.thread, self.stats = self._changes.thread, self._changes.stats
        followers.listen(self._told)

    # -- who leads ------------------------------------------------------------------------

    def lead(self, led: LeaderPartition, state: PartitionState) -> None:
        """Keep the in-sync set of a partition that is led here from now on, by its state.

        Called before anybody finds the partition, so nothing is appended or read meanwhile. Raises
        StorageError.
        """
        topic_partition = led.log.topic_partition
        others = [each for each in state.in_sync if each != self._broker_id]
        if others:  # first: nothing that moves the watermark may find it without a rule
            self._watermarks.hold(topic_partition)
        led.log.replication.begin(None if not others else state.committed or 0)
        log_end, hidden_from = led.log.ends().log_end_offset, led.log.publishing.hidden_from
        # No leader has shown a write of which this log lacks a part: all in sync have what is seen.
        seen_end = log_end if hidden_from is None else min(log_end, hidden_from)
        with self._lock:
            self._led[topic_partition] = _Led(led, state, log_end, seen_end)
            before = self._members.pop(topic_partition, None)
            self._look_at(topic_partition)
            if topic_partition not in self._members:
                self._watermarks.lead(topic_partition)
        if before is not None:  # led anew, in a later epoch
            self._end_staging(before)
            self._followers.look_again()

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
            self._watermarks.end_lead(topic_partition, is_sole=members is None)
        self._followers.forget(topic_partition)
        if members is not None:
            self._end_staging(members)
        led.log.replication.end_waiting(
            NotLeaderError(
                f"The record batch was written to {topic_partition} and may become visible, but "
                f"broker {self._broker_id} does not lead that any more; refresh the metadata and "
                "ask its leader."
            )
        )

    def _end_staging(self, members: Members) -> None:
        """Tells those who wait for staged bytes that an epoch is over."""
        led = members.led
        members.staging.end(
            NotLeaderError(
                f"Broker {self._broker_id} led {led.log.topic_partition} in epoch "
                f"{led.leader_epoch} no longer when some replicas in sync lacked what was staged; "
                "refresh the metadata and ask its leader."
            )
        )

    def topics_changed(self) -> None:
        """Go by the topics as they are known now: partitions may have got replicas. It does not
        block."""
        with self._lock:
            for topic_partition in self._led:
                self._look_at(topic_partition)
        self._changes.look_at_all()

    def brokers_changed(self) -> None:
        """Look at once whether members are gone. It does not block."""
        self._changes.look_at_all()

    def _look_at(self, topic_partition: TopicPartition) -> None:
        """Note who may be in sync of a partition that is led here. ``_lock`` is held."""
        known = self._led[topic_partition]
        led, state = known.led, known.state
        record = self._topic(topic_partition.topic)
        assigned: Collection[int] = state.in_sync
        joining, since_us, least = assigned, 0, 1
        if record is not None and record.topic_id == led.log.topic_id:
            assigned = record.partitions.get(topic_partition.partition, [self._broker_id])
            move = _joined_by(record, topic_partition.partition)
            if move is not None:
                joining, since_us = {*assigned, *move.to}, move.since_us
            else:
                joining = assigned
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
                seen_end=known.seen_end,
                lag_s=self._lag_s,
                clock=self._clock,
            )
            self._watermarks.lead(topic_partition, members.replicated_end)
            members.go_on_from(led.log.replication.end)
            self._members[topic_partition] = members
        members.assigned, members.joining, members.least = assigned, joining, least
        members.since_us = since_us

    # -- lookups --------------------------------------------------------------------------

    def members(self, led: LeaderPartition) -> Members | None:
        """The replicas of a partition that is led here; None where it has one."""
        members = self._members.get(led.log.topic_partition)
        return members if members is not None and members.led is led else None

    def has_enough(self, led: LeaderPartition) -> bool:
        """True if as many replicas are in sync as the topic asks for."""
        members = self._members.get(led.log.topic_partition)
        return members is None or members.led is not led or members.enough

    def _require_led(self, led: LeaderPartition) -> Members | None:
        """Returns the replicas of a partition that is led here as ``led``; None where it has one.
        Raises NotLeaderError if it is not led so any more."""
        topic_partition = led.log.topic_partition
        members = self.members(led)  # first: who ends the lead takes them away last
        known = self._led.get(topic_partition)
        if known is None or known.led is not led:
            raise NotLeaderError(
                f"Broker {self._broker_id} does not lead {topic_partition} in epoch "
                f"{led.leader_epoch} any more; refresh the metadata and ask its leader."
            )
        return members

    def require_enough(self, led: LeaderPartition) -> None:
        """Raise NotEnoughReplicasError if fewer replicas are in sync than the topic asks for, and
        NotLeaderError if this broker does not lead the partition any more."""
        members = self._require_led(led)
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
        return members.seen_end

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

    def _told(self, follower: Follower) -> None:
        members = self.members(follower.led)
        if members is None:
            return
        members.note(follower)
        self._changes.may_join(members, follower)
        if members.is_counted(follower.copy.broker_id):
            follower.led.log.advance_high_watermark()
            members.staging.look()

    # -- what is staged -------------------------------------------------------------------

    def when_staged(self, led: LeaderPartition, write: int, callback: OnStaged) -> None:
        """Call back when all that a write has staged by now is on the disks of all that are in
        sync, or with the reason why that is not known."""
        try:
            members, position = self._require_led(led), led.log.staging.position_of(write)
        except NotLeaderError as error:
            callback(error)
            return
        if members is None or position is None:
            callback(None)
        else:
            members.staging.wait(write, position.size_bytes, callback)

    def wait_until_staged(self, led: LeaderPartition, write: int, *, timeout_s: float) -> None:
        """Wait until all that a write has staged by now is on the disks of all that are in sync, or
        join just now. Raises RequestTimeoutError, NotEnoughReplicasError, NotLeaderError."""
        self.require_enough(led)
        members, position = self.members(led), led.log.staging.position_of(write)
        if members is not None and position is not None:
            size_bytes = position.size_bytes
            members.staging.note(write, size_bytes)

            def is_over() -> bool:
                return self.members(led) is not members or members.have_staged(write, size_bytes)

            done = self._followers.wait_until(is_over, timeout_s=timeout_s)
            if not done or self.members(led) is not members:
                raise RequestTimeoutError(
                    f"What the write {write} has staged for {led.log.topic_partition} is not on "
                    "the disks of all replicas that are in sync yet; prepare it again."
                )
        # Whoever leads since may not have what was staged here.
        self.require_enough(led)


def _joined_by(record: TopicRecord, partition: int) -> MovePayload | None:
    """The move of a partition that stands and by which brokers join it. Where it is to have one
    replica and has one, the lead is handed over, and that broker never in sync before."""
    move = record.moves.get(partition)
    if move is None or move.error or len(move.to) == len(record.partitions.get(partition, ())) == 1:
        return None
    return move


def _least(record: TopicRecord, replicas: int) -> int:
    """Number of replicas that have to be in sync for an append that is to be replicated."""
    try:
        replication = TopicReplication.from_topic_config(record.config)
    except ConfigError:  # written by hand, past all checks
        replication = TopicReplication()
    return replication.least_in_sync(replicas)
