"""Ephemeral nodes: what a process owns in ZooKeeper for as long as its session lives.

Brokers' ids, locks, queries' ownership of topics, and a group's members with their partitions are
ephemeral nodes. Each of them follows these rules.

*Acquire.* The node is read, then created in a transaction that fails if it exists. A create whose
reply was lost is not repeated: the node is read again first, and is ours if our session owns it.
Where two acquirers share a session, the content tells them apart by a token that is unique to one
acquisition.

*Wait.* A node outlives its owner: a process that was killed leaves it until its session expires.
So a node in the way is waited for, but only as long as a dead owner's can stay: the session
timeout of its owner, or ours if that is longer, plus a margin for ZooKeeper's ticks. What is still
there then belongs to a live owner, and the acquirer is refused. A watch ends the wait as soon as
the node goes. An owner that left its process identity in the node is not waited for at all once
its process is known to have ended on this machine.

*Keep.* A lost connection (SUSPENDED) changes nothing: the session and its nodes are alive, and
nothing is created. After LOST the nodes are gone and others may have them, so they are acquired
again in the new session, which may fail. Nobody may conclude from a node that is there again that
it was there all the time. Where that matters, the same transaction writes a permanent node too, a
fence, whose version changes with every owner (see ``coordination.groups.topic_owners``).

*Release.* The node is deleted at the version that was read, and only if it is ours.

``EphemeralNode`` does all that for one node; a group's member is one that is guarded. Owners of
several nodes at once, with a fence or other conditions, put together one transaction from
``acquiring`` for each node, and wait with ``acquire_or_wait``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from spark_logbus.errors import LogbusError
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import ConflictError, Node, Nodes, Watch, parent_of
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Create, Delete, Operation, SetData
from spark_logbus.zookeeper.watches import Change, WatchedRefresh

logger = logging.getLogger(__name__)

# ZooKeeper expires sessions on its own ticks (2 s by default) and never grants less than two.
_EXPIRY_MARGIN_MS = 5_000
# Between two attempts without news: a process may have ended, which no watch reports.
_LOOK_AGAIN_S = 2.0

Owner = TypeVar("Owner")


class _Flag(threading.Event):
    """Set by the watch it offers."""

    def raise_for(self, _event: object) -> None:
        self.set()


def expiry_ms(*session_timeouts_ms: int) -> int:
    """The time for which a dead owner's node can stay, from the session timeouts asked for."""
    return max(session_timeouts_ms) + _EXPIRY_MARGIN_MS


def acquiring(
    path: str, node: Node | None, data: bytes, *, session_id: int, abandoned: bool = False
) -> list[Operation] | None:
    """The operations that make the node ours, given what was read; None: somebody else has it.

    Empty if it is ours already. A node with our ``data`` in another session is of our own session
    before this one, and is replaced, as is one that its owner has ``abandoned``. Pure.
    """
    create = Create(path, data, ephemeral=True)
    if node is None:
        return [create]
    if node.data == data and node.owner == session_id:
        return []
    if node.data == data or abandoned:
        return [Delete(path, node.version), create]
    return None


def acquire_or_wait(
    session: Session,
    attempt: Callable[[Watch], Owner | None],
    *,
    limit_ms: Callable[[Owner], int],
    on_wait: Callable[[Owner, float, bool], None],
    refusal: Callable[[Owner, int], LogbusError],
) -> None:
    """Call ``attempt`` until it returns None (acquired) or the current owner was waited for.

    ``attempt`` sets the watch on what is in the way, and returns its owner. ``limit_ms`` of the
    first owner bounds the wait; then ``refusal``, with the last owner and that bound, is raised.
    ``on_wait`` is called, for logs, before each pause with the owner, the seconds that are left
    and whether this is the first pause.
    """
    clock = session.clock
    deadline: Deadline | None = None
    while True:
        changed = _Flag()
        owner = attempt(changed.raise_for)
        if owner is None:
            return
        first = deadline is None
        if deadline is None:
            limit = limit_ms(owner)
            deadline = Deadline.after_ms(clock, limit)
        if deadline.expired:
            raise refusal(owner, limit)
        on_wait(owner, deadline.remaining_s, first)
        changed.wait(min(deadline.remaining_s, _LOOK_AGAIN_S))


