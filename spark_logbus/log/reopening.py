"""Opens logs anew that went offline after a fault of their disk, in the process that goes on.

A log that is the only one stays offline until an operator has mended the disk and restarts the
broker. Where other brokers have the same records, a follower may do what that restart does: recover
the log from its files, as after a crash, and copy what it lacks. A disk that goes on failing is
asked less and less often, as each try reads what was not known to be on it.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from spark_logbus.clock import Clock
from spark_logbus.errors import StorageError
from spark_logbus.log.config import LogConfig
from spark_logbus.log.log import PartitionLog
from spark_logbus.log.partition_directories import PartitionDirectories
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff

_AGAIN: Final = Backoff(first_ms=1_000, max_ms=60_000)
# A disk that has worked for so long has a new fault.
_NEW_AFTER_S: Final = 600.0


class _Tries(NamedTuple):
    number: int = 0
    last_at: float = -math.inf


class Reopening:
    """Opens offline logs of one data directory. Not thread-safe: ``LogDirectory`` locks."""

    def __init__(self, directories: PartitionDirectories, clock: Clock) -> None:
        self._directories = directories
        self._clock = clock
        self._tries: dict[TopicPartition, _Tries] = {}

    def open_again(self, log: PartitionLog, config: LogConfig) -> PartitionLog:
        """Returns the log as it is opened anew, with its high watermark where it was; the offline
        one is over then. Raises StorageError where the disk refuses, or is to be tried later: the
        offline one stays."""
        where, now = log.topic_partition, self._clock.monotonic()
        tries = self._tries.get(where, _Tries())
        if now - tries.last_at >= _NEW_AFTER_S:
            tries = _Tries()
        if tries.number and now < tries.last_at + _AGAIN.pause_s(tries.number):
            raise StorageError(
                f"The log of {where} is opened again later. It went offline: {log.offline}"
            )
        self._tries[where] = _Tries(tries.number + 1, now)
        return log.replaced_by(
            lambda known: self._directories.open(where, known, config=config, clean=False)
        )

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forgets the tries of a log that is gone."""
        self._tries.pop(topic_partition, None)
