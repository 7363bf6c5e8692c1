"""Processors' time and memory of processes (Linux).

``cpu_seconds`` is of this process and of all that it has started: servers, the JVM and Spark's
Python workers are its children and theirs. Unlike the machine's own count it leaves out what others
do on the machine, so that it says something where that is not idle.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class CpuTime(NamedTuple):
    """Seconds of one process's processor time, in itself and in the kernel."""

    user: float
    kernel: float

    @classmethod
    def of(cls, pid: int) -> CpuTime:
        """Returns what the process has used since it began."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return cls(int(fields[11]) / _TICKS_A_SECOND, int(fields[12]) / _TICKS_A_SECOND)

    @property
    def whole(self) -> float:
        return self.user + self.kernel


def exact_cpu_seconds(pid: int) -> float:
    """Returns what the threads of a process have used, those that it has now: to the nanosecond,
    where ``CpuTime`` counts hundredths of seconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e9


def memory_mib(pid: int, field: str = "VmRSS") -> int:
    """Returns a field of the process's status, such as what it has in memory now, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(status.split(f"{field}:")[1].split()[0]) >> 10


class Used(NamedTuple):
    """Processor time that a line of ``/proc`` tells of one process."""

    parent: int
    ticks: int
    """Time of the process and of its children that have ended."""


def used_in(stat: str) -> Used:
    """Reads a line of ``/proc/<pid>/stat``; the name in it may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return Used(int(fields[1]), sum(map(int, fields[11:15])))


def ticks_below(root: int, processes: Mapping[int, Used]) -> int:
    """Sums the ticks of ``root`` and of all its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, used in processes.items():
        children[used.parent].append(pid)
    found, left = 0, [root]
    while left:
        pid = left.pop()
        found += processes[pid].ticks
        left += children[pid]
    return found


def cpu_seconds() -> float:
    """Returns what this process and all that it started have used by now.

    What a process has used is lost when nobody waits for its end.
    """
    processes = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            processes[int(directory.name)] = used_in((directory / "stat").read_text())
        except OSError:
            continue  # it has ended meanwhile
    return ticks_below(os.getpid(), processes) / _TICKS_A_SECOND
