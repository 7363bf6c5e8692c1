"""Deadlines, backoff, and waiting out passing faults.

Spark ends a streaming query at the first exception of its source. A broker that restarts or a
ZooKeeper session that is suspended for a moment must not do that: see ``RetryPolicy``.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from spark_logbus.clock import Clock, SystemClock
from spark_logbus.errors import LogbusError, ZooKeeperAddressError

logger = logging.getLogger(__name__)

T = TypeVar("T")

# For a cluster that has not answered once: its address may be wrong.
_FIRST_CONTACT_S: Final = 30.0
# Where nothing that can be ZooKeeper is at the address: the time that its restart takes.
_WRONG_ADDRESS_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a monotonic clock. Immutable."""

    clock: Clock
    at: float
    #: Its length when it was set, for messages.
    timeout_ms: float

    @classmethod
    def after_ms(cls, clock: Clock, milliseconds: float) -> Deadline:
        return cls(clock, clock.monotonic() + milliseconds / 1000, milliseconds)

    def sooner_ms(self, milliseconds: float) -> Deadline:
        """This deadline, or ``milliseconds`` from now if that comes first."""
        sooner = Deadline.after_ms(self.clock, milliseconds)
        return sooner if sooner.at < self.at else self

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.at - self.clock.monotonic())

    @property
    def expired(self) -> bool:
        return self.clock.monotonic() >= self.at


def no_jitter() -> float:
    return 0.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Waits out passing faults, within a bound. Immutable; thread-safe."""

    #: Longer than a ZooKeeper session timeout plus a broker's restart; after it, the fault is
    #: not passing, and whoever runs the query should know.
    limit_s: float = 90.0
    #: The same for an address where no ZooKeeper is; None: no other than for all faults.
    address_limit_s: float | None = None
    backoff: Backoff = Backoff(first_ms=100, max_ms=2_000, jitter=no_jitter)
    clock: Clock = SystemClock()
    pause: Callable[[float], None] = time.sleep

    def at_first_contact(self) -> RetryPolicy:
        """Returns the policy towards a cluster that has not answered once."""
        return replace(
            self, limit_s=min(self.limit_s, _FIRST_CONTACT_S), address_limit_s=_WRONG_ADDRESS_S
        )

    def retry(self, action: str, attempt: Callable[[], T]) -> T:
        """``attempt`` until it succeeds. Connections mend themselves in between.

        An error that no later try can mend is raised at once, and the last one after the bound.
        A fault is logged when it is another one than the last.
        """
        started = self.clock.monotonic()
        failures = 0
        logged = ""
        while True:
            try:
                return attempt()
            except LogbusError as error:
                if not error.retriable:
                    raise
                failures += 1
                pause_s = self.backoff.pause_s(failures)
                waited_s = self.clock.monotonic() - started
                if waited_s + pause_s > self._limit_s(error):
                    raise type(error)(
                        f"{action} has failed for {waited_s:.0f} s; the last fault was: {error}"
                    ) from error
                if str(error) != logged:
                    logged = str(error)
                    logger.warning("%s failed and is tried again: %s", action, error)
            self.pause(pause_s)

    def _limit_s(self, error: LogbusError) -> float:
        if self.address_limit_s is not None and isinstance(error, ZooKeeperAddressError):
            return self.address_limit_s
        return self.limit_s


def gave_up(
    action: str, seconds: float, last: LogbusError, *, usual: str | None = None
) -> LogbusError:
    """The error to raise when the tries are over: of the last failure's kind.

    ``usual`` is what most tries failed with: a last try that had little time left says less.
    """
    mostly = f" Before that, mostly: {usual}" if usual not in (None, str(last)) else ""
    return type(last)(
        f"{action} did not succeed within {seconds:.1f} s; last failure: {last}{mostly}"
    )
