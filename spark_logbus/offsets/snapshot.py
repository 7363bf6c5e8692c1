"""The state of the brokers at one moment: topic ids, log start offsets and high watermarks.

Everything that plans reads a ``Snapshot``; only ``take_snapshot`` asks the brokers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_logbus.errors import BrokerUnavailableError, UnknownTopicError
from spark_logbus.model import TopicPartition
from spark_logbus.offsets.descriptions import LogQueries, PartitionDescription, TopicDescription
from spark_logbus.selection import (
    Partitions,
    Selection,
    includes,
    matching_topics,
    named_topics,
)

_TRIES = 5  # at describing topics that come and go meanwhile


@dataclass(frozen=True, slots=True)
class Span:
    """The visible records ``[start, end)``: log start offset and high watermark."""

    start: int
    end: int

    def clamp(self, offset: int) -> int:
        return min(max(offset, self.start), self.end)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The partitions that a selection covers, with their spans. Immutable."""

    topic_ids: Mapping[str, str]
    spans: Mapping[TopicPartition, Span]

    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The configuration of each topic."""

    def ends(self) -> dict[TopicPartition, int]:
        return {topic_partition: span.end for topic_partition, span in self.spans.items()}

    def starts(self) -> dict[TopicPartition, int]:
        return {topic_partition: span.start for topic_partition, span in self.spans.items()}

    def capped(self, limit: Snapshot) -> Snapshot:
        """This snapshot as if nothing had been appended or created since ``limit``.

        Log starts and deletions stay as they are now, because those records are gone.
        """
        spans = {
            topic_partition: Span(
                span.start, max(span.start, min(span.end, limit.spans[topic_partition].end))
            )
            for topic_partition, span in self.spans.items()
            if topic_partition in limit.spans
        }
        topics = {topic_partition.topic for topic_partition in spans}
        ids = {topic: id_ for topic, id_ in self.topic_ids.items() if topic in topics}
        return Snapshot(ids, spans, self.configs)

    def reaching(self, positions: Mapping[TopicPartition, int]) -> Snapshot:
        """This snapshot with ends that are not below ``positions``."""
        spans = {
            topic_partition: Span(span.start, max(span.end, positions.get(topic_partition, 0)))
            for topic_partition, span in self.spans.items()
        }
        return Snapshot(self.topic_ids, spans, self.configs)


def take_snapshot(admin: LogQueries, selection: Selection, *, missing_ok: bool) -> Snapshot:
    """Ask the brokers for everything that ``selection`` covers.

    With ``missing_ok`` topics and partitions that do not exist are left out: a running query
    decides what that means. Otherwise they raise UnknownTopicError. A partition whose leader is
    away raises BrokerUnavailableError, which a later try may not.
    """
    described = describe_topics(admin, selection, ends=True)
    if not missing_ok:
        _require_topics(admin, selection, described)
    spans: dict[TopicPartition, Span] = {}
    for topic in sorted(described):
        spans.update(_spans_of(described[topic], selection))
    if not missing_ok and isinstance(selection, Partitions):
        lacking = [
            topic_partition
            for topic_partition in selection.topic_partitions
            if topic_partition not in spans
        ]
        if lacking:
            raise UnknownTopicError(
                f"The cluster has no partition {', '.join(map(str, lacking))}; check the option "
                "assign against the partition counts that `logbus topics describe` shows."
            )
    return Snapshot(
        {topic: described[topic].topic_id for topic in sorted(described)},
        spans,
        {topic: description.config for topic, description in described.items()},
    )


def describe_topics(
    admin: LogQueries, selection: Selection, *, ends: bool
) -> dict[str, TopicDescription]:
    """The topics of ``selection`` that exist, usually in one request for each broker."""
    names: Sequence[str] | None = named_topics(selection)
    for _ in range(_TRIES):
        if names is None:
            names = matching_topics(selection, [topic.name for topic in admin.topics()])
        if not names:
            return {}
        try:
            return admin.describe(names, ends=ends)
        except UnknownTopicError:
            names = None  # not all are there, or one went between two answers: list what is
    raise BrokerUnavailableError(
        "The topics change faster than the brokers can describe them; try again later."
    )


def _spans_of(description: TopicDescription, selection: Selection) -> dict[TopicPartition, Span]:
    spans: dict[TopicPartition, Span] = {}
    for number, partition in sorted(description.partitions.items()):
        topic_partition = TopicPartition(description.name, number)
        if not includes(selection, topic_partition):
            continue
        if partition.ends is None:
            raise _not_served(topic_partition, partition)
        spans[topic_partition] = Span(
            partition.ends.log_start_offset, partition.ends.high_watermark
        )
    return spans


def _not_served(
    topic_partition: TopicPartition, partition: PartitionDescription
) -> BrokerUnavailableError:
    if partition.problem is not None:
        return BrokerUnavailableError(
            f"The offsets of {topic_partition} are not known: {partition.problem}"
        )
    return BrokerUnavailableError(
        f"{partition.leader} does not serve {topic_partition} yet: the topic is new, or the "
        "broker has just "
        "started. If that lasts, its log is missing or cannot be opened: see the broker's /healthz."
    )


def _require_topics(
    admin: LogQueries, selection: Selection, described: Mapping[str, TopicDescription]
) -> None:
    # A pattern requires none: topics that match may be created later.
    missing = sorted(set(named_topics(selection) or ()) - set(described))
    if missing:
        known = ", ".join([topic.name for topic in admin.topics()][:20]) or "none"
        raise UnknownTopicError(
            f"The cluster has no topic {', '.join(missing)}; it has: {known}. "
            "Create the topic first, or check the option zookeeper."
        )
