"""Bounds how much is copied from leaders in a second."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from spark_logbus.clock import Clock

# What may be copied at once after a pause: a tenth of a second's worth.
_BURST_S: Final = 0.1


class Throttle:
    """A bound on bytes per second, over all that is copied. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rate = 0
        self._left = 0.0
        self._at = clock.monotonic()

    def limit(self, rates: Iterable[int]) -> None:
        """Sets the bound to the smallest of the rates; 0 is none."""
        rate = min((each for each in rates if each > 0), default=0)
        with self._lock:
            self._refill()
            self._rate = rate
            self._left = min(self._left, rate * _BURST_S)

    def allowance(self) -> int | None:
        """Returns how many bytes may be copied now, 0 or fewer if none; None without a bound."""
        with self._lock:
            self._refill()
            return int(self._left) if self._rate else None

    def wait_s(self, size_bytes: int) -> float:
        """Returns the seconds until so many bytes may be copied, or as many as ever at once."""
        with self._lock:
            self._refill()
            if not self._rate:
                return 0.0
            wanted = min(size_bytes, self._rate * _BURST_S)
            return max(0.0, (wanted - self._left) / self._rate)

    def copied(self, size_bytes: int) -> None:
        """Notes what was copied; more than was allowed counts against what comes next."""
        with self._lock:
            self._refill()
            if self._rate:
                self._left -= size_bytes

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._left = min(self._left + (now - self._at) * self._rate, self._rate * _BURST_S)
        self._at = now
