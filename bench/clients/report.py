"""Tables and a chart of the raw results of ``scripts/bench clients``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.charts import RATIOS, Chart, draw_all, ratio_panel
from bench.clients.results import HEADINGS, SIZE_HEADINGS, lines_of, sizes_of
from bench.clients.rows import ROWS, TIME, DiskRow
from bench.findings import finding_over
from bench.markdown import image, table
from bench.raw import Raw, read_raw
from bench.result import LOGBUS, Compared, Spread, ratios, spread


def tables(path: Path) -> dict[str, str]:
    """Markdown of the rates, and of the bytes on disk."""
    raw = read_raw(path)
    rates, sizes = [], []
    for name, row in ROWS.items():
        if name not in raw:
            continue
        if isinstance(row, DiskRow):
            sizes += sizes_of(raw[name])
        else:
            rates += lines_of(f"`{name}`", row.title, raw[name], row.targets)
    images = [image(chart.name, chart.alt) for chart in charts_of(raw)]
    return {
        "rates": "\n\n".join([table(HEADINGS, rates), *images]),
        "disk": table(SIZE_HEADINGS, sizes),
    }


def charts(path: Path, directory: Path) -> list[Path]:
    return draw_all(charts_of(read_raw(path)), directory)


def charts_of(raw: Raw) -> list[Chart]:
    """Ratios of all rows, with a panel for each peer."""
    panels: dict[str, dict[str, Spread]] = {}
    for name, peer, found in _ratios(raw):
        panels.setdefault(peer, {})[name] = found
    drawn = [
        ratio_panel(finding_over(f"{LOGBUS} is", peer, ratios), ratios)
        for peer, ratios in panels.items()
    ]
    return [Chart("clients", RATIOS, drawn, line_at=1.0)] if drawn else []


def ratios_of(raw: Raw) -> dict[Compared, Spread]:
    """Of all rows, beside each peer."""
    return {
        Compared(name, ROWS[name].title, LOGBUS, peer): found for name, peer, found in _ratios(raw)
    }


def _ratios(raw: Raw) -> Iterator[tuple[str, str, Spread]]:
    """With the row and the peer."""
    for name, row in ROWS.items():
        for peer in row.targets:
            if peer in raw.get(name, {}):
                yield name, peer, spread(ratios(raw[name][peer], raw[name][LOGBUS], TIME))
