"""What a broker has to do with the partitions of a topic, by the topic's node. Pure."""

from __future__ import annotations

from typing import NamedTuple

from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import CorruptNodeError


class Assigned(NamedTuple):
    """A partition that this broker is to lead, and its state as ZooKeeper has it."""

    topic_partition: TopicPartition
    record: TopicRecord
    state: PartitionState | CorruptNodeError | None


class Assignments:
    """The partitions that a broker is to lead. Thread-safe: it has no state."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id

    def led_here(self, record: TopicRecord) -> list[TopicPartition]:
        """Returns the partitions of a topic that are assigned to the broker."""
        return [
            TopicPartition(record.name, partition)
            for partition, brokers in record.partitions.items()
            if brokers[:1] == [self._broker_id]
        ]
