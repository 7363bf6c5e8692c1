"""Ownership of a group's topics: at most one query or load reads a topic for a group. Consumers,
which share a topic, own single partitions of it (see ``partition_owners``).

An owner has two nodes, written in one transaction: an ephemeral one (see ``zookeeper.ephemeral``),
which says that the query is alive, and the fence above it, which stays and names the last owner. An
ephemeral node that comes again looks as it did before, so commits check the fence: its version
changes with every owner. Hence a query whose session expired can see if another one has
acquired the topic since, and goes on if none has.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from typing import Protocol

from spark_logbus.coordination import paths
from spark_logbus.coordination.groups.owners import (
    OwnerNodes,
    group_owner,
    new_owner,
    owner_payload,
    running,
)
from spark_logbus.coordination.payloads import OwnerPayload, encode
from spark_logbus.coordination.process_identity import is_gone
from spark_logbus.errors import ClaimLostError, CoordinationError, GroupHeldError, LogbusError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.ephemeral import acquire_or_wait, acquiring, expiry_ms
from spark_logbus.zookeeper.nodes import Node, Nodes, Watch
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Operation, SetData, in_parts

logger = logging.getLogger(__name__)


class Ownership(Protocol):
    """The right to commit offsets of a group."""

    def checks(
        self, partitions: Collection[TopicPartition], *, deadline: Deadline
    ) -> list[Operation]:
        """Operations that fail a transaction if the right to commit those of ``partitions`` goes
        to somebody else before it is done; ClaimLostError or GroupHeldError if it has."""
        ...


class GroupOwnership:
    """The topics that one run of a query owns for ``group``. Thread-safe.

    It owns them until the session is closed. When the session expires they are acquired again as
    soon as there is a new one, unless another query was faster.
    """

    def __init__(
        self, session: Session, group: str, *, pid: int, application: str | None = None
    ) -> None:
        self._session = session
        self._nodes = Nodes(session)
        self._group = group
        self._owners = OwnerNodes(self._nodes, group)
        self._payload = new_owner(session, pid=pid, application=application)
        self._lock = threading.Lock()
        self._owned: set[str] = set()
        self._session_id = 0  # that the nodes were last seen to be of
        session.add_reconnect_hook(self._reconnected)

    def acquire(self, topics: Iterable[str]) -> None:
        """Acquire those of ``topics`` that are not owned yet, and make sure of the others. Costs
        nothing while the session lives and no topic is new.

        Another owner is waited for as long as a dead one's node can stay, then GroupHeldError is
        raised; one whose process on this machine was killed is followed at once. ClaimLostError
        when another query has acquired what was owned here.
        """
        wanted = set(topics)
        with self._lock:
            if wanted <= self._owned and self._session_id == self._session.session_id:
                return
            self._acquire(sorted(wanted | self._owned))

    def checks(
        self, partitions: Collection[TopicPartition], *, deadline: Deadline
    ) -> list[Operation]:
        """Operations that fail a transaction if another query acquires one of the topics before it
        is done; ClaimLostError if one has."""
        fences = {
            paths.owner_fence(self._group, topic): topic
            for topic in sorted({each.topic for each in partitions})
        }
        nodes = self._nodes.get_many(fences, deadline=deadline)
        checks: list[Operation] = []
        for path, topic in fences.items():
            node = nodes[path]
            last = owner_payload(path, node)
            if node is None or last is None:
                self._session_id = 0  # so that ``acquire`` looks again
                raise CoordinationError(
                    f"The claim of group {self._group!r} on topic {topic} was removed from "
                    "ZooKeeper by hand; claim it anew."
                )
            if last.token != self._payload.token:
                raise self._lost(topic, last)
            checks.append(Check(path, node.version))
        return checks

    def _acquire(self, topics: list[str]) -> None:
        acquire_or_wait(
            self._session,
            lambda watch: self._try_acquire(topics, watch) or None,
            limit_ms=self._limit_ms,
            on_wait=self._log_wait,
            refusal=self._in_use,
        )

    def _try_acquire(self, topics: list[str], watch: Watch) -> dict[str, OwnerPayload]:
        """Acquire all of ``topics``, or none; the owners that are in the way, by topic."""
        description = f"claim topics for the group {self._group}"
        session_id = self._session.session_id

        def attempt(deadline: Deadline) -> dict[str, OwnerPayload]:
            self._nodes.sync(deadline=deadline)
            fences = self._owners.present(self._owners.fences(topics, make=True, deadline=deadline))
            owner_paths = [paths.topic_owner(self._group, topic) for topic in topics]
            nodes = self._nodes.get_many(owner_paths, watch=watch, deadline=deadline)
            operations: list[Operation] = []
            owners = running(self._owners.consumers(topics, watch=watch, deadline=deadline))
            for topic, fence, node in zip(topics, fences.values(), nodes.values(), strict=True):
                current_owner = self._plan(topic, fence, node, operations)
                if current_owner is not None:
                    owners[topic] = current_owner
            if not owners:
                for part in in_parts(operations):
                    self._nodes.transact(description, part, deadline=deadline)
            return owners

        owners = self._nodes.repeat(description, attempt)
        if not owners:
            self._owned.update(topics)
            self._session_id = session_id
        return owners

    def _plan(
        self, topic: str, fence: Node, node: Node | None, operations: list[Operation]
    ) -> OwnerPayload | None:
        """Add the operations that acquire ``topic``, or return the owner that is in the way."""
        fence_path = paths.owner_fence(self._group, topic)
        owner_path = paths.topic_owner(self._group, topic)
        last = owner_payload(fence_path, fence)
        ours = last is not None and last.token == self._payload.token
        if last is not None and not ours and topic in self._owned:
            raise self._lost(topic, last)
        # With our token in the fence nobody else has had the topic since: what stands there is of
        # our own session before this one.
        current_owner = None if ours else owner_payload(owner_path, node)
        gone = current_owner is not None and is_gone(current_owner.process)
        data = encode(self._payload)
        node_operations = acquiring(
            owner_path,
            node,
            data,
            session_id=self._session.session_id,
            abandoned=gone or current_owner is None,
        )
        if node_operations is None:
            return current_owner
        if gone and current_owner is not None:  # killed, and only its session is still to expire
            logger.info(
                "Group %s: %s has ended without a word.", self._group, group_owner(current_owner)
            )
        if not ours:
            operations.append(SetData(fence_path, data, fence.version))
        elif node_operations:  # only the sign of life has to be renewed
            operations.append(Check(fence_path, fence.version))
        operations += node_operations
        return None

    def _limit_ms(self, owners: dict[str, OwnerPayload]) -> int:
        return expiry_ms(
            self._session.session_timeout_ms,
            *(each.session_timeout_ms for each in owners.values()),
        )

    def _log_wait(self, owners: dict[str, OwnerPayload], left_s: float, first: bool) -> None:
        if first:
            topic, current_owner = next(iter(owners.items()))
            logger.warning(
                "Group %s is held for topic %s (%s); waiting up to %.0f s for that to end.",
                self._group,
                topic,
                group_owner(current_owner),
                left_s,
            )

    def _reconnected(self, lost: bool) -> None:
        if lost:
            self._session.worker.submit(self._restore)

    def _restore(self) -> None:
        """A long micro-batch must not leave the group unclaimed until its end."""
        with self._lock:
            if not self._owned:
                return
            try:
                self._acquire(sorted(self._owned))
            except ClaimLostError as lost:
                logger.error("%s", lost.message)  # the next call to ``acquire`` raises it again
            except LogbusError as failure:
                logger.warning(
                    "The claims of group %s could not be renewed yet: %s",
                    self._group,
                    failure.message,
                )
            else:
                logger.info("Claimed group %s again in the new ZooKeeper session.", self._group)

    def _lost(self, topic: str, new: OwnerPayload) -> ClaimLostError:
        return ClaimLostError(
            f"This query no longer holds group {self._group!r} for topic {topic}: its ZooKeeper "
            f"session expired, and another query has taken over since ({group_owner(new)}). "
            "Nothing more is committed here. Let only one of them run; this one can be started "
            "again when the other has ended."
        )

    def _in_use(self, owners: dict[str, OwnerPayload], waited_ms: int) -> GroupHeldError:
        topic, current_owner = next(iter(owners.items()))
        return GroupHeldError(
            f"Group {self._group!r} is in use for topic {topic} by "
            f"{'a consumer' if current_owner.consumer else 'another query'} "
            f"({group_owner(current_owner)}), which still ran after {waited_ms / 1000:.0f} s of "
            "waiting. Stop that one, or give this query a group of its own. Two reads in one "
            "query, as in a self-join, count as two: give the group to only one of them."
        )


class NoOwnership:
    """The condition of plain consumers, which share a group's partitions by hand: they own nothing,
    and commit as long as no query owns the topic. Thread-safe."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._owners = OwnerNodes(Nodes(session), group)

    def require_no_owner(self, topics: Iterable[str]) -> None:
        """GroupHeldError, with the owner, if a query, or consumers that subscribed, read one of
        ``topics`` for the group."""
        self._refuse_owners(set(topics), self._session.deadline())

    def require_no_query(self, topics: Iterable[str]) -> None:
        """GroupHeldError, with the owner, if a query reads one of ``topics`` for the group."""
        self._refuse_queries(set(topics), self._session.deadline())

    def checks(
        self, partitions: Collection[TopicPartition], *, deadline: Deadline
    ) -> list[Operation]:
        """Operations that fail a transaction if a query or a consumer that subscribed acquires one
        of the topics before it is done; GroupHeldError if one has."""
        topics = {each.topic for each in partitions}
        # What is not there cannot be checked, so the fences are made.
        fences = self._owners.fences(sorted(topics), make=True, deadline=deadline)
        # After the fences: an owner that came in between has changed its fence.
        self._refuse_owners(topics, deadline)
        return self._owners.unchanged(fences)

    def _refuse_owners(self, topics: set[str], deadline: Deadline) -> None:
        self._refuse_queries(topics, deadline)
        for topic, member in running(self._owners.consumers(topics, deadline=deadline)).items():
            raise GroupHeldError(
                f"Consumers that subscribed share topic {topic} in the group {self._group!r} "
                f"({group_owner(member)} is one); nothing was committed here. Subscribe too "
                "instead of assigning partitions, or use a group of its own."
            )

    def _refuse_queries(self, topics: set[str], deadline: Deadline) -> None:
        for topic, owner in self._owners.queries(topics, deadline=deadline).items():
            lasts_s = expiry_ms(owner.session_timeout_ms) / 1000
            raise GroupHeldError(
                f"Group {self._group!r} is held for topic {topic} by a query or load "
                f"({group_owner(owner)}); nothing was committed here. Stop that one, or read "
                "with a group of its own. If it was killed, its claim ends within "
                f"{lasts_s:.0f} s."
            )
