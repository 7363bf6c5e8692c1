"""The row over the size of a topic: starts, cold and warm reads, and memory."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from bench.kit.harness import console
from bench.kit.processes import memory_mib
from bench.kit.result import LOGBUS
from bench.programs.recovery import GIB
from bench.programs.scaling.measuring import (
    Measured,
    Settings,
    new_topic,
    require_count,
    run,
    tell_round,
)
from bench.programs.scaling.results import KAFKA, Sample
from bench.programs.scaling.systems import RECORD_BYTES, System, kafka_system, logbus_system
from bench.programs.scaling.worker import Job, Processes, spread_over
from bench.servers import ServerUnavailableError

_PARTITIONS: Final = 8
_CLIENTS: Final = 2  # processes that read, and that produce what is new when the broker is killed
_FRESH_BYTES, _SMALL_FRESH_BYTES = 2 * GIB, GIB // 16


def measure_log_size(settings: Settings) -> Iterator[Measured]:
    """One system at a time, on a fresh disk: both would not fit."""
    names = [LOGBUS] if settings.alone else [LOGBUS, KAFKA]
    fresh = _SMALL_FRESH_BYTES if settings.small else _FRESH_BYTES
    for number in range(settings.rounds):
        for gib in settings.sizes:
            for name in list(names):
                require_space(settings.directory, gib + fresh / GIB)
                tell_round(number, gib, name)
                with tempfile.TemporaryDirectory(
                    prefix="logbus-bench-", dir=settings.directory
                ) as directory:
                    try:
                        with _system(name, Path(directory)) as system:
                            yield gib, name, _log_size(system, gib, fresh)
                    except ServerUnavailableError as error:
                        names.remove(name)
                        console.print(f"{name} is left out: {error}", markup=False)


def _system(name: str, directory: Path) -> AbstractContextManager[System]:
    if name == LOGBUS:
        return logbus_system(directory=directory)
    return kafka_system(directory=directory)


def require_space(directory: Path, gib: float) -> None:
    free, needed = shutil.disk_usage(directory).free, int((gib + 1) * GIB)
    if free < needed:
        raise SystemExit(
            f"{directory} has {free / GIB:.1f} GiB free, and {gib:g} GiB of log take "
            f"{needed / GIB:.0f}; give another --directory, or smaller --sizes."
        )


def _log_size(system: System, gib: float, fresh_bytes: int) -> Sample:
    topic = new_topic()
    system.create_topic(topic, partitions=_PARTITIONS)
    system.fill(topic, _PARTITIONS, records=int(gib * GIB / RECORD_BYTES))
    system.end(killed=False)
    sample = {"s to start, stopped": _start(system, topic)}
    ends = system.ends(topic, partitions=_PARTITIONS)
    for state in ("cold", "warm"):
        if state == "cold":
            drop_pages(system.data)
        sample |= _read(system, topic, ends, state)
    sample["MiB of the broker, highest"] = sum(memory_mib(pid, "VmHWM") for pid in system.pids)
    fresh = int(fresh_bytes / RECORD_BYTES / _CLIENTS)
    job = Job("produce", system.name, system.address, topic, fresh, clients=_CLIENTS)
    Processes(spread_over(job, _CLIENTS)).run()
    system.end(killed=True)
    sample["s to start, killed"] = _start(system, topic)
    require_count(system, topic, _PARTITIONS, sum(ends) + fresh * _CLIENTS + _PARTITIONS)
    return sample


def _start(system: System, topic: str) -> float:
    """Starts the broker, and waits until each partition has acknowledged a record."""
    started = time.perf_counter()
    system.start()
    with system.appender() as append:
        for number in range(_PARTITIONS):
            append(topic, number)
    return time.perf_counter() - started


def _read(system: System, topic: str, ends: list[int], state: str) -> Sample:
    """Reads all of it once, by processes that share the partitions."""
    jobs = [
        Job(
            "consume", system.name, system.address, topic,
            sum(ends[number] for number in numbers), numbers=numbers,
        )
        for first in range(_CLIENTS)
        for numbers in [list(range(first, _PARTITIONS, _CLIENTS))]
    ]  # fmt: skip
    found = run(system, "read", jobs)
    return {
        f"{metric}, {state}": value
        for metric, value in found.items()
        if metric != "CPU s of the broker"
    }


def drop_pages(data_dir: Path) -> None:
    """Have the kernel forget what it has of segment files, as far as it is on disk."""
    for path in data_dir.rglob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
