from __future__ import annotations

import pytest

from spark_logbus.log.guarded_clock import JumpGuardedClock
from spark_logbus.log.retention import expired_segments
from spark_logbus.log.segment.index import NO_TIMESTAMP, Summary
from spark_logbus.log.segment.metadata import NOTHING_APPENDED
from tests.fakes.clock import NOW_US, SECOND, ManualClock

NOW = 1_000_000_000
FUTURE = NOW * 100
UNKNOWN = NO_TIMESTAMP


def summary(size_bytes: int, max_timestamp_us: int, last_append_us: int) -> Summary:
    """Offsets and the first append are nothing to retention."""
    return Summary(0, 1, size_bytes, max_timestamp_us, last_append_us, last_append_us)


def summaries(*segments: tuple[int, int, int]) -> list[Summary]:
    """Size, age of the newest record and age of the last append, both in ms."""
    return [
        summary(
            size,
            age if age in (FUTURE, UNKNOWN) else NOW - age * 1000,
            NOTHING_APPENDED if age == UNKNOWN else NOW - appended * 1000,
        )
        for size, age, appended in segments
    ]


@pytest.mark.parametrize(
    ("segments", "expired"),
    [
        ([], 0),
        ([(0, UNKNOWN, 0)], 0),
        ([(10, 99, 99), (10, 50, 50)], 0),
        ([(10, 101, 101), (10, 50, 50)], 1),
        ([(10, 101, 101), (0, UNKNOWN, 0)], 1),
        ([(10, 500, 500), (10, 101, 101)], 2),  # the active one too
        ([(10, 50, 50), (10, 500, 500), (10, 0, 0)], 0),  # a young one protects what follows
        ([(10, 500, 0), (10, 0, 0)], 0),  # of the past, appended now
        ([(10, 500, 100), (10, 0, 0)], 0),
        ([(10, 500, 101), (10, 0, 0)], 1),
        ([(10, 500_000, 101), (10, 500_000, 0)], 1),  # a backfill under way
        ([(10, 99, 500), (10, 0, 0)], 0),  # its own time may only lengthen that
        ([(10, 101, 500), (10, 0, 0)], 1),
        ([(10, FUTURE, 101), (10, 0, 0)], 1),  # stamped 2099, appended long ago
        ([(10, FUTURE, 99), (10, 0, 0)], 0),
        ([(10, FUTURE, -99), (10, 0, 0)], 0),  # appended in the future, too
        ([(10, UNKNOWN, 0), (10, 500, 500), (10, 0, 0)], 2),  # nothing readable: with the next
        ([(10, UNKNOWN, 0), (10, 0, 0)], 0),
        ([(10, UNKNOWN, 0), (0, UNKNOWN, 0)], 0),
        ([(10, 100, 100), (10, 0, 0)], 0),  # exactly at the limit is kept
    ],
)
def test_by_time(segments: list[tuple[int, int, int]], expired: int) -> None:
    found = expired_segments(
        summaries(*segments), now_us=NOW, retention_ms=100, retention_bytes=None
    )
    assert found == expired


@pytest.mark.parametrize(
    ("sizes", "limit", "expired"),
    [
        ([], 100, 0),
        ([500], 100, 0),  # never the active one
        ([100, 100], 101, 0),  # what is left would be less than the limit
        ([100, 101], 101, 1),
        ([101, 100], 100, 1),
        ([60, 60, 60, 60], 200, 0),
        ([60, 60, 60, 60], 180, 1),
        ([30, 30, 30, 300], 100, 3),
        ([0, 200, 0], 100, 1),
    ],
)
def test_by_size(sizes: list[int], limit: int, expired: int) -> None:
    segments = [summary(size, NOW, NOW) for size in sizes]
    found = expired_segments(segments, now_us=NOW, retention_ms=None, retention_bytes=limit)
    assert found == expired


def test_without_limits_nothing_goes() -> None:
    segments = summaries((10, 10**6, 10**6), (10, 0, 0))
    assert not expired_segments(segments, now_us=NOW, retention_ms=None, retention_bytes=None)


HOUR = 3600


def test_steady_time_follows_the_clock() -> None:
    clock = ManualClock()
    steady = JumpGuardedClock(clock)
    for _ in range(5):
        clock.advance(100)
        assert steady.now_us() == clock.now_us()


def test_a_jump_ahead_is_not_believed_until_it_has_lasted() -> None:
    clock = ManualClock()
    steady = JumpGuardedClock(clock)
    clock.jump(HOUR)
    assert steady.now_us() == NOW_US
    for _ in range(59):
        clock.advance(60)
        steady.now_us()
    assert steady.now_us() == NOW_US + 59 * 60 * SECOND
    clock.advance(60)
    assert steady.now_us() == clock.now_us()


def test_a_jump_ahead_that_is_taken_back_leaves_no_trace() -> None:
    clock = ManualClock()
    steady = JumpGuardedClock(clock)
    clock.jump(HOUR)
    steady.now_us()
    clock.advance(600)
    clock.jump(-HOUR)
    assert steady.now_us() == clock.now_us() == NOW_US + 600 * SECOND


def test_a_jump_back_counts_at_once() -> None:
    clock = ManualClock()
    steady = JumpGuardedClock(clock)
    clock.jump(-HOUR)
    assert steady.now_us() == clock.now_us()


def test_a_refused_clock_is_refused_at_every_look() -> None:
    """Threads look at ``jump`` while another asks for the time."""
    clock = ManualClock()
    steady = JumpGuardedClock(clock)
    clock.jump(48 * HOUR)
    steady.now_us()
    seen = []

    class Looking(ManualClock):
        def now_us(self) -> int:
            seen.append(steady.jump)
            return clock.now_us()

    steady._clock = Looking()
    for _ in range(3):
        steady.now_us()
    assert len(seen) >= 3
    assert None not in seen
