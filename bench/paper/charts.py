"""Charts of the rows that were measured, one for each question, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.paper.contenders import Row
from bench.paper.measuring import READ, SENT
from bench.paper.results import Spread, overhead, rate
from bench.result import Metrics, Result

_WIDTH, _BAR_HEIGHT, _MARGIN = 9.0, 0.34, 1.2  # inches
_OWN, _OTHERS = "#1b6ca8", "#b4bcc4"

Measure = Callable[[Sequence[Metrics]], Spread | None]


class Bar(NamedTuple):
    """One contender in one row; ``label`` names both, and where records are acknowledged."""

    label: str
    is_own: bool
    value: Spread


class Chart(NamedTuple):
    name: str
    title: str
    unit: str
    bars: Sequence[Bar]


def charts_of(
    rows: Mapping[str, Row], results: Sequence[Result], *, value_bytes: int
) -> list[Chart]:
    """Rates, and what a record takes on disk; contenders without a figure have no bar."""

    def chart(name: str, title: str, unit: str, measure: Measure) -> Chart:
        return Chart(name, title, unit, _bars(rows, results, measure))

    records = f"records of {value_bytes} bytes"
    rates = "records a second: median of the rounds, lowest to highest"
    return [
        chart("producer", f"One producer: {records}, sent and acknowledged as said", rates,
              lambda rounds: rate(rounds, SENT)),
        chart("consumer", f"One consumer: {records}, read from the beginning to the end", rates,
              lambda rounds: rate(rounds, READ)),
        chart("disk", f"On disk: what a record takes beside its {value_bytes} bytes", "bytes",
              lambda rounds: overhead(rounds, value_bytes)),
    ]  # fmt: skip


def _bars(rows: Mapping[str, Row], results: Sequence[Result], measure: Measure) -> list[Bar]:
    bars = []
    for result in results:
        for contender in rows[result.row].contenders:
            rounds = result.rounds.get(contender.name)
            value = None if rounds is None else measure(rounds)
            if value is not None:
                label = f"{result.row}: {contender.name} ({contender.acknowledged})"
                bars.append(Bar(label, contender.is_own, value))
    return bars


def draw(chart: Chart, directory: Path) -> Path:
    """An SVG that is the same for the same figures."""
    # Imported here: an extra, which only those need who ask for charts.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    bars = chart.bars
    figure = Figure(figsize=(_WIDTH, _MARGIN + _BAR_HEIGHT * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    medians = [bar.value.median for bar in bars]
    spreads = [
        [bar.value.median - bar.value.lowest for bar in bars],
        [bar.value.highest - bar.value.median for bar in bars],
    ]
    places = list(range(len(bars)))
    colours = [_OWN if bar.is_own else _OTHERS for bar in bars]
    axes.barh(places, medians, xerr=spreads, color=colours, capsize=2)
    for place, bar in zip(places, bars, strict=True):
        axes.annotate(f"{bar.value.median:,.0f}", (bar.value.highest, place), xytext=(5, 0),
                      textcoords="offset points", va="center", fontsize=8)  # fmt: skip
    axes.set_yticks(places, [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(chart.title, fontsize=11)
    axes.set_xlabel(chart.unit)
    axes.spines[["top", "right"]].set_visible(False)
    path = directory / f"{chart.name}.svg"
    with mpl.rc_context({"svg.hashsalt": chart.name}):
        figure.savefig(path, metadata={"Date": None})
    return path
