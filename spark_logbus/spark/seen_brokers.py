"""The brokers that answered when a DataFrame was made, which its stream asks first.

Spark hands the source that has told its columns on, pickled, to the process that plans a stream.
That process begins with its imports, and ZooKeeper's client is a third of logbus's own. So where a
stream starts soon after its ``load()``, it goes to the brokers that have told the columns, and to
ZooKeeper only if none of them answers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_logbus.clock import Clock, SystemClock

MAX_AGE_US: Final = 30_000_000
"""A stream is mostly started in the same cell or the next line. The longer ago it was, the less is
to be said for these addresses: another cluster may have them."""


class SeenBrokers(NamedTuple):
    """Hosts and ports, and when they were seen, in µs since 1970. Picklable."""

    addresses: tuple[tuple[str, int], ...]
    at_us: int

    def are_fresh(self, clock: Clock | None = None) -> bool:
        """True if they were seen just now, by a clock that has not been set back since."""
        return 0 <= (clock or SystemClock()).now_us() - self.at_us <= MAX_AGE_US
