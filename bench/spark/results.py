"""The table of all rows: a line for each of logbus's ways beside each of Kafka's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rich.table import Table

from bench.harness import console
from bench.result import Metrics, Result
from bench.spark.rows import (
    ALL_COLUMNS,
    AT_LEAST_ONCE,
    CPU,
    KAFKA,
    KAFKA_TUNED,
    OWN,
    SECONDS,
    VALUE_ONLY,
    WRITTEN,
)

# By row and what is measured, logbus's way and Kafka's; of the records that most people have.
GOALS: Final[Mapping[tuple[str, str, str, str], float]] = {
    ("read-200", ALL_COLUMNS, "logbus", KAFKA): 4.0,
    ("read-200", ALL_COLUMNS, "logbus", KAFKA_TUNED): 2.2,
    ("read-200", VALUE_ONLY, "logbus", KAFKA): 5.0,
    ("read-200", VALUE_ONLY, "logbus", KAFKA_TUNED): 3.0,
    ("write-200", WRITTEN, AT_LEAST_ONCE, KAFKA): 2.2,
    ("write-200", WRITTEN, AT_LEAST_ONCE, KAFKA_TUNED): 1.5,
}


class Line(NamedTuple):
    row: str
    what: str
    own: str
    beside: str
    their_rate: float
    """Records a second, median of the rounds."""
    own_rate: float
    ratios: Sequence[float]
    """Of each round what Kafka takes divided by what logbus takes."""
    cpu_ratio: float
    """The same of processors' time, median."""

    @property
    def goal(self) -> float | None:
        return GOALS.get((self.row, self.what, self.own, self.beside))


def lines_of(result: Result, *, records: int) -> list[Line]:
    """One for each of logbus's ways and each of Kafka's; none where Kafka is not at hand."""
    own_names = [name for name in result.rounds if name in OWN]
    return [
        Line(
            row=result.row,
            what=what_of(result),
            own=own,
            beside=other,
            their_rate=_rate(result.rounds[other], records),
            own_rate=_rate(result.rounds[own], records),
            ratios=replace(result, own=own).ratios(other, SECONDS),
            cpu_ratio=statistics.median(replace(result, own=own).ratios(other, CPU)),
        )
        for own in own_names
        for other in result.rounds
        if other not in OWN
    ]


def what_of(result: Result) -> str:
    return result.title.partition(";")[0]


def _rate(rounds: Sequence[Metrics], records: int) -> float:
    return records / statistics.median(one[SECONDS] for one in rounds)


def told(result: Result, *, records: int) -> str:
    """One result as text, as soon as it is measured."""
    rates = (f"{name} {_rate(rounds, records):,.0f}" for name, rounds in result.rounds.items())
    return f"{result.row}, {what_of(result)}, records/s: {'; '.join(rates)}."


def show(lines: Sequence[Line]) -> None:
    headings = ("records/s", "beside", "records/s", "ratio", "of CPU time", "goal")
    table = Table("row", "what", "logbus", *headings)
    for number in (3, 5, 6, 7, 8):
        table.columns[number].justify = "right"
    for line in lines:
        ratio = statistics.median(line.ratios)
        table.add_row(
            line.row,
            line.what,
            line.own.removeprefix("logbus, "),
            f"{line.own_rate:,.0f}",
            line.beside,
            f"{line.their_rate:,.0f}",
            f"{ratio:.2f} ({min(line.ratios):.2f}-{max(line.ratios):.2f})",
            f"{line.cpu_ratio:.2f}",
            "" if line.goal is None else f"{line.goal:.1f}",
        )
    console.print(table)
