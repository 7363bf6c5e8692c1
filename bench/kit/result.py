"""Results of rows: what contenders showed in each round, and medians of the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

LOGBUS: Final = "logbus"

Metrics = dict[str, float]
"""Values of one contender in one round, by the metric's name."""

Rounds = Mapping[str, Sequence[Metrics]]
"""Metrics of each contender in each round, empty where it was not in it."""


class Spread(NamedTuple):
    """Median of several rounds, with the lowest and the highest."""

    median: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        return f"{figure(self.median)} ({figure(self.lowest)}-{figure(self.highest)})"


def spread(values: Sequence[float]) -> Spread:
    """Summarises the values of the rounds."""
    return Spread(statistics.median(values), min(values), max(values))


def figure(value: float) -> str:
    """Returns a value as text, with two or more digits that count."""
    size = abs(value)
    decimals = 3 if size < 0.1 else 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:,.{decimals}f}"


def median(rounds: Sequence[Metrics], metric: str) -> float | None:
    """Returns the median of a metric; None if no round has it."""
    found = [one[metric] for one in rounds if metric in one]
    return statistics.median(found) if found else None
