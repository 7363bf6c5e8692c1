"""Views of ZooKeeper that keep themselves fresh.

A ZooKeeper watch fires once, says only that something changed, and dies with the connection.
So a view never trusts an event's content: an event marks a path as stale, and the session's
worker reads it again, setting the watch in the same request. What changes after the read
fires that watch; what changed before it is in the reply. Nothing is missed, though several
changes in a row may be seen as one. After every reconnection all of a view is stale.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from spark_logbus.errors import LogbusError
from spark_logbus.zookeeper.nodes import Node, Nodes, name_of, parent_of
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.states import SessionState
from spark_logbus.zookeeper.unreadable import CorruptNodeError

logger = logging.getLogger(__name__)

_RETRY_DELAY_MS = 1_000
_UNWATCHED_DELAY_MS = 5_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    """The paths that a refresh has to read again."""

    paths: frozenset[str] = frozenset()
    everything: bool = False
    new_session: bool = False  # callbacks are due even if nothing looks different
    first: bool = False

    def __bool__(self) -> bool:
        return bool(self.paths) or self.everything

    def __or__(self, other: Change) -> Change:
        return Change(
            paths=self.paths | other.paths,
            everything=self.everything or other.everything,
            new_session=self.new_session or other.new_session,
        )


class WatchedRefresh:
    """Runs ``refresh`` on the session's worker whenever something it read may have changed.

    Thread-safe; refreshes never overlap. One that fails is repeated: a second later, or
    when the connection is back.
    """

    def __init__(self, nodes: Nodes, description: str, refresh: Callable[[Change], None]) -> None:
        self._nodes = nodes
        self._session: Session = nodes.session
        self._description = description
        self._refresh = refresh
        self._running = threading.RLock()  # held through a refresh
        self._lock = threading.Lock()
        self._stale = Change()
        self._unwatched: set[str] = set()
        self._scheduled = False
        self._cancelled = False

    def start(self) -> None:
        """Refresh for the first time, on the caller's thread; raises what that raises."""
        self._session.add_reconnect_hook(self._reconnected)
        try:
            with self._running:
                self._refresh(Change(everything=True, first=True))
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """No refresh begins after this; a running one has ended when it returns."""
        self._session.remove_reconnect_hook(self._reconnected)
        with self._lock:
            self._cancelled = True
        with self._running:
            pass

    def watch(self, event: Any) -> None:
        """The watch to set with each read; kazoo's thread calls it."""
        if event.path is None:  # the connection broke, and took all watches with it
            self._invalidate(Change(everything=True))
        else:
            self._invalidate(Change(paths=frozenset([self._nodes.relative(event.path)])))

    def invalidate(self) -> None:
        """Refresh soon: something has changed that is not watched by it."""
        self._invalidate(Change(everything=True))

    def stale(self, paths: Iterable[str]) -> None:
        """Refresh these soon: nobody has read them yet."""
        self._invalidate(Change(paths=frozenset(paths)))

    def look_again(self, paths: Iterable[str]) -> None:
        """Refresh these after a while: they could not be watched."""
        with self._lock:
            waiting = bool(self._unwatched)
            self._unwatched.update(paths)
        if not waiting:
            self._session.worker.submit(self._look_again, delay_ms=_UNWATCHED_DELAY_MS)

    def _look_again(self) -> None:
        with self._lock:
            change = Change(paths=frozenset(self._unwatched))
            self._unwatched.clear()
        self._invalidate(change)

    def _reconnected(self, lost: bool) -> None:
        self._invalidate(Change(everything=True, new_session=lost))

    def _invalidate(self, change: Change) -> None:
        with self._lock:
            self._stale |= change
            if self._scheduled or self._cancelled:
                return
            self._scheduled = True
        self._session.worker.submit(self._run)

    def _run(self) -> None:
        with self._running:
            with self._lock:
                change, self._stale = self._stale, Change()
                self._scheduled = False
                if self._cancelled or not change:
                    return
                if self._session.state is not SessionState.CONNECTED:
                    self._stale = change  # the reconnect hook schedules the next run
                    return
            try:
                self._refresh(change)
            except LogbusError as failure:
                self._put_back(change, failure)

    def _put_back(self, change: Change, failure: LogbusError) -> None:
        if self._session.state is SessionState.CLOSED:
            return
        logger.warning(
            "The view of %s in ZooKeeper could not be refreshed and is tried again: %s",
            self._description,
            failure.message,
        )
        with self._lock:
            self._stale |= change
            if self._scheduled:
                return
            self._scheduled = True
        # What ZooKeeper does not let this session read is not asked for each second.
        delay_ms = _RETRY_DELAY_MS if failure.retriable else _UNWATCHED_DELAY_MS
        self._session.worker.submit(self._run, delay_ms=delay_ms)


