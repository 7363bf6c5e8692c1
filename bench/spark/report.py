"""Tables and charts of the raw results of ``scripts/bench spark``: reads and writes of each shape
beside Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.charts import RATIOS, Chart, draw_all, ratio_panel
from bench.findings import finding_over, plain
from bench.markdown import image, table
from bench.raw import Raw, read_raw
from bench.result import Compared, Spread
from bench.spark.results import HEADINGS, Line, lines_of
from bench.spark.rows import ALL_COLUMNS, FLUSHED, VALUE_ONLY, WRITTEN

_ASKED: Final[Mapping[str, Mapping[str, str]]] = {
    "reads": {ALL_COLUMNS: "reads all columns", VALUE_ONLY: "reads the values"},
    "writes": {WRITTEN: "writes to the page cache", FLUSHED: "writes to the disk"},
}


def tables(path: Path) -> dict[str, str]:
    """Markdown of the reads and of the writes."""
    raw = read_raw(path)
    found = {}
    for name, asked in _ASKED.items():
        lines = [line for what in asked for line in _lines(raw, what)]
        shown = table(HEADINGS, ((f"`{line.row}`", *line.cells[1:]) for line in lines))
        images = [image(chart.name, chart.alt) for chart in _charts(raw, name)]
        found[name] = "\n\n".join([shown, *images])
    return found


def charts(path: Path, directory: Path) -> list[Path]:
    return draw_all(charts_of(read_raw(path)), directory)


def charts_of(raw: Raw) -> list[Chart]:
    return [chart for name in _ASKED for chart in _charts(raw, name)]


def ratios_of(raw: Raw) -> dict[Compared, Spread]:
    """Of each of logbus's ways beside each of Kafka's."""
    return {
        Compared(line.row, line.what, line.own, line.beside): line.ratio
        for asked in _ASKED.values()
        for what in asked
        for line in _lines(raw, what)
    }


def _charts(raw: Raw, name: str) -> list[Chart]:
    """One for each thing that is read or written, with a panel for each way of both logs."""
    found = []
    for what, does in _ASKED[name].items():
        panels: dict[tuple[str, str], dict[str, Spread]] = {}
        for line in _lines(raw, what):
            panels.setdefault((line.own, line.beside), {})[line.row] = line.ratio
        drawn = [
            ratio_panel(finding_over(f"{plain(own)} {does}", other, ratios), ratios)
            for (own, other), ratios in panels.items()
        ]
        if drawn:
            file = f"spark-{name}-{what.replace(' ', '-')}"
            found.append(Chart(file, RATIOS, drawn, line_at=1.0))
    return found


def _lines(raw: Raw, what: str) -> list[Line]:
    """In the order in which rows were measured."""
    return [
        line
        for name, rounds in raw.items()
        if name.endswith(f", {what}")
        for line in lines_of(name.removesuffix(f", {what}"), what, rounds)
    ]
