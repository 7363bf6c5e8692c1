from __future__ import annotations

import pytest

from spark_logbus.errors import BrokerUnavailableError, NotLeaderError
from spark_logbus.retry import Backoff, Deadline, gave_up
from tests.fakes.clock import ManualClock


@pytest.mark.parametrize(
    ("failures", "longest"), [(1, 0.05), (2, 0.1), (3, 0.2), (5, 0.8), (6, 1.0), (500, 1.0)]
)
def test_pauses_double_up_to_the_maximum(failures: int, longest: float) -> None:
    assert Backoff(first_ms=50, max_ms=1000, jitter=lambda: 0.0).pause_s(failures) == longest
    shortest = Backoff(first_ms=50, max_ms=1000, jitter=lambda: 1.0).pause_s(failures)
    assert shortest == pytest.approx(longest / 2)


def test_a_deadline_passes_and_can_only_come_sooner() -> None:
    clock = ManualClock()
    deadline = Deadline.after_ms(clock, 1_000)
    assert deadline.remaining_s == pytest.approx(1.0)
    assert deadline.sooner_ms(5_000) == deadline
    assert deadline.sooner_ms(200).remaining_s == pytest.approx(0.2)
    clock.advance(2)
    assert deadline.expired
    assert deadline.remaining_s == 0.0


def test_giving_up_keeps_the_kind_and_the_reason() -> None:
    error = gave_up("Reading t-0", 3.25, NotLeaderError("broker 2 leads it"))
    assert isinstance(error, NotLeaderError)
    assert "Reading t-0" in str(error)
    assert "3.2 s" in str(error)
    assert "broker 2 leads it" in str(error)
    assert not isinstance(error, BrokerUnavailableError)


def test_giving_up_tells_what_most_tries_failed_with() -> None:
    last = BrokerUnavailableError("no answer in time")
    error = gave_up("Listing offsets", 0.3, last, usual="broker 2, is not running")
    assert isinstance(error, BrokerUnavailableError)
    assert "last failure: no answer in time" in str(error)
    assert "mostly: broker 2, is not running" in str(error)
    assert "mostly" not in str(gave_up("Listing offsets", 0.3, last, usual=str(last)))
