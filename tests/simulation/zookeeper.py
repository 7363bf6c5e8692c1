"""ZooKeeper in memory, and sessions with it that lose requests and replies.

``Tree`` has what brokers use of ZooKeeper: versions, transactions, ephemeral nodes. ``Client``
offers it as kazoo does, so that everything above kazoo is the real code.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
)

from spark_logbus.clock import Clock
from spark_logbus.errors import CoordinationError
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper import SessionState
from spark_logbus.zookeeper.access import Access
from spark_logbus.zookeeper.session import ReplyLostError
from spark_logbus.zookeeper.unreadable import UnreadableNodes

_TIMEOUT_MS = 15_000


class Entry(NamedTuple):
    """A node, with the fields that kazoo has of its state."""

    data: bytes
    version: int
    ephemeralOwner: int
    czxid: int
    mzxid: int


class Tree:
    """All nodes by path. ``late`` are transactions whose senders have given them up, and that are
    still on their way."""

    def __init__(self) -> None:
        self.nodes: dict[str, Entry] = {}
        self.sessions: set[int] = set()
        self.late: list[tuple[int, Sequence[Change]]] = []
        self._last = 0

    def begin_session(self) -> int:
        self._last += 1
        self.sessions.add(self._last)
        return self._last

    def expire(self, session: int) -> None:
        self.sessions.discard(session)
        for path, entry in list(self.nodes.items()):
            if entry.ephemeralOwner == session:
                del self.nodes[path]

    def arrive(self) -> None:
        """Performs the oldest of the late transactions, if its session is there still."""
        session, changes = self.late.pop(0)
        if session in self.sessions:
            self.perform(changes)

    def put(self, path: str, data: bytes = b"", *, owner: int = 0) -> None:
        """Makes or replaces a node and those above it."""
        above = path.rpartition("/")[0]
        if above and above not in self.nodes:
            self.put(above)
        self._last += 1
        self.nodes[path] = Entry(data, 0, owner, self._last, self._last)

    def children(self, path: str) -> list[str]:
        start = f"{path}/"
        names = [each[len(start) :] for each in self.nodes if each.startswith(start)]
        return sorted(each for each in names if "/" not in each)

    def perform(self, changes: Sequence[Change]) -> list[object]:
        """Performs all changes or none; returns the outcome of each."""
        before = dict(self.nodes)
        self._last += 1
        for number, change in enumerate(changes):
            failure = self._apply(change)
            if failure is not None:
                self.nodes = before
                outcomes: list[object] = [RolledBackError() for _ in changes]
                outcomes[number] = failure
                return outcomes
        return [True for _ in changes]

    def _apply(self, change: Change) -> KazooException | None:
        now = self.nodes.get(change.path)
        if change.kind == "create":
            if now is not None:
                return NodeExistsError()
            if change.path.rpartition("/")[0] not in self.nodes:
                return NoNodeError()
            self.nodes[change.path] = Entry(change.data, 0, change.owner, self._last, self._last)
            return None
        if now is None:
            return NoNodeError()
        if change.version not in (-1, now.version):
            return BadVersionError()
        if change.kind == "delete":
            del self.nodes[change.path]
        elif change.kind == "set":
            self.nodes[change.path] = now._replace(
                data=change.data, version=now.version + 1, mzxid=self._last
            )
        return None


class Change(NamedTuple):
    kind: str
    path: str
    data: bytes = b""
    version: int = -1
    owner: int = 0


class Done:
    """A reply of kazoo's that is there already."""

    def __init__(self, value: object, exception: KazooException | None = None) -> None:
        self._value = value
        self.exception = exception

    def wait(self, timeout: float) -> None:
        pass

    def get(self, timeout: float = 0.0) -> object:
        if self.exception is not None:
            raise self.exception
        return self._value

    get_nowait = get


