"""The state of the brokers at one moment: topic ids, log start offsets and high watermarks.

Everything that plans reads a ``Snapshot``; only ``take_snapshot`` asks the brokers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_logbus.errors import BrokerUnavailableError, UnknownTopicError
from spark_logbus.model import LostOffsets, TopicPartition
from spark_logbus.offsets.descriptions import LogQueries, PartitionDescription, TopicDescription
from spark_logbus.protocol import PartitionEnds
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
    """The visible records ``[start, end)``: log start offset and high watermark. ``lost`` are
    ranges between, in rising order, whose records were given up; the log goes on behind each."""

    start: int
    end: int
    lost: tuple[LostOffsets, ...] = ()

    def clamp(self, offset: int) -> int:
        """The offset of the first record that is there from ``offset`` on, or the end."""
        inside = min(max(offset, self.start), self.end)
        lost = self.lost_at(inside)
        return inside if lost is None else min(lost.end, self.end)

    def lost_at(self, offset: int) -> LostOffsets | None:
        """The lost range that begins at or before ``offset``, and ends behind it."""
        return next((each for each in self.lost if each.start <= offset < each.end), None)

    def reach(self, start: int, end: int | None = None) -> int:
        """Returns how far a reader gets from ``start`` on until records are lost, and no further
        than ``end``, by default that of the span."""
        last = self.end if end is None else end
        return min([last, *(each.start for each in self.lost if start <= each.start)])

    def pieces(self, start: int, end: int) -> list[tuple[int, int]]:
        """``[start, end)`` without what is lost of it."""
        cuts = [start]
        for each in self.lost:
            if each.end > start and each.start < end:
                cuts += [max(each.start, start), min(each.end, end)]
        cuts.append(end)
        pairs = zip(cuts[::2], cuts[1::2], strict=True)
        return [(first, after) for first, after in pairs if first < after]

    def count(self, start: int, end: int) -> int:
        """Records between two offsets, as far as they are not lost: with compaction, at most."""
        return sum(after - first for first, after in self.pieces(start, end))

    def back_from(self, offset: int, count: int) -> int:
        """The offset ``count`` records before ``offset``, which may lie before the start."""
        for each in reversed(self.lost):
            if each.end <= offset and offset - count < each.end:
                count -= offset - each.end
                offset = each.start
        return offset - count


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The partitions that a selection covers, with their spans. Immutable."""

    topic_ids: Mapping[str, str]
    spans: Mapping[TopicPartition, Span]

    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The configuration of each topic."""

    replicated: frozenset[TopicPartition] = frozenset()
    """Partitions that have more than one replica, and may so have another leader from now on."""

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
                span.start,
                max(span.start, min(span.end, limit.spans[topic_partition].end)),
                span.lost,
            )
            for topic_partition, span in self.spans.items()
            if topic_partition in limit.spans
        }
        topics = {topic_partition.topic for topic_partition in spans}
        ids = {topic: id_ for topic, id_ in self.topic_ids.items() if topic in topics}
        return Snapshot(ids, spans, self.configs, self.replicated)

    def reaching(self, positions: Mapping[TopicPartition, int]) -> Snapshot:
        """This snapshot with ends that are not below ``positions``."""
        spans = {
            topic_partition: replace(span, end=max(span.end, positions.get(topic_partition, 0)))
            for topic_partition, span in self.spans.items()
        }
        return Snapshot(self.topic_ids, spans, self.configs, self.replicated)


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
        frozenset(
            TopicPartition(topic, number)
            for topic, description in described.items()
            for number, partition in description.partitions.items()
            if partition.replicas
        ),
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


def span_of(ends: PartitionEnds) -> Span:
    """State of a partition as its broker tells it to readers."""
    lost = tuple(LostOffsets(*each) for each in ends.lost)
    return Span(ends.log_start_offset, ends.high_watermark, lost)


def _spans_of(description: TopicDescription, selection: Selection) -> dict[TopicPartition, Span]:
    spans: dict[TopicPartition, Span] = {}
    for number, partition in sorted(description.partitions.items()):
        topic_partition = TopicPartition(description.name, number)
        if not includes(selection, topic_partition):
            continue
        if partition.ends is None:
            raise _not_served(topic_partition, partition)
        spans[topic_partition] = span_of(partition.ends)
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
            "Create the topic first, or check the option zookeeper or profile; a topic is hidden "
            "from a user who has no right on it."
        )
