"""Time, as everything in logbus sees it; injected, so that tests own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """Wall time in microseconds since the Unix epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never jumps. For timers and deadlines."""
        ...


class SystemClock:
    """The machine's clock. Thread-safe, stateless."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()
