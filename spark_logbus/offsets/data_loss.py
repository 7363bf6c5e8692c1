"""Kinds of data loss, and the one place that decides what to do about them.

Planners and readers report findings; ``apply_policy`` raises or warns by ``failOnDataLoss``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_logbus.errors import DataLossError
from spark_logbus.model import TopicPartition
from spark_logbus.selection import Selection, includes, matching_topics

if TYPE_CHECKING:
    from spark_logbus.coordination.groups.offsets import CommittedOffset
    from spark_logbus.offsets.snapshot import Span

logger = logging.getLogger(__name__)

_SHOWN = 10  # findings spelled out in one message: enough to act on, short enough to read


@dataclass(frozen=True, slots=True)
class TopicGone:
    """A topic that was being read has been deleted."""

    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic} was deleted"


@dataclass(frozen=True, slots=True)
class TopicRecreated:
    """A topic of the same name that is not the one that was read."""

    topic: str
    expected_id: str
    actual_id: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic} was deleted and created again "
            f"(expected id {self.expected_id}, got {self.actual_id})"
        )


@dataclass(frozen=True, slots=True)
class PartitionGone:
    """A partition that was being read is no longer there, though its topic is."""

    topic_partition: TopicPartition

    def __str__(self) -> str:
        return f"partition {self.topic_partition} is no longer there"


@dataclass(frozen=True, slots=True)
class Deselected:
    """A topic or partition that was being read, and that the reader's options now leave out."""

    what: TopicPartition | str

    def __str__(self) -> str:
        kind = "topic" if isinstance(self.what, str) else "partition"
        return (
            f"{kind} {self.what}, which the checkpoint names, is not among those that the options "
            "select now"
        )


@dataclass(frozen=True, slots=True)
class BelowLogStart:
    """Records from ``wanted`` to the log start offset are gone, by retention or with a log that was
    given up."""

    topic_partition: TopicPartition
    wanted: int
    log_start: int

    def __str__(self) -> str:
        return (
            f"{self.topic_partition}: offset {self.wanted} was to be read next, "
            f"but the log now starts at {self.log_start}"
        )


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Records from ``wanted`` up to ``go_on_at`` were lost with the end of a log that was given
    up; the log goes on behind them."""

    topic_partition: TopicPartition
    wanted: int
    go_on_at: int

    def __str__(self) -> str:
        return (
            f"{self.topic_partition}: offset {self.wanted} was to be read next, but the records "
            "from there on were lost with a part of the log that was given up, and the log goes on "
            f"at {self.go_on_at}"
        )


@dataclass(frozen=True, slots=True)
class AboveEnd:
    """An offset that the partition does not have yet, or no longer has."""

    topic_partition: TopicPartition
    wanted: int
    high_watermark: int

    def __str__(self) -> str:
        return (
            f"{self.topic_partition}: expected records up to offset {self.wanted}, "
            f"but the log now ends at {self.high_watermark}"
        )


DataLoss = (
    TopicGone | TopicRecreated | PartitionGone | Deselected | BelowLogStart | GivenUp | AboveEnd
)


def outside(topic_partition: TopicPartition, offset: int, span: Span) -> list[DataLoss]:
    """The loss of a reader that is to go on at ``offset``, where ``span`` has none (pure)."""
    if offset < span.start:
        return [BelowLogStart(topic_partition, offset, span.start)]
    if offset > span.end:
        return [AboveEnd(topic_partition, offset, span.end)]
    lost = span.lost_at(offset)
    return [] if lost is None else [GivenUp(topic_partition, offset, lost.end)]


def crossed(topic_partition: TopicPartition, start: int, end: int, span: Span) -> list[DataLoss]:
    """The losses of a reader from ``start``, where records are, to ``end`` (pure)."""
    return [
        GivenUp(topic_partition, each.start, each.end)
        for each in span.lost
        if start <= each.start < end
    ]


def explained(findings: Sequence[DataLoss], selection: Selection) -> list[DataLoss]:
    """``findings``, where what is missing may only have been left out of ``selection``."""
    return [_explained(finding, selection) for finding in findings]


def _explained(finding: DataLoss, selection: Selection) -> DataLoss:
    match finding:
        case TopicGone(topic) if not matching_topics(selection, [topic]):
            return Deselected(topic)
        case PartitionGone(topic_partition) if not includes(selection, topic_partition):
            return Deselected(topic_partition)
    return finding


def apply_policy(findings: Sequence[DataLoss], *, fail_on_data_loss: bool) -> None:
    """Raise DataLossError for ``findings``, or warn and go on with what is there.

    Called by everything that found something; nothing else looks at ``failOnDataLoss``.
    """
    if not findings:
        return
    listed = "; ".join(str(finding) for finding in findings[:_SHOWN])
    more = f"; and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
    if fail_on_data_loss:
        raise DataLossError(
            f"Records may have been lost: {listed}{more}. To go on with what is there, set the "
            "option failOnDataLoss to false; otherwise check what the options select, retention "
            "and who deletes topics."
        )
    logger.warning(
        "Records may have been lost: %s%s. The read goes on, as failOnDataLoss is false.",
        listed,
        more,
    )


def of_current_topics(
    committed: Mapping[TopicPartition, CommittedOffset], topic_ids: Mapping[str, str]
) -> tuple[dict[TopicPartition, int], list[DataLoss]]:
    """The committed offsets that belong to the topics as they are now (pure).

    An offset of a topic that has been deleted and created again says nothing about the new one;
    it is left out and found.
    """
    offsets: dict[TopicPartition, int] = {}
    recreated: dict[str, DataLoss] = {}
    for topic_partition, position in sorted(committed.items()):
        current = topic_ids.get(topic_partition.topic)
        if current is None:
            continue
        if position.is_of(current):
            offsets[topic_partition] = position.offset
        else:
            recreated[topic_partition.topic] = TopicRecreated(
                topic_partition.topic, str(position.topic_id), current
            )
    return offsets, list(recreated.values())
