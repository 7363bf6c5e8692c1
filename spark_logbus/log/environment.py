"""Collaborators and counters that all logs of a data directory share."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spark_logbus.clock import Clock
from spark_logbus.log.closed_writes import ClosedWrites
from spark_logbus.log.disk.filesystem import FileSystem, is_for_want_of_descriptors
from spark_logbus.log.flusher import FlushScheduler
from spark_logbus.log.guarded_clock import JumpGuardedClock
from spark_logbus.log.producers.states import ProducerCount
from spark_logbus.log.refused_writes import RefusedWrites
from spark_logbus.log.segment.segment import OpenSegments
from spark_logbus.log.staging.writer_runs import WriterRuns
from spark_logbus.metrics import Counter, Histogram
from spark_logbus.model import TopicPartition

HighWatermarkRule = Callable[[TopicPartition, int], int]
"""The broker's say in how far consumers see: from a partition and the end of what is safe in its
log here, the high watermark. Called with locks of the log held, so it must not block."""


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """One for each data directory."""

    files: FileSystem
    clock: Clock
    time: JumpGuardedClock
    flusher: FlushScheduler
    pool: OpenSegments
    producers: ProducerCount
    stats: LogStats
    closed_writes: ClosedWrites
    writer_runs: WriterRuns
    watermark: HighWatermarkRule


class LogStats:
    """Shared by all logs of a data directory. Thread-safe."""

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
        """A write of ``size_bytes`` for a partition failed in ``directory`` at the monotonic time
        ``now``."""
        if is_for_want_of_descriptors(error):
            return  # it is no disk's doing
        self.refused.note(topic_partition, directory, error, size_bytes=size_bytes, now=now)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            self._full_at = now

    def disk_was_full(self, *, since: float) -> bool:
        """True if a write has failed for want of room since the monotonic time."""
        return self._full_at >= since
