"""A worker on which Spark hangs up ends without a traceback, and hides no other one."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

from spark_logbus.spark.hang_ups import silence_hang_ups

# As pyspark.daemon does it.
_DAEMON = """
import traceback

def end(work, error):
    try:
        try:
            work()
        finally:
            if error is not None:
                raise error()
    except BaseException:
        traceback.print_exc()
"""


@pytest.fixture
def daemon() -> types.ModuleType:
    made = types.ModuleType("daemon")
    exec(_DAEMON, vars(made))
    silence_hang_ups(made)
    return made


def _nothing() -> None:
    pass


def _writes_to_a_pipe_of_its_own() -> None:
    raise BrokenPipeError


def _finds_the_stream_ended() -> None:
    raise EOFError


def _fails() -> None:
    raise ValueError("expected 3, got 5")


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
@pytest.mark.parametrize("work", [_nothing, _writes_to_a_pipe_of_its_own, _finds_the_stream_ended])
def test_a_hang_up_is_passed_over(
    daemon: types.ModuleType,
    error: type[OSError],
    work: Callable[[], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemon.end(work, error)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (_nothing, OSError),
        (_nothing, ValueError),
        (_writes_to_a_pipe_of_its_own, None),
        (_fails, None),
        (_fails, BrokenPipeError),
    ],
)
def test_all_else_is_printed(
    daemon: types.ModuleType,
    work: Callable[[], None],
    error: type[Exception] | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemon.end(work, error)
    told = capsys.readouterr().err
    assert "Traceback (most recent call last)" in told
    assert ("expected 3, got 5" in told) == (work is _fails)
    assert daemon.traceback.format_exc() == "NoneType: None\n"


def test_a_daemon_that_prints_otherwise_is_left_as_it_is() -> None:
    other = types.ModuleType("daemon")
    before = dict(vars(other))
    silence_hang_ups(other)
    assert vars(other) == before
