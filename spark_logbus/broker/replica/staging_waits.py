"""Waits until what is staged is on the disks of all replicas in sync.

A staged record batch that the leader alone has is gone with the leader, and its write with it. So
it is acknowledged as what is appended to be replicated is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from spark_logbus.errors import LogbusError

OnStaged = Callable[[LogbusError | None], None]


class _Waiting(NamedTuple):
    size_bytes: int
    callback: OnStaged


class StagingWaits:
    """Callbacks for what is staged of one partition in one leader epoch, by write. Thread-safe;
    callbacks must not block. ``is_there`` tells if so many bytes of a write are on the disks of
    all replicas in sync, or the write is over: it is called with a lock held.
    """

    def __init__(self, is_there: Callable[[int, int], bool]) -> None:
        self._is_there = is_there
        self._lock = threading.Lock()
        self._waiting: dict[int, list[_Waiting]] = {}
        self._ended: LogbusError | None = None

    def wait(self, write: int, size_bytes: int, callback: OnStaged) -> None:
        """Call back when so much of the write is there."""
        with self._lock:
            self._waiting.setdefault(write, []).append(_Waiting(size_bytes, callback))
        # After it was added, so that nothing is told unnoticed in between.
        self.look()

    def look(self) -> None:
        """Call back those whose condition holds by now."""
        if not self._waiting:
            return
        done: list[OnStaged] = []
        with self._lock:  # all the while: what is told meanwhile is looked at after this
            ended, left = self._ended, dict[int, list[_Waiting]]()
            for write, some in self._waiting.items():
                for each in some:
                    if ended is None and not self._is_there(write, each.size_bytes):
                        left.setdefault(write, []).append(each)
                    else:
                        done.append(each.callback)
            self._waiting = left
        for callback in done:
            callback(None if ended is None else ended.again())

    def end(self, error: LogbusError) -> None:
        """Call back all with an ``error``, now and from now on."""
        self._ended = error
        self.look()
