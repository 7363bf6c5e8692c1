"""Which query reads a topic for a group: at most one at a time.

A claim is two nodes, written in one transaction: an ephemeral one, which says that the query
is alive, and the fence above it, which stays and names the last one to claim. An ephemeral node
that comes again looks as it did before, so commits check the fence: its version changes with
every claim. Hence a query whose session expired can tell whether somebody else has claimed the
topic since, and goes on if nobody has.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spark_logbus.coordination import paths
from spark_logbus.coordination.living import is_gone, this_process
from spark_logbus.coordination.payloads import ClaimPayload, decode, encode
from spark_logbus.errors import ClaimLostError, CoordinationError, GroupHeldError, LogbusError
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import ConflictError, Node, Nodes, own_names
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Create, Delete, Operation, SetData, in_parts

logger = logging.getLogger(__name__)

# ZooKeeper expires sessions on its own ticks (2 s by default) and never grants less than two.
_EXPIRY_MARGIN_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a claim: the driver's process, and the application's name where it is known."""

    host: str
    pid: int
    application: str | None
    since_us: int

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_us / 1_000_000, UTC)
        return (
            f"application {self.application}, " if self.application else ""
        ) + f"process {self.pid} on {self.host}, since {since:%Y-%m-%d %H:%M:%S} UTC"


class _Flag(threading.Event):
    """Set by the watch it offers."""

    def raise_for(self, _event: object) -> None:
        self.set()


