"""The table of all rows, a line for each peer of each row."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.table import Table

from bench.clients.rows import IN_BATCH, LIBRDKAFKA, TIME
from bench.harness import console
from bench.result import LOGBUS, Metrics, Result


class Lines:
    """Lines of what was measured so far."""

    def __init__(self) -> None:
        self._rates = Table(
            "row", "what", "beside", "records/s", "logbus", "CPU µs a record", "ratio", "target"
        )
        self._sizes = Table("bytes on disk", "Kafka", "logbus", "of Kafka's")
        for column in (*self._rates.columns[3:], *self._sizes.columns[1:]):
            column.justify = "right"

    def add(self, result: Result, targets: Mapping[str, float]) -> None:
        if result.unit == TIME:
            self._add_rates(result, targets)
        else:
            self._add_sizes(result)

    def _add_rates(self, result: Result, targets: Mapping[str, float]) -> None:
        own = result.rounds[LOGBUS]
        for peer, target in targets.items():
            theirs = result.rounds.get(peer)
            self._rates.add_row(
                result.row,
                result.title,
                peer,
                "not at hand" if theirs is None else _rate(theirs),
                _rate(own),
                "" if theirs is None else f"{_cpu(theirs)}, {_cpu(own)}",
                "" if theirs is None else _shown(result.ratios(peer, TIME)),
                f"{target:.1f}",
            )

    def _add_sizes(self, result: Result) -> None:
        theirs = result.rounds.get(LIBRDKAFKA, [{}])[0]
        for metric, size in result.rounds[LOGBUS][0].items():
            peer = theirs.get(metric)
            self._sizes.add_row(
                metric,
                "not at hand" if peer is None else f"{peer:,.0f}",
                f"{size:,.0f}",
                "" if peer is None else f"{size / peer:.2f}",
            )

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
    ratios = [
        f"{_shown(result.ratios(name, TIME))} of {name}" for name in result.rounds if name != LOGBUS
    ]
    return f"{result.row}: {'; '.join([*rates, *ratios])}"


def _rate(rounds: Sequence[Metrics]) -> str:
    return f"{1e6 / statistics.median(one[TIME] for one in rounds):,.0f}"


def _cpu(rounds: Sequence[Metrics]) -> str:
    found = [one["CPU µs a record"] for one in rounds if "CPU µs a record" in one]
    return f"{statistics.median(found):.2f}" if found else "-"


def _shown(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
