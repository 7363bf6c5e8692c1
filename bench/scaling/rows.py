"""What each row measures. Counts of what was written and read are checked each time."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import console
from bench.peers import PeerUnavailableError
from bench.recovery import GIB, TOPIC, fill, memory_mib, open_logs, read_all, restart
from bench.scaling.results import LOGBUS, Curve, Sample
from bench.scaling.systems import (
    LogbusSystem,
    System,
    cpu_seconds,
    descriptors_of,
    kafka_system,
    logbus_system,
    memory_of,
)
from bench.scaling.worker import Job, Processes, spread_over
from spark_logbus.client import Admin, Cluster
from spark_logbus.local.cluster import EmbeddedCluster

_PROCESSES: Final = 4  # that share the readers of a measurement
_CLIENTS: Final = 2  # processes that produce to several brokers, and that read from them
_READ_PARTITIONS: Final = 4
_LOG_PARTITIONS: Final = 8
_BROKER_PARTITIONS: Final = 6
_BATCH_BYTES: Final = 1 << 20
_NEVER_MS: Final = 1 << 40
_LOOK_S: Final = 0.1
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Settings:
    """What all rows share."""

    sizes: Sequence[int]
    rounds: int
    records: int
    alone: bool
    directory: Path


@dataclass(frozen=True)
class Row:
    title: str
    size_name: str
    sizes: Sequence[int]
    small: Sequence[int]
    """Sizes of a quick try."""
    charts: Sequence[str]
    """Metrics that are drawn."""
    measure: Callable[[Settings, Curve], None]


@contextmanager
def _systems(settings: Settings) -> Iterator[list[System]]:
    """Kafka, if it is at hand, and logbus."""
    with ExitStack() as stack:
        systems: list[System] = [stack.enter_context(logbus_system())]
        if not settings.alone:
            try:
                systems.append(stack.enter_context(kafka_system()))
            except PeerUnavailableError as error:
                console.print(f"Kafka is left out, as it is not at hand: {error}", markup=False)
        yield systems


def _in_turn(settings: Settings, systems: Sequence[System]) -> Iterator[tuple[int, System]]:
    """Each size with each system in each round, every second round in reverse order."""
    for number in range(settings.rounds):
        for size in settings.sizes:
            for system in systems if number % 2 == 0 else systems[::-1]:
                console.print(f"round {number + 1}: {size:,} with {system.name}", highlight=False)
                yield size, system


def _require_count(system: System, topic: str, partitions: int, expected: int) -> None:
    count = system.record_count(topic, partitions)
    if count != expected:
        raise SystemExit(f"Expected {expected:,} records in {topic} of {system.name}, got {count}.")


# -- partitions ---------------------------------------------------------------------------


def measure_partitions(settings: Settings, curve: Curve) -> None:
    with _systems(settings) as systems:
        for size, system in _in_turn(settings, systems):
            curve.add(size, system.name, _partitions(system, size, settings.records))


def _partitions(system: System, partitions: int, records: int) -> Sample:
    topic, trial = (f"scaling-{next(_numbers)}" for _ in range(2))
    with system.appender() as append:
        cpu, started = cpu_seconds(system), time.perf_counter()
        system.create_topic(trial, partitions)
        append(trial, partitions - 1)
        sample = {"s until usable": time.perf_counter() - started}
    sample["broker CPU s until usable"] = cpu_seconds(system) - cpu
    sample["descriptors"] = descriptors_of(system)
    system.delete_topic(trial)
    system.create_topic(topic, partitions)
    job = Job("produce", system.name, system.address, topic, records, partitions=partitions)
    sample |= _run(system, "produced", [job])
    _require_count(system, topic, partitions, records)
    job = Job("consume", system.name, system.address, topic, records)
    sample |= _run(system, "read", [job])
    sample["broker MiB"] = memory_of(system)
    for killed, metric in ((False, "s to start, stopped"), (True, "s to start, killed")):
        system.end(killed=killed)
        started = time.perf_counter()
        system.start()
        with system.appender() as append:
            append(topic, partitions - 1)
        sample[metric] = time.perf_counter() - started
    _require_count(system, topic, partitions, records + 2)
    system.delete_topic(topic)
    return sample


def _run(system: System, what: str, jobs: Sequence[Job]) -> dict[str, float]:
    processes = Processes(jobs)
    cpu = cpu_seconds(system)
    done = processes.run()
    cpu = cpu_seconds(system) - cpu
    return {
        f"MB/s {what}": done.value_bytes / done.seconds / 1e6,
        f"broker CPU s a million {what}": cpu / (done.records / 1e6),
    }


# -- readers ------------------------------------------------------------------------------


def measure_readers(settings: Settings, curve: Curve) -> None:
    with _systems(settings) as systems:
        topics = {system.name: _filled(system, settings.records) for system in systems}
        for size, system in _in_turn(settings, systems):
            topic = topics[system.name]
            job = Job("consume", system.name, system.address, topic, settings.records, clients=size)
            watched = _Peak(system)
            sample = _run(system, "read", spread_over(job, _PROCESSES))
            curve.add(size, system.name, {**sample, **watched.end()})


def _filled(system: System, records: int) -> str:
    topic = f"scaling-{next(_numbers)}"
    system.create_topic(topic, _READ_PARTITIONS)
    job = Job("produce", system.name, system.address, topic, records)
    Processes([job]).run()
    _require_count(system, topic, _READ_PARTITIONS, records)
    return topic


class _Peak:
    """The most memory and descriptors that brokers have, looked at now and then."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._memory = self._descriptors = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while True:
            self._memory = max(self._memory, memory_of(self._system))
            self._descriptors = max(self._descriptors, descriptors_of(self._system))
            if self._ended.wait(_LOOK_S):
                return

    def end(self) -> Sample:
        self._ended.set()
        self._thread.join()
        return {"broker MiB": self._memory, "descriptors": self._descriptors}


