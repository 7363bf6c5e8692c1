"""Assignments of a topic's partitions to one broker, by the topic's node. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import CorruptNodeError


class Assigned(NamedTuple):
    """A partition that this broker is to lead, and its state as ZooKeeper has it."""

    topic_partition: TopicPartition
    record: TopicRecord
    state: PartitionState | CorruptNodeError | None


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
    def since_us(self) -> int:
        """Time of the move; 0 for an assigned replica."""
        return 0 if self.move is None else self.move.since_us

    def is_same(self, other: WantedReplica) -> bool:
        """Tells if it is the same move, or the same assigned replica, whatever the leader, the
        throttle or the topic's configuration."""
        return (self.topic_id, self.move and self.move.to, self.since_us) == (
            other.topic_id, other.move and other.move.to, other.since_us,
        )  # fmt: skip


class Assignments:
    """The partitions of a broker. Thread-safe: it has no state."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id

    def led_here(self, record: TopicRecord) -> list[TopicPartition]:
        """Returns the partitions of a topic that are assigned to the broker."""
        return [
            TopicPartition(record.name, partition)
            for partition, brokers in record.partitions.items()
            if brokers[:1] == [self._broker_id]
        ]

    def led_elsewhere(self, record: TopicRecord) -> list[TopicPartition]:
        """Returns the partitions of a topic that are assigned to other brokers."""
        return [
            TopicPartition(record.name, partition)
            for partition, brokers in record.partitions.items()
            if brokers[:1] != [self._broker_id]
        ]

    def moving_here(self, records: Iterable[TopicRecord]) -> dict[TopicPartition, WantedReplica]:
        """Returns the partitions whose moves to the broker stand, those that were asked for first
        at the beginning."""
        found = [
            (move.since_us, WantedReplica(TopicPartition(record.name, partition), record, move))
            for record in records
            for partition, move in record.moves.items()
            if move.to == [self._broker_id]
            and not move.error
            and record.partitions.get(partition, move.to)[:1] != move.to
        ]
        found.sort(key=lambda each: (each[0], each[1].topic_partition))
        return {each.topic_partition: each for _, each in found}
