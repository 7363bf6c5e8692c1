"""Setting a group's committed offsets back: planned purely, shown, then applied.

A plan says for each partition where the group stands, where it would stand, and whether the wish
had to be cut to what the log still holds. Nothing changes before ``apply``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spark_logbus.client import Admin
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import AtTimestamp, TopicPartition
from spark_logbus.offsets.data_loss import TopicRecreated, of_current_topics
from spark_logbus.offsets.snapshot import Snapshot, Span
from spark_logbus.times import show_moment

if TYPE_CHECKING:  # Spark tasks import this package and have no use for ZooKeeper's client
    from spark_logbus.coordination.group_offsets import GroupOffsets
    from spark_logbus.coordination.rewinds import GroupRewinds, Rewind


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """Everything that is still there."""

    def __str__(self) -> str:
        return "to earliest"


@dataclass(frozen=True, slots=True)
class ToLatest:
    """Past everything that is there: skip forward."""

    def __str__(self) -> str:
        return "to latest"


@dataclass(frozen=True, slots=True)
class ToOffset:
    """The same offset in every partition, or one for each of some partitions."""

    offset: int | None = None
    offsets: tuple[tuple[TopicPartition, int], ...] = ()

    def __str__(self) -> str:
        if self.offset is not None:
            return f"to offset {self.offset}"
        return "to offset " + ", ".join(
            f"{topic_partition}: {offset}" for topic_partition, offset in self.offsets
        )


@dataclass(frozen=True, slots=True)
class ToTime:
    """The first record at or after a time (µs since the epoch); the end if there is none."""

    timestamp_us: int

    def __str__(self) -> str:
        return f"to time {show_moment(self.timestamp_us, timespec='milliseconds')}"


@dataclass(frozen=True, slots=True)
class ByDuration:
    """As ``ToTime``, counted back from now (µs)."""

    duration_us: int

    def __str__(self) -> str:
        return f"by {self.duration_us / 1_000_000:g} s"


@dataclass(frozen=True, slots=True)
class ByCount:
    """So many records back, in each partition, from where the group stands (or from the end)."""

    records: int

    def __str__(self) -> str:
        return f"by {self.records} records"


Target = ToEarliest | ToLatest | ToOffset | ToTime | ByDuration | ByCount


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
        return self.new_offset - (self.span.end if self.committed is None else self.committed)


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a rewind would do; also the table that a dry run shows."""

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
    at_time: Mapping[TopicPartition, int | None] | None = None,
) -> RewindPlan:
    """The rows of a rewind of ``group`` over the partitions of ``snapshot``, sorted (pure).

    ``at_time`` answers the time of ``ToTime`` and ``ByDuration`` for each partition: the offset of
    the first record at or after it, None if there is none.
    """
    chosen = _chosen_partitions(target, snapshot)
    rows = []
    for topic_partition in chosen:
        span = snapshot.spans[topic_partition]
        position = committed.get(topic_partition)
        wanted = _wanted(
            topic_partition, target, span=span, committed=position, at_time=at_time or {}
        )
        rows.append(RewindRow(topic_partition, position, wanted, span.clamp(wanted), span))
    return RewindPlan(group, target, tuple(rows), snapshot.topic_ids)


def _chosen_partitions(target: Target, snapshot: Snapshot) -> list[TopicPartition]:
    if not isinstance(target, ToOffset) or not target.offsets:
        return sorted(snapshot.spans)
    unknown = [
        topic_partition
        for topic_partition, _ in target.offsets
        if topic_partition not in snapshot.spans
    ]
    if unknown:
        raise InvalidRequestError(
            f"The rewind names {', '.join(map(str, unknown))}, which the cluster does not have."
        )
    return sorted(topic_partition for topic_partition, _ in target.offsets)


def _wanted(
    topic_partition: TopicPartition,
    target: Target,
    *,
    span: Span,
    committed: int | None,
    at_time: Mapping[TopicPartition, int | None],
) -> int:
    match target:
        case ToEarliest():
            return span.start
        case ToLatest():
            return span.end
        case ToOffset(offset, offsets):
            wanted = dict(offsets).get(topic_partition, offset)
            if wanted is None:
                raise InvalidRequestError(f"The rewind gives no offset for {topic_partition}.")
            return wanted
        case ByCount(records):
            return (span.end if committed is None else committed) - records
        case ToTime() | ByDuration():
            found = at_time.get(topic_partition)
            return span.end if found is None else found


def prepare(
    group: str,
    target: Target,
    *,
    admin: Admin,
    groups: GroupOffsets,
    snapshot: Snapshot,
    now_us: Callable[[], int],
) -> RewindPlan:
    """Look up what ``plan`` needs, and plan. Changes nothing."""
    partitions: Iterable[TopicPartition] = sorted(snapshot.spans)
    committed, recreated = of_current_topics(
        groups.committed(group, partitions), snapshot.topic_ids
    )
    at_time: dict[TopicPartition, int | None] = {}
    if isinstance(target, ToTime | ByDuration):
        moment = (
            target.timestamp_us if isinstance(target, ToTime) else now_us() - target.duration_us
        )
        at_time = admin.list_offsets(
            {topic_partition: AtTimestamp(moment) for topic_partition in partitions}
        )
    made = plan(group, target, snapshot=snapshot, committed=committed, at_time=at_time)
    planned = {row.topic_partition.topic for row in made.rows}
    found = {finding.topic for finding in recreated if isinstance(finding, TopicRecreated)}
    return replace(made, recreated=tuple(sorted(found & planned)))


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
        what=str(rewind_plan.target),
        why=why,
        by=by,
        topic_ids=rewind_plan.topic_ids,
    )
