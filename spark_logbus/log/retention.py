"""Which segments of a log are to be deleted: a pure decision, and the time it goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_logbus.clock import Clock
from spark_logbus.log.index import NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    size_bytes: int
    max_timestamp_us: int
    last_append_us: int


def expired_segments(
    segments: Sequence[SegmentFacts],
    *,
    now_us: int,
    retention_ms: int | None,
    retention_bytes: int | None,
) -> int:
    """How many segments at the head of the log are to be deleted.

    ``segments`` are all of the log, the active one last. By time every segment can go, the
    active one too; by size at most all but the active one. Whole segments only, oldest first,
    so one young segment protects all that follow it.
    """
    by_time = _expired_by_time(segments, now_us, retention_ms)
    by_size = _expired_by_size(segments, retention_bytes)
    return max(by_time, by_size)


def _expired_by_time(
    segments: Sequence[SegmentFacts], now_us: int, retention_ms: int | None
) -> int:
    if retention_ms is None:
        return 0
    keep_from_us = now_us - retention_ms * 1000
    count = 0
    for number, segment in enumerate(segments):
        if segment.size_bytes == 0 and number == len(segments) - 1:
            break  # the empty active segment has nothing to expire
        newest = _newest_us(segment, now_us)
        if newest is None:
            continue  # of unknown age (no readable record): goes when the next one goes
        if newest >= keep_from_us:
            break
        count = number + 1
    return count


def _newest_us(segment: SegmentFacts, now_us: int) -> int | None:
    """When the segment's newest record was made, as far as that can be believed.

    A record stamped in the future would keep its segment for as long; then it counts from
    when it was appended.
    """
    if segment.max_timestamp_us == NO_TIMESTAMP:
        return None
    if segment.max_timestamp_us <= now_us:
        return segment.max_timestamp_us
    return segment.last_append_us


def _expired_by_size(segments: Sequence[SegmentFacts], retention_bytes: int | None) -> int:
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


class SteadyTime:
    """Wall time that does not believe a sudden jump ahead. For one thread.

    Deleting cannot be undone, so a jump ahead counts only once it has lasted for
    ``CONFIRM_S``; until then time goes on at its old pace. A jump back counts at once, since
    it only makes retention later. Right after the start the clock is taken at its word.
    """

    CONFIRM_S: Final = 3600.0
    TOLERANCE_US: Final = 60_000_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time_us = clock.now_us()
        self._seen = clock.monotonic()
        self._ahead_since: float | None = None

    def now_us(self) -> int:
        wall_us, monotonic = self._clock.now_us(), self._clock.monotonic()
        paced_us = self._time_us + int((monotonic - self._seen) * 1_000_000)
        self._seen = monotonic
        if wall_us <= paced_us + self.TOLERANCE_US:
            self._ahead_since = None
            self._time_us = wall_us
        elif self._ahead_since is None:
            self._ahead_since = monotonic
            self._time_us = paced_us
        elif monotonic - self._ahead_since >= self.CONFIRM_S:
            self._ahead_since = None
            self._time_us = wall_us
        else:
            self._time_us = paced_us
        return self._time_us
