"""Curves: what was measured at each size, by system and round. Pure but for ``Csv``."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rich.table import Table

LOGBUS, KAFKA = "logbus", "Kafka"

Sample = Mapping[str, float]
"""What one round showed, by the metric's name with its unit."""


@dataclass(frozen=True)
class Curve:
    """One row: samples over a size, such as the number of partitions."""

    row: str
    title: str
    size_name: str
    samples: dict[tuple[float, str], list[Sample]] = field(default_factory=dict)
    """By size and system, in the order of the rounds."""

    def add(self, size: float, system: str, sample: Sample) -> None:
        self.samples.setdefault((size, system), []).append(sample)

    @property
    def metrics(self) -> list[str]:
        samples = (sample for rounds in self.samples.values() for sample in rounds)
        return list(dict.fromkeys(metric for sample in samples for metric in sample))

    def values(self, size: float, system: str, metric: str) -> list[float]:
        rounds = self.samples.get((size, system), [])
        return [sample[metric] for sample in rounds if metric in sample]

    def medians(self, metric: str) -> dict[str, list[tuple[float, float]]]:
        """For each system that has the metric its median at each size."""
        series: dict[str, list[tuple[float, float]]] = {}
        for size, system in sorted(self.samples):
            values = self.values(size, system, metric)
            if values:
                series.setdefault(system, []).append((size, statistics.median(values)))
        return series

    def finding(self, metric: str) -> str:
        """A chart's title: the metric at the largest size, of each system."""
        series = self.medians(metric)
        largest = max(size for points in series.values() for size, _ in points)
        ends = [
            f"{shown(points[-1][1])} ({system})"
            for system, points in series.items()
            if points[-1][0] == largest
        ]
        return f"At {largest:,g} {self.size_name}: {metric} {' beside '.join(ends)}"

    def table(self) -> Table:
        """A line for each metric and system, a column for each size: medians (lowest-highest)."""
        sizes = sorted({size for size, _ in self.samples})
        table = Table("", "", *(f"{size:,g} {self.size_name}" for size in sizes), title=self.title)
        for column in table.columns[2:]:
            column.justify = "right"
        systems = list(dict.fromkeys(system for _, system in self.samples))
        for metric in self.metrics:
            for system in systems:
                cells = [spread(self.values(size, system, metric)) for size in sizes]
                if any(cells):
                    table.add_row(metric, system, *cells)
        return table


def spread(values: Sequence[float]) -> str:
    """The median, with the lowest and the highest if there are several."""
    if not values:
        return ""
    median = shown(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({shown(min(values))}-{shown(max(values))})"


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class Csv:
    """A file with a line for each value of each round, as it comes; nothing without a path."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("w", newline="")
        self._write("row", "size_name", "size", "system", "round", "metric", "value")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, curve: Curve) -> None:
        for (size, system), rounds in sorted(curve.samples.items()):
            for number, sample in enumerate(rounds, 1):
                for metric, value in sample.items():
                    self._write(
                        curve.row, curve.size_name, f"{size:g}", system, number, metric, value
                    )
        if self._file is not None:
            self._file.flush()

    def _write(self, *cells: object) -> None:
        if self._file is not None:
            csv.writer(self._file).writerow(cells)
