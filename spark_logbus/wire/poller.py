"""A poller of many connections, which another thread can wake."""

from __future__ import annotations

import contextlib
import selectors
import socket
from typing import Generic, TypeVar

from spark_logbus.forks import follow_forks
from spark_logbus.wire.connection import BrokerConnection

T = TypeVar("T")


class Poller(Generic[T]):
    """Waits for connections, each known by an ``owner``. ``wake`` is thread-safe; the rest is for
    the thread that waits."""

    def __init__(self) -> None:
        self._open()
        follow_forks(self)

    def _open(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_end, self._wake_in = socket.socketpair()
        self._wake_end.setblocking(False)
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_end, selectors.EVENT_READ, None)
        self._awake = False

    def add(self, connection: BrokerConnection, owner: T) -> None:
        """Report ``owner`` when ``connection`` can be read."""
        self._selector.register(connection, selectors.EVENT_READ, owner)

    def update(self, connection: BrokerConnection) -> None:
        """Report when it can be written to as well, as long as it wants to write."""
        events = selectors.EVENT_READ
        if connection.wants_to_write:
            events |= selectors.EVENT_WRITE
        key = self._selector.get_key(connection)
        if key.events != events:
            self._selector.modify(connection, events, key.data)

    def remove(self, owner: T) -> None:
        """Forget the connections of ``owner``, which may be closed already."""
        for key in [key for key in self._selector.get_map().values() if key.data is owner]:
            self._selector.unregister(key.fileobj)

    def wait(self, timeout_s: float) -> list[T]:
        """The owners of connections that can go on; none after the timeout, or after a wake."""
        ready: list[T] = []
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._wake_end:
                self._drain_wakes()
            else:
                ready.append(key.data)
        return ready

    def wake(self) -> None:
        """End the wait that is under way, or else the next one."""
        if self._awake:
            return
        self._awake = True
        with contextlib.suppress(OSError):  # full: it wakes anyway; closed: nothing is left to do
            self._wake_in.send(b"\0")

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_end.recv(4096)
        # After the byte is gone, not before: or a wake in between would lose its byte and leave
        # the flag set, and no later one would get through. The waiter sees what a wake skipped
        # here has announced when this wait is over.
        self._awake = False

    def after_fork(self) -> None:
        """Begin anew without a connection: what is forgotten here would be forgotten for the
        parent, too."""
        self.close()
        self._open()

    def close(self) -> None:
        self._selector.close()
        self._wake_end.close()
        self._wake_in.close()