class GroupClaims:
    """The claims of one run of a query on the topics that it reads for ``group``. Thread-safe.

    They last until the session is closed. When the session expires they are claimed again as
    soon as there is a new one, unless another query was faster.
    """

    def __init__(
        self, session: Session, group: str, *, pid: int, application: str | None = None
    ) -> None:
        self._session = session
        self._tree = Nodes(session)
        self._group = group
        self._payload = ClaimPayload(
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
        self._session_id = 0  # that the claims were last seen to be of
        session.add_reconnect_hook(self._reconnected)

    def hold(self, topics: Iterable[str]) -> None:
        """Claim those of ``topics`` that are not claimed yet, and make sure of the others. Costs
        nothing while the session lives and no topic is new.

        A claim of another query is waited for as long as a dead one's can stay, then refused
        with GroupHeldError; one of a process on this machine that was killed is taken over at
        once. ClaimLostError when another query has claimed what was held here.
        """
        wanted = set(topics)
        with self._lock:
            if wanted <= self._held and self._session_id == self._session.session_id:
                return
            self._acquire(sorted(wanted | self._held))

    def checks(self, topics: Iterable[str], *, deadline: Deadline) -> list[Operation]:
        """What fails a transaction if another query claims one of ``topics`` before it is done;
        ClaimLostError if one has."""
        fences = {paths.topic_owners(self._group, topic): topic for topic in sorted(set(topics))}
        nodes = self._tree.get_many(fences, deadline=deadline)
        checks: list[Operation] = []
        for path, topic in fences.items():
            node = nodes[path]
            last = _payload(path, node)
            if node is None or last is None:
                self._session_id = 0  # so that ``hold`` looks again
                raise CoordinationError(
                    f"The claim of group {self._group!r} on topic {topic} was removed from "
                    "ZooKeeper by hand; claim it anew."
                )
            if last.token != self._payload.token:
                raise self._lost(topic, last)
            checks.append(Check(path, node.version))
        return checks

    def _acquire(self, topics: list[str]) -> None:
        clock = self._session.clock
        give_up: float | None = None
        wait_ms = 0
        while True:
            gone = _Flag()
            session_id = self._session.session_id
            rivals = self._claim(topics, gone.raise_for)
            if not rivals:
                self._held.update(topics)
                self._session_id = session_id
                return
            topic, current_owner = next(iter(rivals.items()))
            if give_up is None:
                slowest = max(each.session_timeout_ms for each in rivals.values())
                wait_ms = max(slowest, self._session.session_timeout_ms) + _EXPIRY_MARGIN_MS
                give_up = clock.monotonic() + wait_ms / 1000
                logger.warning(
                    "Group %s is held for topic %s (%s); waiting up to %.0f s for that to end.",
                    self._group,
                    topic,
                    _holder(current_owner),
                    wait_ms / 1000,
                )
            if clock.monotonic() >= give_up:
                raise self._in_use(topic, current_owner, wait_ms)
            gone.wait(give_up - clock.monotonic())

    def _claim(self, topics: list[str], watch: Callable[[Any], None]) -> dict[str, ClaimPayload]:
        """Claim all of ``topics``, or none and tell who is in the way."""
        what = f"claim topics for the group {self._group}"

        def step(deadline: Deadline) -> dict[str, ClaimPayload]:
            nodes = self._nodes(topics, watch, deadline)
            operations: list[Operation] = []
            rivals: dict[str, ClaimPayload] = {}
            for topic in topics:
                current_owner = self._plan(topic, nodes, operations)
                if current_owner is not None:
                    rivals[topic] = current_owner
            if not rivals:
                for part in in_parts(operations):
                    self._tree.transact(what, part, deadline=deadline)
            return rivals

        return self._tree.repeat(what, step)

    def _nodes(
        self, topics: list[str], watch: Callable[[Any], None], deadline: Deadline
    ) -> dict[str, Node | None]:
        fences = [paths.topic_owners(self._group, topic) for topic in topics]
        claims = [paths.claim(self._group, topic) for topic in topics]
        self._tree.sync(deadline=deadline)
        nodes = self._tree.get_many(fences, deadline=deadline)
        missing = [path for path in fences if nodes[path] is None]
        for path in missing:
            self._tree.ensure(path, deadline=deadline)
        if missing:
            nodes = self._tree.get_many(fences, deadline=deadline)
        return nodes | self._tree.get_many(claims, watch=watch, deadline=deadline)

    def _plan(
        self, topic: str, nodes: dict[str, Node | None], operations: list[Operation]
    ) -> ClaimPayload | None:
        """Add what claims ``topic``; or return who is in the way."""
        fence_path = paths.topic_owners(self._group, topic)
        claim_path = paths.claim(self._group, topic)
        fence, claim = nodes[fence_path], nodes[claim_path]
        if fence is None:
            raise ConflictError(f"The group {self._group!r} was deleted meanwhile.")
        data = encode(self._payload)
        last = _payload(fence_path, fence)
        if last is not None and last.token == self._payload.token:
            # Ours, and nobody else's since: only the sign of life may have to be renewed.
            if claim is None or claim.owner != self._session.session_id:
                operations.append(Check(fence_path, fence.version))
                if claim is not None:  # of our own session before this one
                    operations.append(Delete(claim_path, claim.version))
                operations.append(Create(claim_path, data, ephemeral=True))
            return None
        if last is not None and topic in self._held:
            raise self._lost(topic, last)
        current_owner = _payload(claim_path, claim)
        if claim is not None and current_owner is not None and is_gone(current_owner.process):
            # It was killed, and only its session is still to expire.
            logger.info(
                "Group %s: %s has ended without a word.", self._group, _holder(current_owner)
            )
            operations.append(Delete(claim_path, claim.version))
            current_owner = None
        if current_owner is None:
            operations.append(SetData(fence_path, data, fence.version))
            operations.append(Create(claim_path, data, ephemeral=True))
        return current_owner

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
                logger.error("%s", lost.message)  # the next call to ``hold`` raises it again
            except LogbusError as failure:
                logger.warning(
                    "The claims of group %s could not be renewed yet: %s",
                    self._group,
                    failure.message,
                )
            else:
                logger.info("Claimed group %s again in the new ZooKeeper session.", self._group)

    def _lost(self, topic: str, new: ClaimPayload) -> ClaimLostError:
        return ClaimLostError(
            f"This query no longer holds group {self._group!r} for topic {topic}: its ZooKeeper "
            f"session expired, and another query has taken over since ({_holder(new)}). Nothing "
            "more is committed here. Let only one of them run; this one can be started again "
            "when the other has ended."
        )

    def _in_use(self, topic: str, current_owner: ClaimPayload, waited_ms: int) -> GroupHeldError:
        return GroupHeldError(
            f"Group {self._group!r} is in use for topic {topic} by another query "
            f"({_holder(current_owner)}), which still ran after {waited_ms / 1000:.0f} s of "
            "waiting. Stop "
            "that query, or give this one a group of its own. Two reads in one query, as in a "
            "self-join, count as two: give the group to only one of them."
        )


class Unclaimed:
    """For those who claim nothing and share a group's partitions by hand, as plain consumers do:
    they commit as long as no query holds the group. Thread-safe."""

    def __init__(self, session: Session, group: str) -> None:
        self._tree = Nodes(session)
        self._group = group

    def require(self, topics: Iterable[str]) -> None:
        """GroupHeldError, with the holder, if a query reads one of ``topics`` for the group."""
        self._refuse_held(set(topics), self._tree.session.deadline())

    def checks(self, topics: Iterable[str], *, deadline: Deadline) -> list[Operation]:
        """What fails a transaction if a query claims one of ``topics`` before it is done;
        GroupHeldError if one has."""
        wanted = set(topics)
        fences = [paths.topic_owners(self._group, topic) for topic in sorted(wanted)]
        nodes = self._tree.get_many(fences, deadline=deadline)
        missing = [path for path in fences if nodes[path] is None]
        for path in missing:  # what is not there cannot be checked
            self._tree.ensure(path, deadline=deadline)
        if missing:
            nodes = self._tree.get_many(fences, deadline=deadline)
        # After the fences: a claim made in between has changed its fence.
        self._refuse_held(wanted, deadline)
        checks: list[Operation] = []
        for path in fences:
            node = nodes[path]
            if node is None:
                raise ConflictError(f"The group {self._group!r} was deleted meanwhile.")
            checks.append(Check(path, node.version))
        return checks

    def _refuse_held(self, topics: set[str], deadline: Deadline) -> None:
        claims = {paths.claim(self._group, topic): topic for topic in sorted(topics)}
        for path, node in self._tree.get_many(claims, deadline=deadline).items():
            holder = _payload(path, node)
            if holder is not None:
                lasts_s = (holder.session_timeout_ms + _EXPIRY_MARGIN_MS) / 1000
                raise GroupHeldError(
                    f"Group {self._group!r} is held for topic {claims[path]} by a query or load "
                    f"({_holder(holder)}); nothing was committed here. Stop that one, or read with "
                    f"a group of its own. If it was killed, its claim ends within {lasts_s:.0f} s."
                )


def read_holders(tree: Nodes, group: str, *, deadline: Deadline | None = None) -> dict[str, Holder]:
    """Who reads which topics for ``group`` now, by topic."""
    deadline = deadline or tree.session.deadline()
    topics = own_names(tree, paths.owners(group), "topic", deadline=deadline)
    claims = {paths.claim(group, topic): topic for topic in topics}
    found = {}
    for path, node in tree.get_many(claims, deadline=deadline).items():
        payload = _payload(path, node)
        if payload is not None:
            found[claims[path]] = _holder(payload)
    return found


def _payload(path: str, node: Node | None) -> ClaimPayload | None:
    if node is None or not node.data:
        return None
    return decode(ClaimPayload, node.data, path=path)


def _holder(payload: ClaimPayload) -> Holder:
    return Holder(
        host=payload.host,
        pid=payload.pid,
        application=payload.application,
        since_us=payload.since_us,
    )
