"""A heap of things that become due."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class DueHeap(Generic[T]):
    """Things, each due at a number: a time, or an offset that is to be reached. Not thread-safe.

    Those of one number become due in the order in which they were added. Nothing can be taken out
    before its number but all at once: who cancels keeps a note of what still counts.
    """

    def __init__(self, things: Iterable[tuple[float, T]] = ()) -> None:
        self._order = itertools.count()  # keeps things from being compared
        self._heap = [(due, next(self._order), thing) for due, thing in things]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first_due(self) -> float:
        """Time at which the next one is due; infinity if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, due: float, thing: T) -> None:
        heapq.heappush(self._heap, (due, next(self._order), thing))

    def pop_due(self, now: float) -> tuple[float, T] | None:
        """The next one, and when it was due; None if none is due by ``now``."""
        if not self._heap or self._heap[0][0] > now:
            return None
        due, _, thing = heapq.heappop(self._heap)
        return due, thing

    def clear(self) -> None:
        self._heap.clear()
