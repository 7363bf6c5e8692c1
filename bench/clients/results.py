"""Lines about one row, each beside one peer; and the table of all rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table

from bench.clients.rows import IN_BATCH, LIBRDKAFKA, TIME
from bench.harness import console
from bench.result import LOGBUS, Metrics, Result, Rounds, median, ratios, shown_ratios

HEADINGS: Final = (
    "row", "what", "beside", "records/s", "logbus", "CPU µs a record", "ratio", "target",
)  # fmt: skip
SIZE_HEADINGS: Final = ("bytes on disk", "Kafka", "logbus", "of Kafka's")

Cells = Sequence[str]


def lines_of(row: str, title: str, rounds: Rounds, targets: Mapping[str, float]) -> list[Cells]:
    """What ``HEADINGS`` name, for each peer that has a target."""
    own = rounds[LOGBUS]
    lines: list[Cells] = []
    for peer, target in targets.items():
        theirs = rounds.get(peer)
        lines.append(
            (
                row,
                title,
                peer,
                "not at hand" if theirs is None else _rate(theirs),
                _rate(own),
                "" if theirs is None else f"{_cpu(theirs)}, {_cpu(own)}",
                "" if theirs is None else shown_ratios(ratios(theirs, own, TIME)),
                f"{target:.1f}",
            )
        )
    return lines


def sizes_of(rounds: Rounds) -> list[Cells]:
    """What ``SIZE_HEADINGS`` name, for each kind of record batch."""
    theirs = next(filter(None, rounds.get(LIBRDKAFKA, ())), {})
    lines: list[Cells] = []
    for metric, size in rounds[LOGBUS][0].items():
        peer = theirs.get(metric)
        lines.append(
            (
                metric,
                "not at hand" if peer is None else f"{peer:,.0f}",
                f"{size:,.0f}",
                "" if peer is None else f"{size / peer:.2f}",
            )
        )
    return lines


class Lines:
    """Lines of what was measured so far."""

    def __init__(self) -> None:
        self._rates = Table(*HEADINGS)
        self._sizes = Table(*SIZE_HEADINGS)
        for column in (*self._rates.columns[3:], *self._sizes.columns[1:]):
            column.justify = "right"

    def add(self, result: Result, targets: Mapping[str, float]) -> None:
        if result.unit == TIME:
            for cells in lines_of(result.row, result.title, result.rounds, targets):
                self._rates.add_row(*cells)
        else:
            for cells in sizes_of(result.rounds):
                self._sizes.add_row(*cells)

    def show(self) -> None:
        for table in (self._rates, self._sizes):
            if table.row_count:
                console.print(table)


def line(result: Result) -> str:
    """One row as text, as soon as it is measured."""
    if result.unit != TIME:
        return f"{result.row}: {result.rounds}"
    rates = [
        f"{name} {_rate(rounds)}"
        + (f" ({rounds[0][IN_BATCH]:,.0f} a record batch)" if IN_BATCH in rounds[0] else "")
        for name, rounds in result.rounds.items()
    ]
    beside = [
        f"{shown_ratios(result.ratios(name, TIME))} of {name}"
        for name in result.rounds
        if name != LOGBUS
    ]
    return f"{result.row}: {'; '.join([*rates, *beside])}"


def _rate(rounds: Sequence[Metrics]) -> str:
    return f"{1e6 / statistics.median(one[TIME] for one in rounds if one):,.0f}"


def _cpu(rounds: Sequence[Metrics]) -> str:
    found = median(rounds, "CPU µs a record")
    return "-" if found is None else f"{found:.2f}"
