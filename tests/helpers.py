"""What tests of all kinds share."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from spark_logbus.errors import LogbusError

T = TypeVar("T")

_POLL_S = 0.01


def wait_until(
    predicate: Callable[[], T],
    *,
    deadline_s: float = 60,
    message: str = "the condition to come true",
) -> T:
    """Call ``predicate`` until its result is true, and return that; fail after ``deadline_s``."""
    pause = threading.Event()  # never set: its wait is the pause between two looks
    deadline = time.monotonic() + deadline_s
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(
                f"Waited {deadline_s} seconds for {message}; the last result was {result!r}."
            )
        pause.wait(_POLL_S)


def spanning(*axes: Sequence[object]) -> list[object]:
    """Returns all combinations of the values of ``axes``, for ``parametrize``. Each value is in one
    at least that the test's every run has; the other combinations are left to ``--slow``."""
    spanned = {tuple(number % len(axis) for axis in axes) for number in range(max(map(len, axes)))}
    return [
        pytest.param(
            *(axis[number] for axis, number in zip(axes, place, strict=True)),
            marks=() if place in spanned else pytest.mark.slow,
        )
        for place in itertools.product(*(range(len(axis)) for axis in axes))
    ]


def without_waiting(told: str) -> str:
    """Returns what a command printed, without its lines about a ZooKeeper that answers slowly."""
    lines = told.splitlines(keepends=True)
    return "".join(line for line in lines if "is waiting for ZooKeeper" not in line)


def kept_of_caller(call: Callable[[], object]) -> object:
    """Returns the object that a caller of ``call`` had in a local variable, if it still lives in a
    process without a collector; the caller ignores what ``call`` raises."""

    def caller() -> weakref.ref[threading.Event]:
        at_hand = threading.Event()
        with suppress(LogbusError):
            call()
        return weakref.ref(at_hand)

    return caller()()


def open_files(path: Path) -> list[str]:
    """Returns the files that this process has open at ``path`` or below, even if deleted since.

    A count of all descriptors would depend on other threads, such as Spark's."""
    of = (str(path), f"{path} (deleted)")
    return sorted(name for name in _open_here() if name in of or name.startswith(f"{path}/"))


def is_open(name: str) -> bool:
    """Says whether this process has it open; ``name`` comes from ``name_of_descriptor``."""
    return name in _open_here()


def name_of_descriptor(descriptor: int) -> str:
    """Returns a name such as ``socket:[5]``, which is unique while a process has it open."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _open_here() -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of the listing itself
            found.append(name_of_descriptor(int(descriptor)))
    return found


def paths_below(directory: Path) -> Iterator[Path]:
    """Yields all paths in a directory that may change: ``Path.rglob`` fails if a directory goes."""
    for parent, directories, files in os.walk(directory):
        for name in directories + files:
            yield Path(parent, name)


def process_is_gone(pid: int) -> bool:
    """Says whether the process has ended; one that only waits to be reaped has."""
    return _state(pid) in "ZX"


def process_is_stopped(pid: int) -> bool:
    """Says whether all threads stand still after a SIGSTOP, which reaches one after the other."""
    try:
        threads = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # one has ended
        return False
    return bool(threads) and all(_state_in(stat) == "T" for stat in threads)


def freeze(pid: int) -> None:
    """Have it stand still. It keeps its connections, and no longer answers when this returns."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: process_is_stopped(pid), message=f"process {pid} to stand still")


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """``freeze`` it, and have it go on at the end."""
    try:
        freeze(pid)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    """Returns the letter of the state in ``/proc``; X for a process that is not there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return _state_in(stat)


def _state_in(stat: str) -> str:
    return stat.rpartition(")")[2].split()[0]
