"""Curves: what was measured at each size, by system and round; tables and charts of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.kit.charts import draw_lines
from bench.kit.comparing import Comparing
from bench.kit.markdown import image
from bench.kit.raw import Raw
from bench.kit.result import Metrics, Rounds
from bench.programs.scaling.model import Line, fit

KAFKA, ZOOKEEPER = "Kafka", "ZooKeeper"

Sample = Metrics
"""What one round showed, by the metric's name, which begins with its unit."""


@dataclass(frozen=True)
class Question:
    """Question of a row: how costs grow with one size."""

    title: str
    size_name: str
    unit: str
    """One of the size."""
    charts: Sequence[str]
    """Metrics that are drawn."""
    costs: Sequence[str]
    """Metrics that the model puts a line through."""
    far: float
    """The size that the model extrapolates to."""
    assumption: str
    """Under which it may."""

    def sized(self, size: float) -> str:
        return f"{size:,g} {self.unit if size == 1 else self.size_name}"


QUESTIONS: Mapping[str, Question] = {
    "partitions": Question(
        "Partitions of a topic", "partitions", "partition",
        ("s until usable", "s to start, stopped", "s to start, killed", "MiB of the broker",
         "MB/s produced", "MB/s read"),
        ("s until usable", "CPU s of the broker until usable", "s to start, stopped",
         "s to start, killed", "MiB of the broker", "descriptors of the broker"),
        10_000, "one broker has all of them, and as many descriptors as it needs",
    ),
    "readers": Question(
        "Readers of a topic", "readers", "reader",
        ("MB/s read", "CPU s of the broker a million read", "MiB of the broker"),
        ("CPU s of the broker", "MiB of the broker", "descriptors of the broker"),
        1_000, "each reads all of the topic once, from the page cache, and the network carries it",
    ),
    "log-size": Question(
        "Size of a topic", "GiB", "GiB",
        ("s to start, stopped", "s to start, killed", "MB/s read, cold", "MB/s read, warm",
         "MiB of the broker, highest"),
        ("s to start, stopped", "s to start, killed", "MiB of the broker, highest"),
        1_024, "as many partitions as measured, and the same bytes are new when it is killed",
    ),
    "brokers": Question(
        "Brokers on one machine", "brokers", "broker",
        ("MB/s produced", "MB/s read", "CPU s of all brokers a million read"),
        ("MiB of all brokers",),
        10, "records are spread over them evenly",
    ),
    "zookeeper": Question(
        "ZooKeeper beside the partitions of a topic and a group", "partitions", "partition",
        ("ms to read all leaders", "CPU s of a broker an idle hour"),
        ("nodes of a topic", "bytes of a topic", "nodes of a group", "bytes of a group",
         "bytes of an atomic writer", "ms to read all leaders", "ms to commit a group",
         "CPU s of a broker an idle hour", "CPU s of ZooKeeper an idle hour"),
        10_000, "one broker leads all of them; with b brokers each reads all leaders, so ZooKeeper "
        "answers b times as many reads",
    ),
}  # fmt: skip

_DRAWN: Final = [metric for question in QUESTIONS.values() for metric in question.charts]
COMPARED: Final = Comparing(
    {metric: metric for metric in _DRAWN},
    rates=[metric for metric in _DRAWN if metric.startswith("MB/s")],
)


