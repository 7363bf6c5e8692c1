"""Nodes that decide on the lead of one partition, as they were read together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.topic_records import LeadershipClaim, TopicNode
from spark_logbus.coordination.payloads import PartitionState, TopicPayload, decode, encode
from spark_logbus.errors import UnknownTopicError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import Node, Nodes
from spark_logbus.zookeeper.transactions import Check, Operation, SetData


class LeadNodes(NamedTuple):
    """The topic's node and the node of a partition's state. ``is_watched`` tells whether the node
    above the state can tell of its change (see ``partition_states``)."""

    topic_partition: TopicPartition
    topic_node: Node
    payload: TopicPayload
    state_node: Node
    state: PartitionState
    is_watched: bool

    @classmethod
    def read(
        cls, nodes: Nodes, topic_partition: TopicPartition, topic_id: str, deadline: Deadline
    ) -> LeadNodes:
        """Raises UnknownTopicError, also where the partition was never led; CorruptNodeError."""
        where = topic_partition
        topic_path, state_path = paths.topic(where.topic), paths.partition_state(where)
        above_path = paths.partitions(where.topic)
        found = nodes.get_many([topic_path, above_path, state_path], deadline=deadline)
        topic, node, above = (
            TopicNode.read(where.topic, found[topic_path]), found[state_path], found[above_path],
        )  # fmt: skip
        topic.require(LeadershipClaim(where, topic_id))
        if node is None:
            raise UnknownTopicError(f"{where} has no state in ZooKeeper: nobody leads it.")
        state = decode(PartitionState, node.data, path=state_path)
        is_watched = above is not None and not above.refused
        return cls(where, *topic.alive(), node, state, is_watched)

    def is_led_by(self, leader: int, leader_epoch: int) -> bool:
        return (self.state.leader, self.state.leader_epoch) == (leader, leader_epoch)

    def check_topic(self) -> Operation:
        """Returns the condition that the topic is as it was read."""
        return Check(paths.topic(self.topic_partition.topic), self.topic_node.version)

    def arrive(self, to: Sequence[int]) -> Operation:
        """Returns the write that assigns the partition to brokers, and so ends its move."""
        partition = self.topic_partition.partition
        moves = {each: kept for each, kept in self.payload.moves.items() if each != partition}
        assigned = {**self.payload.partitions, partition: [*to]}
        after = msgspec.structs.replace(self.payload, partitions=assigned, moves=moves)
        path = paths.topic(self.topic_partition.topic)
        return SetData(path, encode(after), self.topic_node.version)

    def write(self, state: PartitionState) -> list[Operation]:
        """Returns the writes that put a state in the place of the one that was read, and tell who
        watches."""
        path = paths.partition_state(self.topic_partition)
        writes: list[Operation] = [SetData(path, encode(state), self.state_node.version)]
        if self.is_watched:
            writes.append(SetData(paths.partitions(self.topic_partition.topic), b""))
        return writes
