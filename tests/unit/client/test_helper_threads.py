"""Threads for calls that may wait."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from spark_logbus.client.helper_threads import HelperThreads


def test_calls_run_side_by_side_up_to_the_bound() -> None:
    threads = HelperThreads(2, name="some")
    both = threading.Barrier(3)
    for _ in range(2):
        threads.submit(both.wait, 60)
    both.wait(60)
    names = {threads.submit(lambda: threading.current_thread().name).result(60) for _ in range(50)}
    assert names <= {"some_0", "some_1"}
    threads.shutdown()


def test_a_result_and_an_error_go_to_whoever_asked() -> None:
    threads = HelperThreads(1, name="some")
    assert threads.submit(max, [1, 2], default=3).result(60) == 2
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(60)
    threads.shutdown()


def test_after_the_end_what_has_begun_is_done_and_the_rest_cancelled() -> None:
    threads = HelperThreads(1, name="some")
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return go_on.wait(60)

    first, second = threads.submit(wait), threads.submit(int)
    assert begun.wait(60)
    threads.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(CancelledError):
        second.result(60)
    go_on.set()
    assert first.result(60)
    with pytest.raises(RuntimeError, match="were ended"):
        threads.submit(int)


def test_without_another_thread_those_that_are_there_do_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = HelperThreads(2, name="some")
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return go_on.wait(60)

    first = threads.submit(wait)
    assert begun.wait(60)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    second = threads.submit(int)
    with pytest.raises(RuntimeError, match="can't start"):
        HelperThreads(1, name="none").submit(int)
    go_on.set()
    assert first.result(60)
    assert second.result(60) == 0
    monkeypatch.undo()
    threads.shutdown()
