from __future__ import annotations

import pytest

from spark_logbus.errors import (
    BrokerUnavailableError,
    LogbusError,
    NotLeaderError,
    UnknownTopicError,
    ZooKeeperAddressError,
)
from spark_logbus.retry import Backoff, Deadline, RetryPolicy, gave_up
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


def waited_s(clock: ManualClock) -> float:
    return clock.seconds - ManualClock().seconds


def policy(clock: ManualClock) -> RetryPolicy:
    return RetryPolicy(limit_s=10, clock=clock, pause=clock.advance)


def failing(times: int, error: LogbusError) -> list[LogbusError | str]:
    return [*[error] * times, "done"]


def test_a_passing_fault_passes() -> None:
    clock = ManualClock()
    answers = iter(failing(3, BrokerUnavailableError("away")))

    def attempt() -> str:
        answer = next(answers)
        if isinstance(answer, LogbusError):
            raise answer
        return answer

    assert policy(clock).retry("Asking", attempt) == "done"


def test_a_lasting_fault_is_raised_with_its_kind_after_the_bound() -> None:
    clock = ManualClock()

    def attempt() -> None:
        raise BrokerUnavailableError("away")

    with pytest.raises(BrokerUnavailableError, match=r"Asking has failed for .* s.*away"):
        policy(clock).retry("Asking", attempt)
    assert 7 < waited_s(clock) <= 10


def test_a_wrong_address_is_given_up_soon_at_first_contact_only() -> None:
    def attempt() -> None:
        raise ZooKeeperAddressError("nothing there")

    clock = ManualClock()
    with pytest.raises(ZooKeeperAddressError):
        policy(clock).retry("Asking", attempt)
    assert 7 < waited_s(clock) <= 10
    clock = ManualClock()
    with pytest.raises(ZooKeeperAddressError, match=r"Asking has failed for .* s.*nothing there"):
        policy(clock).at_first_contact().retry("Asking", attempt)
    assert 1 < waited_s(clock) <= 3


def test_a_fault_is_logged_when_it_is_another_than_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    faults = iter(["away"] * 3 + ["slow"] * 2 + ["away"])

    def attempt() -> str:
        fault = next(faults, None)
        if fault is not None:
            raise BrokerUnavailableError(fault)
        return "done"

    assert policy(clock).retry("Asking", attempt) == "done"
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ["away", "slow", "away"]


def test_what_cannot_pass_is_raised_at_once() -> None:
    clock = ManualClock()

    def attempt() -> None:
        raise UnknownTopicError("no such topic")

    with pytest.raises(UnknownTopicError):
        policy(clock).retry("Asking", attempt)
    assert waited_s(clock) == 0
