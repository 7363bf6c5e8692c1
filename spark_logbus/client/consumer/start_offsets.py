"""Finds the positions at which a consumer begins, and the offsets that other positions mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from spark_logbus.client.admin.admin import Admin
from spark_logbus.client.arguments import as_offset_spec
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.config import ConsumerConfig
from spark_logbus.client.consumer.failures import PartitionFailures
from spark_logbus.client.consumer.fetcher import Position
from spark_logbus.model import Latest, OffsetSpec, TopicPartition

if TYPE_CHECKING:
    from spark_logbus.client.consumer.group.group import ConsumerGroup

_FIRST_PATIENCE_MS: Final = 1_000  # doubles from try to try, up to the connect timeout


class StartOffsets:
    """Finds positions for one consumer, whose ``failures`` it shares. ``group`` is asked for when
    the consumer has one."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        failures: PartitionFailures,
        *,
        group: Callable[[], ConsumerGroup],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._start = as_offset_spec("start", config.start)
        self._failures = failures
        self._group = group
        self._admin = Admin(cluster)

    def find(self, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position]:
        """Returns the committed positions, and for the other partitions where the configuration
        begins; waits for leaders that are away."""
        committed, specs = self._committed(topic_partitions)
        return {**committed, **self.resolve(specs)}

    def find_some(
        self, topic_partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Returns what ``find`` does, of the partitions that are committed or whose leaders answer
        at once; failures of the others are recorded."""
        committed, specs = self._committed(topic_partitions)
        return {**committed, **self._resolve_some(specs)}

    def _committed(
        self, topic_partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, OffsetSpec]]:
        """Returns the committed positions, and the configured start of the other partitions."""
        if self._config.group is None:
            return {}, dict.fromkeys(topic_partitions, self._start)
        topic_ids = self._topic_ids(topic_partitions)
        starts = self._group().starting_offsets(topic_partitions, topic_ids)
        others = [each for each in topic_partitions if each not in starts]
        return _placed(starts, topic_ids), dict.fromkeys(others, self._start)

    def resolve(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, Position]:
        """Returns the positions that ``specs`` mean; waits for leaders that are away."""
        if not specs:
            return {}
        topic_ids = self._topic_ids(specs)
        return _resolved(
            specs, topic_ids, lambda wanted: self._admin.list_offsets(wanted, topic_ids=topic_ids)
        )

    def _resolve_some(
        self, specs: Mapping[TopicPartition, OffsetSpec]
    ) -> dict[TopicPartition, Position]:
        if not specs:
            return {}
        topic_ids = self._topic_ids(specs)
        began = self._cluster.clock.monotonic()
        # Who is silent holds up the others at first for a moment only.
        tries = min(self._failures.failures_in_a_row(topic_partition) for topic_partition in specs)
        patience_ms = min(_FIRST_PATIENCE_MS << tries, self._cluster.config.connect_timeout_ms)

        def ask(wanted: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int | None]:
            told = self._admin.find_offsets(wanted, topic_ids=topic_ids, patience_ms=patience_ms)
            for topic_partition, error in told.away.items():
                self._failures.record_failure([topic_partition], error, began=began)
            return told.found

        return _resolved(specs, topic_ids, ask)

    def _topic_ids(self, topic_partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """Returns the ids of the topics as they are now, not as they were when last asked for."""
        names = sorted({topic_partition.topic for topic_partition in topic_partitions})
        for name in names:
            self._cluster.invalidate(name)
        return self._cluster.retrying(
            f"Looking up {', '.join(names)}",
            lambda deadline: {name: self._cluster.topic(name, deadline).topic_id for name in names},
        )

    def behind_lost(
        self, topic_partition: TopicPartition, position: Position
    ) -> dict[TopicPartition, Position] | None:
        """Returns the next position that has a record, where ``position`` lies in a part of the
        log that was given up; None where it does not. Waits for a leader that is away."""
        for lost in self._admin.lost_offsets(topic_partition):
            if lost.start <= position.offset < lost.end:
                return {topic_partition: Position(lost.end, position.topic_id)}
        return None


def _resolved(
    specs: Mapping[TopicPartition, OffsetSpec],
    topic_ids: Mapping[str, str],
    ask: Callable[[Mapping[TopicPartition, OffsetSpec]], dict[TopicPartition, int | None]],
) -> dict[TopicPartition, Position]:
    """Returns the positions that ``ask`` tells, and the end for a time that no record has reached
    yet."""
    found = ask(specs)
    late = [topic_partition for topic_partition, offset in found.items() if offset is None]
    ends = ask(dict.fromkeys(late, Latest())) if late else {}
    return _placed({**found, **ends}, topic_ids)


def _placed(
    offsets: Mapping[TopicPartition, int | None], topic_ids: Mapping[str, str]
) -> dict[TopicPartition, Position]:
    return {
        topic_partition: Position(offset, topic_ids[topic_partition.topic])
        for topic_partition, offset in offsets.items()
        if offset is not None
    }
