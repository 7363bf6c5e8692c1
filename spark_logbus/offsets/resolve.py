"""From what a user wrote to offsets: specifications applied to a snapshot (pure).

Findings are collected, not decided (see ``loss``); positions come back clamped to what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from spark_logbus.client import Admin
from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    Latest,
    OffsetRange,
    OffsetSpec,
    TopicPartition,
)
from spark_logbus.offsets.data_loss import AboveEnd, BelowLogStart, DataLoss
from spark_logbus.offsets.position import (
    Committed,
    LastDuration,
    LastRecords,
    OffsetBound,
    PerPartition,
    Positions,
)
from spark_logbus.offsets.snapshot import Snapshot, Span
from spark_logbus.times import show_moment

NOTHING: Mapping[TopicPartition, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Resolved:
    """One offset for each partition of a snapshot, and what was not as asked for."""

    offsets: dict[TopicPartition, int]
    findings: list[DataLoss] = field(default_factory=list)


def lookups(
    positions: Positions, snapshot: Snapshot, *, now_us: int
) -> dict[TopicPartition, AtTimestamp]:
    """The timestamps that the brokers have to look up before ``resolve``."""
    match positions:
        case AtTimestamp():
            return dict.fromkeys(snapshot.spans, positions)
        case LastDuration(duration_us):
            return dict.fromkeys(snapshot.spans, AtTimestamp(max(0, now_us - duration_us)))
        case PerPartition(items):
            return {
                topic_partition: spec
                for topic_partition, spec in items
                if isinstance(spec, AtTimestamp) and topic_partition in snapshot.spans
            }
    return {}


def resolve(
    bound: OffsetBound,
    snapshot: Snapshot,
    *,
    committed: Mapping[TopicPartition, int] = NOTHING,
    found: Mapping[TopicPartition, int | None] = NOTHING,
) -> Resolved:
    """The offset of every partition of ``snapshot`` that ``bound`` means.

    ``committed`` are the group's offsets, needed for ``Committed`` only; a partition that the
    group never committed starts at earliest, so that no record of it is passed over. ``found``
    are the answers to ``lookups``: None where no record is that young.

    Raises InvalidOptionError for partitions that are missing or too many, and for a timestamp
    without a record unless the bound says what to do.
    """
    positions = bound.positions
    specs: Mapping[TopicPartition, OffsetSpec | LastRecords | LastDuration]
    match positions:
        case PerPartition():
            specs = positions.as_dict()
            _require_same(specs, snapshot, option=bound.option)
        case Committed():
            specs = {
                topic_partition: AtOffset(committed[topic_partition])
                if topic_partition in committed
                else Earliest()
                for topic_partition in snapshot.spans
            }
        case _:
            specs = dict.fromkeys(snapshot.spans, positions)
    result = Resolved({})
    for topic_partition, span in sorted(snapshot.spans.items()):
        result.offsets[topic_partition] = _resolve_one(
            topic_partition, specs[topic_partition], span, bound, found, result.findings
        )
    return result


def _resolve_one(
    topic_partition: TopicPartition,
    spec: OffsetSpec | LastRecords | LastDuration,
    span: Span,
    bound: OffsetBound,
    found: Mapping[TopicPartition, int | None],
    findings: list[DataLoss],
) -> int:
    match spec:
        case Earliest():
            return span.start
        case Latest():
            return span.end
        case LastRecords(count):
            return span.clamp(span.end - count)
        case AtOffset(offset):
            if offset < span.start:
                findings.append(BelowLogStart(topic_partition, offset, span.start))
            elif offset > span.end:
                findings.append(AboveEnd(topic_partition, offset, span.end))
            return span.clamp(offset)
        case LastDuration():
            at = found[topic_partition]
            return span.end if at is None else span.clamp(at)
        case AtTimestamp(timestamp_us):
            at = found[topic_partition]
            if at is not None:
                return span.clamp(at)
            if bound.latest_without_match:
                return span.end
            raise InvalidOptionError(
                f"Option {bound.option}: {topic_partition} has no record at or after "
                f"{show_moment(timestamp_us)}; give an earlier time, or set "
                "startingOffsetsByTimestampStrategy to latest to start at the end there."
            )


def _require_same(
    specs: Mapping[TopicPartition, object], snapshot: Snapshot, *, option: str
) -> None:
    missing = sorted(set(snapshot.spans) - set(specs))
    surplus = sorted(set(specs) - set(snapshot.spans))
    if missing or surplus:
        parts = []
        if missing:
            parts.append(f"it lacks {', '.join(map(str, missing))} (-2 is earliest, -1 latest)")
        if surplus:
            parts.append(f"it names {', '.join(map(str, surplus))}, which are not read")
        raise InvalidOptionError(
            f"Option {option} must name exactly the partitions that are read: {'; '.join(parts)}."
        )


def make_ranges(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    options: tuple[str, str],
) -> list[OffsetRange]:
    """The ranges between resolved starts and ends; a start after its end is the user's mistake.

    ``options`` are the names of the two options that said where.
    """
    ranges = []
    for topic_partition, start in sorted(starts.items()):
        if start > ends[topic_partition]:
            raise InvalidOptionError(
                f"Options {options[0]} and {options[1]}: {topic_partition} would start at {start} "
                "and "
                f"end at {ends[topic_partition]}; a start must not be after its end."
            )
        ranges.append(OffsetRange(topic_partition, start, ends[topic_partition]))
    return ranges


def locate(
    bound: OffsetBound,
    snapshot: Snapshot,
    admin: Admin,
    *,
    now_us: int,
    committed: Mapping[TopicPartition, int] = NOTHING,
) -> Resolved:
    """The offset that ``bound`` means in every partition of ``snapshot``, as of ``now_us``."""
    wanted = lookups(bound.positions, snapshot, now_us=now_us)
    found = admin.list_offsets(wanted) if wanted else {}
    return resolve(bound, snapshot, committed=committed, found=found)
