"""Ownership of single partitions by the members of a consumer group.

An owned partition is an ephemeral node, which goes with its owner's session, below the topic's
fence (see ``owners``), whose content and version change with every claim. So a commit that
checks the fence and has read the owners after it is of a partition that is owned still; a stale
owner's is refused. A query or load that owns the whole topic, and members that own partitions of
it, exclude each other by the same fence.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from spark_logbus.coordination import paths
from spark_logbus.coordination.groups.owners import (
    GroupOwner,
    OwnerNodes,
    group_owner,
    new_owner,
    owner_payload,
)
from spark_logbus.coordination.payloads import encode
from spark_logbus.coordination.process_identity import is_gone
from spark_logbus.errors import ClaimLostError, GroupHeldError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.ephemeral import acquiring
from spark_logbus.zookeeper.nodes import ConflictError, Node, Nodes, Watch
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Delete, Operation, SetData, in_parts


class Claimed(NamedTuple):
    """Outcome of an attempt to claim partitions: those that are owned now, and the owners of the
    others, whose nodes are watched."""

    owned: frozenset[TopicPartition]
    taken: Mapping[TopicPartition, GroupOwner]


class PartitionOwnership:
    """The partitions that one ``member`` of ``group`` owns. Thread-safe.

    They are owned until they are released or the session ends. A session that was renewed owns
    nothing: ``owned`` is what was claimed in the present one.
    """

    def __init__(self, session: Session, group: str, *, member: str) -> None:
        self._session = session
        self._nodes = Nodes(session)
        self._group = group
        self._owners = OwnerNodes(self._nodes, group)
        self._payload = new_owner(session, pid=os.getpid(), consumer=member)
        self._lock = threading.Lock()
        self._owned: frozenset[TopicPartition] = frozenset()
        self._session_id = 0  # in which they were claimed

    @property
    def owned(self) -> frozenset[TopicPartition]:
        with self._lock:
            return self._owned if self._session_id == self._session.session_id else frozenset()

    def claim(
        self, partitions: Collection[TopicPartition], *, on_condition: Check, watch: Watch
    ) -> Claimed:
        """Claim those of ``partitions`` that nobody owns, while ``on_condition`` holds: that the
        assignment is still the one by which they are claimed. ConflictError when it is not.

        GroupHeldError when a query or a load owns one of the topics.
        """
        description = f"claim partitions for the group {self._group}"
        topics = sorted({each.topic for each in partitions})

        def attempt(deadline: Deadline) -> Claimed:
            session_id = self._session.session_id
            fences, nodes = self._read(topics, partitions, watch, deadline)
            changes: list[Operation] = []
            owned, taken = set(), {}
            for each in sorted(partitions):
                path = paths.owner(self._group, each)
                operations = self._acquiring(path, nodes[path], session_id)
                if operations is None:
                    taken[each] = self._owner(path, nodes[path])
                    continue
                owned.add(each)
                changes += operations
            if changes:
                data = encode(self._payload)
                each_with = [on_condition] + [
                    SetData(path, data, node.version) for path, node in fences.items()
                ]
                for part in in_parts(changes, each_with=each_with):
                    self._nodes.transact(description, part, deadline=deadline)
            self._add(owned, session_id)
            return Claimed(frozenset(owned), taken)

        return self._repeat(description, attempt, on_condition)

    def _repeat(
        self, description: str, attempt: Callable[[Deadline], Claimed], condition: Check
    ) -> Claimed:
        """Retries the transaction; raises ConflictError if the assignment changed."""

        def guarded(deadline: Deadline) -> Claimed | None:
            try:
                return attempt(deadline)
            except ConflictError:
                node = self._nodes.get(condition.path, deadline=deadline)
                if node is None or node.version != condition.version:
                    return None
                raise

        claimed = self._nodes.repeat(description, guarded)
        if claimed is None:
            raise ConflictError(f"The group {self._group!r} has another assignment by now.")
        return claimed

    def _read(
        self,
        topics: list[str],
        partitions: Collection[TopicPartition],
        watch: Watch,
        deadline: Deadline,
    ) -> tuple[dict[str, Node], dict[str, Node | None]]:
        """Reads the fences of the topics, and the owners' nodes of the partitions after them."""
        self._nodes.sync(deadline=deadline)
        fences = self._owners.fences(topics, make=True, deadline=deadline)
        for topic, query in self._owners.queries(topics, deadline=deadline).items():
            raise GroupHeldError(
                f"Group {self._group!r} is held for topic {topic} by a query or load "
                f"({group_owner(query)}), so no consumer can share its partitions. Stop that "
                "one, or give this consumer another group."
            )
        owners = [paths.owner(self._group, each) for each in partitions]
        return self._owners.present(fences), self._nodes.get_many(
            owners, watch=watch, deadline=deadline
        )

    def _acquiring(self, path: str, node: Node | None, session_id: int) -> list[Operation] | None:
        owner = owner_payload(path, node)
        # Of an earlier session of this member, or of a process that was killed on this machine.
        abandoned = owner is not None and (
            owner.token == self._payload.token or is_gone(owner.process)
        )
        data = encode(self._payload)
        return acquiring(path, node, data, session_id=session_id, abandoned=abandoned)

    def _owner(self, path: str, node: Node | None) -> GroupOwner:
        owner = owner_payload(path, node)
        assert owner is not None, "a node that is not to be had has content"
        return group_owner(owner)

    def _add(self, owned: Iterable[TopicPartition], session_id: int) -> None:
        with self._lock:
            if self._session_id != session_id:
                self._owned, self._session_id = frozenset(), session_id
            self._owned |= frozenset(owned)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Let them go; does nothing about those that are not owned any more."""
        released = frozenset(partitions)
        with self._lock:
            self._owned -= released
        by_path = {paths.owner(self._group, each): each for each in sorted(released)}
        description = f"release partitions of the group {self._group}"

        def attempt(deadline: Deadline) -> None:
            session_id = self._session.session_id
            nodes = self._nodes.get_many(by_path, deadline=deadline)
            deletes: list[Operation] = [
                Delete(path, node.version)
                for path, node in nodes.items()
                if node is not None and node.owner == session_id
            ]
            for part in in_parts(deletes):
                self._nodes.transact(description, part, deadline=deadline)

        if by_path:
            self._nodes.repeat(description, attempt)

    def checks(
        self, partitions: Collection[TopicPartition], *, deadline: Deadline
    ) -> list[Operation]:
        """Operations that fail a transaction if anybody claims a partition of these topics before
        it is done; ClaimLostError if one of ``partitions`` is not owned."""
        by_path = {paths.owner(self._group, each): each for each in sorted(partitions)}
        fences = self._owners.fences(sorted({each.topic for each in partitions}), deadline=deadline)
        # After the fences: an owner that came in between has changed its fence.
        owners = self._nodes.get_many(by_path, deadline=deadline)
        session_id = self._session.session_id
        for path, each in by_path.items():
            node = owners[path]
            if node is None or node.owner != session_id:
                owner = owner_payload(path, node)
                now = "nobody owns it now" if owner is None else f"{group_owner(owner)} owns it now"
                raise ClaimLostError(
                    f"This consumer does not own {each} for the group {self._group!r} any more; "
                    f"{now}. Nothing was committed. The next poll brings the partitions that it "
                    "owns."
                )
        return self._owners.unchanged(fences)
