"""What the logs of one data directory have done, for whoever watches the broker."""

from __future__ import annotations

from typing import NamedTuple

from spark_logbus.meters import Counter, Histogram


class LogStats:
    """Shared by all logs of a data directory. Thread-safe."""

    def __init__(self) -> None:
        #: Seconds that each successful flush of a segment took.
        self.flushes = Histogram()
        #: What retention has taken out of logs.
        self.retired_segments = Counter()
        self.retired_bytes = Counter()


class AppendTotals(NamedTuple):
    """What was appended to one log since it was opened."""

    record_batches: int
    records: int
    size_bytes: int
