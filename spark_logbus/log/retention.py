"""Decides how many segments of a log have expired. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_logbus.log.segment.index import Summary
from spark_logbus.log.segment.metadata import NOTHING_APPENDED


def expired_segments(
    segments: Sequence[Summary],
    *,
    now_us: int,
    retention_ms: int | None,
    retention_bytes: int | None,
) -> int:
    """Count the segments at the head of the log that are to be deleted.

    By time, a record is kept for ``retention_ms`` after its append at least.

    ``segments`` are all of the log, the active one last. By time every segment can go, the
    active one too; by size at most all but the active one. Whole segments only, oldest first,
    so one young segment protects all that follow it.
    """
    by_time = _expired_by_time(segments, now_us, retention_ms)
    by_size = _expired_by_size(segments, retention_bytes)
    return max(by_time, by_size)


def _expired_by_time(segments: Sequence[Summary], now_us: int, retention_ms: int | None) -> int:
    if retention_ms is None:
        return 0
    keep_from_us = now_us - retention_ms * 1000
    count = 0
    for number, segment in enumerate(segments):
        if segment.size_bytes == 0 and number == len(segments) - 1:
            break  # the empty active segment has nothing to expire
        if segment.last_append_us == NOTHING_APPENDED:
            continue  # of unknown age (no readable record): goes when the next one goes
        if _young_from_us(segment, now_us) >= keep_from_us:
            break
        count = number + 1
    return count


def _young_from_us(segment: Summary, now_us: int) -> int:
    """The time from which the age of the segment's newest record counts: its last append.

    A record's own time may lengthen that, and never shortens it: records of the past that are
    loaded today are kept as long as others. A time in the future is not believed, or the record
    would keep its segment for as long.
    """
    if segment.max_timestamp_us <= now_us:
        return max(segment.max_timestamp_us, segment.last_append_us)
    return segment.last_append_us


def _expired_by_size(segments: Sequence[Summary], retention_bytes: int | None) -> int:
    if retention_bytes is None:
        return 0
    excess = sum(segment.size_bytes for segment in segments) - retention_bytes
    count = 0
    for segment in segments[:-1]:
        if excess < segment.size_bytes or excess <= 0:
            break
        excess -= segment.size_bytes
        count += 1
    return count
