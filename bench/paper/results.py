"""A table for each row: rates of contenders, and what a record takes on disk beside its value."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bench.harness import console
from bench.paper.contenders import Row
from bench.paper.measuring import ON_DISK, READ, RECORDS, SENT, VALUE_BYTES
from bench.result import LOGBUS, Metrics, Result, Spread, spread


def rate(rounds: Sequence[Metrics], time: str) -> Spread | None:
    """Records a second, from the microseconds that ``time`` is for one; none where no round has
    that."""
    found = [1e6 / one[time] for one in rounds if time in one]
    return spread(found) if found else None


def overhead(rounds: Sequence[Metrics]) -> Spread | None:
    """Bytes on disk of a record beside its value; none where the disk does not have all."""
    found = spread([one[ON_DISK] - one[VALUE_BYTES] for one in rounds if one])
    return None if found.lowest <= 0 else found


def records_of(rounds: Sequence[Metrics]) -> float:
    """How many a round has."""
    return next(one[RECORDS] for one in rounds if one)


def show(row: Row, result: Result) -> None:
    """Ratios are logbus's rate to each contender's: above 1, logbus is faster."""
    table = Table(
        "", "acked in", "records", "sent, 1,000/s", "logbus / it", "read, 1,000/s", "logbus / it",
        "overhead, bytes", title=f"{result.row}: {result.title}",
    )  # fmt: skip
    for column in table.columns[2:]:
        column.justify = "right"
    for contender in row.contenders:
        rounds = result.rounds.get(contender.name)
        if rounds is None:
            table.add_row(contender.name, contender.acknowledged, "not at hand")
            continue
        beside = overhead(rounds)
        table.add_row(
            contender.name,
            contender.acknowledged,
            f"{records_of(rounds):,.0f}",
            *_rates(result, contender.name, SENT),
            *_rates(result, contender.name, READ),
            "in memory" if beside is None else f"{beside.median:,.1f}",
        )
    console.print(table)


def _rates(result: Result, name: str, time: str) -> tuple[str, str]:
    found = rate(result.rounds[name], time)
    if found is None:
        return "", ""
    median, lowest, highest = (value / 1_000 for value in found[:3])
    shown = str(Spread(median, lowest, highest))
    if name == LOGBUS or LOGBUS not in result.rounds:
        return shown, ""
    return shown, str(spread(result.ratios(name, time)))
