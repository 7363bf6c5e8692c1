"""Who waits for the high watermark: appends for their flush, fetches for news."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable

from spark_logbus.errors import LogbusError

logger = logging.getLogger(__name__)

OnFlushed = Callable[[LogbusError | None], None]
Listener = Callable[[], None]


class Waiters:
    """Callbacks of appends, by end offset. Not thread-safe: the log holds its lock around it."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, OnFlushed]] = []
        self._numbers = itertools.count()  # keeps callbacks from being compared

    def add(self, end_offset: int, callback: OnFlushed) -> None:
        heapq.heappush(self._heap, (end_offset, next(self._numbers), callback))

    def take(self, high_watermark: int | None) -> list[OnFlushed]:
        """Remove and return those that a high watermark serves; with None, all."""
        taken = []
        while self._heap and (high_watermark is None or self._heap[0][0] <= high_watermark):
            taken.append(heapq.heappop(self._heap)[2])
        return taken


def call_back(callbacks: list[OnFlushed], error: LogbusError | None) -> None:
    """Call all; one that raises does not keep the others waiting."""
    for callback in callbacks:
        try:
            callback(error)
        except Exception:
            logger.exception("A callback for a flushed append failed.")


def call_listeners(listeners: tuple[Listener, ...]) -> None:
    for listener in listeners:
        try:
            listener()
        except Exception:
            logger.exception("A listener for the high watermark failed.")