class ChildrenView(Generic[T]):
    """All children of one node with their content, delivered whole at every change.

    ``decode`` gives the value of a child, or None for one that does not count. Reads only the
    children that are new or changed, except after a reconnection.

    A child that cannot be read or decoded costs nothing but itself: it is reported once, and its
    last good value, or what ``outdated`` makes of that, stays in force; one that never had one is
    left out.
    """

    def __init__(
        self,
        nodes: Nodes,
        parent: str,
        *,
        decode: Callable[[str, Node], T | None],
        deliver: Callable[[dict[str, T]], None],
        outdated: Callable[[T], T] = lambda last: last,
    ) -> None:
        self._nodes = nodes
        self._session = nodes.session
        self._parent = parent
        self._decode = decode
        self._deliver = deliver
        self._outdated = outdated
        self._names: list[str] = []
        self._values: dict[str, T | None] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._delivered: dict[str, T] | None = None
        self._refreshed = WatchedRefresh(nodes, parent, self._refresh)

    def start(self) -> None:
        self._refreshed.start()

    def cancel(self) -> None:
        self._refreshed.cancel()

    def _refresh(self, change: Change) -> None:
        names = self._names
        if change.everything or self._parent in change.paths:
            names = self._list()
        stale = {name_of(path) for path in change.paths if parent_of(path) == self._parent}
        wanted = [
            name for name in names if change.everything or name in stale or name not in self._values
        ]
        nodes = self._nodes.get_many(
            [f"{self._parent}/{name}" for name in wanted], watch=self._refreshed.watch
        )
        values = {name: self._values[name] for name in names if name in self._values}
        for name in wanted:
            node = nodes[f"{self._parent}/{name}"]
            if node is None:  # removed since; the watch on the parent fires, or has fired
                values.pop(name, None)
                self._seen.pop(name, None)
            elif self._seen.get(name) != node.changed or name not in values:
                values[name] = self._value(name, node)
                self._seen[name] = node.changed
        for name in self._names:
            if name not in names:
                self._session.unreadable.removed(f"{self._parent}/{name}")
        refused = [path for path, node in nodes.items() if node is not None and node.refused]
        if refused:
            self._refreshed.look_again(refused)
        self._names, self._values = names, values
        self._seen = {name: seen for name, seen in self._seen.items() if name in values}
        self._report(change)

    def _list(self) -> list[str]:
        while True:
            names = self._nodes.children(self._parent, watch=self._refreshed.watch)
            if names is not None:
                return names
            self._nodes.ensure(self._parent)

    def _value(self, name: str, node: Node) -> T | None:
        path = f"{self._parent}/{name}"
        try:
            value = self._decode(name, node)
        except CorruptNodeError as failure:
            last = self._values.get(name)
            instead = (
                "Nothing is done about it."
                if last is None
                else ("Its last good content stays in force.")
            )
            self._session.unreadable.met(path, failure, instead=instead)
            return None if last is None else self._outdated(last)
        self._session.unreadable.in_order(path)
        return value

    def _report(self, change: Change) -> None:
        current = {name: value for name, value in self._values.items() if value is not None}
        if current == self._delivered and not change.new_session:
            return
        self._delivered = current
        if change.first:
            self._deliver(dict(current))
            return
        try:
            self._deliver(dict(current))
        except Exception:
            logger.exception("The callback for a change of %s failed.", self._parent)
