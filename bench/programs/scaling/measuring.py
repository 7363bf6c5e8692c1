"""What rows share: systems in turn, clients in processes, and a broker's costs meanwhile."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.kit.harness import console
from bench.kit.result import Rounds
from bench.programs.scaling.results import KAFKA, QUESTIONS, Curve, Sample
from bench.programs.scaling.systems import (
    System,
    cpu_seconds,
    descriptors_of,
    kafka_system,
    logbus_system,
    memory_of,
)
from bench.programs.scaling.worker import Job, Processes
from bench.servers.at_hand import at_hand

_LOOK_S: Final = 0.1
_numbers = itertools.count(1)

Measured = tuple[float, str, Sample]
"""A size, whose it is, and what one round showed."""


@dataclass(frozen=True)
class Settings:
    """Sizes and numbers that rows are measured with."""

    sizes: Sequence[float]
    """Nothing: each row's own."""
    rounds: int
    records: int
    alone: bool
    small: bool
    directory: Path


@dataclass(frozen=True)
class SizedRow:
    """Row that is measured at several sizes; each size is a part."""

    name: str
    sizes: Sequence[float]
    small: Sequence[float]
    """Sizes of a quick try."""
    samples: Callable[[Settings], Iterator[Measured]]
    """Yields each sample as soon as it is there."""
    unit: str = ""

    @property
    def title(self) -> str:
        return QUESTIONS[self.name].title

    def measure(self, bench: Settings) -> Iterator[tuple[str, Rounds]]:
        sizes = bench.sizes or (self.small if bench.small else self.sizes)
        curve = Curve(self.name)
        for size, system, sample in self.samples(replace(bench, sizes=sizes)):
            curve.add(size, system, sample)
            yield f" {size:g}", curve.at(size)


@contextmanager
def both_systems(settings: Settings) -> Iterator[list[System]]:
    """Runs logbus, and Kafka if it is at hand and asked for."""
    with ExitStack() as stack:
        systems: list[System] = [stack.enter_context(logbus_system())]
        if not settings.alone:
            peer = at_hand(stack, KAFKA, kafka_system)
            systems += [] if peer is None else [peer]
        yield systems


def in_turn(settings: Settings, systems: Sequence[System]) -> Iterator[tuple[int, System]]:
    """Each size with each system in each round, every second round in reverse order."""
    for number in range(settings.rounds):
        for size in settings.sizes:
            for system in systems if number % 2 == 0 else systems[::-1]:
                tell_round(number, size, system.name)
                yield int(size), system


def tell_round(number: int, size: float, name: str) -> None:
    console.print(f"round {number + 1}: {size:,g} with {name}", highlight=False)


def new_topic() -> str:
    return f"scaling-{next(_numbers)}"


def require_count(system: System, topic: str, partitions: int, expected: int) -> None:
    count = sum(system.ends(topic, partitions=partitions))
    if count != expected:
        raise SystemExit(f"Expected {expected:,} records in {topic} of {system.name}, got {count}.")


def run(system: System, done_to_them: str, jobs: Sequence[Job]) -> dict[str, float]:
    """Do the jobs at once: their rate, and what they cost the brokers' processors."""
    processes = Processes(jobs)
    cpu = cpu_seconds(system)
    done = processes.run()
    cpu = cpu_seconds(system) - cpu
    return {
        f"MB/s {done_to_them}": done.value_bytes / done.seconds / 1e6,
        f"CPU s of the broker a million {done_to_them}": cpu / (done.records / 1e6),
        "CPU s of the broker": cpu,
    }


class Peak:
    """Watch over the most memory and descriptors that brokers have."""

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
        return {"MiB of the broker": self._memory, "descriptors of the broker": self._descriptors}