class EphemeralNode:
    """One ephemeral node of this session, with ``data`` in it. Thread-safe.

    With ``unique`` the data holds a token, so that several acquirers in one session exclude each
    other. Without, whatever the session owns at ``path`` is this node, and is set right if
    somebody else has written into it. ``to_acquire`` and ``to_release`` are verbs for messages.
    """

    def __init__(
        self,
        nodes: Nodes,
        path: str,
        data: bytes,
        *,
        to_acquire: str,
        to_release: str,
        unique: bool = False,
    ) -> None:
        self._nodes = nodes
        self._session = nodes.session
        self._path = path
        self._data = data
        self._to_acquire = to_acquire
        self._to_release = to_release
        self._unique = unique
        self._acquired_in = 0  # the session in which ``on_acquired`` was through
        self._guard = WatchedRefresh(nodes, path, self._restore)
        self._on_acquired: Callable[[bool], None]
        self._on_taken: Callable[[Node], None]

    def try_acquire(self, watch: Watch | None = None) -> Node | None:
        """Tries to own the node. Returns None when it is ours; else the node of another owner,
        watched."""

        def attempt(deadline: Deadline) -> Node | None:
            node = self._nodes.get(self._path, watch=watch, deadline=deadline)
            operations = self._acquiring(node)
            if operations is None:
                return node
            if node is None:
                self._nodes.ensure(parent_of(self._path), deadline=deadline)
            if operations:
                self._nodes.transact(self._to_acquire, operations, deadline=deadline)
            return None

        return self._nodes.repeat(self._to_acquire, attempt)

    def _acquiring(self, node: Node | None) -> list[Operation] | None:
        if node is None or self._unique or not self.is_ours(node) or node.data == self._data:
            session_id = self._session.session_id
            return acquiring(self._path, node, self._data, session_id=session_id)
        logger.error(
            "The ZooKeeper node %s was overwritten (%r); it is set right.",
            self._path,
            node.data[:60],
        )
        return [SetData(self._path, self._data, node.version)]

    def guard(
        self, *, on_acquired: Callable[[bool], None], on_taken: Callable[[Node], None]
    ) -> None:
        """Keep the node: acquire it again whenever the session was renewed or it was removed.

        ``on_acquired`` is called when the node is found to be ours: here, on this thread; then, on
        the session's worker, after every reconnection, and when it was got back. Its argument says
        that the session is a new one, in which case others may have had the node meanwhile. It may
        make requests, and is called again when it raises CoordinationError. ``on_taken`` is called
        with the node of another owner; ours is acquired by itself when that one goes.
        """
        self._on_acquired, self._on_taken = on_acquired, on_taken
        self._guard.start()

    def _restore(self, change: Change) -> None:
        taken = self.try_acquire(self._guard.watch)
        if taken is not None:
            self._on_taken(taken)
            return
        # A node that was just created is not watched yet.
        if not self._nodes.exists(self._path, watch=self._guard.watch):
            raise ConflictError(f"{self._path} was removed at once.")
        # A change of the node may be noticed before the news of the session that it came with.
        session_id = self._session.session_id
        self._on_acquired(change.new_session or self._acquired_in not in (0, session_id))
        self._acquired_in = session_id

    def current(self, *, deadline: Deadline | None = None) -> Node | None:
        """The node as it is at ``path`` now, whoever owns it."""
        return self._nodes.get(self._path, deadline=deadline)

    def is_ours(self, node: Node) -> bool:
        ours = node.owner == self._session.session_id
        return ours and (not self._unique or node.data == self._data)

    def release(self) -> None:
        """Let the node go, and guard it no more; does nothing when it is not ours."""
        self._guard.cancel()

        def attempt(deadline: Deadline) -> None:
            node = self.current(deadline=deadline)
            if node is not None and self.is_ours(node):
                delete = Delete(self._path, node.version)
                self._nodes.transact(self._to_release, [delete], deadline=deadline)

        self._nodes.repeat(self._to_release, attempt)
