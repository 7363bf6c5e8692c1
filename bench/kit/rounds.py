"""Rounds: each contender in turn, so that whatever the machine does meanwhile strikes all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bench.kit.processes import cpu_seconds
from bench.kit.result import Metrics

SECONDS, CPU, RATE = "seconds", "CPU s", "records/s"


class Named(Protocol):
    @property
    def name(self) -> str: ...


_Named = TypeVar("_Named", bound=Named)


@dataclass(frozen=True)
class Contender:
    """System or way that is measured; ``measure`` does its work once."""

    name: str
    measure: Callable[[], Metrics]


def in_turn(
    contenders: Sequence[_Named], measure: Callable[[_Named, bool], Metrics], *, rounds: int
) -> dict[str, list[Metrics]]:
    """Measures each contender in each round, every second round in reverse order.

    One round goes before that does not count; ``measure`` is told so.
    """
    took: dict[str, list[Metrics]] = {contender.name: [] for contender in contenders}
    for number in range(rounds + 1):
        for contender in contenders if number % 2 else reversed(contenders):
            found = measure(contender, number > 0)
            if number:
                took[contender.name].append(found)
    return took


def works_in_turn(
    works: Mapping[str, Callable[[], object]], *, records: int, rounds: int
) -> dict[str, list[Metrics]]:
    """Times the work of each contender in turn; each is of so many records."""
    contenders = [
        Contender(name, lambda work=work: timed(work, records))  # type: ignore[misc]
        for name, work in works.items()
    ]
    return in_turn(contenders, lambda contender, _: contender.measure(), rounds=rounds)


def timed(work: Callable[[], object], records: int) -> Metrics:
    """Returns the time that the work took, of the clock and of the processors of this process and
    all that it started, and its rate."""
    cpu_started = cpu_seconds()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    return {SECONDS: seconds, CPU: cpu_seconds() - cpu_started, RATE: records / seconds}
