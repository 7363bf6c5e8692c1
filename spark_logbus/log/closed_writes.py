"""Atomic writes for which nothing is to be staged any more."""

from __future__ import annotations

import threading
from typing import Final

# Attempts of tasks that lag behind do so for minutes at most; a write a millisecond is a lot.
_REMEMBERED: Final = 10_000


class ClosedWrites:
    """Writes that are decided or aborted, the last of them, in a data directory. Thread-safe.

    What an attempt of a task that does not count, and does not know it yet, would stage for one of
    them would lie there until it expires.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes: dict[int, None] = {}  # in the order in which they ended

    def add(self, write: int) -> None:
        with self._lock:
            self._writes.pop(write, None)
            self._writes[write] = None
            if len(self._writes) > _REMEMBERED:
                del self._writes[next(iter(self._writes))]

    def __contains__(self, write: int) -> bool:
        return write in self._writes
