"""A clock that a test moves."""

from __future__ import annotations

SECOND = 1_000_000


NOW_US = 1_800_000_000 * SECOND


class ManualClock:
    """Time that passes only when a test says so."""

    def __init__(self, *, wall_us: int = NOW_US) -> None:
        self.wall_us = wall_us
        self.seconds = 1000.0

    def now_us(self) -> int:
        return self.wall_us

    def now_ns(self) -> int:
        return self.wall_us * 1000

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.wall_us += int(seconds * SECOND)
        self.seconds += seconds

    def jump(self, seconds: float) -> None:
        """The wall clock is set; no time passes."""
        self.wall_us += int(seconds * SECOND)
