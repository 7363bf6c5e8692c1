"""Partitions that cannot be read at the moment: pauses between tries, and what is logged."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.shortened import shortened
from spark_logbus.errors import CoordinationError, LogbusError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import gave_up

logger = logging.getLogger(__name__)

# Longer than a leader takes to move or a connection to be made anew, which is nobody's concern.
LOG_AFTER_S: Final = 2.0
_ZOOKEEPER: Final = "ZooKeeper"


@dataclass(slots=True)
class _Failure:
    """The failures of one partition since ``since`` (monotonic seconds)."""

    since: float
    last: LogbusError
    count: int = 0
    not_before: float = 0.0
    logged: bool = False
    of_values: bool = False  # what was fetched could not be decoded


class PartitionFailures:
    """The failures of one consumer's partitions. Not thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._failures: dict[TopicPartition, _Failure] = {}
        #: The number of tries that failed, of all partitions since the beginning.
        self.failed_tries = 0

    @property
    def now(self) -> float:
        """Monotonic seconds, as for ``began``."""
        return self._cluster.clock.monotonic()

    def record_failure(
        self,
        topic_partitions: Iterable[TopicPartition],
        error: LogbusError,
        *,
        began: float | None = None,
        of_values: bool = False,
    ) -> None:
        """Record a failure that a later try may mend; any other is raised. ``began`` is when a try
        began that held up the others: they then have as much time before the next one. What was
        fetched and could not be decoded yet, ``of_values``, waits for ``record_decoded``."""
        if not error.retriable:
            raise error.again() from error.__cause__
        error = error.again()
        now = self._cluster.clock.monotonic()
        took_s = 0.0 if began is None else now - began
        for topic_partition in topic_partitions:
            self._cluster.invalidate(topic_partition.topic)
            failure = self._failures.setdefault(topic_partition, _Failure(now, error))
            failure.last = error
            failure.count += 1
            self.failed_tries += 1
            failure.of_values |= of_values
            pause_s = self._cluster.backoff.pause_s(failure.count)
            failure.not_before = now + max(pause_s, took_s)

    def record_silence(
        self, topic_partitions: Iterable[TopicPartition], error: LogbusError, *, since: float
    ) -> None:
        """Records that no answer has come for them yet; it may still come."""
        for topic_partition in topic_partitions:
            self._failures.setdefault(topic_partition, _Failure(since, error))

    def may_try(self, topic_partition: TopicPartition) -> bool:
        failure = self._failures.get(topic_partition)
        return failure is None or failure.not_before <= self._cluster.clock.monotonic()

    def failures_in_a_row(self, topic_partition: TopicPartition) -> int:
        """Its failures since it was last read, up to ten."""
        failure = self._failures.get(topic_partition)
        return 0 if failure is None else min(failure.count, 10)

    def next_event(self, at: float) -> float:
        """The first time, up to ``at``, at which one may be tried again or is to be logged."""
        now = self._cluster.clock.monotonic()
        for failure in self._failures.values():
            if failure.not_before > now:
                at = min(at, failure.not_before)
            if not failure.logged:
                at = min(at, max(now, failure.since + LOG_AFTER_S))
        return at

    def record_success(self, topic_partition: TopicPartition) -> None:
        """The partition was fetched."""
        failure = self._failures.get(topic_partition)
        if failure is not None and not failure.of_values:
            self._mended(topic_partition)

    def record_decoded(self, topic_partition: TopicPartition) -> None:
        """Forgets a failure to decode what was fetched of the partition, as it was decoded now."""
        failure = self._failures.get(topic_partition)
        if failure is not None and failure.of_values:
            self._mended(topic_partition)

    def _mended(self, topic_partition: TopicPartition) -> None:
        if self._failures.pop(topic_partition).logged:
            logger.info("%s is read again.", topic_partition)

    def forget_partition(self, topic_partition: TopicPartition) -> None:
        """The partition is no longer of interest."""
        self._failures.pop(topic_partition, None)

    def report(self, assigned: Collection[TopicPartition], *, has_received: bool = False) -> None:
        """Log, once, which partitions wait for which broker. Raises the last failure when none of
        ``assigned`` could be read for longer than the retry deadline, and nothing was received that
        is still to be decoded: nothing is left to read."""
        if not self._failures:
            return
        now = self._cluster.clock.monotonic()
        if any(
            not failure.logged and now - failure.since >= LOG_AFTER_S
            for failure in self._failures.values()
        ):
            self._log_waiting(assigned)
        if has_received:
            return
        latest = max(
            (
                self._failures[topic_partition].since if topic_partition in self._failures else now
                for topic_partition in assigned
            ),
            default=now,
        )
        if now - latest > self._cluster.config.retry_deadline_ms / 1000:
            topic_partition = next(iter(assigned))
            error = self._failures[topic_partition].last
            raise gave_up(f"Reading {shortened(sorted(assigned))}", now - latest, error)

    def _log_waiting(self, assigned: Collection[TopicPartition]) -> None:
        waiting: dict[str, list[TopicPartition]] = {}
        for topic_partition, failure in self._failures.items():
            if not failure.logged:
                waiting.setdefault(self._awaited(topic_partition, failure), []).append(
                    topic_partition
                )
        for awaited, topic_partitions in waiting.items():
            for topic_partition in topic_partitions:
                self._failures[topic_partition].logged = True
            logger.warning(
                "Cannot read %s at the moment: waiting for %s. %s Reading goes on by itself when "
                "%s does%s.",
                shortened(sorted(topic_partitions)),
                awaited,
                self._failures[topic_partitions[0]].last,
                awaited if awaited == _ZOOKEEPER else "that broker",
                "; the other partitions are read meanwhile"
                if len(self._failures) < len(assigned)
                else "",
            )

    def _awaited(self, topic_partition: TopicPartition, failure: _Failure) -> str:
        if isinstance(failure.last, CoordinationError):
            return _ZOOKEEPER
        return self._cluster.leader_name(topic_partition)
