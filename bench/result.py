"""Results of rows: raw ones as CSV, and a table of medians and ratios."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rich.table import Table

from bench.harness import console
from bench.stream.contenders import LOGBUS

_SIDE_BY_SIDE = 4  # contenders, at most

Metrics = dict[str, float]
"""What one contender showed in one round, by the metric's name; smaller is better."""


@dataclass(frozen=True)
class Result:
    """Rounds of one row: for each contender its metrics of each round."""

    row: str
    title: str
    unit: str
    rounds: dict[str, list[Metrics]]
    compared: Sequence[str]
    """The metrics that ratios are shown of."""
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
            ratios = [
                _shown_ratios(self.ratios(name, metric))
                if metric in self.compared and metric in self.rounds[name][0]
                else ""
                for name in others
            ]
            table.add_row(metric, *medians, *ratios)
        console.print(table)

    def ratios(self, other: str, metric: str) -> list[float]:
        """For each round, what ``other`` took divided by what ``own`` took."""
        pairs = zip(self.rounds[other], self.rounds[self.own], strict=True)
        return [base[metric] / one[metric] for base, one in pairs]


class Csv:
    """A file with a line for each value: row, contender, round, metric, value."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("w", newline="")
        self._writer = None if self._file is None else csv.writer(self._file)
        if self._writer is not None:
            self._writer.writerow(("row", "contender", "round", "metric", "value"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, result: Result) -> None:
        if self._writer is None or self._file is None:
            return
        for contender, rounds in result.rounds.items():
            for number, metrics in enumerate(rounds, 1):
                for metric, value in metrics.items():
                    self._writer.writerow((result.row, contender, number, metric, round(value, 4)))
        self._file.flush()


def _median(rounds: list[Metrics], metric: str) -> str:
    found = [one[metric] for one in rounds if metric in one]
    return _shown(statistics.median(found)) if found else ""


def _shown(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _shown_ratios(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
