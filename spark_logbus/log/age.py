"""How long an active segment has been appended to, by a clock that does not jump."""

from __future__ import annotations

from spark_logbus.clock import Clock
from spark_logbus.log.contents import NOTHING_APPENDED


class Age:
    """Time since the first append to a segment.

    A segment that was found at the start has its first append's wall time only. That is believed
    once, here, and within ``[0, limit_ms]``.
    """

    def __init__(self, clock: Clock, *, first_append_us: int, limit_ms: int) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        if first_append_us != NOTHING_APPENDED:
            age_us = min(max(clock.now_us() - first_append_us, 0), limit_ms * 1000)
            self._began -= age_us / 1_000_000

    def begin(self) -> None:
        """The first append is now."""
        self._began = self._clock.monotonic()

    def reaches(self, limit_ms: int) -> bool:
        return self._clock.monotonic() - self._began >= limit_ms / 1000
