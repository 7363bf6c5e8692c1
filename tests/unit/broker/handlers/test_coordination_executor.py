from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spark_logbus.broker.handlers.coordination_executor import CoordinationExecutor
from spark_logbus.broker.network import DelayedResponse, Response
from spark_logbus.errors import CoordinationError, LimitExceededError, RequestTimeoutError
from spark_logbus.protocol import Api, DeleteTopicResponse, decode_response, encode_response
from tests.fakes.clock import ManualClock
from tests.helpers import wait_until

OK = Response(encode_response(DeleteTopicResponse()))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def offload(clock: ManualClock) -> Iterator[CoordinationExecutor]:
    offload = CoordinationExecutor(clock=clock, max_wait_ms=60_000)
    yield offload
    offload.stop()


def answered(job: DelayedResponse) -> Response:
    reply = wait_until(job.poll)
    assert reply is not None
    return reply


def test_the_answer_is_what_the_work_returns_and_it_wakes(offload: CoordinationExecutor) -> None:
    go_on, woken = threading.Event(), threading.Event()

    def work() -> Response:
        go_on.wait(20)
        return OK

    job = offload.run(work)
    job.subscribe(woken.set)
    assert job.poll() is None
    go_on.set()
    assert woken.wait(20)
    assert job.poll() == OK


def test_an_error_of_the_work_is_the_answer(offload: CoordinationExecutor) -> None:
    def work() -> Response:
        raise CoordinationError("ZooKeeper is away.")

    with pytest.raises(CoordinationError):
        decode_response(Api.DELETE_TOPIC, answered(offload.run(work)).header)


def test_a_bug_comes_out_where_the_answer_is_asked_for(offload: CoordinationExecutor) -> None:
    def work() -> Response:
        raise KeyError("a bug")

    job = offload.run(work)
    with pytest.raises(KeyError):
        answered(job)


def test_there_is_a_deadline(offload: CoordinationExecutor, clock: ManualClock) -> None:
    go_on = threading.Event()

    def work() -> Response:
        go_on.wait(20)
        return OK

    job = offload.run(work)
    assert job.deadline == clock.seconds + 60
    clock.advance(60)
    late = job.poll()
    assert late is not None
    with pytest.raises(RequestTimeoutError):
        decode_response(Api.DELETE_TOPIC, late.header)
    go_on.set()


def test_too_many_are_refused_until_some_are_done(offload: CoordinationExecutor) -> None:
    go_on = threading.Event()

    def work() -> Response:
        go_on.wait(20)
        return OK

    jobs = [offload.run(work) for _ in range(64)]
    with pytest.raises(LimitExceededError):
        offload.run(work)
    go_on.set()
    for job in jobs:
        answered(job)
    wait_until(lambda: offload._unfinished == 0)
    answered(offload.run(work))
