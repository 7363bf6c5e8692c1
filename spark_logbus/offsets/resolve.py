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
from spark_logbus.offsets.data_loss import AboveEnd, BelowLogStart, Finding
from spark_logbus.offsets.position import (
    Bound,
    Committed,
    LastRecords,
    PerPartition,
    Positions,
    Since,
)
from spark_logbus.offsets.snapshot import Snapshot, Span
from spark_logbus.times import show_moment

NOTHING: Mapping[TopicPartition, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Resolved:
    """One offset for each partition of a snapshot, and what was not as asked for."""

    offsets: dict[TopicPartition, int]
    findings: list[Finding] = field(default_factory=list)


def lookups(
    positions: Positions, snapshot: Snapshot, *, now_us: int
) -> dict[TopicPartition, AtTimestamp]:
    """The timestamps that the brokers have to look up before ``resolve``."""
    match positions:
        case AtTimestamp():
            return dict.fromkeys(snapshot.spans, positions)
        case Since(duration_us):
            return dict.fromkeys(snapshot.spans, AtTimestamp(max(0, now_us - duration_us)))
        case PerPartition(items):
            return {
                tp: spec
                for tp, spec in items
                if isinstance(spec, AtTimestamp) and tp in snapshot.spans
            }
    return {}


def resolve(
    bound: Bound,
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
    specs: Mapping[TopicPartition, OffsetSpec | LastRecords | Since]
    match positions:
        case PerPartition():
            specs = positions.as_dict()
            _require_same(specs, snapshot, option=bound.option)
        case Committed():
            specs = {
                tp: AtOffset(committed[tp]) if tp in committed else Earliest()
                for tp in snapshot.spans
            }
        case _:
            specs = dict.fromkeys(snapshot.spans, positions)
    result = Resolved({})
    for tp, span in sorted(snapshot.spans.items()):
        result.offsets[tp] = _resolve_one(tp, specs[tp], span, bound, found, result.findings)
    return result


def _resolve_one(
    tp: TopicPartition,
    spec: OffsetSpec | LastRecords | Since,
    span: Span,
    bound: Bound,
    found: Mapping[TopicPartition, int | None],
    findings: list[Finding],
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
                findings.append(BelowLogStart(tp, offset, span.start))
            elif offset > span.end:
                findings.append(AboveEnd(tp, offset, span.end))
            return span.clamp(offset)
        case Since():
            at = found[tp]
            return span.end if at is None else span.clamp(at)
        case AtTimestamp(timestamp_us):
            at = found[tp]
            if at is not None:
                return span.clamp(at)
            if bound.latest_without_match:
                return span.end
            raise InvalidOptionError(
                f"Option {bound.option}: {tp} has no record at or after "
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
    for tp, start in sorted(starts.items()):
        if start > ends[tp]:
            raise InvalidOptionError(
                f"Options {options[0]} and {options[1]}: {tp} would start at {start} and "
                f"end at {ends[tp]}; a start must not be after its end."
            )
        ranges.append(OffsetRange(tp, start, ends[tp]))
    return ranges


def locate(
    bound: Bound,
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