class Client:
    """The requests of kazoo's client. ``late``: transactions are not performed now, but kept on
    their way."""

    def __init__(self, tree: Tree, session: int, *, late: bool) -> None:
        self._tree, self._session, self._late = tree, session, late
        self._changes: list[Change] = []

    def get_async(self, path: str, watch: object = None) -> Done:
        entry = self._tree.nodes.get(path)
        return Done(None, NoNodeError()) if entry is None else Done((entry.data, entry))

    def exists_async(self, path: str, watch: object = None) -> Done:
        return Done(self._tree.nodes.get(path))

    def get_children_async(self, path: str, watch: object = None) -> Done:
        there = path in self._tree.nodes
        return Done(self._tree.children(path)) if there else Done(None, NoNodeError())

    def sync_async(self, path: str) -> Done:
        return Done(path)

    def ensure_path_async(self, path: str, acl: object = None) -> Done:
        if path not in self._tree.nodes:
            self._tree.put(path)
        return Done(path)

    def transaction(self) -> Client:
        return self

    def create(
        self, path: str, data: bytes, *, acl: object = None, ephemeral: bool = False
    ) -> None:
        self._changes.append(Change("create", path, data, owner=self._session * ephemeral))

    def set_data(self, path: str, data: bytes, version: int) -> None:
        self._changes.append(Change("set", path, data, version))

    def delete(self, path: str, version: int) -> None:
        self._changes.append(Change("delete", path, version=version))

    def check(self, path: str, version: int) -> None:
        self._changes.append(Change("check", path, version=version))

    def commit_async(self) -> Done:
        if self._late:
            self._tree.late.append((self._session, self._changes))
            return Done([])
        return Done(self._tree.perform(self._changes))


class Fate(enum.Enum):
    """Fate of a transaction."""

    ANSWERED = "answered"
    REPLY_LOST = "its reply is lost"
    LOST = "it is lost"
    LATE = "it comes when its sender has given it up"


class Others(Protocol):
    """Brokers and others that act while a session waits."""

    def pause(self) -> None:
        """Lets others act; raises PowerCutError if the caller did not live through it."""

    def fate(self) -> Fate: ...


class SimulatedSession:
    """Stands in for ``Session``: the broker's session with the tree. ``cut`` tells if there is no
    connection just now."""

    def __init__(
        self, broker_id: int, tree: Tree, others: Others, clock: Clock, cut: Callable[[], bool]
    ) -> None:
        self.clock = clock
        self.connect = SimpleNamespace(chroot="", servers="simulated")
        self.access = Access()
        self.unreadable = UnreadableNodes()
        self.session_timeout_ms = self.granted_ms = 6_000
        self.client_name = f"broker-{broker_id}"
        self.tree, self._others, self._cut = tree, others, cut
        self.session_id = tree.begin_session()

    def renew(self) -> None:
        """Begins a session in the place of one that has expired."""
        self.session_id = self.tree.begin_session()

    def add_listener(self, f: object) -> None:
        pass

    set_state_hook = add_reconnect_hook = add_listener

    @property
    def is_lost(self) -> bool:
        return self.session_id not in self.tree.sessions

    @property
    def state(self) -> SessionState:
        if self._cut():
            return SessionState.SUSPENDED
        return SessionState.LOST if self.is_lost else SessionState.CONNECTED

    def deadline(self) -> Deadline:
        return Deadline.after_ms(self.clock, _TIMEOUT_MS)

    def call(
        self, description: str, submit: Callable[[Any], Any], _: Deadline, *, check: bool = False
    ) -> Any:
        self._others.pause()
        if self.state is not SessionState.CONNECTED:
            raise CoordinationError(f"ZooKeeper does not answer ({description}).")
        fate = self._others.fate() if check else Fate.ANSWERED
        reply = None
        if fate is not Fate.LOST:
            reply = submit(Client(self.tree, self.session_id, late=fate is Fate.LATE))
        self._others.pause()
        if fate is not Fate.ANSWERED or reply is None or (check and self._cut()):
            raise ReplyLostError(f"The connection to ZooKeeper broke ({description}).")
        return reply.get(0.0)
