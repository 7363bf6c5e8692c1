"""A queue of connection deadlines, for turns that no event gives."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

from spark_logbus.timers import DueHeap

T = TypeVar("T", bound=Hashable)

_SPARE_ENTRIES = 64  # outdated heap entries that are kept at most, beside as many as valid ones


class DeadlineQueue(Generic[T]):
    """Holds at most one time for each of many things, and gives out those that are due.
    Thread-safe.

    A thing that is forgotten is let go of at once, or nearly: outdated entries are cleared away
    before they outnumber the valid ones.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._times: dict[T, float] = {}
        self._heap: DueHeap[T] = DueHeap()
        self._closed = False

    def __len__(self) -> int:
        return len(self._times)

    def set(self, thing: T, at: float) -> None:
        """Have ``thing`` become due at ``at``, or earlier if that was wanted before."""
        with self._changed:
            if self._times.get(thing, math.inf) <= at:
                return
            self._times[thing] = at
            if len(self._heap) > 2 * len(self._times) + _SPARE_ENTRIES:
                self._heap = DueHeap((when, each) for each, when in self._times.items())
            else:
                self._heap.add(at, thing)
            if self._heap.first_due == at:
                self._changed.notify()

    def forget(self, thing: T) -> None:
        with self._changed:
            self._times.pop(thing, None)

    def take_due(self, now: float) -> list[T]:
        """The things whose time has come; they have none any more."""
        due = []
        with self._changed:
            while (entry := self._heap.pop_due(now)) is not None:
                at, thing = entry
                if self._times.get(thing) == at:
                    del self._times[thing]
                    due.append(thing)
        return due

    def wait(self, *, now: float, until: float) -> None:
        """Return when something is due, or at ``until``, or after ``close``; or earlier."""
        with self._changed:
            if self._closed:
                return
            self._changed.wait(max(0.0, min(self._heap.first_due, until) - now))

    def close(self) -> None:
        """Have nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
