"""Declares the documents' tables, of ratios for each question. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from bench.kit.comparing import Ask, Compared, Found, Known
from bench.kit.markdown import marked, table
from bench.kit.result import LOGBUS, figure
from bench.programs.clients.rows import rate
from bench.programs.peers.contenders import ROWS as EXPERIMENTS
from bench.programs.peers.measuring import ARROW, CONSUMER, DISK, PRODUCER
from bench.programs.spark.rows import (
    ALL_COLUMNS,
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    FLUSHED,
    KAFKA,
    KAFKA_TUNED,
    VALUE_ONLY,
    WRITTEN,
)
from bench.programs.typed.rows import LOGBUS_AVRO, TYPED


class Grid(NamedTuple):
    """Table of ratios for one question."""

    first: str
    """Heading of the lines."""
    columns: Mapping[str, Ask]
    line: Callable[[Compared], str]
    """Names the line that a comparison stands in."""
    figures: tuple[str, str] | None = None
    """Headings of the medians of the first column, the other's and logbus's."""
    figure: Callable[[float], str] = figure
    """Shows one of these medians."""

    def markdown(self, known: Known) -> str:
        """Returns the table; empty without comparisons."""
        lines: dict[str, dict[str, Found]] = {}
        for heading, ask in self.columns.items():
            for compared, found in ask.of(known).items():
                lines.setdefault(self.line(compared), {})[heading] = found
        rows = [(line, *self._medians(cells), *self._ratios(cells)) for line, cells in
                lines.items()]  # fmt: skip
        return table((self.first, *(self.figures or ()), *self.columns), rows)

    def _medians(self, cells: Mapping[str, Found]) -> list[str]:
        if self.figures is None:
            return []
        found = next(iter(cells.values()))
        return [self.figure(found.beside), self.figure(found.own)]

    def _ratios(self, cells: Mapping[str, Found]) -> list[str]:
        ratios = [cells[each].ratio if each in cells else None for each in self.columns]
        return [
            ""
            if one is None
            else f"{marked(one.median)} ({figure(one.lowest)}-{figure(one.highest)})"
            for one in ratios
        ]


def _row(compared: Compared) -> str:
    return f"`{compared.row}`"


def _beside(compared: Compared) -> str:
    return f"{KAFKA}, Java" if compared.beside == KAFKA else compared.beside


def _ms(value: float) -> str:
    return f"{figure(value)} ms"


def _peers(what: str) -> Grid:
    asks = {
        row if own == LOGBUS else f"{row}, Arrow": Ask("peers", row, what, own)
        for row in EXPERIMENTS
        for own in (LOGBUS, ARROW)
    }
    del asks["batch-1, Arrow"], asks["defaults, Arrow"]
    return Grid("beside", {f"`{name}`": ask for name, ask in asks.items()}, _beside)


_STEADY: Final = "noop|foreach|foreach-fast"
_NOT_OWN_JSON: Final = "Kafka.*|ready-made.*|logbus, from_avro"
_AGES: Final = ("age, p50", "age, p99")

GRIDS: Final[Mapping[str, Mapping[str, Grid]]] = {
    "spark": {
        "reads": Grid("row", {
            f"{what} / {other}": Ask("spark", what=what, beside=other)
            for what in (ALL_COLUMNS, VALUE_ONLY) for other in (KAFKA, KAFKA_TUNED)
        }, _row),
        "writes": Grid("row", {
            "page cache / Kafka": Ask("spark", what=WRITTEN, own=AT_LEAST_ONCE, beside=KAFKA),
            "page cache / tuned": Ask("spark", what=WRITTEN, own=AT_LEAST_ONCE, beside=KAFKA_TUNED),
            "flushed / tuned": Ask("spark", what=FLUSHED, own=AT_LEAST_ONCE, beside=KAFKA_TUNED),
            "exactly once / tuned": Ask("spark", what=FLUSHED, own=EXACTLY_ONCE,
                                        beside=KAFKA_TUNED),
        }, _row),
    },
    "stream": {
        "micro-batches": Grid("row", {
            what: Ask("stream", _STEADY, what, beside=KAFKA)
            for what in ("micro-batch", "addBatch", *_AGES)
        }, _row, (KAFKA, LOGBUS), _ms),
        "start": Grid("row", {
            other: Ask("stream", "start|available-now|read", beside=other)
            for other in (KAFKA, KAFKA_TUNED, "nothing")
        }, _row, ("Kafka, s", "logbus, s")),
        "nothing": Grid("row", {
            other: Ask("stream", "idle|nothing", "micro-batch", beside=other)
            for other in ("nothing", KAFKA, "nothing, beside input", "ready-made rows")
        }, _row, ("nothing", LOGBUS), _ms),
    },
    "typed": {
        "reads": Grid("what, beside", {
            "`columns`": Ask("typed", "[abdk]", own=f"{TYPED}|{LOGBUS}", beside=_NOT_OWN_JSON),
            "`avro`": Ask("typed", "d", own=LOGBUS_AVRO),
        }, lambda compared: f"{_row(compared)}: {compared.what}, {compared.beside}"),
    },
    "clients": {
        "rates": Grid("row, beside", {
            "logbus / it": Ask("clients", what="")
        }, lambda compared: f"{_row(compared)}, {compared.beside}",
           ("its records/s", "logbus's"), rate),
    },
    "peers": {
        "producer": _peers(PRODUCER),
        "consumer": _peers(CONSUMER),
        "disk": Grid("beside", {
            f"`{row}`": Ask("peers", row, DISK, beside="Kafka|RabbitMQ, stream|ActiveMQ")
            for row in EXPERIMENTS
        }, _beside),
    },
}  # fmt: skip
