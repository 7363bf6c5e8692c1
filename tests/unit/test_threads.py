"""A thread that works again and again, and the list of the broker's threads in the documents."""

from __future__ import annotations

import ast
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.threads import Periodic
from tests.helpers import wait_until

LONG_S = 3_600.0
ROOT = Path(__file__).parents[2]
#: The packages of which a broker's process is made.
OF_A_BROKER = ("broker", "coordination", "http", "local", "log", "network", "zookeeper")


class Work:
    """Work whose calls are counted, and that can be held up or fail."""

    def __init__(self) -> None:
        self.calls = 0
        self.pauses: list[float | None] = []
        self.failures = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self) -> float | None:
        self.calls += 1
        assert self.may_go_on.wait(60)
        if self.failures:
            self.failures -= 1
            raise ValueError("a bug")
        return self.pauses.pop(0) if self.pauses else None


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def sleeper(work: Work) -> Iterator[Periodic]:
    """A thread that has called ``work`` once, and would call it again in an hour."""
    thread = Periodic("sleeper", work, pause_s=LONG_S, first_pause_s=0, failure="It failed.")
    thread.start()
    wait_until(lambda: work.calls == 1)
    yield thread
    thread.stop()


def test_work_is_called_again_after_the_pause_that_it_asks_for(work: Work) -> None:
    work.pauses = [0.0, 0.001, LONG_S]
    thread = Periodic("counter", work, pause_s=0.001, failure="It failed.")
    thread.start()
    wait_until(lambda: work.calls == 3)
    thread.stop()
    assert work.calls == 3


def test_work_that_asks_for_no_pause_is_called_at_the_usual_interval(work: Work) -> None:
    thread = Periodic("counter", work, pause_s=0.001, failure="It failed.")
    thread.start()
    wait_until(lambda: work.calls > 3)
    thread.stop()


def test_a_wake_ends_the_pause(work: Work, sleeper: Periodic) -> None:
    sleeper.wake()
    wait_until(lambda: work.calls == 2)


def test_a_wake_during_the_work_has_it_called_once_more(work: Work, sleeper: Periodic) -> None:
    work.may_go_on.clear()
    sleeper.wake()
    wait_until(lambda: work.calls == 2)
    sleeper.wake()
    sleeper.wake()
    work.may_go_on.set()
    wait_until(lambda: work.calls == 3)
    sleeper.stop()
    assert work.calls == 3


def test_a_failure_is_logged_and_the_work_goes_on(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    work.failures = 2
    thread = Periodic("failing", work, pause_s=0.001, failure="It failed.")
    with caplog.at_level(logging.ERROR):
        thread.start()
        wait_until(lambda: work.calls > 2)
        thread.stop()
    failures = [record for record in caplog.records if record.message == "It failed."]
    assert [str(record.exc_info and record.exc_info[1]) for record in failures] == ["a bug"] * 2


def test_stopping_ends_the_pause_and_runs_the_last_call_on_the_same_thread(work: Work) -> None:
    names: list[str] = []
    thread = Periodic(
        "ending",
        work,
        pause_s=LONG_S,
        failure="It failed.",
        at_end=lambda: names.append(threading.current_thread().name),
    )
    thread.start()
    thread.stop()
    assert (work.calls, names) == (0, ["ending"])


def test_work_that_takes_long_sees_that_it_is_to_end(work: Work, sleeper: Periodic) -> None:
    work.may_go_on.clear()
    sleeper.wake()
    wait_until(lambda: work.calls == 2)
    sleeper.end()
    assert sleeper.stopping.is_set()
    sleeper.join(0)  # does not wait for it
    work.may_go_on.set()
    sleeper.join()
    assert work.calls == 2


def test_a_thread_that_was_never_started_can_be_stopped(work: Work) -> None:
    Periodic("idle", work, pause_s=0.0, failure="It failed.").stop()
    assert work.calls == 0


def test_the_architecture_lists_the_threads_of_a_broker() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    listed = page[page.index("## Threads") : page.index("## Locks")]
    named = {
        name
        for room in OF_A_BROKER
        for path in (ROOT / "spark_logbus" / room).rglob("*.py")
        for name in thread_names(ast.parse(path.read_text()))
    }
    assert len(named) > 12
    assert {name for name in named if f"`{name}" not in listed} == set()


def thread_names(module: ast.Module) -> Iterator[str]:
    """The names that a module gives threads, up to what is put in when it runs."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        if function == "Periodic":
            yield from text_of(node.args[0])
        for keyword in node.keywords:
            if (function, keyword.arg) in {
                ("threading.Thread", "name"),
                ("ThreadPoolExecutor", "thread_name_prefix"),
            }:
                yield from text_of(keyword.value)


def text_of(name: ast.expr) -> Iterator[str]:
    """The text of a name, or where it begins; none of a name that comes from elsewhere."""
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        yield first.value
