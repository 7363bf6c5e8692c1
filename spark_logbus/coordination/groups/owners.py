"""Owners of a group's topics and partitions as their nodes tell, and the fences of the topics.

The fence of a topic is a node whose version changes with every owner of the topic or of one of its
partitions. A transaction that checks the fences proves that owners which were read after them have
not changed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import OwnerPayload, decode
from spark_logbus.coordination.process_identity import is_gone, this_process
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import ConflictError, Node, Nodes, Watch, own_names
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOwner:
    """Owner of a topic or partition: the driver's process, and its application's name where that is
    known; or a consumer's process, and its name in the group."""

    host: str
    pid: int
    application: str | None
    since_us: int
    consumer: str | None = None

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_us / 1_000_000, UTC)
        name = f"application {self.application}, " if self.application else ""
        if self.consumer is not None:
            name = f"consumer {self.consumer}, "
        return name + f"process {self.pid} on {self.host}, since {since:%Y-%m-%d %H:%M:%S} UTC"


def new_owner(
    session: Session, *, pid: int, application: str | None = None, consumer: str = ""
) -> OwnerPayload:
    """Returns what a new owner writes to its nodes, with a token of its own."""
    return OwnerPayload(
        host=os.uname().nodename,
        pid=pid,
        application=application,
        since_us=session.clock.now_us(),
        session_timeout_ms=session.session_timeout_ms,
        token=uuid.uuid4().hex,
        process=this_process(),
        consumer=consumer,
    )


def owner_payload(path: str, node: Node | None) -> OwnerPayload | None:
    if node is None or not node.data:
        return None
    return decode(OwnerPayload, node.data, path=path)


def group_owner(payload: OwnerPayload) -> GroupOwner:
    return GroupOwner(
        host=payload.host,
        pid=payload.pid,
        application=payload.application,
        since_us=payload.since_us,
        consumer=payload.consumer or None,
    )


class OwnerNodes:
    """Reads the owners of a group's topics and partitions. Thread-safe, keeps nothing."""

    def __init__(self, nodes: Nodes, group: str) -> None:
        self._nodes = nodes
        self._group = group

    def fences(
        self, topics: Iterable[str], *, make: bool = False, deadline: Deadline
    ) -> dict[str, Node | None]:
        """Returns the fences of ``topics`` by path, in order; with ``make`` those that are missing
        are made first."""
        fence_paths = [paths.owner_fence(self._group, topic) for topic in topics]
        nodes = self._nodes.get_many(fence_paths, deadline=deadline)
        if make and None in nodes.values():
            for path, node in nodes.items():
                if node is None:
                    self._nodes.ensure(path, deadline=deadline)
            nodes = self._nodes.get_many(fence_paths, deadline=deadline)
        return nodes

    def present(self, fences: Mapping[str, Node | None]) -> dict[str, Node]:
        """Returns the fences. Raises ConflictError where one is missing."""
        found: dict[str, Node] = {}
        for path, node in fences.items():
            if node is None:
                raise ConflictError(f"The group {self._group!r} was deleted meanwhile.")
            found[path] = node
        return found

    def unchanged(self, fences: Mapping[str, Node | None]) -> list[Operation]:
        """Returns operations that fail a transaction when one of ``fences`` has changed. Raises
        ConflictError where one is missing."""
        return [Check(path, node.version) for path, node in self.present(fences).items()]

    def queries(
        self, topics: Iterable[str] | None = None, *, deadline: Deadline | None = None
    ) -> dict[str, OwnerPayload]:
        """Returns the queries and loads that own ``topics``, or (None) any, by topic."""
        deadline = deadline or self._nodes.session.deadline()
        if topics is None:
            parent = paths.owners(self._group)
            topics = own_names(self._nodes, parent, "topic", deadline=deadline)
        topic_of = {paths.topic_owner(self._group, topic): topic for topic in sorted(topics)}
        return {
            topic_of[path]: owner
            for path, node in self._nodes.get_many(topic_of, deadline=deadline).items()
            if (owner := owner_payload(path, node)) is not None
        }

    def consumers(
        self,
        topics: Iterable[str] | None = None,
        *,
        watch: Watch | None = None,
        deadline: Deadline | None = None,
    ) -> dict[TopicPartition, OwnerPayload]:
        """Returns the consumers that own partitions of ``topics``, or (None) of any."""
        deadline = deadline or self._nodes.session.deadline()
        if topics is None:
            parent = paths.owners(self._group)
            topics = own_names(self._nodes, parent, "topic", deadline=deadline)
        fences = {paths.owner_fence(self._group, topic): topic for topic in topics}
        listed = self._nodes.children_many(fences, watch=watch, deadline=deadline)
        by_path = {
            f"{fence}/{name}": TopicPartition(fences[fence], number)
            for fence, names in listed.items()
            for name in names or ()
            if (number := paths.number_of(name)) is not None
        }
        return {
            by_path[path]: owner
            for path, node in self._nodes.get_many(by_path, deadline=deadline).items()
            if (owner := owner_payload(path, node)) is not None
        }


def running(owners: Mapping[TopicPartition, OwnerPayload]) -> dict[str, OwnerPayload]:
    """Returns an owner for each topic, leaving out those whose process is known to have ended."""
    return {each.topic: owner for each, owner in owners.items() if not is_gone(owner.process)}
