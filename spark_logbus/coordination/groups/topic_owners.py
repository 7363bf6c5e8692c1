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
import os
import threading
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import OwnerPayload, decode, encode
from spark_logbus.coordination.process_identity import is_gone, this_process
from spark_logbus.errors import ClaimLostError, CoordinationError, GroupHeldError, LogbusError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.ephemeral import acquire_or_wait, acquiring, expiry_ms
from spark_logbus.zookeeper.nodes import ConflictError, Node, Nodes, Watch, own_names
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Operation, SetData, in_parts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOwner:
    """The owner of a topic, or of a partition: a driver's process, and the application's name where
    it is known; or that of a consumer, with its name in the group."""

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
        self._payload = OwnerPayload(
            host=os.uname().nodename,
            pid=pid,
            application=application,
            since_us=session.clock.now_us(),
            session_timeout_ms=session.session_timeout_ms,
            token=uuid.uuid4().hex,
            process=this_process(),
        )
        self._lock = threading.Lock()
        self._held: set[str] = set()
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
            if wanted <= self._held and self._session_id == self._session.session_id:
                return
            self._acquire(sorted(wanted | self._held))

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
            nodes = self._read(topics, watch, deadline)
            operations: list[Operation] = []
            owners = _sharing(self._nodes, self._group, topics, watch=watch, deadline=deadline)
            for topic in topics:
                current_owner = self._plan(topic, nodes, operations)
                if current_owner is not None:
                    owners[topic] = current_owner
            if not owners:
                for part in in_parts(operations):
                    self._nodes.transact(description, part, deadline=deadline)
            return owners

        owners = self._nodes.repeat(description, attempt)
        if not owners:
            self._held.update(topics)
            self._session_id = session_id
        return owners

    def _read(self, topics: list[str], watch: Watch, deadline: Deadline) -> dict[str, Node | None]:
        fences = [paths.owner_fence(self._group, topic) for topic in topics]
        owners = [paths.topic_owner(self._group, topic) for topic in topics]
        self._nodes.sync(deadline=deadline)
        nodes = self._nodes.get_many(fences, deadline=deadline)
        missing = [path for path in fences if nodes[path] is None]
        for path in missing:
            self._nodes.ensure(path, deadline=deadline)
        if missing:
            nodes = self._nodes.get_many(fences, deadline=deadline)
        return nodes | self._nodes.get_many(owners, watch=watch, deadline=deadline)

    def _plan(
        self, topic: str, nodes: dict[str, Node | None], operations: list[Operation]
    ) -> OwnerPayload | None:
        """Add the operations that acquire ``topic``, or return the owner that is in the way."""
        fence_path = paths.owner_fence(self._group, topic)
        owner_path = paths.topic_owner(self._group, topic)
        fence, node = nodes[fence_path], nodes[owner_path]
        if fence is None:
            raise ConflictError(f"The group {self._group!r} was deleted meanwhile.")
        last = owner_payload(fence_path, fence)
        ours = last is not None and last.token == self._payload.token
        if last is not None and not ours and topic in self._held:
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
            if not self._held:
                return
            try:
                self._acquire(sorted(self._held))
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
        self._nodes = Nodes(session)
        self._group = group

    def require_no_owner(self, topics: Iterable[str]) -> None:
        """GroupHeldError, with the owner, if a query, or consumers that subscribed, read one of
        ``topics`` for the group."""
        wanted, deadline = set(topics), self._nodes.session.deadline()
        self._refuse_queries(wanted, deadline)
        self._refuse_consumers(wanted, deadline)

    def require_no_query(self, topics: Iterable[str]) -> None:
        """GroupHeldError, with the owner, if a query reads one of ``topics`` for the group."""
        self._refuse_queries(set(topics), self._nodes.session.deadline())

    def checks(
        self, partitions: Collection[TopicPartition], *, deadline: Deadline
    ) -> list[Operation]:
        """Operations that fail a transaction if a query or a consumer that subscribed acquires one
        of the topics before it is done; GroupHeldError if one has."""
        wanted = {each.topic for each in partitions}
        fences = [paths.owner_fence(self._group, topic) for topic in sorted(wanted)]
        nodes = self._nodes.get_many(fences, deadline=deadline)
        missing = [path for path in fences if nodes[path] is None]
        for path in missing:  # what is not there cannot be checked
            self._nodes.ensure(path, deadline=deadline)
        if missing:
            nodes = self._nodes.get_many(fences, deadline=deadline)
        # After the fences: an owner that came in between has changed its fence.
        self._refuse_queries(wanted, deadline)
        self._refuse_consumers(wanted, deadline)
        checks: list[Operation] = []
        for path in fences:
            node = nodes[path]
            if node is None:
                raise ConflictError(f"The group {self._group!r} was deleted meanwhile.")
            checks.append(Check(path, node.version))
        return checks

    def _refuse_queries(self, topics: set[str], deadline: Deadline) -> None:
        topic_of = {paths.topic_owner(self._group, topic): topic for topic in sorted(topics)}
        for path, node in self._nodes.get_many(topic_of, deadline=deadline).items():
            owner = owner_payload(path, node)
            if owner is not None:
                lasts_s = expiry_ms(owner.session_timeout_ms) / 1000
                raise GroupHeldError(
                    f"Group {self._group!r} is held for topic {topic_of[path]} by a query or load "
                    f"({group_owner(owner)}); nothing was committed here. Stop that one, or read "
                    "with a group of its own. If it was killed, its claim ends within "
                    f"{lasts_s:.0f} s."
                )

    def _refuse_consumers(self, topics: set[str], deadline: Deadline) -> None:
        for topic, member in _sharing(self._nodes, self._group, topics, deadline=deadline).items():
            raise GroupHeldError(
                f"Consumers that subscribed share topic {topic} in the group {self._group!r} "
                f"({group_owner(member)} is one); nothing was committed here. Subscribe too "
                "instead of assigning partitions, or use a group of its own."
            )


def read_owners(
    nodes: Nodes, group: str, *, deadline: Deadline | None = None
) -> dict[str, GroupOwner]:
    """The present owners of ``group``'s topics, by topic."""
    deadline = deadline or nodes.session.deadline()
    topics = own_names(nodes, paths.owners(group), "topic", deadline=deadline)
    topic_of = {paths.topic_owner(group, topic): topic for topic in topics}
    found = {}
    for path, node in nodes.get_many(topic_of, deadline=deadline).items():
        payload = owner_payload(path, node)
        if payload is not None:
            found[topic_of[path]] = group_owner(payload)
    return found


def _sharing(
    nodes: Nodes,
    group: str,
    topics: Iterable[str],
    *,
    watch: Watch | None = None,
    deadline: Deadline,
) -> dict[str, OwnerPayload]:
    """Of each topic of which consumers own partitions (see ``partition_owners``) one that does."""
    fences = {paths.owner_fence(group, topic): topic for topic in topics}
    listed = nodes.children_many(fences, watch=watch, deadline=deadline)
    by_path = {
        f"{fence}/{name}": fences[fence]
        for fence, names in listed.items()
        for name in names or ()
        if paths.number_of(name) is not None
    }
    found = {}
    for path, node in nodes.get_many(by_path, deadline=deadline).items():
        payload = owner_payload(path, node)
        if payload is not None and not is_gone(payload.process):
            found[by_path[path]] = payload
    return found


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
