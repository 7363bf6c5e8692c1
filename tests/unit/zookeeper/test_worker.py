from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from spark_logbus.zookeeper.worker import Worker
from tests.fakes.clock import ManualClock
from tests.helpers import wait_until


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def worker(clock: ManualClock) -> Iterator[Worker]:
    running = Worker("test-worker", clock=clock)
    running.start()
    yield running
    running.stop()


def test_jobs_run_in_order_on_one_thread(worker: Worker) -> None:
    ran: list[tuple[int, str]] = []
    done = threading.Event()
    for i in range(50):
        worker.submit(lambda i=i: ran.append((i, threading.current_thread().name)))  # type: ignore[misc]
    worker.submit(done.set)
    assert done.wait(60)
    assert ran == [(i, "test-worker") for i in range(50)]


def test_a_delayed_job_lets_others_pass(worker: Worker, clock: ManualClock) -> None:
    ran: list[str] = []
    worker.submit(lambda: ran.append("late"), delay_ms=30)
    worker.submit(lambda: ran.append("now"))
    wait_until(lambda: ran)
    assert ran == ["now"]
    clock.advance(0.03)
    wait_until(lambda: len(ran) == 2)
    assert ran == ["now", "late"]


def test_a_failing_job_is_reported_and_the_next_runs(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def fail() -> None:
        raise ValueError("a mistake of the application")

    with caplog.at_level(logging.ERROR):
        worker.submit(fail)
        worker.submit(done.set)
        assert done.wait(60)
    assert "a mistake of the application" in caplog.text


def test_stopping_drops_what_waits_and_can_be_done_from_a_job(worker: Worker) -> None:
    ran: list[str] = []
    worker.submit(lambda: ran.append("never"), delay_ms=3_600_000)
    worker.submit(worker.stop)
    worker.stop()
    worker.submit(lambda: ran.append("never"))
    assert ran == []