# -- the size of a log --------------------------------------------------------------------


def measure_log_size(settings: Settings, curve: Curve) -> None:
    for number in range(settings.rounds):
        for gib in settings.sizes:
            console.print(f"round {number + 1}: {gib} GiB", highlight=False)
            require_space(settings.directory, gib)
            with tempfile.TemporaryDirectory(
                prefix="logbus-bench-", dir=settings.directory
            ) as name:
                curve.add(gib, LOGBUS, _log_size(Path(name), gib))


def require_space(directory: Path, gib: float) -> None:
    free, needed = shutil.disk_usage(directory).free, int((gib + 1) * GIB)
    if free < needed:
        raise SystemExit(
            f"{directory} has {free / GIB:.1f} GiB free, and {gib:g} GiB of log take "
            f"{needed / GIB:.0f}; give another --directory, or smaller --sizes."
        )


def _log_size(directory: Path, gib: float) -> Sample:
    sample: dict[str, float] = {}
    settings = {"log": {"retention_ms": _NEVER_MS}}
    with EmbeddedCluster(directory, settings=settings) as running:
        (broker,) = running.brokers
        with Cluster.from_zookeeper(running.zookeeper) as cluster:
            Admin(cluster).create_topic(TOPIC, partitions=_LOG_PARTITIONS)
        broker.stop()
        data_dir = broker.directory / "data"
        logs, _ = open_logs(data_dir)
        fill(logs, total_bytes=int(gib * GIB), batch_bytes=_BATCH_BYTES)
        size_bytes = sum(each.ends().size_bytes for each in logs.logs())
        logs.close()
        sample["s to start, stopped"] = restart(broker)
        for metric, prepare in (("cold", drop_pages), ("warm", _leave)):
            prepare(data_dir)
            started = time.perf_counter()
            read = read_all(running.zookeeper, _LOG_PARTITIONS)
            seconds = time.perf_counter() - started
            if read != size_bytes:
                raise SystemExit(f"Expected {size_bytes:,} bytes of record batches, read {read:,}.")
            sample[f"MB/s read, {metric}"] = read / seconds / 1e6
        sample["broker MiB, highest"] = memory_mib(broker.pid, "VmHWM")
        broker.kill()
        sample["s to start, killed"] = restart(broker)
        broker.kill()
        logs, sample["of it opening the logs"] = open_logs(data_dir)
        logs.close()
    return sample


def drop_pages(data_dir: Path) -> None:
    """Have the kernel forget what it has of segment files, as far as it is on disk."""
    for path in data_dir.rglob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _leave(_: Path) -> None:
    """Pages that were read just now stay."""


# -- brokers ------------------------------------------------------------------------------


def measure_brokers(settings: Settings, curve: Curve) -> None:
    for number in range(settings.rounds):
        for size in settings.sizes:
            console.print(f"round {number + 1}: {size} brokers", highlight=False)
            with logbus_system(brokers=size) as system:
                curve.add(size, LOGBUS, _brokers(system, settings.records))


def _brokers(system: LogbusSystem, records: int) -> Sample:
    topic = f"scaling-{next(_numbers)}"
    system.create_topic(topic, _BROKER_PARTITIONS)
    share = records // _CLIENTS
    produce = Job("produce", system.name, system.address, topic, share, clients=_CLIENTS)
    sample = _run(system, "produced", spread_over(produce, _CLIENTS))
    _require_count(system, topic, _BROKER_PARTITIONS, share * _CLIENTS)
    consume = Job("consume", system.name, system.address, topic, share * _CLIENTS, _CLIENTS)
    sample |= _run(system, "read", spread_over(consume, _CLIENTS))
    sample["brokers MiB"] = memory_of(system)
    return sample


ROWS: Mapping[str, Row] = {
    "partitions": Row(
        "Partitions of a topic", "partitions", (1, 10, 100, 1_000), (1, 20),
        ("s until usable", "broker MiB", "MB/s produced", "MB/s read"), measure_partitions,
    ),
    "readers": Row(
        "Readers of a topic", "readers", (1, 4, 16, 64), (1, 3),
        ("MB/s read", "broker CPU s a million read", "broker MiB"), measure_readers,
    ),
    "log-size": Row(
        "Size of a topic", "GiB", (1, 4, 16), (1,),
        ("s to start, killed", "MB/s read, cold", "MB/s read, warm"), measure_log_size,
    ),
    "brokers": Row(
        "Brokers on one machine", "brokers", (1, 2, 3), (1, 2),
        ("MB/s produced", "MB/s read", "broker CPU s a million read"), measure_brokers,
    ),
}  # fmt: skip
