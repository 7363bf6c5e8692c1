"""From what a user wrote to offsets: specifications applied to a snapshot (pure).

Findings are collected, not decided (see ``loss``); positions come back clamped to what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
from spark_logbus.offsets.loss import AboveEnd, BelowLogStart, Finding
from spark_logbus.offsets.snapshot import Snapshot, Span
from spark_logbus.offsets.specs import Committed, PerPartition, Positions


@dataclass(frozen=True, slots=True)
class Resolved:
    """One offset for each partition of a snapshot, and what was not as asked for."""

    offsets: dict[TopicPartition, int]
    findings: list[Finding] = field(default_factory=list)


def resolve(
    positions: Positions,
    snapshot: Snapshot,
    *,
    option: str,
    committed: Mapping[TopicPartition, int] | None = None,
) -> Resolved:
    """The offset of every partition of ``snapshot`` that ``positions`` means.

    ``committed`` are the group's offsets, needed for ``Committed`` only; a partition that the
    group never committed starts at earliest, so that no record of it is passed over.
    """
    if isinstance(positions, PerPartition):
        specs = positions.as_dict()
        _require_same(specs, snapshot, option=option)
    elif isinstance(positions, Committed):
        known = committed or {}
        specs = {tp: AtOffset(known[tp]) if tp in known else Earliest() for tp in snapshot.spans}
    else:
        specs = dict.fromkeys(snapshot.spans, positions)
    result = Resolved({})
    for tp, span in sorted(snapshot.spans.items()):
        result.offsets[tp] = _resolve_one(tp, specs[tp], span, result.findings)
    return result


def _resolve_one(tp: TopicPartition, spec: OffsetSpec, span: Span, findings: list[Finding]) -> int:
    match spec:
        case Earliest():
            return span.start
        case Latest():
            return span.end
        case AtOffset(offset):
            if offset < span.start:
                findings.append(BelowLogStart(tp, offset, span.start))
            elif offset > span.end:
                findings.append(AboveEnd(tp, offset, span.end))
            return span.clamp(offset)
        case AtTimestamp():
            raise AssertionError("times are looked up by the brokers before this")


def _require_same(
    specs: Mapping[TopicPartition, OffsetSpec], snapshot: Snapshot, *, option: str
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
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """The ranges between resolved starts and ends; a start after its end is the user's mistake."""
    ranges = []
    for tp, start in sorted(starts.items()):
        if start > ends[tp]:
            raise InvalidOptionError(
                f"Options startingOffsets and endingOffsets: {tp} would start at {start} and "
                f"end at {ends[tp]}; a start must not be after its end."
            )
        ranges.append(OffsetRange(tp, start, ends[tp]))
    return ranges
