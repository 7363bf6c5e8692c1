"""Runs one compaction of one log: starts the child process, follows its reports, and has the log
take in what it wrote, group by group."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spark_logbus.broker.config import CompactionConfig
from spark_logbus.clock import Clock
from spark_logbus.compactor.messages import (
    Compacted,
    CompactorReport,
    Failed,
    Finished,
    Group,
    Job,
    SourceSegment,
    decode_report,
    encode,
)
from spark_logbus.errors import StorageError
from spark_logbus.local.processes import spawn, stop
from spark_logbus.log import CompactionPlan, PartitionLog
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.05
_STOP_GRACE_S: Final = 1.0  # it has nothing to put in order
_LAST_WORDS: Final = 500


class _BrokenOffError(Exception):
    """The broker stops, or the plan does not fit the log any more. Never leaves this module."""


@dataclass(slots=True)
class CompactionStats:
    """Counts since the start; written by the compactor's thread, read by any."""

    runs: int = 0
    failures: int = 0
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    last_duration_s: float = 0.0
    dirty_ratios: dict[TopicPartition, float] = field(default_factory=dict)  # replaced as a whole


class CompactionRun:
    """One child process, from its job to its last report. Used once."""

    def __init__(
        self,
        partition_log: PartitionLog,
        plan: CompactionPlan,
        *,
        job_file: Path,
        report_file: Path,
        config: CompactionConfig,
        clock: Clock,
        stopping: threading.Event,
    ) -> None:
        self._log = partition_log
        self._plan = plan
        self._job_file = job_file
        self._report_file = report_file
        self._config = config
        self._clock = clock
        self._stopping = stopping
        self._read = 0  # bytes of the report file
        self._done = 0  # groups
        self._before = self._after = 0

    def run(self, stats: CompactionStats) -> Finished | None:
        """Returns the last report; None if it was broken off, for the broker stops or the log
        changed.

        Raises StorageError when the child fails, dies or stalls.
        """
        try:
            return self._run(stats)
        except StorageError:
            if self._log.compaction.fits(self._plan.groups[self._done :]):
                raise
        except _BrokenOffError:
            pass
        if not self._stopping.is_set():
            logger.info(
                "The compaction of %s was broken off: its segments or its configuration changed "
                "meanwhile.",
                self._log.topic_partition,
            )
        return None

    def _run(self, stats: CompactionStats) -> Finished:
        try:
            job = job_of(self._log.topic_partition, self._plan, map_bytes=self._config.map_bytes)
            self._job_file.write_bytes(encode(job))
            self._report_file.write_bytes(b"")
        except OSError as error:
            raise StorageError(f"Cannot write {self._job_file}: {error.strerror}.") from error
        command = [sys.executable, "-m", "spark_logbus.compactor", str(self._job_file)]
        process = spawn(command, output=self._report_file)
        try:
            return self._follow(process, stats)
        finally:
            stop(process, _STOP_GRACE_S)

    def _follow(self, process: subprocess.Popen[bytes], stats: CompactionStats) -> Finished:
        patience_s = self._config.stall_timeout_ms / 1000
        deadline = self._clock.monotonic() + patience_s
        while not self._stopping.wait(_POLL_S):
            ended = process.poll() is not None  # before its reports are read: none can follow
            for report in self._reports():
                deadline = self._clock.monotonic() + patience_s
                if isinstance(report, Finished):
                    return report
                if isinstance(report, Failed):
                    self._examine(report)
                if isinstance(report, Compacted):
                    self._take_in(report, stats)
            if ended:
                raise StorageError(
                    f"The compacting process ended with code {process.returncode}. "
                    f"{self._last_words()}"
                )
            if not self._log.compaction.fits(self._plan.groups[self._done :]):
                raise _BrokenOffError  # deleted, say: the process must not keep its files open
            if self._clock.monotonic() > deadline:
                raise StorageError(
                    f"The compacting process has not got on for {patience_s:.0f} seconds; look at "
                    "the disk, or raise stall_timeout_ms in [compaction]."
                )
        raise _BrokenOffError

    def _reports(self) -> list[CompactorReport]:
        with self._report_file.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [report for line in whole.splitlines() if (report := decode_report(line))]

    def _take_in(self, report: Compacted, stats: CompactionStats) -> None:
        if report.changed and not self._log.compaction.swap(self._plan.groups[report.number]):
            raise _BrokenOffError
        self._done = report.number + 1
        self._before += report.records_before
        self._after += report.records_after
        stats.records_before += report.records_before
        stats.records_after += report.records_after
        stats.bytes_before += report.bytes_before
        stats.bytes_after += report.bytes_after

    def _examine(self, failed: Failed) -> None:
        """Raise what the child reported; a damaged segment is scanned, so that all know of it."""
        for group in self._plan.groups:
            for segment in group.segments:
                if segment.base_offset == failed.damaged:
                    try:
                        segment.inspect(0, 0)
                    except OSError as error:
                        raise StorageError(f"{failed.reason}; {error}.") from error
        raise StorageError(f"{failed.reason}.")

    def _last_words(self) -> str:
        text = self._report_file.read_text("utf-8", errors="replace")[-_LAST_WORDS:].strip()
        return f"It said: {text}" if text else "It may have been killed for lack of memory."

    def log_result(self, finished: Finished, duration_s: float) -> None:
        logger.info(
            "Compacted %s up to offset %d: %d of %d records stay, in %.1f seconds.",
            self._log.topic_partition, finished.end_offset, self._after, self._before, duration_s,
        )  # fmt: skip
        if finished.undecodable:
            logger.warning(
                "%d record batches of %s have a payload that cannot be decoded, as a producer "
                "sent it; compaction kept them as they are.",
                finished.undecodable, self._log.topic_partition,
            )  # fmt: skip
        if finished.of_columns:
            logger.warning(
                "%d record batches of %s hold columns of a schema, which compaction does not read; "
                "it kept them as they are, and tombstones behind them. Only a topic with the "
                "value.encoding columns has such record batches, and those cannot be compacted.",
                finished.of_columns, self._log.topic_partition,
            )  # fmt: skip
        if finished.too_large:
            logger.warning(
                "%d record batches of %s would take too much memory decoded; compaction kept them "
                "as they are, and tombstones behind them. Raise map_bytes in [compaction] (%d) to "
                "have them compacted.",
                finished.too_large, self._log.topic_partition, self._config.map_bytes,
            )  # fmt: skip


def job_of(topic_partition: TopicPartition, plan: CompactionPlan, *, map_bytes: int) -> Job:
    """The plan as the child process reads it."""
    groups = [
        Group(
            [
                SourceSegment(
                    str(segment.path),
                    segment.base_offset,
                    segment.summary.end_offset,
                    segment.summary.size_bytes,
                )
                for segment in group.segments
            ],
            str(group.cleaned),
            str(group.cleaned_index),
        )
        for group in plan.groups
    ]
    return Job(
        topic_partition=str(topic_partition),
        groups=groups,
        first_dirty_offset=plan.first_dirty_offset,
        delete_horizon=plan.delete_horizon,
        map_bytes=map_bytes,
        index_interval_bytes=plan.config.index_interval_bytes,
    )
