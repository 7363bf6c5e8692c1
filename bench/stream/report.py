"""Tables and a chart of the raw results of ``scripts/bench stream``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.charts import OWN, RATIOS, Bar, Chart, Panel, draw_all, ratio_panel
from bench.findings import finding_over, times
from bench.markdown import image, table
from bench.raw import Raw, read_raw
from bench.result import LOGBUS, Compared, Rounds, Spread, median, ratios, shown_ratios, spread
from bench.stream.contenders import KAFKA
from bench.stream.measuring import FAST, P50, P99, SLOW
from bench.stream.queries import WHOLE
from bench.stream.rows import PACES, READ, SHAPES, START_RECORDS

TUNED: Final = f"{KAFKA}, tuned"


class Case(NamedTuple):
    """A metric of a row, and what it is in words."""

    row: str
    metric: str
    text: str
    goals: Mapping[str, float] = {}
    """Ratios that are wanted, by whom logbus is beside."""


_SLOW, _FAST = f"{SLOW:,} records a second", f"{FAST:,} a second"
MICRO_BATCHES: Final = (
    Case("noop", WHOLE, f"{_SLOW}, `noop`", {KAFKA: 1.2}),
    Case("noop", "addBatch", f"{SLOW:,} a second, `noop`, `addBatch` alone"),
    Case("foreach", WHOLE, f"{SLOW:,} a second, `foreachBatch`", {KAFKA: 1.2}),
    Case("foreach-fast", WHOLE, f"{_FAST}, `foreachBatch`", {KAFKA: 1.2}),
    Case("foreach", P50, f"age at {SLOW:,} a second, p50", {KAFKA: 1.2}),
    Case("foreach", P99, f"age at {SLOW:,} a second, p99", {KAFKA: 1.2}),
    Case("foreach-fast", P50, f"age at {_FAST}, p50"),
    Case("foreach-fast", P99, f"age at {_FAST}, p99"),
)
OF_SHAPES: Final = tuple(
    Case(f"{row}-{name}", metric, f"{a_second:,} a second, {shape}, {what}")
    for row, a_second in PACES.items()
    for name, shape in SHAPES.items()
    for metric, what in ((WHOLE, "micro-batch"), (P50, "age, p50"), (P99, "age, p99"))
)
START: Final = (Case("start", READ, f"start over {START_RECORDS:,} records", {KAFKA: 0.8}),)
BACKLOG: Final = (
    Case("available-now", READ, "one `availableNow` query", {KAFKA: 3.0, TUNED: 1.6}),
    Case("read", READ, "a batch read", {KAFKA: 4.0, TUNED: 2.2}),
)
NOTHING: Final = (
    Case("idle", WHOLE, "idle trigger"),
    Case("nothing", WHOLE, f"a micro-batch at {_FAST}"),
)
_PARTS: Final = ("latestOffset", "walCommit")


def tables(path: Path) -> dict[str, str]:
    """Markdown by the question."""
    raw = read_raw(path)
    asked = {
        "micro-batches": MICRO_BATCHES, "shapes": OF_SHAPES, "start": START, "backlog": BACKLOG,
        "nothing": NOTHING,
    }  # fmt: skip
    found = {name: _compared(raw, cases) for name, cases in asked.items()}
    found["partitions"] = table(
        ("partitions", "micro-batch", *(f"of that, `{part}`" for part in _PARTS)),
        _of_partitions(raw.get("partitions", {})),
    )
    for chart in charts_of(raw):
        name = chart.name.removeprefix("stream-")
        found[name] = f"{found[name]}\n\n{image(chart.name, chart.alt)}"
    return found


def charts(path: Path, directory: Path) -> list[Path]:
    return draw_all(charts_of(read_raw(path)), directory)


def charts_of(raw: Raw) -> list[Chart]:
    """Ratios of micro-batches, and of what is read at once; and times over partitions."""
    found = _over_partitions(raw.get("partitions", {}))
    for name, cases in (
        ("micro-batches", MICRO_BATCHES),
        ("shapes", [case for case in OF_SHAPES if case.metric == WHOLE]),
        ("backlog", BACKLOG),
    ):
        drawn = []
        for other in (KAFKA, TUNED):
            shown = {
                case.text.replace("`", ""): spread(_ratios(rounds, other, case.metric))
                for case, rounds in _measured(raw, cases)
                if other in rounds
            }
            if shown:
                drawn.append(ratio_panel(finding_over(f"{LOGBUS} is", other, shown), shown))
        if drawn:
            found.append(Chart(f"stream-{name}", RATIOS, drawn, line_at=1.0))
    return found


def ratios_of(raw: Raw) -> dict[Compared, Spread]:
    """Of all cases, beside each of Kafka's ways."""
    cases = (*MICRO_BATCHES, *OF_SHAPES, *START, *BACKLOG)
    return {
        Compared(case.row, case.text, LOGBUS, other): spread(_ratios(rounds, other, case.metric))
        for case, rounds in _measured(raw, cases)
        for other in (KAFKA, TUNED)
        if other in rounds
    }


def _measured(raw: Raw, cases: Sequence[Case]) -> Iterator[tuple[Case, Rounds]]:
    for case in cases:
        rounds = raw.get(case.row, {})
        if rounds and case.metric in rounds[LOGBUS][0]:
            yield case, rounds


def _ratios(rounds: Rounds, other: str, metric: str) -> list[float]:
    return ratios(rounds[other], rounds[LOGBUS], metric)


def _compared(raw: Raw, cases: Sequence[Case]) -> str:
    """A column for each contender that any of the cases has, and one for each ratio."""
    measured = list(_measured(raw, cases))
    others = list(dict.fromkeys(name for _, rounds in measured for name in rounds))
    others = [name for name in others if name != LOGBUS]
    has_goals = any(case.goals for case in cases)
    lines = []
    for case, rounds in measured:
        unit = "s" if case.metric == READ else "ms"
        lines.append(
            (
                case.text,
                *(_median(rounds, name, case.metric, unit) for name in (*others, LOGBUS)),
                *(
                    shown_ratios(_ratios(rounds, name, case.metric)) if name in rounds else ""
                    for name in others
                ),
                *([", ".join(f"{goal:g}" for goal in case.goals.values())] if has_goals else []),
            )
        )
    headings = ("case", *others, LOGBUS, *(f"{name} / {LOGBUS}" for name in others))
    return table((*headings, "goal") if has_goals else headings, lines)


def _median(rounds: Rounds, contender: str, metric: str, unit: str) -> str:
    found = median(rounds.get(contender, ()), metric)
    if found is None:
        return ""
    return f"{found:.2f} {unit}" if found < 10 else f"{found:,.0f} {unit}"


def _over_partitions(rounds: Rounds) -> list[Chart]:
    if not rounds:
        return []
    found = {name: spread([one[WHOLE] for one in rounds[name]]) for name in rounds}
    (few, least), *_, (many, most) = found.items()
    growth = times(most.median / least.median)
    title = f"With {many} a micro-batch takes {growth} times as long as with {few}"
    bars = [Bar(name, one, OWN) for name, one in found.items()]
    return [Chart("stream-partitions", "ms: median of the rounds, lowest to highest",
                  [Panel(title, bars)])]  # fmt: skip


def _of_partitions(rounds: Rounds) -> Iterator[Sequence[str]]:
    for name in rounds:
        count = name.removesuffix(" partitions")
        yield (count, *(_median(rounds, name, metric, "ms") for metric in (WHOLE, *_PARTS)))
