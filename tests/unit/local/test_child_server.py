"""A server of logbus's own as a child process: its start, its end, and what is told of both."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.errors import EmbeddedServerError
from spark_logbus.local.child_server import ChildServer
from tests.helpers import process_is_gone, wait_until

SERVES = "new.write_text('127.0.0.1:5\\n'); new.replace(ready); signal.pause()"
DEAF = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVES}"


class Program(ChildServer):
    """A program of some lines. ``told`` is the address that was known before each start."""

    def __init__(self, directory: Path, program: str, *, start_deadline_s: float = 30.0) -> None:
        super().__init__(
            "The program", directory, kind="program",
            start_deadline_s=start_deadline_s, stop_grace_s=0.2,
        )  # fmt: skip
        self.program = program
        self.told: list[str] = []

    def _prepare(self) -> list[str]:
        if self._ready_file.exists():
            self.told.append(self.address)
        begin = (
            f"import pathlib, signal, sys; ready = {str(self._ready_file)!r};"
            "new = pathlib.Path(ready + '.new')"
        )
        return [sys.executable, "-c", f"{begin}; {self.program}"]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path / "new" / "directory", SERVES)
    yield made
    made.kill()


def test_it_serves_until_it_is_stopped(program: Program) -> None:
    program.start()
    assert program.running
    assert program.address == "127.0.0.1:5"
    with pytest.raises(EmbeddedServerError, match="The program runs already"):
        program.start()
    pid = program.pid
    program.stop()
    assert not program.running
    assert process_is_gone(pid)
    program.stop()


def test_it_is_started_again_and_knows_the_address_of_the_last_run(program: Program) -> None:
    program.start()
    program.kill()
    assert not program.running
    program.program = "print('no')"
    with pytest.raises(EmbeddedServerError, match="ended with code 0"):
        program.start()
    assert program.told == ["127.0.0.1:5"]
    with pytest.raises(EmbeddedServerError, match="has no address yet"):
        assert program.address


def test_asked_to_stop_it_is_not_waited_for(program: Program) -> None:
    program.ask_to_stop()
    program.start()
    program.ask_to_stop()
    wait_until(lambda: not program.running)


def test_one_that_does_not_hear_is_killed(program: Program) -> None:
    program.program = DEAF
    program.start()
    pid = program.pid
    program.stop()
    assert process_is_gone(pid)


def test_its_last_words_tell_why_it_ended(program: Program) -> None:
    program.program = "print(*range(100), sep='\\n', flush=True); sys.exit('It is too hot.')"
    with pytest.raises(EmbeddedServerError) as failed:
        program.start()
    first, *rest = str(failed.value).splitlines()
    assert first == (
        f"The program ended with code 1 instead of serving. {program.log_file} ends with:"
    )
    assert rest == [*map(str, range(86, 100)), "It is too hot."]
    assert not program.running


def test_one_that_never_serves_is_stopped_and_quoted(tmp_path: Path) -> None:
    silent = Program(tmp_path, "print('I wait.', flush=True); signal.pause()", start_deadline_s=0.5)
    silent.launch()
    wait_until(lambda: silent.log_file.exists() and "I wait." in silent.log_file.read_text())
    with pytest.raises(EmbeddedServerError, match=r"(?s)is not ready after 0\.5 seconds.*I wait\."):
        silent.wait_until_ready()
    assert not silent.running


def test_what_has_not_been_started(program: Program) -> None:
    for ask in (lambda: program.address, lambda: program.pid, program.wait_until_ready):
        with pytest.raises(EmbeddedServerError, match="The program"):
            ask()
    assert not program.running
    program.stop()
    program.kill()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = Program(tmp_path / "file" / "x", SERVES)
    with pytest.raises(EmbeddedServerError, match=r"cannot start: preparing .*/x failed"):
        made.start()
