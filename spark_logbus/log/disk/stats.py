"""Counters and refusals of all logs of a data directory."""

from __future__ import annotations

import errno
import math
from pathlib import Path

from spark_logbus.log.disk.filesystem import is_for_want_of_descriptors
from spark_logbus.log.disk.refused_writes import RefusedWrites
from spark_logbus.metrics import Counter, Histogram
from spark_logbus.model import TopicPartition


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
        self._full_at = -math.inf

    def note_write_error(
        self,
        topic_partition: TopicPartition,
        directory: Path,
        error: OSError,
        *,
        size_bytes: int,
        now: float,
    ) -> None:
        """Note that a write of ``size_bytes`` for a partition failed in ``directory`` at the
        monotonic time ``now``."""
        if is_for_want_of_descriptors(error):
            return  # it is no disk's doing
        self.refused.note(topic_partition, directory, error, size_bytes=size_bytes, now=now)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            self._full_at = now

    def disk_was_full(self, *, since: float) -> bool:
        """True if a write has failed for want of room since the monotonic time."""
        return self._full_at >= since
