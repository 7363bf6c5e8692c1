"""Partitions that cannot be read at the moment: when to try them again, and who is told."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.errors import LogbusError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import gave_up

logger = logging.getLogger(__name__)

# Longer than a leader takes to move or a connection to be made anew, which is nobody's concern.
TELL_AFTER_S: Final = 2.0
_SHOWN: Final = 10  # partitions named in one message


@dataclass(slots=True)
class PartitionFailure:
    """Of one partition, since ``since`` (monotonic seconds)."""

    since: float
    last: LogbusError
    failures: int = 0
    not_before: float = 0.0
    told: bool = False


class Troubles:
    """The troubles of one consumer's partitions. Not thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._troubles: dict[TopicPartition, PartitionFailure] = {}

    def failed(
        self,
        topic_partitions: Iterable[TopicPartition],
        error: LogbusError,
        *,
        began: float | None = None,
    ) -> None:
        """Note a failure that a later try may mend; any other is raised. ``began`` is when a try
        began that held up the others: they then have as much time before the next one."""
        if not error.retriable:
            raise error
        now = self._cluster.clock.monotonic()
        took_s = 0.0 if began is None else now - began
        for topic_partition in topic_partitions:
            self._cluster.invalidate(topic_partition.topic)
            trouble = self._troubles.setdefault(topic_partition, PartitionFailure(now, error))
            trouble.last = error
            trouble.failures += 1
            pause_s = self._cluster.backoff.pause_s(trouble.failures)
            trouble.not_before = now + max(pause_s, took_s)

    def waits(
        self, topic_partitions: Iterable[TopicPartition], error: LogbusError, *, since: float
    ) -> None:
        """Note that no answer has come for them yet; it may still come."""
        for topic_partition in topic_partitions:
            self._troubles.setdefault(topic_partition, PartitionFailure(since, error))

    def may_try(self, topic_partition: TopicPartition) -> bool:
        trouble = self._troubles.get(topic_partition)
        return trouble is None or trouble.not_before <= self._cluster.clock.monotonic()

    def failures(self, topic_partition: TopicPartition) -> int:
        """How often in a row it failed, up to ten."""
        trouble = self._troubles.get(topic_partition)
        return 0 if trouble is None else min(trouble.failures, 10)

    def soonest(self, at: float) -> float:
        """The first time, up to ``at``, at which one may be tried again or is to be told."""
        now = self._cluster.clock.monotonic()
        for trouble in self._troubles.values():
            if trouble.not_before > now:
                at = min(at, trouble.not_before)
            if not trouble.told:
                at = min(at, max(now, trouble.since + TELL_AFTER_S))
        return at

    def over(self, topic_partition: TopicPartition) -> None:
        """The partition was read."""
        trouble = self._troubles.pop(topic_partition, None)
        if trouble is not None and trouble.told:
            logger.info("%s is read again.", topic_partition)

    def forget(self, topic_partition: TopicPartition) -> None:
        """The partition is no longer of interest."""
        self._troubles.pop(topic_partition, None)

    def tell(self, assigned: Collection[TopicPartition]) -> None:
        """Log, once, who waits for whom. Raises the last failure when none of ``assigned`` could
        be read for longer than the retry deadline: then nothing is left to go on with."""
        if not self._troubles:
            return
        now = self._cluster.clock.monotonic()
        if any(
            not trouble.told and now - trouble.since >= TELL_AFTER_S
            for trouble in self._troubles.values()
        ):
            self._tell(assigned)
        latest = max(
            (
                self._troubles[topic_partition].since if topic_partition in self._troubles else now
                for topic_partition in assigned
            ),
            default=now,
        )
        if now - latest > self._cluster.config.retry_deadline_ms / 1000:
            topic_partition = next(iter(assigned))
            error = self._troubles[topic_partition].last
            raise gave_up(f"Reading {_named(assigned)}", now - latest, error) from error

    def _tell(self, assigned: Collection[TopicPartition]) -> None:
        waiting: dict[str, list[TopicPartition]] = {}
        for topic_partition, trouble in self._troubles.items():
            if not trouble.told:
                waiting.setdefault(self._cluster.leader_name(topic_partition), []).append(
                    topic_partition
                )
        for leader, topic_partitions in waiting.items():
            for topic_partition in topic_partitions:
                self._troubles[topic_partition].told = True
            logger.warning(
                "Cannot read %s at the moment: waiting for %s. %s Reading goes on by itself when "
                "that broker does%s.",
                _named(topic_partitions),
                leader,
                self._troubles[topic_partitions[0]].last,
                "; the other partitions are read meanwhile"
                if len(self._troubles) < len(assigned)
                else "",
            )


def _named(topic_partitions: Collection[TopicPartition]) -> str:
    ordered = sorted(topic_partitions)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(map(str, ordered[:_SHOWN])) + more
