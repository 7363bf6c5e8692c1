"""Where a consumer begins, and where positions that are not offsets lie in the logs."""

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


class Places:
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

    def topic_ids(self, topic_partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """The ids of the topics as they are now, not as they were when last asked for."""
        names = sorted({topic_partition.topic for topic_partition in topic_partitions})
        for name in names:
            self._cluster.invalidate(name)
        return self._cluster.retrying(
            f"Looking up {', '.join(names)}",
            lambda deadline: {name: self._cluster.topic(name, deadline).topic_id for name in names},
        )

    def starts(
        self, topic_partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, OffsetSpec]]:
        """The committed positions, and for the other partitions where the configuration begins."""
        if self._config.group is None:
            return {}, dict.fromkeys(topic_partitions, self._start)
        topic_ids = self.topic_ids(topic_partitions)
        starts = self._group().starting_offsets(topic_partitions, topic_ids)
        committed = {
            topic_partition: Position(offset, topic_ids[topic_partition.topic])
            for topic_partition, offset in starts.items()
        }
        return committed, {
            topic_partition: self._start
            for topic_partition in topic_partitions
            if topic_partition not in committed
        }

    def resolve(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, Position]:
        """The positions that ``specs`` mean; waits for leaders that are away."""
        if not specs:
            return {}
        topic_ids = self.topic_ids(specs)
        found = self._admin.list_offsets(specs, topic_ids=topic_ids)
        late = {
            topic_partition: Latest() for topic_partition, offset in found.items() if offset is None
        }
        ends = self._admin.list_offsets(late, topic_ids=topic_ids) if late else {}
        return _placed({**found, **ends}, topic_ids)

    def behind_lost(
        self, topic_partition: TopicPartition, position: Position
    ) -> dict[TopicPartition, Position] | None:
        """The next position that has a record, where ``position`` lies in a part of the log that
        was given up; None where it does not. Waits for a leader that is away."""
        for lost in self._admin.lost_offsets(topic_partition):
            if lost.start <= position.offset < lost.end:
                return {topic_partition: Position(lost.end, position.topic_id)}
        return None

    def resolve_some(
        self, specs: Mapping[TopicPartition, OffsetSpec]
    ) -> dict[TopicPartition, Position]:
        """Likewise, of the partitions whose leaders answer at once; failures of the others are
        recorded."""
        if not specs:
            return {}
        topic_ids = self.topic_ids(specs)
        began = self._cluster.clock.monotonic()
        # Who is silent holds up the others at first for a moment only.
        tries = min(self._failures.failures_in_a_row(topic_partition) for topic_partition in specs)
        patience_ms = min(_FIRST_PATIENCE_MS << tries, self._cluster.config.connect_timeout_ms)
        found = self._admin.find_offsets(specs, topic_ids=topic_ids, patience_ms=patience_ms)
        late = {
            topic_partition: Latest()
            for topic_partition, offset in found.found.items()
            if offset is None
        }
        ends = self._admin.find_offsets(late, topic_ids=topic_ids, patience_ms=patience_ms)
        for topic_partition, error in {**found.away, **ends.away}.items():
            self._failures.record_failure([topic_partition], error, began=began)
        return _placed({**found.found, **ends.found}, topic_ids)


def _placed(
    offsets: Mapping[TopicPartition, int | None], topic_ids: Mapping[str, str]
) -> dict[TopicPartition, Position]:
    return {
        topic_partition: Position(offset, topic_ids[topic_partition.topic])
        for topic_partition, offset in offsets.items()
        if offset is not None
    }
