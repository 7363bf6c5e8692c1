"""The right to work on a connection, for one thread at a time, without waiting or lost calls."""

from __future__ import annotations

import threading
from typing import Protocol


class Arm(Protocol):
    def __call__(self, *, reads: bool, writes: bool) -> None:
        """Have the poller report, once, that the socket can do one of these. Must not block."""
        ...


class Strand:
    """The right to work on one connection. Thread-safe.

    The thread that has the turn may touch the connection. A thread that cannot get it leaves at
    once, and the one that has it looks again. So a connection that keeps a thread busy (a
    ``sendfile`` from a slow disk) never keeps a second one waiting.

    Born taken, by whoever makes the connection.
    """

    __slots__ = ("_again", "_arm", "_lock", "_over", "_taken")

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self._lock = threading.Lock()
        self._taken = True
        self._again = False
        self._over = False

    @property
    def taken(self) -> bool:
        """True if somebody works on the connection, as of a moment ago."""
        return self._taken

    def take(self) -> bool:
        """True: the turn is the caller's until ``give_back`` or ``end``. False: leave."""
        with self._lock:
            if self._over:
                return False
            if self._taken:
                self._again = True
                return False
            self._taken = True
            return True

    def call(self) -> None:
        """Have a turn begin after this, as something may have changed. Never blocks."""
        with self._lock:
            if self._taken:
                self._again = True
            elif not self._over:
                self._arm(reads=True, writes=True)

    def give_back(self, *, reads: bool, writes: bool) -> None:
        """End the turn; the next comes when the socket can do what is asked for, or at a call."""
        with self._lock:
            again, self._again = self._again, False
            self._taken = False
            # A call during the turn: a socket that can be written to gives the next at once, and
            # on one that cannot there is nothing to do before it can.
            self._arm(reads=reads or again, writes=writes or again)

    def end(self) -> None:
        """Give no turn ever again, nor use the socket's descriptor, which may be reused."""
        with self._lock:
            self._over = True
            self._taken = False
