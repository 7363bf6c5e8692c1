"""Results of rows: medians and ratios of the rounds, and a table of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rich.table import Table

from bench.harness import console

LOGBUS: Final = "logbus"

_SIDE_BY_SIDE = 4  # contenders, at most

Metrics = dict[str, float]
"""What one contender showed in one round, by the metric's name."""

Rounds = Mapping[str, Sequence[Metrics]]
"""For each contender its metrics of each round, empty where it was not in it."""


class Spread(NamedTuple):
    """Of the rounds."""

    median: float
    lowest: float
    highest: float
    rounds: int = 0
    """How many; 0 where that is not known."""

    def __str__(self) -> str:
        return f"{figure(self.median)} ({figure(self.lowest)}-{figure(self.highest)})"


class Compared(NamedTuple):
    """What a ratio is of: above 1, ``own`` is ahead of ``beside``."""

    row: str
    what: str
    own: str
    beside: str

    def __str__(self) -> str:
        """As Markdown; names of contenders have commas, which would part them here."""
        own, beside = (name.replace(", ", " ") for name in (self.own, self.beside))
        return f"`{self.row}`, {self.what}, {own} beside {beside}"


Ratios = Mapping[Compared, Spread]


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values), len(values))


def figure(value: float) -> str:
    """With two or more digits that count."""
    size = abs(value)
    decimals = 3 if size < 0.1 else 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:,.{decimals}f}"


def median(rounds: Sequence[Metrics], metric: str) -> float | None:
    """None if no round has the metric."""
    found = [one[metric] for one in rounds if metric in one]
    return statistics.median(found) if found else None


def has(rounds: Rounds, metric: str) -> bool:
    """Whether any contender has the metric in any round."""
    return any(metric in one for found in rounds.values() for one in found)


def ratios(theirs: Sequence[Metrics], own: Sequence[Metrics], metric: str) -> list[float]:
    """For each round that both were in what the one took divided by what the other took: above 1,
    ``own`` is faster."""
    return [
        one[metric] / other[metric]
        for one, other in zip(theirs, own, strict=True)
        if metric in one and metric in other
    ]


@dataclass(frozen=True)
class Result:
    """Rounds of one row."""

    row: str
    title: str
    unit: str
    rounds: dict[str, list[Metrics]]
    compared: Sequence[str]
    """The metrics that ratios are shown of; smaller is better."""
    own: str = LOGBUS
    """The contender that ratios are relative to; above 1, it is faster than the other."""

    def show(self) -> None:
        """The medians of each metric of each contender; and of the rounds' ratios of the others to
        ``own`` with the lowest and the highest, unless there are too many to stand side by side."""
        title = f"{self.row}: {self.title}, {self.unit}, {len(self.rounds[self.own])} rounds"
        console.print(title, highlight=False)
        if len(self.rounds) > _SIDE_BY_SIDE:
            self._show_contenders_below_each_other()
        else:
            self._show_contenders_side_by_side()

    def _show_contenders_below_each_other(self) -> None:
        metrics = list(self.rounds[self.own][0])
        table = Table("", *metrics)
        for column in table.columns[1:]:
            column.justify = "right"
        for name, rounds in self.rounds.items():
            table.add_row(name, *(_median(rounds, metric) for metric in metrics))
        console.print(table)

    def _show_contenders_side_by_side(self) -> None:
        own = self.own
        others = [name for name in self.rounds if name != own and self.compared]
        table = Table("", *self.rounds, *(f"{name} / {own}" for name in others))
        for column in table.columns[1:]:
            column.justify = "right"
        for metric in self.rounds[own][0]:
            medians = [_median(rounds, metric) for rounds in self.rounds.values()]
            shown = [
                shown_ratios(self.ratios(name, metric))
                if metric in self.compared and metric in self.rounds[name][0]
                else ""
                for name in others
            ]
            table.add_row(metric, *medians, *shown)
        console.print(table)

    def ratios(self, other: str, metric: str) -> list[float]:
        """For each round, what ``other`` took divided by what ``own`` took."""
        return ratios(self.rounds[other], self.rounds[self.own], metric)


def _median(rounds: Sequence[Metrics], metric: str) -> str:
    found = median(rounds, metric)
    if found is None:
        return ""
    return f"{found:.2f}" if found < 10 else f"{found:,.0f}"


def shown_ratios(found: Sequence[float]) -> str:
    """The median, with the lowest and the highest of the rounds."""
    return f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})"
