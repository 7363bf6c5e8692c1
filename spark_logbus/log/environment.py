"""Collaborators that all logs of a data directory share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_logbus.clock import Clock
from spark_logbus.log.closed_writes import ClosedWrites
from spark_logbus.log.disk.filesystem import FileSystem
from spark_logbus.log.disk.flusher import FlushScheduler
from spark_logbus.log.disk.stats import LogStats
from spark_logbus.log.guarded_clock import JumpGuardedClock
from spark_logbus.log.producers.states import ProducerCount
from spark_logbus.log.segment.segment import OpenSegments
from spark_logbus.log.writer_runs import WriterRuns
from spark_logbus.model import TopicPartition

HighWatermarkRule = Callable[[TopicPartition, int], int]
"""Rule of the broker that gives the high watermark, from a partition and the end of what is durable
in its log here. Called with locks of the log held, so it must not block."""


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """Collaborators of the logs of one data directory."""

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
    #: Writes the checkpoint of all logs now; raises StorageError.
    write_checkpoint: Callable[[], None]
