"""Assignments of a topic's partitions to one broker, and its role in each: by the topic's node, the
partition's state, and the brokers that live. Pure.

A broker leads what the state says, never what is merely assigned to it. It follows what is assigned
to it and led by another. Where nobody has led yet, the first broker that lives begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import CorruptNodeError


class Assigned(NamedTuple):
    """A partition that is assigned to this broker, or moves to it, and its state as ZooKeeper has
    it."""

    topic_partition: TopicPartition
    record: TopicRecord
    state: PartitionState | CorruptNodeError | None

    @property
    def brokers(self) -> Sequence[int]:
        return self.record.partitions[self.topic_partition.partition]

    @property
    def is_replicated(self) -> bool:
        """True if it is assigned to several brokers."""
        return len(self.brokers) > 1


class WantedReplica(NamedTuple):
    """A partition that this broker is to follow: until it leads, as it moves here by ``move``, or
    for good, as it is assigned here and led by another broker.

    ``state`` says whom to follow, and in which epoch; where it is None that is looked up in
    ZooKeeper.
    """

    topic_partition: TopicPartition
    record: TopicRecord
    move: MovePayload | None = None
    state: PartitionState | None = None

    @property
    def topic_id(self) -> str:
        return self.record.topic_id

    @property
    def brokers(self) -> Sequence[int]:
        """The brokers to which it is assigned."""
        return self.record.partitions.get(self.topic_partition.partition, ())

    @property
    def since_us(self) -> int:
        """Time of the move; 0 for an assigned replica."""
        return 0 if self.move is None else self.move.since_us

    @property
    def is_of_several(self) -> bool:
        """True if the partition has several replicas, or is to have."""
        return len(self.brokers) > 1 or (self.move is not None and len(self.move.to) > 1)

    def is_same(self, other: WantedReplica) -> bool:
        """Tells if it is the same move, or the same assigned replica, whatever the leader, the
        throttle or the topic's configuration."""
        return (self.topic_id, self.move and self.move.to, self.since_us) == (
            other.topic_id, other.move and other.move.to, other.since_us,
        )  # fmt: skip


class Assignments:
    """The partitions of a broker. Thread-safe: it has no state."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id

    def assigned_here(self, record: TopicRecord) -> list[TopicPartition]:
        """Returns the partitions of a topic of which the broker is to have a replica."""
        return [
            TopicPartition(record.name, partition)
            for partition, brokers in record.partitions.items()
            if self.broker_id in brokers
        ]

    def assigned_elsewhere(self, record: TopicRecord) -> list[TopicPartition]:
        """Returns the partitions of a topic that are other brokers' alone."""
        return [
            TopicPartition(record.name, partition)
            for partition, brokers in record.partitions.items()
            if self.broker_id not in brokers
        ]

    def electable_here(self, record: TopicRecord) -> list[TopicPartition]:
        """Returns the partitions of a topic that the broker may lead when it is in sync: those that
        are assigned to it, and those of several replicas that move to it."""
        moving = [
            TopicPartition(record.name, partition)
            for partition, move in record.moves.items()
            if self._moves_here(record, partition, move)
            and (len(move.to) > 1 or len(record.partitions[partition]) > 1)
        ]
        return self.assigned_here(record) + moving

    def is_sole(self, record: TopicRecord, partition: int) -> bool:
        """Tells if a partition is assigned to the broker alone."""
        return record.partitions[partition] == [self.broker_id]

    def is_replicated_here(self, record: TopicRecord) -> bool:
        """Tells if the broker has one of several replicas of a partition of the topic, or is to
        have one."""
        return any(not self.is_sole(record, each.partition) for each in self.electable_here(record))

    def leads(self, assigned: Assigned, live: Collection[int]) -> bool:
        """Tells if the broker is to lead a partition: it is the leader in ZooKeeper; or nobody ever
        was, and it is the first that lives of those to which it is assigned. What is assigned to
        nobody else it is to lead, or to refuse."""
        me, state = self.broker_id, assigned.state
        if not assigned.is_replicated:
            return True
        if isinstance(state, PartitionState):
            return state.leader == me and me in state.in_sync
        return next((each for each in assigned.brokers if each == me or each in live), None) == me

    def rank(self, assigned: Assigned, state: PartitionState, live: Collection[int]) -> int | None:
        """Returns how many live brokers are to be elected rather than this one, in the place of a
        leader that is gone; None if nobody is to be elected, or this broker cannot be.

        Whoever is in sync can be, in the order of the assignment: then those to which the partition
        is to move. A leader is gone too if it is not in sync: its log was found wanting.
        """
        me = self.broker_id
        if state.leader == me or me not in state.in_sync or me not in live:
            return None
        if state.leader in live and state.leader in state.in_sync:
            return None
        order = [*assigned.brokers, *sorted({*state.in_sync} - {*assigned.brokers})]
        able = [
            each
            for each in order
            if each in state.in_sync and each in live and each != state.leader
        ]
        return able.index(me)

    def moving_here(self, records: Iterable[TopicRecord]) -> dict[TopicPartition, WantedReplica]:
        """Returns the partitions whose moves to the broker stand, those that were asked for first
        at the beginning."""
        found = [
            (move.since_us, WantedReplica(TopicPartition(record.name, partition), record, move))
            for record in records
            for partition, move in record.moves.items()
            if self._moves_here(record, partition, move)
        ]
        found.sort(key=lambda each: (each[0], each[1].topic_partition))
        return {each.topic_partition: each for _, each in found}

    def _moves_here(self, record: TopicRecord, partition: int, move: MovePayload) -> bool:
        return (
            self.broker_id in move.to
            and not move.error
            and self.broker_id not in record.partitions.get(partition, move.to)
        )
