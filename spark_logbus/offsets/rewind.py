"""Rewinds: a group's committed offsets set back, planned purely, shown, then applied.

A plan says for each partition where the group stands, where it would stand, and whether that had
to be cut to what the log still holds. Nothing changes before ``apply``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    Latest,
    OffsetSpec,
    TopicPartition,
)
from spark_logbus.offsets.data_loss import TopicRecreated, of_current_topics
from spark_logbus.offsets.descriptions import LogQueries
from spark_logbus.offsets.position import PerPartition, ShiftBack
from spark_logbus.offsets.resolve import NOTHING, look_up, offset_in
from spark_logbus.offsets.snapshot import Snapshot, Span
from spark_logbus.times import US_PER_S, show_moment

if TYPE_CHECKING:  # Spark tasks import this package and have no use for ZooKeeper's client
    from spark_logbus.coordination.groups.offsets import GroupOffsets
    from spark_logbus.coordination.groups.rewinds import GroupRewinds, Rewind


Target = OffsetSpec | PerPartition | ShiftBack


def describe(target: Target) -> str:
    """A target in words, for the table and for the record."""
    match target:
        case Earliest():
            return "to earliest"
        case Latest():
            return "to latest"
        case AtOffset(offset):
            return f"to offset {offset}"
        case AtTimestamp(timestamp_us):
            return f"to time {show_moment(timestamp_us, timespec='milliseconds')}"
        case LastRecords(count):
            return f"to {count} records before the end"
        case LastDuration(duration_us):
            return f"by {duration_us / US_PER_S:g} s"
        case ShiftBack(count):
            return f"by {count} records"
        case PerPartition(items):
            each = (f"{topic_partition} {describe(spec)}" for topic_partition, spec in items)
            return ", ".join(each)


@dataclass(frozen=True, slots=True)
class RewindRow:
    """One partition of a plan. ``wanted`` is ``new_offset`` unless the log does not reach it."""

    topic_partition: TopicPartition
    committed: int | None
    wanted: int
    new_offset: int
    span: Span

    @property
    def clamped(self) -> bool:
        return self.wanted != self.new_offset

    @property
    def change(self) -> int:
        """Records that would be read again (negative) or passed over (positive)."""
        here = self.span.end if self.committed is None else self.committed
        if self.new_offset < here:
            return -self.span.count(self.new_offset, here)
        return self.span.count(here, self.new_offset)


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """The changes that a rewind would make; also the table that a dry run shows."""

    group: str
    target: Target
    rows: tuple[RewindRow, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    recreated: tuple[str, ...] = ()
    """Topics that were deleted and created again since the group committed: what it committed
    says nothing about them."""

    @property
    def positions(self) -> dict[TopicPartition, int]:
        return {row.topic_partition: row.new_offset for row in self.rows}

    @property
    def records_to_read_again(self) -> int:
        return sum(-row.change for row in self.rows if row.change < 0)


def plan(
    group: str,
    target: Target,
    *,
    snapshot: Snapshot,
    committed: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, int | None] = NOTHING,
) -> RewindPlan:
    """The rows of a rewind of ``group`` over the partitions of ``snapshot``, sorted (pure).

    ``found`` are the answers to ``lookups``. Where no record is that young the end is meant.
    """
    specs = _specs(target, snapshot)
    rows = []
    for topic_partition, spec in sorted(specs.items(), key=lambda each: each[0]):
        span = snapshot.spans[topic_partition]
        position = committed.get(topic_partition)
        if isinstance(spec, ShiftBack):
            here = span.end if position is None else position
            wanted: int | None = span.back_from(here, spec.count)
        else:
            wanted = offset_in(span, spec, found.get(topic_partition))
        if wanted is None:
            wanted = span.end
        rows.append(RewindRow(topic_partition, position, wanted, span.clamp(wanted), span))
    return RewindPlan(group, target, tuple(rows), snapshot.topic_ids)


def _specs(target: Target, snapshot: Snapshot) -> Mapping[TopicPartition, OffsetSpec | ShiftBack]:
    """The target of each partition; those that ``PerPartition`` leaves out stay as they are."""
    if not isinstance(target, PerPartition):
        return dict.fromkeys(snapshot.spans, target)
    specs = target.as_dict()
    unknown = sorted(set(specs) - set(snapshot.spans))
    if unknown:
        raise InvalidRequestError(
            f"The rewind names {', '.join(map(str, unknown))}, which the cluster does not have."
        )
    return specs


def prepare(
    group: str,
    target: Target,
    *,
    admin: LogQueries,
    groups: GroupOffsets,
    snapshot: Snapshot,
    now_us: Callable[[], int],
) -> RewindPlan:
    """Look up what ``plan`` needs, and plan. Changes nothing."""
    committed, recreated = of_current_topics(
        groups.committed(group, sorted(snapshot.spans)), snapshot.topic_ids
    )
    found = look_up(target, snapshot, admin, now_us=now_us())
    made = plan(group, target, snapshot=snapshot, committed=committed, found=found)
    planned = {row.topic_partition.topic for row in made.rows}
    anew = {finding.topic for finding in recreated if isinstance(finding, TopicRecreated)}
    return replace(made, recreated=tuple(sorted(anew & planned)))


def require_rows(rewind_plan: RewindPlan) -> None:
    """InvalidRequestError for a plan that would change nothing."""
    if not rewind_plan.rows:
        raise InvalidRequestError(
            f"The rewind of group {rewind_plan.group} covers no partition; nothing was changed. "
            "A group whose topics were all deleted is cleared by `logbus groups delete`."
        )


def apply(rewind_plan: RewindPlan, *, rewinds: GroupRewinds, by: str, why: str = "") -> Rewind:
    """Record the rewind: a new rewind epoch and the offsets that it sets, in one transaction."""
    require_rows(rewind_plan)
    return rewinds.record(
        rewind_plan.group,
        rewind_plan.positions,
        description=describe(rewind_plan.target),
        reason=why,
        actor=by,
        topic_ids=rewind_plan.topic_ids,
    )
