"""What a mirror copies from: another cluster, or a Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from spark_logbus.errors import UnknownSchemaIdError
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets.snapshot import Span
from spark_logbus.selection import Selection


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic as it is now. ``spans`` are the offsets of each partition that can be read."""

    name: str
    topic_id: str
    config: Mapping[str, str]
    spans: Mapping[int, Span]


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """A record batch to append: ``record_count`` records, which are all that the source has of the
    offsets from ``start`` to ``end``. ``time_us`` is about when it came there."""

    data: memoryview
    start: int
    end: int
    record_count: int
    time_us: int


@dataclass(frozen=True, slots=True)
class TargetSchemaIds:
    """Ids of the target by those of the source, of the schemas of one topic's values.

    ``clash`` says why values that hold ids themselves cannot be copied, if they cannot.
    """

    by_source: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    clash: str | None = None

    def target(self, topic_partition: TopicPartition, schema_id: int) -> int:
        """Raises UnknownSchemaIdError."""
        if schema_id not in self.by_source:
            raise UnknownSchemaIdError(
                f"A record batch of {topic_partition} has the schema id {schema_id}, which the "
                "topic's subject does not have in the source: was that schema deleted "
                "permanently? Register it there again."
            )
        return self.by_source[schema_id]


NO_SCHEMAS: Final = TargetSchemaIds()


class MirrorSource(Protocol):
    """Cluster from which topics are copied. Raises errors of logbus; used by several threads."""

    @property
    def name(self) -> str:
        """Address, for people."""

    def topics(self, selection: Selection) -> dict[str, SourceTopic]:
        """Describes the selected topics. UnknownTopicError for a named one that is not there."""

    def cut(self, ranges: Sequence[OffsetRange], *, max_bytes: int) -> list[OffsetRange]:
        """Cuts ranges to their beginnings, which come to about ``max_bytes`` or less, and end where
        record batches do."""

    def read(
        self, offset_range: OffsetRange, *, topic_id: str, schema_ids: TargetSchemaIds
    ) -> Iterator[SourceBatch]:
        """Reads a range, in order. TopicRecreatedError for a topic of another id."""

    def committed(self, group: str, topic_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
        """Reads the offsets that a group has committed for these topics, by their ids."""
