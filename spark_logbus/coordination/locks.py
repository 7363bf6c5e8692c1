"""A lock that at most one session holds, and that goes when the session does."""

from __future__ import annotations

import uuid
from typing import Self

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import LockPayload, decode, encode
from spark_logbus.errors import LockHeldError
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Create, Delete
from spark_logbus.zookeeper.unreadable import CorruptNodeError


class Lock:
    """A named lock; a context manager. Use from one thread at a time.

    It does not wait: whoever comes second gets LockHeldError, which names the holder. The node is
    ephemeral, so a holder that dies lets go when its session expires. A holder whose session
    expired while it was busy does not notice by itself: call ``check`` before the step that must
    not be done twice.
    """

    def __init__(self, session: Session, name: str, *, holder: str) -> None:
        self._session = session
        self._tree = Nodes(session)
        self._name = name
        self._holder = holder
        self._path = paths.lock(name)
        self._data = b""  # of our node, once there is one; tells it from another Lock's here

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        self._tree.ensure(paths.LOCKS)
        self._data = encode(
            LockPayload(
                name=self._name,
                holder=self._holder,
                since_us=self._session.clock.now_us(),
                token=uuid.uuid4().hex,
            )
        )

        def step(deadline: Deadline) -> Node | None:
            node = self._tree.get(self._path, deadline=deadline)
            if node is None:
                create = Create(self._path, self._data, ephemeral=True)
                self._tree.transact(f"lock {self._name}", [create], deadline=deadline)
            elif not self._is_ours(node):
                return node
            return None

        other = self._tree.repeat(f"lock {self._name}", step)
        if other is not None:
            raise self._held(other)

    def check(self) -> None:
        """LockHeldError unless this session still holds the lock."""
        node = self._tree.get(self._path)
        if node is None or not self._is_ours(node):
            raise self._held(node)

    def release(self) -> None:
        """Let go; does nothing when the lock is not held (any more)."""

        def step(deadline: Deadline) -> None:
            node = self._tree.get(self._path, deadline=deadline)
            if node is not None and self._is_ours(node):
                delete = Delete(self._path, node.version)
                self._tree.transact(f"unlock {self._name}", [delete], deadline=deadline)

        self._tree.repeat(f"unlock {self._name}", step)

    def _is_ours(self, node: Node) -> bool:
        return node.owner == self._session.session_id and node.data == self._data

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
