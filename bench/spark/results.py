"""Lines about one row: each of logbus's ways beside each of Kafka's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rich.table import Table

from bench.harness import console
from bench.result import Metrics, Result, Rounds, Spread, ratios, shown_ratios, spread
from bench.spark.rows import (
    ALL_COLUMNS,
    AT_LEAST_ONCE,
    CPU,
    KAFKA,
    KAFKA_TUNED,
    OWN,
    RECORDS,
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
HEADINGS: Final = (
    "row", "what", "logbus", "records/s", "beside", "records/s", "ratio", "of CPU time", "goal",
)  # fmt: skip


class Line(NamedTuple):
    """One of logbus's ways beside one of Kafka's."""

    row: str
    what: str
    own: str
    beside: str
    rounds: Rounds

    @property
    def ratios(self) -> list[float]:
        """Of each round what Kafka takes divided by what logbus takes."""
        return ratios(self.rounds[self.beside], self.rounds[self.own], SECONDS)

    @property
    def ratio(self) -> Spread:
        return spread(self.ratios)

    @property
    def goal(self) -> float | None:
        return GOALS.get((self.row, self.what, self.own, self.beside))

    @property
    def cells(self) -> Sequence[str]:
        """What ``HEADINGS`` name."""
        cpu = ratios(self.rounds[self.beside], self.rounds[self.own], CPU)
        return (
            self.row,
            self.what,
            self.own.removeprefix("logbus, "),
            f"{rate(self.rounds[self.own]):,.0f}",
            self.beside,
            f"{rate(self.rounds[self.beside]):,.0f}",
            shown_ratios(self.ratios),
            f"{statistics.median(cpu):.2f}",
            "" if self.goal is None else f"{self.goal:.1f}",
        )


def lines_of(row: str, what: str, rounds: Rounds) -> list[Line]:
    """One for each of logbus's ways and each of Kafka's; none where Kafka is not at hand."""
    return [
        Line(row, what, own, other, rounds)
        for own in rounds
        if own in OWN
        for other in rounds
        if other not in OWN
    ]


def what_of(result: Result) -> str:
    return result.title.partition(";")[0]


def rate(rounds: Sequence[Metrics]) -> float:
    """Records a second, median of the rounds."""
    return statistics.median(one[RECORDS] / one[SECONDS] for one in rounds if one)


def told(result: Result) -> str:
    """One result as text, as soon as it is measured."""
    rates = (f"{name} {rate(rounds):,.0f}" for name, rounds in result.rounds.items())
    return f"{result.row}, {what_of(result)}, records/s: {'; '.join(rates)}."


def show(lines: Sequence[Line]) -> None:
    table = Table(*HEADINGS)
    for number in (3, 5, 6, 7, 8):
        table.columns[number].justify = "right"
    for line in lines:
        table.add_row(*line.cells)
    console.print(table)
