"""A lock that at most one session holds, and that goes when the session does."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Self

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import LockPayload, decode, encode
from spark_logbus.coordination.process_identity import is_gone, this_process
from spark_logbus.errors import LockHeldError
from spark_logbus.zookeeper.ephemeral import EphemeralNode
from spark_logbus.zookeeper.nodes import ConflictError, Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Delete
from spark_logbus.zookeeper.unreadable import CorruptNodeError


class Lock:
    """A named lock; a context manager. Use from one thread at a time.

    It does not wait: whoever comes second gets LockHeldError, which names the holder. The node is
    ephemeral, so a holder that dies lets go when its session expires; one that was killed on this
    machine is seen to be gone, and followed at once. A holder whose session expired while it was
    busy does not notice by itself: call ``check`` before the step that must not be done twice.
    """

    def __init__(self, session: Session, name: str, *, holder: str) -> None:
        self._session = session
        self._name = name
        self._holder = holder
        self._path = paths.lock(name)
        self._node: EphemeralNode | None = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        """LockHeldError when another has it. Taken again after its session was lost, it may find
        its own node of before, which ZooKeeper has not removed yet; that is in nobody's way."""
        if self._node is None:
            self._node = self._new_node()
        other = self._node.try_acquire()
        if other is not None and self._is_abandoned(other):
            self._remove(other)
            other = self._node.try_acquire()
        if other is not None:
            raise self._held(other)

    def _new_node(self) -> EphemeralNode:
        payload = LockPayload(
            name=self._name,
            holder=self._holder,
            since_us=self._session.clock.now_us(),
            token=uuid.uuid4().hex,
            process=this_process(),
        )
        return EphemeralNode(
            Nodes(self._session),
            self._path,
            encode(payload),
            to_acquire=f"lock {self._name}",
            to_release=f"unlock {self._name}",
            unique=True,  # two locks of one session exclude each other
        )

    def _is_abandoned(self, node: Node) -> bool:
        with suppress(CorruptNodeError):
            return is_gone(decode(LockPayload, node.data, path=self._path).process)
        return False

    def _remove(self, node: Node) -> None:
        """Should the node have expired this very moment, and somebody else have taken the lock,
        that one finds out by ``check``, as with a session that expired."""
        with suppress(ConflictError):
            Nodes(self._session).transact(
                f"unlock {self._name}",
                [Delete(self._path, node.version)],
                deadline=self._session.deadline(),
            )

    def check(self) -> None:
        """LockHeldError unless this session still holds the lock."""
        node = None if self._node is None else self._node.current()
        if self._node is None or node is None or not self._node.is_ours(node):
            raise self._held(node)

    def release(self) -> None:
        """Let go; does nothing when the lock is not held (any more)."""
        if self._node is not None:
            self._node.release()

    def _held(self, node: Node | None) -> LockHeldError:
        if node is None:
            return LockHeldError(
                f"The lock {self._name!r} was lost with its ZooKeeper session; start over."
            )
        try:
            holder = decode(LockPayload, node.data, path=self._path).holder
        except CorruptNodeError:
            holder = "an unreadable entry"
        return LockHeldError(
            f"{self._name!r} is locked by {holder}. Wait until that one has ended; if it was "
            "killed, its lock goes within its session timeout."
        )
