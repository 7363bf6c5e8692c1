"""Runs a mirror round after round, through times in which a cluster is away."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from spark_logbus.errors import (
    LockHeldError,
    LogbusError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    StagedDataLostError,
    UnknownProducerError,
)
from spark_logbus.mirror.round import Mirror, PartitionLag, RoundReport
from spark_logbus.mirror.staging import StoppedError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff

# What was staged is gone, as with the disk of a broker: the round is done anew. Or what was to be
# read is: the next try finds out, and says what is lost.
_DONE_ANEW: Final = (
    StagedDataLostError,
    OutOfOrderSequenceError,
    UnknownProducerError,
    OffsetOutOfRangeError,
)


@dataclass(frozen=True, slots=True)
class MirrorProgress:
    """After a round, or after a look that found nothing new (``round`` is None)."""

    round: RoundReport | None
    lags: list[PartitionLag]
    records: int
    """Copied by this run."""

    size_bytes: int


class Listener:
    """Hears how a run goes; what it does not override it does not care about."""

    def progressed(self, progress: MirrorProgress) -> None:
        """A round is over, or there is nothing new."""

    def failed(self, error: LogbusError) -> None:
        """Something failed that is tried again until it succeeds; said once for each reason."""

    def recovered(self) -> None:
        """It goes on after failures."""


def run_mirror(mirror: Mirror, *, once: bool, listener: Listener) -> int:
    """Copy until ``mirror.stop`` is called, or, ``once``, all that the source had at the start; the
    number of records that were copied.

    Raises what no retry can mend, LockHeldError when another process has the mirror, and with
    ``once`` what has failed for ``give_up_ms``.
    """
    return _Runner(mirror, once, listener).run()


class _Runner:
    def __init__(self, mirror: Mirror, once: bool, listener: Listener) -> None:
        self._mirror = mirror
        self._once = once
        self._listener = listener
        self._backoff = Backoff(first_ms=100, max_ms=mirror.config.retry_max_ms)
        self._goals: dict[TopicPartition, int] | None = None
        self._failures = 0
        self._failing_since = 0.0
        self._told = ""
        self._records = 0
        self._size_bytes = 0

    def run(self) -> int:
        config, stopping = self._mirror.config, self._mirror.stopping
        while not stopping.is_set():
            try:
                report = self._mirror.copy_round()
            except StoppedError:
                break
            except LogbusError as error:
                self._wait_after(error)
                continue
            self._note(report)
            if self._once and self._reached(report):
                break
            if report is None:
                stopping.wait(config.poll_ms / 1000)
        return self._records

    def _note(self, report: RoundReport | None) -> None:
        if self._failures:
            self._failures, self._told = 0, ""
            self._listener.recovered()
        if report is not None:
            self._records += report.records or 0
            self._size_bytes += report.size_bytes
        self._listener.progressed(
            MirrorProgress(report, self._mirror.lags(), self._records, self._size_bytes)
        )

    def _reached(self, report: RoundReport | None) -> bool:
        """Whether all is copied that was there at the first look."""
        lags = self._mirror.lags()
        if self._goals is None and lags:
            self._goals = {lag.topic_partition: lag.end for lag in lags}
        if report is None:
            return True
        goals = self._goals
        return goals is not None and all(
            lag.position >= goals.get(lag.topic_partition, 0) for lag in lags
        )

    def _wait_after(self, error: LogbusError) -> None:
        """Pause before the next try. Raises what another try cannot mend."""
        now = time.monotonic()
        mendable = error.retriable or isinstance(error, _DONE_ANEW)
        if not mendable or isinstance(error, LockHeldError):
            raise error
        self._failing_since = self._failing_since if self._failures else now
        if self._once and now - self._failing_since > self._mirror.config.give_up_ms / 1000:
            raise error
        self._failures += 1
        if str(error) != self._told:
            self._told = str(error)
            self._listener.failed(error)
        self._mirror.stopping.wait(self._backoff.pause_s(self._failures))
