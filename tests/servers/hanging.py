"""Stacks of programs that should have ended by now, so that a hang tells where it is.

A JVM answers SIGQUIT with the stacks of its threads, and goes on. Python's faulthandler answers
SIGABRT with them, and the process ends; it must have ``PYTHONFAULTHANDLER`` in its environment.
Both write to the log of the process; what Spark's Python workers write, the JVM that started them
copies to its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.helpers import paths_below, process_is_gone, wait_until

_WRITTEN_WITHIN_S = 60.0
_JVM_DUMP = re.compile(r"^Full thread dump .*?^JNI global ref", re.MULTILINE | re.DOTALL)
_PYTHON_DUMP = re.compile(r"^Fatal Python error: Aborted$", re.MULTILINE)


def stacks(programs: Iterable[int], directory: Path) -> str:
    """The stacks of the programs and of all processes that they started, from their logs.

    Name the one first that waits for the others. The logs are in ``directory``. Of a JVM only the
    threads in Spark's code are told. The Python processes are gone afterwards.
    """
    pids = [pid for program in programs for pid in (program, *descendants(program))]
    jvms = [pid for pid in pids if _executable(pid) == "java"]
    pythons = [pid for pid in pids if _executable(pid).startswith("python")]
    told = [f"Stacks of the JVMs {jvms} and the Python processes {pythons}:"]

    # JVMs first: what they wait for from the Python processes ends with those.
    before = _sizes(directory)
    for pid in jvms:
        _signal(pid, signal.SIGQUIT)
    for log, text in _gained(before, directory, _JVM_DUMP, len(jvms)).items():
        told += [f"== {log}", *map(_in_spark, _JVM_DUMP.findall(text))]

    # One after the other, since many write to the same log; parents before children, which they
    # may wait for.
    before = _sizes(directory)
    for pid in pythons:
        _signal(pid, signal.SIGABRT)
        _wait(functools.partial(process_is_gone, pid))
    for log, text in _gained(before, directory, _PYTHON_DUMP, len(pythons)).items():
        told += [f"== {log}", text]
    return "\n\n".join(told)


def descendants(pid: int) -> list[int]:
    """The processes that ``pid`` started, those that these started, and so on."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found = [pid]
    for ancestor in found:  # grows as it is walked
        found += children.get(ancestor, [])
    return found[1:]


def _gained(
    before: Mapping[Path, int], directory: Path, dump: re.Pattern[str], dumps: int
) -> dict[Path, str]:
    """Returns what the logs have gained since ``before``, once it has so many dumps of stacks."""

    def look() -> dict[Path, str]:
        gained = {}
        for log in _sizes(directory):
            with log.open("rb") as file:
                file.seek(before.get(log, 0))
                if text := file.read().decode(errors="replace"):
                    gained[log] = text
        return gained

    _wait(lambda: sum(len(dump.findall(text)) for text in look().values()) >= dumps)
    return look()


def _sizes(directory: Path) -> dict[Path, int]:
    """Returns the size of each log, including those of a standalone cluster's executors."""
    patterns = ("*.log", "stdout", "stderr")
    return {
        path: path.stat().st_size
        for path in sorted(paths_below(directory))
        if any(path.match(pattern) for pattern in patterns)
    }


def _in_spark(dump: str) -> str:
    """The threads of a JVM that are in Spark's code, and deadlocks that it found."""
    return "\n\n".join(
        part for part in dump.split("\n\n") if "org.apache.spark" in part or "deadlock" in part
    )


def _executable(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:  # gone meanwhile, or not ours
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(predicate: Callable[[], bool]) -> None:
    """Waits, but not for ever: one silent process does not hide what the others tell."""
    with contextlib.suppress(AssertionError):
        wait_until(predicate, deadline_s=_WRITTEN_WITHIN_S)
