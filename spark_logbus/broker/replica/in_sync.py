"""Keeps the in-sync sets of the partitions that are led here, and with them how far consumers see.

Theory of operation. A partition with one replica costs nothing here. Of any other, each word of a
follower moves the watermark (see ``members``). A thread looks, when something has changed and
every few seconds, who is to leave the in-sync set or to join it, and has ZooKeeper note it, one
partition after the other. To drop a member: ZooKeeper first, then the watermark. To take one in:
the watermark first. A change of which nobody knows whether it was done is asked for again until
ZooKeeper has answered, and until then all are counted.

A leader that is cut off from ZooKeeper drops nobody. So its watermark rests as soon as a member
follows another leader.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from spark_logbus.broker.replica.followers import Follower, Followers
from spark_logbus.broker.replica.members import Members
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import (
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
)
from spark_logbus.metrics import Counter
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"


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

    ``topic`` gives a topic as this broker knows it. The broker starts and stops ``thread``.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        followers: Followers,
        watermarks: HighWatermarks,
        topic: Callable[[str], TopicRecord | None],
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._followers = followers
        self._watermarks = watermarks
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._led: dict[TopicPartition, _Led] = {}
        self._members: dict[TopicPartition, Members] = {}
        self.stats = InSyncStats()
        followers.listen(self._told)

    # -- who leads ------------------------------------------------------------------------

    def lead(self, led: LeaderPartition, state: PartitionState) -> None:
        """Keep the in-sync set of a partition that is led here from now on, by its state.

        Called before anybody finds the partition, so nothing is appended or read meanwhile. Raises
        StorageError.
        """
        topic_partition = led.log.topic_partition
        others = [each for each in state.in_sync if each != self._broker_id]
        led.log.replication.begin(None if not others else 0)
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
            if self._members.pop(topic_partition, None) is not None:
                self._watermarks.hold(topic_partition)
        self._followers.forget(topic_partition)
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

    def require_enough(self, led: LeaderPartition) -> None:
        """Raise NotEnoughReplicasError if fewer replicas are in sync than the topic asks for."""
        members = self._members.get(led.log.topic_partition)
        if members is not None and members.led is led and not members.enough:
            raise NotEnoughReplicasError(
                f"Of {led.log.topic_partition} {len(members.in_sync)} replicas are in sync (on the "
                f"brokers {', '.join(map(str, members.in_sync))}), fewer than "
                f"min.insync.replicas, {members.least}: nothing was written. Try again when its "
                "other brokers are back."
            )

    def require_ends(self, led: LeaderPartition) -> None:
        """Raise OffsetNotAvailableError as long as consumers may have seen more of a partition, of
        the leader before, than is known to be replicated here."""
        members = self._members.get(led.log.topic_partition)
        if members is not None and members.led is led and members.hides_what_was_seen:
            raise OffsetNotAvailableError(
                f"Broker {self._broker_id} has just taken the lead of {led.log.topic_partition} "
                "and does not know yet how far it is replicated; try again in a moment."
            )

    def under_replicated(self) -> int:
        """Counts the partitions led here of which not all assigned replicas are in sync."""
        return sum(each.is_under_replicated for each in list(self._members.values()))

    # -- what followers tell --------------------------------------------------------------

    def _told(self, follower: Follower) -> None:
        members = self.members(follower.led)
        if members is None:
            return
        members.note(follower, self._clock.monotonic())
        if members.is_counted(follower.copy.broker_id):
            follower.led.log.advance_high_watermark()


def _targets(record: TopicRecord, partition: int) -> Collection[int]:
    """Brokers that are to be replicas of a partition, by the move of it that stands. Where it is to
    have one replica and has one, the lead is handed over, and that broker never in sync before."""
    move = record.moves.get(partition)
    if move is None or move.error or len(move.to) == len(record.partitions.get(partition, ())) == 1:
        return ()
    return move.to


def _least(record: TopicRecord, replicas: int) -> int:
    """Number of replicas that have to be in sync for an append that is to be replicated."""
    text = record.config.get(MIN_INSYNC_REPLICAS)
    default = 2 if replicas >= 3 else 1
    if text is None:
        return default
    try:
        return max(1, min(int(text), replicas))
    except ValueError:
        return default
