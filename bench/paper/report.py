"""Tables and charts of the raw results of ``scripts/bench peers``: a table and a chart for each
question, rows by experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.charts import OTHERS, OWN, Bar, Chart, Panel, draw_all
from bench.findings import finding
from bench.markdown import image, table
from bench.paper.contenders import KAFKA, ROWS, Contender
from bench.paper.measuring import ON_DISK, READ, SENT, VALUE_BYTES
from bench.paper.results import overhead, rate, records_of
from bench.raw import Raw, read_raw
from bench.result import LOGBUS, Compared, Metrics, Rounds, Spread, ratios, spread

ARROW: Final = f"{LOGBUS}, Arrow"

_EXPERIMENTS: Final[Mapping[str, str]] = {
    "batch-1": "Each record by itself",
    "batch-50": "Batches of 50",
    "throughput": "Set for throughput",
    "defaults": "With defaults",
}


class Question(NamedTuple):
    """Asked of each contender in each experiment."""

    name: str
    unit: str
    value: Callable[[Sequence[Metrics]], Spread | None]
    """None where a contender has none."""
    ratio: Callable[[Rounds, str, str], Spread]
    """Of logbus, by the name of its contender, to another."""
    does: str
    measure: str
    best_is_largest: bool
    absent: str
    """What stands in the place of a value."""


def _times_faster(time: str) -> Callable[[Rounds, str, str], Spread]:
    return lambda rounds, own, other: spread(ratios(rounds[other], rounds[own], time))


def _times_as_much(rounds: Rounds, own: str, other: str) -> Spread:
    pairs = zip(rounds[own], rounds[other], strict=True)
    return spread([
        (one[ON_DISK] - one[VALUE_BYTES]) / (peer[ON_DISK] - peer[VALUE_BYTES])
        for one, peer in pairs
        if one and peer
    ])  # fmt: skip


QUESTIONS: Final = (
    Question("producer", "records/s sent", lambda rounds: rate(rounds, SENT), _times_faster(SENT),
             "sends", "as fast as", True, "left out"),
    Question("consumer", "records/s read", lambda rounds: rate(rounds, READ), _times_faster(READ),
             "reads", "as fast as", True, "left out"),
    Question("disk", "bytes a record on disk beside its value", overhead, _times_as_much,
             "takes", "as much as", False, "in memory"),
)  # fmt: skip


def tables(path: Path) -> dict[str, str]:
    """Markdown by the name of each question."""
    raw = read_raw(path)
    drawn = {chart.name: chart for chart in charts_of(raw)}
    found = {}
    for question in QUESTIONS:
        chart = drawn.get(f"peers-{question.name}")
        parts = [_table(raw, question), "" if chart is None else image(chart.name, chart.alt)]
        found[question.name] = "\n\n".join(part for part in parts if part)
    return found


def charts(path: Path, directory: Path) -> list[Path]:
    return draw_all(charts_of(read_raw(path)), directory)


def _table(raw: Raw, question: Question) -> str:
    headings = ("experiment", "contender", "acked in", "records", question.unit,
                f"`{LOGBUS}` / it", f"`{ARROW}` / it")  # fmt: skip
    lines = []
    for row, contender, value in _measured(raw, question):
        rounds = raw[row]
        of = [
            str(question.ratio(rounds, own, contender.name))
            if not contender.is_own and own in rounds and value is not None
            else ""
            for own in (LOGBUS, ARROW)
        ]
        name = f"**{contender.name}**" if contender.is_own else _shown(contender.name)
        shown = question.absent if value is None else str(value)
        records = f"{records_of(rounds[contender.name]):,.0f}"
        lines.append((f"`{row}`", name, contender.acknowledged, records, shown, *of))
    return table(headings, lines)


def _measured(raw: Raw, question: Question) -> Iterator[tuple[str, Contender, Spread | None]]:
    """By experiment, the best first, those without a value last."""

    def place(each: tuple[str, Contender, Spread | None]) -> float:
        if each[2] is None:
            return math.inf
        return -each[2].median if question.best_is_largest else each[2].median

    for row in ROWS:
        found = [
            (row, contender, question.value(raw[row][contender.name]))
            for contender in ROWS[row].contenders
            if contender.name in raw.get(row, {})
        ]
        yield from sorted(found, key=place)


def _shown(contender: str) -> str:
    """Kafka's own client beside librdkafka."""
    return f"{KAFKA}, Java" if contender == KAFKA else contender


def charts_of(raw: Raw) -> list[Chart]:
    """One for each question that has a value, with a panel for each experiment."""
    found = []
    for question in QUESTIONS:
        panels = [panel for row in ROWS if (panel := _panel(raw, question, row)).bars]
        if panels:
            unit = f"{question.unit}: median of the rounds, lowest to highest"
            found.append(Chart(f"peers-{question.name}", unit, panels))
    return found


def ratios_of(raw: Raw) -> dict[Compared, Spread]:
    """Of both of logbus's ways beside each peer, in rates."""
    return _compared(raw, [question for question in QUESTIONS if question.best_is_largest])


def sizes_of(raw: Raw) -> dict[Compared, Spread]:
    """Of both of logbus's ways beside each peer, in what records take: below 1, it is less."""
    return _compared(raw, [question for question in QUESTIONS if not question.best_is_largest])


def _compared(raw: Raw, questions: Sequence[Question]) -> dict[Compared, Spread]:
    return {
        Compared(row, question.name, own, contender.name):
            question.ratio(raw[row], own, contender.name)
        for question in questions
        for row, contender, value in _measured(raw, question)
        for own in (LOGBUS, ARROW)
        if value is not None and not contender.is_own and own in raw[row]
    }  # fmt: skip


def _panel(raw: Raw, question: Question, row: str) -> Panel:
    own_rounds = {row: raw[row]} if row in raw else {}
    measured = [(each, value) for _, each, value in _measured(own_rounds, question) if value]
    others = [each.name for each, _ in measured if not each.is_own]
    of = (
        {_shown(name): question.ratio(raw[row], LOGBUS, name) for name in others}
        if any(each.name == LOGBUS for each, _ in measured)
        else {}
    )
    said = finding(f"{LOGBUS} {question.does}", of, measure=question.measure)
    return Panel(
        f"{_EXPERIMENTS[row]}: {said or question.unit}",
        [
            Bar(f"{_shown(each.name)} ({each.acknowledged})", value, OWN if each.is_own else OTHERS)
            for each, value in measured
        ],
    )
