"""The time that deleting goes by: it does not believe a clock that jumps.

Deleting cannot be undone, and what is deleted by age is deleted by the machine's clock. So the
clock is held against the time that it is expected to show: what it showed last, and what has
passed since by a clock that never jumps. Across restarts, what it showed last stands in the data
directory (see ``clock_file``).

* A minute off is no jump; the clock is followed.
* Up to a day, it is believed after it has lasted for an hour. A start that finds the clock that
  far ahead believes it at once: the broker was not running.
* More than a day is refused, until the clock comes back or an operator says that it is right.

While it is not believed, ages count by the earlier of the two times, and what is appended is
stamped with the later. So whichever is right, nothing goes too early.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from spark_logbus.clock import Clock, SystemClock, elapsed


class ClockJump(NamedTuple):
    """A clock that is refused: what it shows, and what it is expected to show."""

    shown_us: int
    expected_us: int


class JumpGuardedClock:
    """Clock that does not believe jumps. Thread-safe.

    ``now_us`` is to be called every few seconds at least while it counts.
    """

    CONFIRM_S: Final = 3600.0
    TOLERANCE_US: Final = 60_000_000
    LARGEST_US: Final = 86_400_000_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A machine that slept has not jumped.
        self._passed: Callable[[], float] = (
            elapsed if isinstance(clock, SystemClock) else clock.monotonic
        )
        self._lock = threading.Lock()
        self._trusted_us = clock.now_us()
        self._seen = self._passed()
        self._off_since: float | None = None
        self._ahead = False
        self._floor_us = 0
        #: Why ages do not count by the clock; None while they do, or will within the hour.
        self.jump: ClockJump | None = None

    def resume(self, last_seen_us: int) -> None:
        """Go on from the time that an earlier run has seen last; before anything else."""
        with self._lock:
            ahead_us = self._clock.now_us() - last_seen_us
            if not 0 <= ahead_us <= self.LARGEST_US:
                self._trusted_us, self._seen = last_seen_us, self._passed()
        self.now_us()

    def accept(self) -> None:
        """Believe the clock, for an operator says that it is right."""
        with self._lock:
            self._trusted_us, self._seen = self._clock.now_us(), self._passed()
        self.now_us()

    @property
    def believed(self) -> bool:
        """True while the clock shows what it is expected to show, as of the last look at it. What
        brokers forget together, in ZooKeeper, nobody forgets meanwhile: others may be right."""
        with self._lock:
            return self.jump is None and self._off_since is None

    @property
    def trusted_us(self) -> int:
        """The time that an honest clock shows, as far as is known; to be kept for the next run."""
        with self._lock:
            return self._trusted_us

    def now_us(self) -> int:
        """The time by which ages count: never later than the time that is believed."""
        with self._lock:
            shown_us, passed = self._clock.now_us(), self._passed()
            expected_us = self._trusted_us + int((passed - self._seen) * 1_000_000)
            self._seen = passed
            off_us = shown_us - expected_us
            self._trusted_us = shown_us if self._believes(off_us) else expected_us
            refused = abs(off_us) > self.LARGEST_US
            self.jump = ClockJump(shown_us, expected_us) if refused else None
            self._floor_us = self._trusted_us if shown_us < self._trusted_us else 0
            return min(shown_us, self._trusted_us)

    def stamp_us(self) -> int:
        """The time to write down for what happens now: by no time that may yet come to be
        believed is it older than it is. Costs little more than a look at the clock."""
        return max(self._clock.now_us(), self._floor_us)

    def _believes(self, off_us: int) -> bool:
        """True if a clock that is so far off the expected time is to be followed."""
        if abs(off_us) <= self.TOLERANCE_US:
            self._off_since = None
            return True
        if abs(off_us) > self.LARGEST_US:
            self._off_since = None
            return False
        if self._off_since is None or self._ahead != (off_us > 0):
            self._off_since, self._ahead = self._seen, off_us > 0
        if self._seen - self._off_since < self.CONFIRM_S:
            return False
        self._off_since = None
        return True
