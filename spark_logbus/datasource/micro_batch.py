"""The next micro-batch of a stream (pure): from the last end and what the brokers hold now.

Everything that ``latestOffset`` decides is decided here, from values; the caller asks and commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_logbus.datasource.stream_offset import StreamOffset
from spark_logbus.model import NEVER_REWOUND, OffsetRange, RewindMark, TopicPartition
from spark_logbus.offsets.data_loss import (
    AboveEnd,
    BelowLogStart,
    DataLoss,
    PartitionGone,
    TopicGone,
    TopicRecreated,
    crossed,
    outside,
)
from spark_logbus.offsets.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class GroupView:
    """A stream's knowledge of its group when it plans: the last rewind, and to where."""

    group: str | None = None
    mark: RewindMark = NEVER_REWOUND
    rewound: Mapping[TopicPartition, int] | None = None
    """Offsets that rewinds set and the stream has not followed yet; None if there are none."""


NO_GROUP = GroupView()


@dataclass(frozen=True, slots=True)
class MicroBatchPlan:
    """End of all that could be read next (None: nothing to do), and what was not as expected."""

    end: StreamOffset | None
    findings: list[DataLoss]
    moved: bool = False
    """True if positions changed beside the records that came: the micro-batch cannot wait then."""

    @property
    def records(self) -> int:
        return 0 if self.end is None else sum(r.count for r in self.end.ranges())


def plan_micro_batch(
    last: StreamOffset,
    snapshot: Snapshot,
    *,
    view: GroupView = NO_GROUP,
) -> MicroBatchPlan:
    """The micro-batch after ``last``, given ``snapshot``.

    Partitions that ``last`` does not know start at their log start: their records all came after
    the stream started. Findings are reported with the plan that goes on in spite of them.
    """
    findings: list[DataLoss] = []
    starts = _carried_over(last, snapshot, findings)
    recreated = {t for t, id_ in last.topic_ids.items() if snapshot.topic_ids.get(t, id_) != id_}
    for topic_partition, offset in (view.rewound or {}).items():
        if topic_partition in snapshot.spans and topic_partition.topic not in recreated:
            # Cut quietly: a rewind asks for what is there, as far back as there is any.
            starts[topic_partition] = snapshot.spans[topic_partition].clamp(offset)
    moved = starts != dict(last.to) or view.rewound is not None
    for topic_partition, span in snapshot.spans.items():
        if topic_partition not in starts:
            if span.start > 0 and topic_partition.topic not in recreated:
                findings.append(BelowLogStart(topic_partition, 0, span.start))
            starts[topic_partition] = span.start
    # Up to where records are lost: the next micro-batch begins there, and finds it.
    ranges = {
        topic_partition: OffsetRange(
            topic_partition, start, snapshot.spans[topic_partition].reach(start)
        )
        for topic_partition, start in starts.items()
    }
    if not moved and not findings and not any(r.count for r in ranges.values()):
        return MicroBatchPlan(None, findings)
    end = StreamOffset(
        start=starts,
        to={topic_partition: r.end for topic_partition, r in ranges.items()},
        topic_ids=snapshot.topic_ids,
        group=view.group,
        mark=view.mark,
    )
    return MicroBatchPlan(end, findings, moved or bool(findings))


def _carried_over(
    last: StreamOffset, snapshot: Snapshot, findings: list[DataLoss]
) -> dict[TopicPartition, int]:
    """Positions of ``last`` that still mean something, cut to what is there."""
    gone = set()
    for topic, topic_id in sorted(last.topic_ids.items()):
        current = snapshot.topic_ids.get(topic)
        if current is None:
            findings.append(TopicGone(topic))
            gone.add(topic)
        elif current != topic_id:
            findings.append(TopicRecreated(topic, topic_id, current))
            gone.add(topic)
    starts: dict[TopicPartition, int] = {}
    for topic_partition, offset in sorted(last.to.items()):
        if topic_partition.topic in gone:
            continue
        span = snapshot.spans.get(topic_partition)
        if span is None:
            findings.append(PartitionGone(topic_partition))
            continue
        findings += outside(topic_partition, offset, span)
        starts[topic_partition] = span.clamp(offset)
    return starts


def replay(end: StreamOffset, snapshot: Snapshot) -> tuple[list[OffsetRange], list[DataLoss]]:
    """The ranges of a micro-batch that the checkpoint already holds, cut to what is still there.

    A topic that was deleted or recreated since gives no range; the stream takes up the new one
    in its next micro-batch.
    """
    findings: list[DataLoss] = []
    present = _carried_over(
        StreamOffset(start=end.start, to=end.start, topic_ids=end.topic_ids), snapshot, findings
    )
    ranges = []
    for planned in end.ranges():
        topic_partition = planned.topic_partition
        if topic_partition not in present:
            continue
        span = snapshot.spans[topic_partition]
        if planned.end > span.end:
            findings.append(AboveEnd(topic_partition, planned.end, span.end))
        first, after = present[topic_partition], min(planned.end, span.end)
        findings += crossed(topic_partition, first, after, span)
        ranges += [OffsetRange(topic_partition, *each) for each in span.pieces(first, after)]
    return ranges, findings
