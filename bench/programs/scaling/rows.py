"""The rows, and what those over partitions, readers and brokers measure. Counts of what was written
and read are checked each time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

from bench.kit.program import Row
from bench.kit.result import LOGBUS
from bench.programs.scaling.log_size import measure_log_size
from bench.programs.scaling.measuring import (
    Measured,
    Peak,
    Settings,
    SizedRow,
    both_systems,
    in_turn,
    new_topic,
    require_count,
    run,
    tell_round,
)
from bench.programs.scaling.results import Sample
from bench.programs.scaling.systems import (
    LogbusSystem,
    System,
    cpu_seconds,
    descriptors_of,
    logbus_system,
    memory_of,
)
from bench.programs.scaling.worker import Job, Processes, spread_over
from bench.programs.scaling.zookeeper import measure_zookeeper

_PROCESSES: Final = 4  # that share the readers of a measurement
_CLIENTS: Final = 2  # processes that produce to several brokers, and that read from them
_READ_PARTITIONS: Final = 4
_BROKER_PARTITIONS: Final = 6


# -- partitions ---------------------------------------------------------------------------


def measure_partitions(settings: Settings) -> Iterator[Measured]:
    with both_systems(settings) as systems:
        for size, system in in_turn(settings, systems):
            yield size, system.name, _partitions(system, size, settings.records)


def _partitions(system: System, partitions: int, records: int) -> Sample:
    topic, trial = new_topic(), new_topic()
    with system.appender() as append:
        cpu, started = cpu_seconds(system), time.perf_counter()
        system.create_topic(trial, partitions=partitions)
        append(trial, partitions - 1)
        sample = {"s until usable": time.perf_counter() - started}
    sample["CPU s of the broker until usable"] = cpu_seconds(system) - cpu
    sample["descriptors of the broker"] = descriptors_of(system)
    system.delete_topic(trial)
    system.create_topic(topic, partitions=partitions)
    job = Job("produce", system.name, system.address, topic, records, partitions=partitions)
    sample |= _rates(run(system, "produced", [job]))
    require_count(system, topic, partitions, records)
    job = Job("consume", system.name, system.address, topic, records)
    sample |= _rates(run(system, "read", [job]))
    sample["MiB of the broker"] = memory_of(system)
    for killed, metric in ((False, "s to start, stopped"), (True, "s to start, killed")):
        system.end(killed=killed)
        started = time.perf_counter()
        system.start()
        with system.appender() as append:
            append(topic, partitions - 1)
        sample[metric] = time.perf_counter() - started
    require_count(system, topic, partitions, records + 2)
    system.delete_topic(topic)
    return sample


def _rates(sample: Sample) -> dict[str, float]:
    """Drops the sum of processor time: it is of the same records whatever the size."""
    return {metric: each for metric, each in sample.items() if metric != "CPU s of the broker"}


# -- readers ------------------------------------------------------------------------------


def measure_readers(settings: Settings) -> Iterator[Measured]:
    with both_systems(settings) as systems:
        topics = {system.name: _filled(system, settings.records) for system in systems}
        for size, system in in_turn(settings, systems):
            topic = topics[system.name]
            job = Job("consume", system.name, system.address, topic, settings.records, clients=size)
            watched = Peak(system)
            sample = run(system, "read", spread_over(job, _PROCESSES))
            yield size, system.name, {**sample, **watched.end()}


def _filled(system: System, records: int) -> str:
    topic = new_topic()
    system.create_topic(topic, partitions=_READ_PARTITIONS)
    job = Job("produce", system.name, system.address, topic, records)
    Processes([job]).run()
    require_count(system, topic, _READ_PARTITIONS, records)
    return topic


# -- brokers ------------------------------------------------------------------------------


def measure_brokers(settings: Settings) -> Iterator[Measured]:
    """logbus alone: brokers that share a machine say what they add, not what they carry."""
    for number in range(settings.rounds):
        for size in settings.sizes:
            tell_round(number, size, LOGBUS)
            with logbus_system(brokers=int(size)) as system:
                yield size, LOGBUS, _brokers(system, settings.records)


def _brokers(system: LogbusSystem, records: int) -> Sample:
    topic = new_topic()
    system.create_topic(topic, partitions=_BROKER_PARTITIONS)
    share = records // _CLIENTS
    produce = Job("produce", system.name, system.address, topic, share, clients=_CLIENTS)
    sample = _rates(run(system, "produced", spread_over(produce, _CLIENTS)))
    require_count(system, topic, _BROKER_PARTITIONS, share * _CLIENTS)
    consume = Job("consume", system.name, system.address, topic, share * _CLIENTS, _CLIENTS)
    sample |= _rates(run(system, "read", spread_over(consume, _CLIENTS)))
    sample["MiB of the broker"] = memory_of(system)
    return {metric.replace("the broker", "all brokers"): each for metric, each in sample.items()}


ROWS: Final[Mapping[str, Row[Settings]]] = {
    row.name: row
    for row in (
        SizedRow("partitions", (1, 10, 100, 1_000), (1, 20), measure_partitions),
        SizedRow("readers", (1, 4, 16, 64), (1, 3), measure_readers),
        SizedRow("log-size", (1, 4, 16), (1 / 8, 1 / 4), measure_log_size),
        SizedRow("brokers", (1, 2, 3), (1, 2), measure_brokers),
        SizedRow("zookeeper", (10, 100, 300, 1_000), (5, 10, 20), measure_zookeeper),
    )
}
