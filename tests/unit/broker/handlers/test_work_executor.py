from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.errors import CoordinationError, LimitExceededError, RequestTimeoutError
from spark_logbus.network import DelayedResponse, Response
from spark_logbus.protocol import Api, DeleteTopicResponse, decode_response, encode_response
from tests.fakes.clock import ManualClock
from tests.helpers import wait_until

OK = Response(encode_response(DeleteTopicResponse()))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def executor(clock: ManualClock) -> Iterator[WorkExecutor]:
    executor = WorkExecutor("ZooKeeper", clock=clock, max_wait_ms=60_000)
    yield executor
    executor.stop()


def answered(job: DelayedResponse) -> Response:
    response = wait_until(job.poll)
    assert response is not None
    return response


def test_the_answer_is_what_the_work_returns_and_it_wakes(executor: WorkExecutor) -> None:
    go_on, woken = threading.Event(), threading.Event()

    def work() -> Response:
        go_on.wait(60)
        return OK

    job = executor.run(work)
    job.subscribe(woken.set)
    assert job.poll() is None
    go_on.set()
    assert woken.wait(60)
    assert job.poll() == OK


def test_an_error_of_the_work_is_the_answer(executor: WorkExecutor) -> None:
    def work() -> Response:
        raise CoordinationError("ZooKeeper is away.")

    with pytest.raises(CoordinationError):
        decode_response(Api.DELETE_TOPIC, answered(executor.run(work)).header)


def test_a_bug_comes_out_where_the_answer_is_asked_for(executor: WorkExecutor) -> None:
    def work() -> Response:
        raise KeyError("a bug")

    job = executor.run(work)
    with pytest.raises(KeyError):
        answered(job)


def test_there_is_a_deadline(executor: WorkExecutor, clock: ManualClock) -> None:
    go_on = threading.Event()

    def work() -> Response:
        go_on.wait(60)
        return OK

    job = executor.run(work)
    assert job.deadline == clock.seconds + 60
    clock.advance(60)
    late = job.poll()
    assert late is not None
    with pytest.raises(RequestTimeoutError):
        decode_response(Api.DELETE_TOPIC, late.header)
    go_on.set()


def test_too_many_are_refused_until_some_are_done(executor: WorkExecutor) -> None:
    go_on = threading.Event()

    def work() -> Response:
        go_on.wait(60)
        return OK

    jobs = [executor.run(work) for _ in range(64)]
    with pytest.raises(LimitExceededError):
        executor.run(work)
    go_on.set()
    for job in jobs:
        answered(job)
    wait_until(lambda: executor._unfinished == 0)
    answered(executor.run(work))


def test_work_of_one_key_is_done_once_for_all_who_ask_meanwhile(executor: WorkExecutor) -> None:
    go_on, done = threading.Event(), []

    def work() -> Response:
        done.append(1)
        go_on.wait(60)
        return OK

    jobs = [executor.run(work, key="a") for _ in range(5)]
    other = executor.run(work, key="b")
    wait_until(lambda: len(done) == 2)
    assert [job.poll() for job in (*jobs, other)] == [None] * 6
    go_on.set()
    assert [answered(job) for job in (*jobs, other)] == [OK] * 6
    wait_until(lambda: executor._unfinished == 0)
    answered(executor.run(work, key="a"))
    assert len(done) == 3
