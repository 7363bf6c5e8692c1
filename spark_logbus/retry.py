"""Deadlines, and when to try again: pure, the callers wait."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from spark_logbus.clock import Clock
from spark_logbus.errors import LogbusError


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a monotonic clock. Immutable."""

    clock: Clock
    at: float

    @classmethod
    def after_ms(cls, clock: Clock, milliseconds: float) -> Deadline:
        return cls(clock, clock.monotonic() + milliseconds / 1000)

    def sooner_ms(self, milliseconds: float) -> Deadline:
        """This deadline, or ``milliseconds`` from now if that comes first."""
        return Deadline(self.clock, min(self.at, self.clock.monotonic() + milliseconds / 1000))

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.at - self.clock.monotonic())

    @property
    def expired(self) -> bool:
        return self.clock.monotonic() >= self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The pauses between tries: doubling from ``first_ms`` up to ``max_ms``, each shortened at
    random by up to half, so that clients that failed together do not come back together."""

    first_ms: int
    max_ms: int
    jitter: Callable[[], float] = random.random

    def pause_s(self, failures: int) -> float:
        """Pause after the ``failures``-th failure in a row (from 1)."""
        full = min(self.max_ms, self.first_ms << min(failures - 1, 20))
        return full * (1 - self.jitter() / 2) / 1000


def gave_up(
    what: str, seconds: float, last: LogbusError, *, usual: str | None = None
) -> LogbusError:
    """The error to raise when the tries are over: of the last failure's kind.

    ``usual`` is what most tries failed with: a last try that had little time left says less.
    """
    mostly = f" Before that, mostly: {usual}" if usual not in (None, str(last)) else ""
    return type(last)(
        f"{what} did not succeed within {seconds:.1f} s; last failure: {last}{mostly}"
    )
