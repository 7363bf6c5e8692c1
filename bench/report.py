"""``scripts/bench report``: writes tables and charts of committed raw results into the documents.

A program's raw results lie in bench/results, as ``PROGRAM.csv`` with its conditions in
``PROGRAM.txt``. In a page, ``<!-- generated: bench PROGRAM NAME -->`` begins a table of them and
``<!-- end -->`` ends it; ``bench PROGRAM run`` tells whether runs agree that measured the same
rows, and their conditions; ``bench all summary`` is a table of what all found. Parts without
results stay as they are. Charts are SVGs in docs/charts, and are drawn anew each time.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

from bench.agreement import told_between, told_touching, told_within
from bench.charts import require_matplotlib
from bench.harness import ROOT, console
from bench.markdown import CHARTS, verbatim
from bench.paper.report import sizes_of
from bench.raw import (
    Raw,
    RawError,
    Run,
    beside_others,
    one_by_one,
    pooled,
    read_all_runs,
    read_raw,
    read_runs,
    runs_of,
)
from bench.result import Ratios
from bench.summary import SIZES, summary
from scripts.generated import filled, parts_called

RESULTS: Final = ROOT / "bench" / "results"
DOCS: Final = ROOT / "docs"
SUMMARY: Final = ("all", "summary")
PARTS: Final = parts_called(r"bench [\w-]+ [\w-]+")
_ALL_ABOVE: Final = "Rows: all of the above"
_RUN: Final = "run"
_WITHIN: Final = "**Do runs agree?** Between any two runs on one processor,"
_BESIDE: Final = "**Do tables hold?** Of each run beside all others of its rows, pooled as here,"
_UNKNOWN: Final = "of an unknown processor"
_BETWEEN: Final = "**Do processors agree?** Between them,"


class Report(Protocol):
    """A module that makes something of raw results."""

    def tables(self, path: Path) -> Mapping[str, str]:
        """Markdown by the name of the part; raises RawError."""

    def charts(self, path: Path, directory: Path) -> Sequence[Path]:
        """Draw the charts that ``tables`` refers to."""

    def ratios_of(self, raw: Raw) -> Ratios:
        """What several runs are compared in."""


PROGRAMS: Final[Mapping[str, str]] = {
    "peers": "bench.paper.report",
    "spark": "bench.spark.report",
    "clients": "bench.clients.report",
    "stream": "bench.stream.report",
    "typed": "bench.typed.report",
    "scaling": "bench.scaling.results",
}


class UnknownPartError(Exception):
    """A page asks for a part that no results have."""


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Tables and charts of raw results, written into the documents."
    )
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a directory of CSV files")
    parser.add_argument(
        "--docs", type=Path, nargs="+", help="pages; default: all in docs/ with such parts"
    )
    parser.add_argument("--charts", type=Path, default=DOCS / CHARTS, help="a directory for SVGs")
    return parser


def main() -> int:
    args = parser().parse_args()
    try:
        stale = stale_pages(args.docs or pages(), args.results)
    except (RawError, UnknownPartError) as error:
        raise SystemExit(str(error)) from error
    for page, text in stale.items():
        _say(
            f"{page} {'is out of date: run scripts/bench report' if args.check else 'was written'}."
        )
        if not args.check:
            page.write_text(text)
    if args.check:
        return 1 if stale else 0
    found = {name: args.results / f"{name}.csv" for name in PROGRAMS}
    found = {name: path for name, path in found.items() if path.exists()}
    if not found:
        _say(f"No raw results are in {args.results}; a program writes them with --csv.")
        return 0
    require_matplotlib()
    for name, path in found.items():
        for chart in _report(name).charts(path, args.charts):
            _say(f"{chart} was drawn.")
    return 0


def pages() -> list[Path]:
    return [page for page in sorted(DOCS.glob("*.md")) if PARTS.search(page.read_text())]


def stale_pages(pages: Sequence[Path], results: Path) -> dict[Path, str]:
    """What pages are to hold that hold something else. Raises RawError for a file that holds no
    raw results, and UnknownPartError."""
    known: dict[str, Mapping[str, str]] = {}

    def content(part: str) -> str | None:
        _, program, name = part.split(" ")
        if (program, name) == SUMMARY:
            return summary(ratios_of_all(results)) or None
        if program not in PROGRAMS:
            raise UnknownPartError(f"No results are called {program}; use {', '.join(PROGRAMS)}.")
        path = results / f"{program}.csv"
        if not path.exists():
            return None
        if program not in known:
            known[program] = _parts(program, path)
        if name not in known[program]:
            raise UnknownPartError(
                f"Results of {program} have no part {name}; use {', '.join(known[program])}."
            )
        return known[program][name] or None

    found = {page: page.read_text() for page in pages}
    new = {page: filled(text, PARTS, content) for page, text in found.items()}
    return {page: text for page, text in new.items() if text != found[page]}


def _parts(program: str, path: Path) -> Mapping[str, str]:
    """Tables by name, which may have the program's in front, and of the runs what they agree in and
    their conditions."""
    report = _report(program)
    tables = report.tables(path)
    parts = {name.removeprefix(f"{program}-"): tables[name] for name in tables}
    return {**parts, _RUN: _runs(report, path)}


def _runs(report: Report, path: Path) -> str:
    found = read_runs(path)
    each = [[report.ratios_of(raw) for raw in one_by_one(runs)] for runs in found.values()]
    others = [
        [report.ratios_of(raw) for raw in both] for both in beside_others(read_all_runs(path))
    ]
    of_processors = {
        name or _UNKNOWN: report.ratios_of(pooled(runs)) for name, runs in found.items()
    }
    parts = (
        told_within(_WITHIN, each),
        told_touching(_BESIDE, others),
        told_between(_BETWEEN, of_processors),
        _conditions(runs_of(path)),
    )
    return "\n\n".join(filter(None, parts))


def compared(words: str, program: str, tables: Path, own: Path) -> str:
    """Markdown that begins with ``words``: in which ratios one's own raw results agree with those
    that tables are of; empty without ratios of both. Raises RawError for a file that holds
    something else."""
    ratios_of = _report(program).ratios_of
    both = {"the tables": read_raw(tables), "your own": read_raw(own)}
    return told_between(words, {name: ratios_of(raw) for name, raw in both.items()})


def _conditions(runs: Sequence[Run]) -> str:
    """What several runs all told stands once, and what they told of single rows."""
    if not runs:
        return ""
    if len(runs) == 1:
        return f"The run:\n\n{verbatim([runs[0].named, *runs[0].told])}"
    common = [line for line in runs[0].told if all(line in run.told for run in runs)]
    rows = {row for run in runs for row in run.rows}
    of_rows: dict[str, None] = {}
    above: set[str] = set()
    lines: list[str] = []
    for run in runs:
        again = above and above == set(run.rows)
        own = []
        for line in run.told:
            row = line.partition(", ")[0]
            if row in run.rows:
                of_rows[line] = None
            elif row not in rows and line not in common:
                own.append(line)
        lines += [_ALL_ABOVE if again else run.named, *own, ""]
        above |= set(run.rows)
    return f"The runs:\n\n{verbatim([*lines, *common, *of_rows])}"


def ratios_of_all(results: Path) -> dict[str, Ratios]:
    """Those of each program whose results are in a directory; raises RawError."""
    raw = {name: read_raw(path) for name in PROGRAMS if (path := results / f"{name}.csv").exists()}
    found = {name: _report(name).ratios_of(of_program) for name, of_program in raw.items()}
    return {**found, SIZES: sizes_of(raw.get("peers", {}))}


def _report(program: str) -> Report:
    return cast("Report", importlib.import_module(PROGRAMS[program]))


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
