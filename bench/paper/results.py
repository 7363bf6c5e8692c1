"""A table for each row: rates of contenders, and what a record takes on disk beside its value."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from bench.harness import console
from bench.paper.contenders import Row
from bench.paper.measuring import ON_DISK, READ, RECORDS, SENT
from bench.result import LOGBUS, Metrics, Result


class Spread(NamedTuple):
    """Of the rounds."""

    median: float
    lowest: float
    highest: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def rate(rounds: Sequence[Metrics], time: str) -> Spread:
    """Records a second, from the microseconds that ``time`` is for one."""
    return spread([1e6 / one[time] for one in rounds])


def overhead(rounds: Sequence[Metrics], value_bytes: int) -> Spread | None:
    """Bytes on disk of a record beside its value; none where the disk does not have all."""
    found = spread([one[ON_DISK] - value_bytes for one in rounds])
    return None if found.lowest < 0 else found


def show(row: Row, result: Result, *, value_bytes: int) -> None:
    """Ratios are each contender's rate to logbus's: above 1, logbus is slower."""
    table = Table(
        "", "acked in", "records", "sent, 1,000/s", "of logbus", "read, 1,000/s", "of logbus",
        "overhead, bytes", title=f"{result.row}: {result.title}",
    )  # fmt: skip
    for column in table.columns[2:]:
        column.justify = "right"
    for contender in row.contenders:
        rounds = result.rounds.get(contender.name)
        if rounds is None:
            table.add_row(contender.name, contender.acknowledged, "not at hand")
            continue
        beside = overhead(rounds, value_bytes)
        table.add_row(
            contender.name,
            contender.acknowledged,
            f"{rounds[0][RECORDS]:,.0f}",
            *_rates(result, contender.name, SENT),
            *_rates(result, contender.name, READ),
            "in memory" if beside is None else f"{beside.median:,.1f}",
        )
    console.print(table)


def _rates(result: Result, name: str, time: str) -> tuple[str, str]:
    found = rate(result.rounds[name], time)
    shown = _shown(Spread(*(value / 1_000 for value in found)))
    if name == LOGBUS or LOGBUS not in result.rounds:
        return shown, ""
    ratios = spread([1 / ratio for ratio in result.ratios(name, time)])
    return shown, _shown(ratios)


def _shown(spread: Spread) -> str:
    median, lowest, highest = map(_figures, spread)
    return f"{median} ({lowest}-{highest})"


def _figures(value: float) -> str:
    """Two or more that count."""
    decimals = 3 if value < 0.1 else 2 if value < 10 else 0
    return f"{value:,.{decimals}f}"
