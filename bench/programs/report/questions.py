"""Declares the documents' tables: ratios for each question, and a chart of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from bench.kit.charts import RATIOS, Chart, ratio_panel
from bench.kit.comparing import Ask, Compared, Found, Known
from bench.kit.markdown import ends, marked, table
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
from bench.programs.stream.rows import SHAPED_PATTERN
from bench.programs.typed.rows import LOGBUS_AVRO, TYPED


class Grid(NamedTuple):
    """Table of ratios for one question, and a chart of them."""

    first: str
    """Heading of the lines."""
    columns: Mapping[str, Ask]
    line: Callable[[Compared], str]
    """Names the line that a comparison stands in."""
    figures: tuple[str, str] | None = None
    """Headings of the medians of the first column, the other's and logbus's."""
    figure: Callable[[float], str] = figure
    """Shows one of these medians."""
    has_chart: bool = True

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

    def chart(self, known: Known, name: str) -> Chart | None:
        """Returns a chart with a panel for each column; None if there is nothing to draw."""
        panels = []
        for heading, ask in self.columns.items():
            ratios = {self.line(each): found.ratio for each, found in ask.of(known).items()}
            if ratios:
                title = f"{heading}: {ends(ratios.values(), mark='')}".replace("`", "")
                panels.append(ratio_panel(title, ratios))
        return Chart(name, RATIOS, panels, line_at=1.0) if panels and self.has_chart else None


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
        "shapes": Grid("row", {
            what: Ask("stream", SHAPED_PATTERN, what, beside=KAFKA)
            for what in ("micro-batch", *_AGES)
        }, _row, (KAFKA, LOGBUS), _ms),
        "start": Grid("row", {
            other: Ask("stream", "start|available-now|read", beside=other)
            for other in (KAFKA, KAFKA_TUNED, "nothing")
        }, _row, ("Kafka, s", "logbus, s")),
        "nothing": Grid("row", {
            other: Ask("stream", "idle|nothing", "micro-batch", beside=other)
            for other in ("nothing", KAFKA, "nothing, beside input", "ready-made rows")
        }, _row, ("nothing", LOGBUS), _ms, has_chart=False),
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


def charts_of(known: Known) -> list[Chart]:
    """Returns the charts of all questions that have comparisons."""
    found = [
        grid.chart(known, f"{program}-{name}")
        for program, grids in GRIDS.items()
        for name, grid in grids.items()
    ]
    return [chart for chart in found if chart is not None]
