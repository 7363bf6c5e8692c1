"""Time, as everything in logbus sees it; injected, so that tests own it."""

from __future__ import annotations

import time
from functools import partial
from time import time_ns
from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """Wall time in microseconds since the Unix epoch; may jump."""
        ...

    def now_ns(self) -> int:
        """Returns the same in nanoseconds, for callers that ask so often that a division would
        cost."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never jumps. For timers and deadlines."""
        ...


def elapsed() -> float:
    """Seconds from an arbitrary start, counted also while the machine sleeps where the system
    can tell (Linux); elsewhere as ``monotonic``."""
    return _elapsed()


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_elapsed = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)


class SystemClock:
    """The machine's clock. Thread-safe, stateless."""

    now_ns = staticmethod(time_ns)  # itself, without a call around it

    def now_us(self) -> int:
        return time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()
