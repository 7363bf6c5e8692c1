"""Trying again after passing faults, within a bound.

Spark ends a streaming query at the first exception of its source. A broker that restarts or a
ZooKeeper session that is suspended for a moment must not do that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from spark_logbus.clock import Clock, SystemClock
from spark_logbus.errors import LogbusError, ZooKeeperAddressError

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_CONTACT_S = 30.0
"""How long to be patient with a cluster that has not answered once: its address may be wrong."""

WRONG_ADDRESS_S = 3.0
"""And how long when nothing that can be ZooKeeper is there: the time that its restart takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long, and how, a passing fault is waited out. Immutable; thread-safe."""

    limit_s: float = 90.0
    """Longer than a ZooKeeper session timeout plus a broker's restart; after it, the fault is
    not passing, and whoever runs the query should know."""

    address_limit_s: float | None = None
    """The same for an address where no ZooKeeper is; None: no other than for all faults."""

    first_pause_s: float = 0.1
    max_pause_s: float = 2.0
    clock: Clock = SystemClock()
    pause: Callable[[float], None] = time.sleep

    def at_first_contact(self) -> RetryPolicy:
        """For a cluster that has not answered once."""
        return replace(
            self, limit_s=min(self.limit_s, FIRST_CONTACT_S), address_limit_s=WRONG_ADDRESS_S
        )

    def run(self, what: str, attempt: Callable[[], T]) -> T:
        """``attempt`` until it succeeds. Connections mend themselves in between.

        An error that no later try can mend is raised at once, and the last one after the bound.
        A fault is logged when it is another one than the last.
        """
        started = self.clock.monotonic()
        pause_s = self.first_pause_s
        logged = ""
        while True:
            try:
                return attempt()
            except LogbusError as error:
                if not error.retriable:
                    raise
                waited_s = self.clock.monotonic() - started
                if waited_s + pause_s > self._limit_s(error):
                    raise type(error)(
                        f"{what} has failed for {waited_s:.0f} s; the last fault was: {error}"
                    ) from error
                if str(error) != logged:
                    logged = str(error)
                    logger.warning("%s failed and is tried again: %s", what, error)
            self.pause(pause_s)
            pause_s = min(self.max_pause_s, pause_s * 2)

    def _limit_s(self, error: LogbusError) -> float:
        if self.address_limit_s is not None and isinstance(error, ZooKeeperAddressError):
            return self.address_limit_s
        return self.limit_s
