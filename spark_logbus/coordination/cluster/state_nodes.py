"""Nodes of partitions' states, with those of their topics: how they are read and written.

A state is written on the condition that it and its topic are as they were read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.topic_records import TopicNode
from spark_logbus.coordination.payloads import PartitionState, TopicPayload, decode, encode
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import Node, Nodes, name_of
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Create, Operation, SetData
from spark_logbus.zookeeper.unreadable import CorruptNodeError

_NOT_LED: Final = "Its partition is not led."
_LISTED_FROM: Final = 8  # partitions of a topic, to list what nodes it has before they are read


class StateNodes:
    """Reads and writes the nodes. Thread-safe, holds nothing itself."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)
        self._unreadable = session.unreadable

    def topics(self, names: Collection[str], deadline: Deadline) -> dict[str, TopicNode]:
        nodes = self._nodes.get_many(map(paths.topic, names), deadline=deadline)
        return {name: TopicNode.read(name, nodes[paths.topic(name)]) for name in names}

    def write(
        self,
        description: str,
        states: Mapping[TopicPartition, PartitionState],
        topics: Mapping[str, TopicNode],
        nodes: Mapping[str, Node | None],
        deadline: Deadline,
        *,
        changed: Mapping[str, TopicPayload] = MappingProxyType({}),
    ) -> None:
        """Put ``states`` in the place of the ``nodes`` that were read, if their topics are as they
        were read too, with what is missing above them: of partitions that are new, or of a topic
        whose node was put back by hand. Topics that are ``changed`` are written with them. Who
        watches the topics' states is told."""
        writes: list[Operation] = []
        made: list[TopicPartition] = []
        for topic_partition, state in states.items():
            path = paths.partition_state(topic_partition)
            node = nodes[path]
            if node is None:
                made.append(topic_partition)
                writes.append(Create(path, encode(state)))
            else:
                writes.append(SetData(path, encode(state), node.version))
        names = dict.fromkeys(each.topic for each in states)
        checks: list[Operation] = []
        for name in names:
            path, version = paths.topic(name), topics[name].alive()[0].version
            payload = changed.get(name)
            checks.append(
                Check(path, version) if payload is None else SetData(path, encode(payload), version)
            )
        above = [paths.partitions(name) for name in names]
        unlisted = self._unlisted(made, deadline)
        asked = [*above, *(paths.partition(each) for each in made if each not in unlisted)]
        there = self._nodes.get_many(asked, deadline=deadline)
        absent = [path for path, node in there.items() if node is None]
        missing = [Create(path) for path in (*absent, *map(paths.partition, unlisted))]
        notices = [
            SetData(path, b"")
            for path in above
            if (parent := there[path]) is not None and not parent.refused  # or nobody watches it
        ]
        self._nodes.transact(description, [*checks, *missing, *writes, *notices], deadline=deadline)

    def read(
        self, topic_partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> dict[str, Node | None]:
        """The nodes of their states, by path; those of a new topic are not asked for one by one."""
        wanted = list(topic_partitions)
        unlisted = self._unlisted(wanted, deadline)
        read = self._nodes.get_many(
            [paths.partition_state(each) for each in wanted if each not in unlisted],
            deadline=deadline,
        )
        return {path: read.get(path) for path in map(paths.partition_state, wanted)}

    def _unlisted(
        self, topic_partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, None]:
        """Finds partitions without a node, where so many of a topic are asked for that it is
        cheaper to list what there is. A write that relies on it must be conditional."""
        by_topic: dict[str, list[TopicPartition]] = {}
        for each in topic_partitions:
            by_topic.setdefault(each.topic, []).append(each)
        large = [topic for topic, wanted in by_topic.items() if len(wanted) >= _LISTED_FROM]
        names = self._nodes.children_of(map(paths.partitions, large), deadline=deadline)
        unlisted: dict[TopicPartition, None] = {}
        for topic in large:
            children = names[paths.partitions(topic)]
            if isinstance(children, CorruptNodeError):
                continue  # what is below a node that may not be listed can be read all the same
            listed = set(children or ())
            unlisted |= {
                each: None
                for each in by_topic[topic]
                if name_of(paths.partition(each)) not in listed
            }
        return unlisted

    def decode(self, node: Node, path: str, *, instead: str = _NOT_LED) -> PartitionState:
        try:
            now = decode(PartitionState, node.data, path=path)
        except CorruptNodeError as failure:
            self._unreadable.met(path, failure, instead=instead)
            raise
        self._unreadable.in_order(path)
        return now
