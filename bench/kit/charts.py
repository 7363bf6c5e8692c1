"""Charts of what was measured: lines over a size, as SVG, under a title that states what was found.
They are the same for the same figures."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

Points = Sequence[tuple[float, float]]


def require_matplotlib() -> None:
    """Raises SystemExit where charts cannot be drawn; asked before measurements, which are long."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit(
            "Charts need the Python package matplotlib; "
            ".venv/bin/python -m pip install -c constraints.txt matplotlib brings it."
        )


def draw_lines(
    path: Path, series: Mapping[str, Points], *, title: str, x: str, y: str, log_x: bool = True
) -> None:
    """Writes an SVG with a line for each name; ``title`` states the finding, in one sentence.

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
