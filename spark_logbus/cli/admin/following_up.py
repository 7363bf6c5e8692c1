"""Waits for brokers to follow what was written for them, a partition at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeVar

from spark_logbus.clock import SystemClock

_WITHIN_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.2
_Row = TypeVar("_Row")


def not_followed(
    rows: Iterable[_Row], look: Callable[[Collection[_Row]], Collection[_Row]]
) -> list[_Row]:
    """Waits until all rows are followed; returns those that are not in time. ``look`` returns those
    of the rest that are by now, and says so."""
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + _WITHIN_S
    left = list(rows)
    while left and clock.monotonic() < deadline:
        for row in look(left):
            left.remove(row)
        if left:
            pause.wait(_LOOK_EVERY_S)
    return left
