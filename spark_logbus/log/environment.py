"""What all logs of a data directory share."""

from __future__ import annotations

from dataclasses import dataclass

from spark_logbus.clock import Clock
from spark_logbus.log.filesystem import FileSystem
from spark_logbus.log.flusher import FlushScheduler
from spark_logbus.log.producers import ProducerCount
from spark_logbus.log.segment import OpenSegments
from spark_logbus.log.stats import LogStats
from spark_logbus.log.steady_time import SteadyTime


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """One for each data directory."""

    files: FileSystem
    clock: Clock
    time: SteadyTime
    flusher: FlushScheduler
    pool: OpenSegments
    producers: ProducerCount
    stats: LogStats
