"""Tables and a chart of the raw results of ``scripts/bench typed``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.charts import RATIOS, Chart, draw_all, ratio_panel
from bench.findings import finding_over
from bench.markdown import image, table
from bench.raw import Raw, read_raw
from bench.result import (
    LOGBUS,
    Compared,
    Metrics,
    Spread,
    figure,
    has,
    median,
    ratios,
    shown_ratios,
    spread,
)
from bench.typed.rows import FEW_OF_ALL, GOALS, LOGBUS_AVRO, READY_MADE, TYPED, of_letter

_SECONDS, _BYTES = "seconds", "bytes"


class Line(NamedTuple):
    """A row's ``own`` way to read, beside one other."""

    row: str
    own: str
    other: str
    theirs: Sequence[Metrics]
    of_own: Sequence[Metrics]

    @property
    def ratios(self) -> list[float]:
        return ratios(self.theirs, self.of_own, _SECONDS)

    @property
    def spread(self) -> Spread:
        return spread(self.ratios)


def tables(path: Path) -> dict[str, str]:
    """Markdown of what was timed, and of what was counted in bytes."""
    raw = read_raw(path)
    timed = table(
        ("measure", "what", "logbus", "s", "beside", "s", "ratio", "goal"), map(_cells, _lines(raw))
    )
    images = [image(chart.name, chart.alt) for chart in charts_of(raw)]
    counted = table(("measure", "what", "of", "bytes", "of the first"), _counted(raw))
    return {"reads": "\n\n".join([timed, *images]) if timed else "", "bytes": counted}


def charts(path: Path, directory: Path) -> list[Path]:
    return draw_all(charts_of(read_raw(path)), directory)


def ratios_of(raw: Raw) -> dict[Compared, Spread]:
    """Of each of logbus's ways beside each other."""
    return {
        Compared(letter, what, line.own, line.other): line.spread
        for line in _lines(raw)
        for letter, what in [of_letter(line.row)]
    }


def charts_of(raw: Raw) -> list[Chart]:
    """The encoding ``columns``, or what a measure has of logbus's, beside Kafka's source and beside
    what no log can be faster than."""
    kafka: dict[str, Spread] = {}
    ready_made: dict[str, Spread] = {}
    for line in _lines(raw):
        if line.own != LOGBUS_AVRO and not line.other.startswith(LOGBUS):
            if line.other == READY_MADE:
                ready_made[": ".join(of_letter(line.row))] = line.spread
            else:
                kafka[line.other] = line.spread
    panels = [
        ratio_panel(finding_over(f"{LOGBUS} reads {columns}", other, found), found)
        for columns, other, found in (
            (FEW_OF_ALL, "Kafka's source", kafka), ("columns", READY_MADE, ready_made),
        )
        if found
    ]  # fmt: skip
    return [Chart("typed-reads", RATIOS, panels, line_at=1.0)] if panels else []


def _lines(raw: Raw) -> Iterator[Line]:
    for row, rounds in raw.items():
        if not has(rounds, _SECONDS):
            continue
        for own in (LOGBUS, TYPED, LOGBUS_AVRO):
            for other in rounds:
                if own in rounds and other not in (LOGBUS, TYPED, LOGBUS_AVRO):
                    yield Line(row, own, other, rounds[other], rounds[own])


def _cells(line: Line) -> tuple[str, ...]:
    letter, what = of_letter(line.row)
    goal = GOALS.get((line.row, line.other))
    return (
        f"`{letter}`", what, line.own, _of(line.of_own, _SECONDS), line.other,
        _of(line.theirs, _SECONDS), shown_ratios(line.ratios), "" if goal is None else f"{goal:g}",
    )  # fmt: skip


def _counted(raw: Raw) -> Iterator[tuple[str, ...]]:
    for row, rounds in raw.items():
        if not has(rounds, _BYTES):
            continue
        letter, what = of_letter(row)
        first = median(next(iter(rounds.values())), _BYTES) or 1.0
        for contender, own in rounds.items():
            size = median(own, _BYTES) or 0.0
            yield f"`{letter}`", what, contender, f"{size:,.0f}", f"{size / first:.3f}"


def _of(rounds: Sequence[Metrics], metric: str) -> str:
    found = median(rounds, metric)
    return "" if found is None else figure(found)
