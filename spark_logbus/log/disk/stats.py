"""Counters and refusals of all logs of a data directory."""

from __future__ import annotations

from spark_logbus.log.disk.refused_writes import RefusedWrites
from spark_logbus.metrics import Counter, Histogram


class LogStats:
    """Counters that all logs of a data directory share. Thread-safe."""

    def __init__(self) -> None:
        #: Seconds that each successful flush of a segment took.
        self.flushes = Histogram()
        #: Taken out of logs by retention.
        self.expired_segments = Counter()
        self.expired_bytes = Counter()
        #: Writes whose staged records were dropped because nobody committed them in time.
        self.staged_expired = Counter()
        #: Logs whose disk refuses what is appended.
        self.refused = RefusedWrites()
