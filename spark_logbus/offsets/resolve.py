"""Positions applied to a snapshot: the offset that each partition is to be read from or to.

Only ``look_up`` and ``locate`` ask the brokers. Findings are collected, not decided (see
``data_loss``); offsets come back clamped to what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    Latest,
    OffsetRange,
    OffsetSpec,
    TopicPartition,
)
from spark_logbus.offsets.data_loss import DataLoss, GivenUp, outside
from spark_logbus.offsets.descriptions import LogQueries
from spark_logbus.offsets.position import (
    Committed,
    OffsetBound,
    PerPartition,
    Positions,
    ShiftBack,
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
    positions: Positions | ShiftBack, snapshot: Snapshot, *, now_us: int
) -> dict[TopicPartition, AtTimestamp]:
    """The timestamps that the brokers have to look up before ``resolve`` (pure)."""
    match positions:
        case AtTimestamp():
            return dict.fromkeys(snapshot.spans, positions)
        case LastDuration(duration_us):
            return dict.fromkeys(snapshot.spans, AtTimestamp(now_us - duration_us))
        case PerPartition(items):
            return {
                topic_partition: spec
                for topic_partition, spec in items
                if isinstance(spec, AtTimestamp) and topic_partition in snapshot.spans
            }
    return {}


def look_up(
    positions: Positions | ShiftBack, snapshot: Snapshot, admin: LogQueries, *, now_us: int
) -> Mapping[TopicPartition, int | None]:
    """The first records at or after the times that ``positions`` names, as of ``now_us``."""
    wanted = lookups(positions, snapshot, now_us=now_us)
    return admin.list_offsets(wanted) if wanted else {}


def offset_in(span: Span, spec: OffsetSpec, found: int | None) -> int | None:
    """The offset that ``spec`` means, which ``span`` may not reach; ``found`` answers for times.
    None where no record is that young (pure)."""
    match spec:
        case Earliest():
            return span.start
        case Latest():
            return span.end
        case LastRecords(count):
            return span.back_from(span.end, count)
        case AtOffset(offset):
            return offset
        case AtTimestamp() | LastDuration():
            return found


def resolve(
    bound: OffsetBound,
    snapshot: Snapshot,
    *,
    committed: Mapping[TopicPartition, int] = NOTHING,
    found: Mapping[TopicPartition, int | None] = NOTHING,
) -> Resolved:
    """The offset of every partition of ``snapshot`` that ``bound`` means (pure).

    ``committed`` are the group's offsets, needed for ``Committed`` only; a partition that the
    group never committed starts at earliest, so that no record of it is passed over. ``found``
    are the answers to ``lookups``: None where no record is that young.

    Raises InvalidOptionError for partitions that are missing or too many, and for a timestamp
    without a record unless the bound says what to do.
    """
    positions = bound.positions
    specs: Mapping[TopicPartition, OffsetSpec]
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
        spec = specs[topic_partition]
        offset = offset_in(span, spec, found.get(topic_partition))
        lost = span.lost_at(spec.offset) if bound.is_end and isinstance(spec, AtOffset) else None
        if lost is not None:  # what is before it is all there
            result.offsets[topic_partition] = lost.start
            if offset != lost.start:
                result.findings.append(GivenUp(topic_partition, lost.start, lost.end))
            continue
        if isinstance(spec, AtOffset):
            result.findings.extend(outside(topic_partition, spec.offset, span))
        elif isinstance(spec, AtTimestamp) and offset is None and not bound.latest_without_match:
            raise InvalidOptionError(
                f"Option {bound.option}: {topic_partition} has no record at or after "
                f"{show_moment(spec.timestamp_us)}; give an earlier time, or set "
                "startingOffsetsByTimestampStrategy to latest to start at the end there."
            )
        result.offsets[topic_partition] = span.end if offset is None else span.clamp(offset)
    return result


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
    admin: LogQueries,
    *,
    now_us: int,
    committed: Mapping[TopicPartition, int] = NOTHING,
) -> Resolved:
    """The offset that ``bound`` means in every partition of ``snapshot``, as of ``now_us``."""
    found = look_up(bound.positions, snapshot, admin, now_us=now_us)
    return resolve(bound, snapshot, committed=committed, found=found)
