"""How long a broker's id is certain, with the clock and ZooKeeper played by the test."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from spark_logbus.coordination.cluster.lease import Lease
from spark_logbus.errors import CoordinationError, NotLeaderError
from spark_logbus.zookeeper import SessionState

TIMEOUT_S = 10.0
LOOK_S = TIMEOUT_S / 5


class Subject:
    """A lease whose looks are taken one by one; an answer comes ``slow_s`` after its question."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.answer: bool | None = True
        self.slow_s = 0.0
        self.during: Callable[[], None] = lambda: None
        self.told = 0
        self.lease = Lease(
            timeout_ms=int(TIMEOUT_S * 1000), ask=self._ask, elapsed_s=lambda: self.now
        )

    def _ask(self, limit_s: float) -> bool:
        self.during()
        if self.answer is None:
            self.now += limit_s
            raise CoordinationError("away")
        self.now += self.slow_s
        return self.answer

    def look(self, *, times: int = 1) -> None:
        for _ in range(times):
            pause_s = self.lease._look()
            self.now += pause_s

    def session_is(self, state: SessionState, *, granted_s: float = TIMEOUT_S) -> None:
        self.lease.session_is(state, int(granted_s * 1000))

    def park(self) -> None:
        self.lease.when_decided(self._tell)

    def _tell(self) -> None:
        self.told += 1


@pytest.fixture
def subject() -> Subject:
    return Subject()


def test_nothing_is_certain_before_the_first_answer(subject: Subject) -> None:
    assert not subject.lease.current()
    subject.look()
    assert subject.lease.current()


def test_a_lease_counts_from_the_question(subject: Subject) -> None:
    subject.slow_s = 1.5
    asked = subject.now
    subject.look()
    subject.now = asked + TIMEOUT_S - 0.1
    assert subject.lease.current()
    subject.now = asked + TIMEOUT_S
    assert not subject.lease.current()


def test_a_process_that_slept_waits_and_goes_on_with_the_answer(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    subject.look()
    subject.now += 60
    with caplog.at_level(logging.WARNING):
        subject.park()
        subject.park()
    assert (subject.lease.current(), subject.told) == (False, 0)
    assert caplog.text.count("appends wait") == 1
    subject.look()
    assert (subject.lease.current(), subject.told) == (True, 1)


def test_who_comes_when_it_is_certain_does_not_wait(subject: Subject) -> None:
    subject.look()
    subject.park()
    assert subject.told == 1


def test_an_id_not_yet_ours_is_waited_for(
    subject: Subject,
) -> None:
    subject.answer = False
    subject.park()
    subject.look(times=1_000)
    assert not subject.lease.current()
    subject.answer = True
    subject.look()
    assert (subject.lease.current(), subject.told) == (True, 1)


def test_a_zookeeper_that_goes_away_holds_up_nobody(subject: Subject) -> None:
    subject.look()
    subject.answer = None
    for _ in range(200):
        subject.lease._look()
        assert subject.lease.current()


def test_after_a_sleep_a_silent_zookeeper_gets_more_time(
    subject: Subject,
) -> None:
    subject.look()
    subject.answer = None
    subject.now += 60
    woke = subject.now
    subject.park()
    while not subject.lease.current():
        subject.look()
    assert TIMEOUT_S < subject.now - woke < 2 * TIMEOUT_S
    assert subject.told == 1


def test_away_is_no_more_than_a_moment_old(subject: Subject) -> None:
    subject.look()
    subject.answer = None
    subject.look(times=50)
    subject.now += 2
    assert not subject.lease.current(), "we slept, and ZooKeeper may have come back meanwhile"


@pytest.mark.parametrize("state", [SessionState.CONNECTED, SessionState.LOST])
def test_away_ends_when_zookeeper_is_heard_of(subject: Subject, state: SessionState) -> None:
    subject.look()
    subject.answer = None
    subject.look(times=50)
    subject.session_is(state)
    assert not subject.lease.current()
    subject.answer = True
    subject.look()
    assert subject.lease.current()


def test_a_lost_session_ends_the_lease(subject: Subject) -> None:
    subject.look()
    subject.session_is(SessionState.CONNECTED)  # the same session on another connection
    assert subject.lease.current()
    subject.session_is(SessionState.LOST)
    assert not subject.lease.current()


def test_a_lease_lasts_no_longer_than_the_session(subject: Subject) -> None:
    subject.look()
    subject.session_is(SessionState.CONNECTED, granted_s=2)
    subject.now += 1.9
    assert subject.lease.current()
    subject.now += 0.2
    assert not subject.lease.current(), "what was certain for longer is not any more"
    asked = subject.now
    subject.look()
    subject.now = asked + 2.1
    assert not subject.lease.current()
    subject.session_is(SessionState.CONNECTED, granted_s=TIMEOUT_S)
    subject.look()
    subject.now += 2.1
    assert subject.lease.current()


@pytest.mark.parametrize("answer", [True, None])
def test_an_answer_of_before_a_lost_session_counts_for_nothing(
    subject: Subject, answer: bool | None
) -> None:
    subject.look()
    subject.answer = answer
    if answer is None:
        subject.look(times=50)
    subject.during = lambda: subject.session_is(SessionState.LOST)
    subject.lease._look()
    assert not subject.lease.current()


def test_a_broker_without_its_id_waits_for_nothing(subject: Subject) -> None:
    subject.look()
    subject.now += 60
    subject.park()
    refusal = NotLeaderError("gone")
    subject.lease.end(refusal)
    assert (subject.lease.current(), subject.lease.refusal, subject.told) == (False, refusal, 1)
    subject.look()  # what ZooKeeper said of the node just before counts for nothing
    subject.answer = None
    subject.look(times=50)
    assert not subject.lease.current()
    subject.park()
    assert subject.told == 2
    subject.lease.begin()
    subject.answer = True
    subject.look()
    assert (subject.lease.current(), subject.lease.refusal) == (True, None)


def test_when_it_stops_nobody_waits_any_more(subject: Subject) -> None:
    subject.park()
    subject.lease.stop()
    assert subject.told == 1
    subject.park()
    assert subject.told == 2
    assert subject.lease.refusal is not None
    subject.lease.begin()
    assert subject.lease.refusal is not None
