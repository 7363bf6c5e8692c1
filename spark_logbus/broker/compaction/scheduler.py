"""Compacts logs by key, one at a time, with a child process that does the work.

The broker decides and takes in; the child reads and writes (see ``spark_logbus.compactor``). So
appends and fetches share neither memory nor the interpreter with a compaction, only the disk.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, NamedTuple

from spark_logbus.broker.compaction.run import CompactionRun, CompactionStats
from spark_logbus.broker.config import CompactionConfig
from spark_logbus.broker.data_directory import COMPACTION_JOB_FILE, COMPACTION_REPORT_FILE
from spark_logbus.clock import Clock
from spark_logbus.errors import LogbusError, StorageError
from spark_logbus.log import CompactionPlan, LogDirectory, PartitionLog
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff, no_jitter
from spark_logbus.threads import Periodic

logger = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 4  # times the check interval
_LAST_PAUSE_MS: Final = 3_600_000


class _Chosen(NamedTuple):
    log: PartitionLog
    plan: CompactionPlan


class _Pause(NamedTuple):
    """A log whose compaction failed is left alone for a while, and others get their turn."""

    until: float
    failures: int


class Compactor:
    """Compacts logs on a thread of its own, which the broker starts and stops. Stopping ``thread``
    ends a compaction under way; nothing of it is lost but its work."""

    def __init__(
        self, logs: LogDirectory, data_dir: Path, config: CompactionConfig, *, clock: Clock
    ) -> None:
        self._logs = logs
        self._job_file = data_dir / COMPACTION_JOB_FILE
        self._report_file = data_dir / COMPACTION_REPORT_FILE
        self._config = config
        self._clock = clock
        self._time = logs.clock.time
        self._backoff = Backoff(
            first_ms=_FIRST_PAUSE * config.check_interval_ms,
            max_ms=_LAST_PAUSE_MS,
            jitter=no_jitter,
        )
        self._pauses: dict[TopicPartition, _Pause] = {}
        self.stats = CompactionStats()
        self.thread = Periodic(
            "compactor",
            self._compact_all,
            pause_s=config.check_interval_ms / 1000,
            failure="Compaction failed in a way that was not foreseen; trying again.",
        )

    def _compact_all(self) -> None:
        while self.compact_one() and not self.thread.stopping.is_set():
            pass

    # -- one compaction -------------------------------------------------------------------

    def compact_one(self) -> bool:
        """Compact the log that needs it most; False if none does."""
        chosen = self._choose()
        if chosen is None:
            return False
        topic_partition = chosen.log.topic_partition
        began = self._clock.monotonic()
        try:
            run = CompactionRun(
                chosen.log,
                chosen.plan,
                job_file=self._job_file,
                report_file=self._report_file,
                config=self._config,
                clock=self._clock,
                stopping=self.thread.stopping,
            )
            finished = run.run(self.stats)
            if finished is not None:
                chosen.log.compaction.finished(
                    chosen.plan, end_offset=finished.end_offset, now_us=self._time.stamp_us()
                )
                self._pauses.pop(topic_partition, None)
                self.stats.runs += 1
                self.stats.last_duration_s = self._clock.monotonic() - began
                run.log_result(finished, self.stats.last_duration_s)
        except LogbusError as error:
            self._failed(topic_partition, error)
        finally:
            self._tidy_up(chosen.log)
        return True

    def _choose(self) -> _Chosen | None:
        """The dirtiest log that is due; those that waited too long go first."""
        now_us, now = self._time.now_us(), self._clock.monotonic()
        ratios: dict[TopicPartition, float] = {}
        due = []
        for each in self._logs.logs():
            try:
                found = each.compaction.select_segments(now_us)
                if found is None:
                    continue
                ratios[each.topic_partition] = found.dirty_ratio
                pause = self._pauses.get(each.topic_partition)
                if pause is None or pause.until <= now:
                    due.append((found.overdue, found.dirty_ratio, each))
            except StorageError as error:
                self._failed(each.topic_partition, error)
        self.stats.dirty_ratios = ratios
        for _, _, each in sorted(due, key=lambda one: one[:2], reverse=True):
            try:
                plan = each.compaction.plan(now_us)
            except StorageError as error:
                self._failed(each.topic_partition, error)
                continue
            if plan is not None:
                return _Chosen(each, plan)
        return None

    def _failed(self, topic_partition: TopicPartition, error: LogbusError) -> None:
        before = self._pauses.get(topic_partition)
        failures = before.failures + 1 if before else 1
        pause_s = self._backoff.pause_s(failures)
        self._pauses[topic_partition] = _Pause(self._clock.monotonic() + pause_s, failures)
        self.stats.failures += 1
        logger.error(
            "%s could not be compacted: %s Its records stay as they are; trying again in %d "
            "seconds.", topic_partition, error, pause_s,
        )  # fmt: skip

    def _tidy_up(self, partition_log: PartitionLog) -> None:
        try:
            partition_log.compaction.discard()
        except StorageError as error:
            logger.warning("%s It is tried again with the next compaction.", error)
        for path in (self._job_file, self._report_file):
            path.unlink(missing_ok=True)