@dataclass(frozen=True)
class Curve:
    """One row: samples over a size, such as the number of partitions."""

    row: str
    samples: dict[tuple[float, str], list[Sample]] = field(default_factory=dict)
    """By size and system, in the order of the rounds."""

    @property
    def question(self) -> Question:
        return QUESTIONS[self.row]

    def add(self, size: float, system: str, sample: Sample) -> None:
        self.samples.setdefault((size, system), []).append(sample)

    def at(self, size: float) -> Rounds:
        """Returns the samples of one size by system."""
        return {
            system: self.samples[size, system]
            for system in self.systems
            if (size, system) in self.samples
        }

    @property
    def sizes(self) -> list[float]:
        return sorted({size for size, _ in self.samples})

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(system for _, system in self.samples))

    @property
    def metrics(self) -> list[str]:
        samples = (sample for rounds in self.samples.values() for sample in rounds)
        return list(dict.fromkeys(metric for sample in samples for metric in sample))

    def values(self, size: float, system: str, metric: str) -> list[float]:
        rounds = self.samples.get((size, system), [])
        return [sample[metric] for sample in rounds if metric in sample]

    def medians(self, metric: str) -> dict[str, list[tuple[float, float]]]:
        """Returns the median at each size, by system that has the metric."""
        series: dict[str, list[tuple[float, float]]] = {}
        for system in self.systems:
            for size in self.sizes:
                if values := self.values(size, system, metric):
                    series.setdefault(system, []).append((size, statistics.median(values)))
        return series

    def finding(self, metric: str) -> str:
        """A chart's title: the metric at the largest size, of each system, and how they compare; of
        a single system, how it grew."""
        series = self.medians(metric)
        largest = max(size for points in series.values() for size, _ in points)
        ends = {
            system: points[-1][1] for system, points in series.items() if points[-1][0] == largest
        }
        told = [f"{shown(value)} ({system})" for system, value in ends.items()]
        text = f"{metric} at {self.question.sized(largest)}: {' and '.join(told)}"
        if len(ends) == 2 and all(ends.values()):
            (low, low_value), (high, high_value) = sorted(ends.items(), key=lambda end: end[1])
            return f"{text}, {high} {high_value / low_value:.1f} times {low}"
        (first_size, first), *rest = series[next(iter(ends))]
        return f"{text}, after {shown(first)} at {first_size:,g}" if rest else text

    def charts(self) -> list[tuple[str, str]]:
        """The name of each chart, without a suffix, and its metric."""
        return [
            (f"scaling-{self.row}-{number}", metric)
            for number, metric in enumerate(self.question.charts, 1)
            if metric in self.metrics
        ]

    def lines(self) -> dict[tuple[str, str], Line]:
        """Returns a line for each cost and system that was measured at three sizes or more: two are
        always on a line, which says nothing."""
        return {
            (metric, system): fit(points)
            for metric in self.question.costs
            for system, points in self.medians(metric).items()
            if len(points) > 2
        }

    def cells(self) -> list[list[str]]:
        """A line for each metric and system, with a column for each size: medians
        (lowest-highest). The first line has the headings."""
        rows = [["", "", *map(self.question.sized, self.sizes)]]
        for metric in self.metrics:
            for system in self.systems:
                found = [shown_spread(self.values(size, system, metric)) for size in self.sizes]
                if any(found):
                    rows.append([metric, system, *found])
        return rows

    def model_cells(self) -> list[list[str]]:
        """A line for each cost and system, headings first."""
        asked = self.question
        head = ["", "", "fixed", f"each {asked.unit}", "R²", "farthest from the line", "bend",
                f"at {asked.sized(asked.far)}"]  # fmt: skip
        rows = [head]
        for (metric, system), line in self.lines().items():
            size, off = line.farthest
            rows.append(
                [metric, system, shown(line.fixed), shown(line.per_unit), f"{line.r2:.3f}",
                 f"{off:+.0%} at {size:,g}", "" if line.bend is None else f"{line.bend:.2f}",
                 shown(line.at(asked.far)) if line.holds else "no line"]
            )  # fmt: skip
        return rows


def shown_spread(values: Sequence[float]) -> str:
    """The median, with the lowest and the highest if they differ."""
    if not values:
        return ""
    median, lowest, highest = (shown(of(values)) for of in (statistics.median, min, max))
    return median if lowest == highest else f"{median} ({lowest}-{highest})"


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# -- what was kept ------------------------------------------------------------------------


def curves_of(raw: Raw) -> list[Curve]:
    """Returns the curves of raw results, which may have other programs' rows too."""
    curves: dict[str, Curve] = {}
    for name, contenders in raw.items():
        row, _, size = name.rpartition(" ")
        if row in QUESTIONS:
            curve = curves.setdefault(row, Curve(row))
            for system, rounds in contenders.items():
                for sample in rounds:
                    curve.add(float(size), system, sample)
    return [curves[row] for row in QUESTIONS if row in curves]


def tables(raw: Raw) -> Mapping[str, str]:
    """Returns tables in Markdown by name: ``<row>`` with what was measured and its charts, and
    ``model-<row>`` with the lines through it."""
    made: dict[str, str] = {}
    for curve in curves_of(raw):
        images = [image(name, curve.finding(metric)) for name, metric in curve.charts()]
        made[curve.row] = "\n\n".join([_markdown(curve.cells()), *images])
        if curve.lines():
            made[f"model-{curve.row}"] = _markdown(curve.model_cells())
    return made


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = [f"| {' | '.join(cells)} |" for cells in rows]
    rule = "|---|---|" + "---:|" * (len(rows[0]) - 2)
    return "\n".join([head, rule, *body])


def draw(raw: Raw, directory: Path) -> list[Path]:
    """Draws charts of raw results, as SVG. Raises ImportError without matplotlib."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    for curve in curves_of(raw):
        for name, metric in curve.charts():
            path = directory / f"{name}.svg"
            title, x = curve.finding(metric), curve.question.size_name
            draw_lines(path, curve.medians(metric), title=title, x=x, y=metric)
            drawn.append(path)
    return drawn
