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
        # In the order in which they ended, with the marks of those for whom they did.
        self._writes: dict[tuple[int, int | None], None] = {}

    def add(self, write: int, mark: int | None = None) -> None:
        """``mark``: of those who may stage nothing for it any more; None: nobody may."""
        with self._lock:
            self._writes.pop((write, mark), None)
            self._writes[write, mark] = None
            if len(self._writes) > _REMEMBERED:
                del self._writes[next(iter(self._writes))]

    def is_closed(self, write: int, mark: int | None) -> bool:
        return (write, None) in self._writes or (write, mark) in self._writes
