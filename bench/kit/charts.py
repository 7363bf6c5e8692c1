"""Charts of what was measured, as SVG: lines over a size, and bars, under titles that state what
was found. They are the same for the same figures."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.kit.result import Spread, figure

Points = Sequence[tuple[float, float]]

OWN: Final = "#1b6ca8"
OTHERS: Final = "#b4bcc4"
BEHIND: Final = "#c8553d"

RATIOS: Final = (
    "times as fast as the other: median of the rounds, lowest to highest\n"
    "(blue: ahead, red: behind, grey: not told apart)"
)

_WIDTH, _BAR_HEIGHT, _MARGIN, _TITLE_HEIGHT = 9.0, 0.3, 0.8, 0.36  # inches
_LOG_FROM = 100.0  # values that are so many times apart are drawn on a logarithmic scale


class Bar(NamedTuple):
    label: str
    value: Spread
    """Drawn with the lowest and the highest of the rounds."""
    colour: str = OTHERS


class Panel(NamedTuple):
    """Bars that are compared; ``title`` states what they show."""

    title: str
    bars: Sequence[Bar]


class Chart(NamedTuple):
    name: str
    """Of its file, without the suffix."""
    unit: str
    panels: Sequence[Panel]
    line_at: float | None = None
    """A value that bars are seen against."""

    @property
    def alt(self) -> str:
        """The chart in words."""
        return ". ".join(panel.title for panel in self.panels) + "."


def require_matplotlib() -> None:
    """Before measurements, which are long; raises SystemExit."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit(
            "Charts need the Python package matplotlib; "
            ".venv/bin/python -m pip install -c constraints.txt matplotlib brings it."
        )


def draw_all(charts: Iterable[Chart], directory: Path) -> list[Path]:
    """The files of charts that have bars; matplotlib has to be there."""
    directory.mkdir(parents=True, exist_ok=True)
    return [draw_bars(chart, directory) for chart in charts]


def draw_bars(chart: Chart, directory: Path) -> Path:
    """A panel below the other, all on one scale."""
    import matplotlib as mpl  # imported here: it is an extra, and takes a second
    from matplotlib.figure import Figure

    heights = [_TITLE_HEIGHT + _BAR_HEIGHT * len(panel.bars) for panel in chart.panels]
    drawing = Figure(figsize=(_WIDTH, _MARGIN + sum(heights)), layout="constrained")
    axes = drawing.subplots(
        len(heights), sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]
    values = [bar.value for panel in chart.panels for bar in panel.bars]
    lowest, highest = min(one.lowest for one in values), max(one.highest for one in values)
    if lowest > 0 and highest / lowest > _LOG_FROM:
        axes[0].set_xscale("log")
        axes[0].set_xlim(lowest / 2, highest * 4)
    else:
        axes[0].set_xlim(0, highest * 1.12)
    for place, panel in zip(axes, chart.panels, strict=True):
        _draw_panel(place, panel)
        if chart.line_at is not None:
            place.axvline(chart.line_at, color="black", linewidth=1, linestyle="--")
    axes[0].xaxis.set_major_formatter("{x:,.12g}")
    axes[-1].set_xlabel(chart.unit, fontsize=9)
    path = directory / f"{chart.name}.svg"
    with mpl.rc_context({"svg.hashsalt": chart.name, "svg.fonttype": "none"}):  # text as text
        drawing.savefig(path, format="svg", metadata={"Date": None})
    return path


def _draw_panel(axes: Any, panel: Panel) -> None:
    places = list(range(len(panel.bars)))
    values = [bar.value for bar in panel.bars]
    spreads = [[one.median - one.lowest for one in values],
               [one.highest - one.median for one in values]]  # fmt: skip
    axes.barh(
        places, [one.median for one in values], xerr=spreads, capsize=2,
        color=[bar.colour for bar in panel.bars], error_kw={"elinewidth": 1},
    )  # fmt: skip
    for place, one in zip(places, values, strict=True):
        axes.annotate(figure(one.median), (one.highest, place), xytext=(5, 0),
                      textcoords="offset points", va="center", fontsize=8)  # fmt: skip
    axes.set_yticks(places, [bar.label for bar in panel.bars], fontsize=9)
    axes.set_ylim(len(places) - 0.4, -0.6)
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def ratio_panel(title: str, ratios: Mapping[str, Spread]) -> Panel:
    """Ratios of logbus, the largest first, by colour as ``RATIOS`` says."""
    largest_first = sorted(ratios.items(), key=lambda each: -each[1].median)
    return Panel(
        title,
        [
            Bar(label, one, OWN if one.lowest > 1 else BEHIND if one.highest < 1 else OTHERS)
            for label, one in largest_first
        ],
    )


def draw_lines(
    path: Path, series: Mapping[str, Points], *, title: str, x: str, y: str, log_x: bool = True
) -> None:
    """Write an SVG with a line for each name; ``title`` states the finding, in one sentence.

    Raises ImportError without matplotlib, which the extra ``bench`` brings.
    """
    import matplotlib  # imported here: it is an extra, and takes a second
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, points in series.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    if log_x:
        axes.set_xscale("log")
    sizes = sorted({size for points in series.values() for size, _ in points})
    axes.set_xticks(sizes, [f"{size:,g}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, wrap=True, fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):  # text as text
        figure.savefig(path, format="svg", metadata={"Date": None})
