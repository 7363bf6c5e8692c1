"""Decides which segments a compaction takes, and which tombstones may go. Pure.

The sealed segments of a log are clean up to the *first dirty offset*: there, no key has two
records. The records after it came since. A compaction reads the dirty part, learns the newest
offset of each key, and writes all segments anew without what is older.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_logbus.log.checkpoint import CleanedUpTo
from spark_logbus.log.segment.index import Summary

# Offsets in a record batch of a rewritten segment are 32-bit differences.
_MAX_SPAN: Final = (1 << 31) - 1
# Of the time that tombstones are kept; finer, they would go a little sooner and the history grow.
_HISTORY_STEPS: Final = 16


@dataclass(frozen=True, slots=True)
class SegmentSelection:
    """Choice of the first ``count`` sealed segments, of which ``dirty_bytes`` are new."""

    count: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def select(
    segments: Sequence[Summary],
    *,
    first_dirty_offset: int,
    now_us: int,
    min_lag_ms: int,
    max_lag_ms: int | None,
) -> SegmentSelection:
    """Select the sealed segments, oldest first, that are old enough, and measure their dirt.

    Age counts from the append, not from the records' own timestamps: those may be stamped in
    the past, and are what a backfill brings.
    """
    count = clean_bytes = dirty_bytes = 0
    overdue = False
    for segment in segments:
        if segment.end_offset <= first_dirty_offset:
            clean_bytes += segment.size_bytes
        elif now_us - segment.last_append_us < min_lag_ms * 1000:
            break
        else:
            dirty_bytes += segment.size_bytes
            if max_lag_ms is not None and now_us - segment.first_append_us >= max_lag_ms * 1000:
                overdue = True
        count += 1
    return SegmentSelection(count, clean_bytes, dirty_bytes, overdue)


def group(segments: Sequence[Summary], *, segment_bytes: int) -> list[range]:
    """Runs of consecutive segments, by number, each of which becomes one new segment.

    What goes in is bounded, so that what comes out is: it holds no more records. None goes over
    offsets that were lost, which are told of because segments end and begin at them.
    """
    groups: list[range] = []
    start = size = 0
    for number, segment in enumerate(segments):
        span = segment.end_offset - segments[start].base_offset
        if number > start and (
            size + segment.size_bytes > segment_bytes
            or span > _MAX_SPAN
            or segment.base_offset != segments[number - 1].end_offset
        ):
            groups.append(range(start, number))
            start, size = number, 0
        size += segment.size_bytes
    if segments:
        groups.append(range(start, len(segments)))
    return groups


def delete_horizon(history: Sequence[CleanedUpTo], *, now_us: int, delete_retention_ms: int) -> int:
    """Returns the offset before which tombstones have deleted what they are to, long enough ago.

    0 when there are none. ``history`` rises in both of its columns.
    """
    keep_from_us = now_us - delete_retention_ms * 1000
    return max((old.offset for old in history if old.cleaned_at_us <= keep_from_us), default=0)


def record_cleaning(
    history: Sequence[CleanedUpTo], latest: CleanedUpTo, *, delete_retention_ms: int
) -> tuple[CleanedUpTo, ...]:
    """Returns ``history`` with ``latest`` at its end, thinned to what ``delete_horizon`` needs.

    An entry that is left out makes tombstones stay longer, never go sooner. So does a clock that
    was set back: what it contradicts is left out.
    """
    keep_from_us = latest.cleaned_at_us - delete_retention_ms * 1000
    step_us = delete_retention_ms * 1000 // _HISTORY_STEPS
    known = [
        old
        for old in history
        if old.cleaned_at_us < latest.cleaned_at_us and old.offset <= latest.offset
    ]
    expired = [old for old in known if old.cleaned_at_us <= keep_from_us]
    kept = expired[-1:]
    for old in known[len(expired) :]:
        if not kept or old.cleaned_at_us - kept[-1].cleaned_at_us >= step_us:
            kept.append(old)
    return (*kept, latest)
