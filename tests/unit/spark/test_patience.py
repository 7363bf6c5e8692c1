"""Passing faults are waited out, within a bound."""

from __future__ import annotations

import pytest

from spark_logbus.errors import (
    BrokerUnavailableError,
    LogbusError,
    UnknownTopicError,
    ZooKeeperAddressError,
)
from spark_logbus.spark.patience import RetryPolicy
from tests.fakes.clock import ManualClock


def waited_s(clock: ManualClock) -> float:
    return clock.seconds - ManualClock().seconds


def patience(clock: ManualClock) -> RetryPolicy:
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

    assert patience(clock).run("Asking", attempt) == "done"


def test_a_lasting_fault_is_raised_with_its_kind_after_the_bound() -> None:
    clock = ManualClock()

    def attempt() -> None:
        raise BrokerUnavailableError("away")

    with pytest.raises(BrokerUnavailableError, match=r"Asking has failed for .* s.*away"):
        patience(clock).run("Asking", attempt)
    assert 7 < waited_s(clock) <= 10


def test_a_wrong_address_is_given_up_soon_at_first_contact_only() -> None:
    def attempt() -> None:
        raise ZooKeeperAddressError("nothing there")

    clock = ManualClock()
    with pytest.raises(ZooKeeperAddressError):
        patience(clock).run("Asking", attempt)
    assert 7 < waited_s(clock) <= 10
    clock = ManualClock()
    with pytest.raises(ZooKeeperAddressError, match=r"Asking has failed for .* s.*nothing there"):
        patience(clock).at_first_contact().run("Asking", attempt)
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

    assert patience(clock).run("Asking", attempt) == "done"
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ["away", "slow", "away"]


def test_what_cannot_pass_is_raised_at_once() -> None:
    clock = ManualClock()

    def attempt() -> None:
        raise UnknownTopicError("no such topic")

    with pytest.raises(UnknownTopicError):
        patience(clock).run("Asking", attempt)
    assert waited_s(clock) == 0
