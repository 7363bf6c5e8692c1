"""Bytes that may be copied in a second."""

from __future__ import annotations

import pytest

from spark_logbus.broker.replica.throttle import Throttle
from tests.fakes.clock import ManualClock


def copied_in(throttle: Throttle, clock: ManualClock, seconds: int, *, at_once: int) -> int:
    """Bytes that a copier gets, who takes what it is allowed, but no less than ``at_once``."""
    until, copied = clock.monotonic() + seconds, 0
    while clock.monotonic() < until:
        wait_s = throttle.wait_s(at_once)
        if wait_s > 0:
            clock.advance(wait_s + 1e-6)
            continue
        allowance = throttle.allowance()
        assert allowance is not None
        copied += max(at_once, allowance)
        throttle.copied(max(at_once, allowance))
    return copied


@pytest.mark.parametrize("at_once", [1_000, 64_000, 3_000_000])
def test_over_some_time_no_more_is_copied_than_the_rate(at_once: int) -> None:
    clock = ManualClock()
    throttle = Throttle(clock)
    throttle.limit([0, 9_000_000, 1_000_000])
    copied = copied_in(throttle, clock, 60, at_once=at_once)
    assert 55_000_000 < copied < 61_000_000 + at_once


def test_without_a_rate_nothing_waits_and_nothing_is_owed_later() -> None:
    clock = ManualClock()
    throttle = Throttle(clock)
    throttle.copied(1 << 40)
    assert throttle.allowance() is None
    assert throttle.wait_s(1 << 30) == 0
    throttle.limit([1_000])
    clock.advance(0.1)
    assert throttle.wait_s(1 << 30) == pytest.approx(0)
    throttle.limit([0])
    assert throttle.allowance() is None


def test_a_long_pause_is_not_made_up_for() -> None:
    clock = ManualClock()
    throttle = Throttle(clock)
    throttle.limit([1_000_000])
    clock.advance(3_600)
    assert throttle.allowance() == 100_000
