"""Processors' time of this process and of all that it has started (Linux).

Servers, the JVM and Spark's Python workers are its children and theirs. Unlike the machine's own
count it leaves out what others do on the machine, so that it says something where that is not idle.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Used(NamedTuple):
    parent: int
    ticks: int
    """Of the process and of its children that have ended."""


def used_in(stat: str) -> Used:
    """What a line of ``/proc/<pid>/stat`` says; the name in it may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return Used(int(fields[1]), sum(map(int, fields[11:15])))


def ticks_below(root: int, processes: Mapping[int, Used]) -> int:
    """The ticks of ``root`` and of all its descendants."""
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
    """By now; what a process has used is lost when nobody waits for its end."""
    processes = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            processes[int(directory.name)] = used_in((directory / "stat").read_text())
        except OSError:
            continue  # it has ended meanwhile
    return ticks_below(os.getpid(), processes) / os.sysconf("SC_CLK_TCK")
