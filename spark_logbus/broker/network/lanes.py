"""Keeps some threads free of slow disks."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """How many threads may send from segments at a time. Thread-safe.

    Sending what is not in the page cache waits for the disk. With fewer lanes than threads,
    however many readers of old records there are, some threads are left for everyone else.
    Who finds no lane is left here, and the next thread that is done goes on with it.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._parked: deque[T] = deque()

    def enter(self, one: T) -> bool:
        """True: send, then ``leave``. False: ``one`` is parked, and the caller is done with it."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            self._parked.append(one)
            return False

    def leave(self) -> T | None:
        """Give the lane back; or get the next parked one to send for, and then ``leave`` again."""
        with self._lock:
            if self._parked:
                return self._parked.popleft()
            self._free += 1
            return None

    def clear(self) -> list[T]:
        """Take out all that are parked."""
        with self._lock:
            parked = list(self._parked)
            self._parked.clear()
        return parked
