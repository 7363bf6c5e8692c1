"""``scripts/bench report``: writes tables and charts of committed raw results into the documents.

A program's raw results lie in bench/results, as ``PROGRAM.csv`` with its conditions in
``PROGRAM.txt``. In a page, ``<!-- generated: bench PROGRAM NAME -->`` begins a table of them and
``<!-- end -->`` ends it; ``bench all summary`` is a table of what all found. Parts without results
stay as they are. ``PROGRAM.md``, beside the results, is generated as a whole: each comparison with
the medians of its runs, and all figures. Charts are of scaling alone, SVGs in docs/charts, and are
drawn anew each time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.kit import ROOT
from bench.kit.charts import require_matplotlib
from bench.kit.comparing import Compared, Comparing, Comparisons
from bench.kit.harness import console
from bench.kit.markdown import CHARTS, marked, table
from bench.kit.raw import RawError, read_raw, read_runs
from bench.kit.result import figure, spread
from bench.programs.clients.rows import COMPARED as CLIENTS
from bench.programs.peers.measuring import COMPARED as PEERS
from bench.programs.report.questions import GRIDS
from bench.programs.report.summary import summary
from bench.programs.scaling.results import COMPARED as SCALING
from bench.programs.scaling.results import draw as draw_scaling
from bench.programs.scaling.results import tables as scaling_tables
from bench.programs.spark.rows import COMPARED as SPARK
from bench.programs.stream.rows import COMPARED as STREAM
from bench.programs.typed.rows import COMPARED as TYPED
from scripts.generated import filled, parts_called

RESULTS: Final = ROOT / "bench" / "results"
DOCS: Final = ROOT / "docs"
PARTS: Final = parts_called(r"bench [\w-]+ [\w-]+")

PROGRAMS: Final[Mapping[str, Comparing]] = {
    "peers": PEERS,
    "spark": SPARK,
    "clients": CLIENTS,
    "stream": STREAM,
    "typed": TYPED,
    "scaling": SCALING,
}

_PAGE: Final = """\
# Results of `scripts/bench {program}`

Written by `scripts/bench report` of [{program}.csv]({program}.csv), which has each value of each
round. [{program}.txt]({program}.txt) says of each run on which machine, with which versions and
settings it ran.

## Comparisons

Medians of all rounds. A ratio above 1 says that logbus is ahead; it stands with the lowest and the
highest of the rounds, and with the median of each run.

{comparisons}

## Figures

Medians of all rounds, with the lowest and the highest.

{figures}
"""


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
    found = paths_of(args.results)
    if not found:
        _say(f"No raw results are in {args.results}; a program writes them with --csv.")
        return 0
    if "scaling" in found:
        require_matplotlib()
        for chart in draw_scaling(read_raw(found["scaling"]), args.charts):
            _say(f"{chart} was drawn.")
    return 0


def pages() -> list[Path]:
    """Returns the documents that have generated parts."""
    return [page for page in sorted(DOCS.glob("*.md")) if PARTS.search(page.read_text())]


def paths_of(results: Path) -> dict[str, Path]:
    """Returns the raw results that a directory has, by program."""
    paths = {name: results / f"{name}.csv" for name in PROGRAMS}
    return {name: path for name, path in paths.items() if path.exists()}


def comparisons_of_all(results: Path) -> dict[str, Comparisons]:
    """Returns the comparisons of each program whose results are in a directory; raises RawError."""
    return {name: PROGRAMS[name].of(read_raw(path)) for name, path in paths_of(results).items()}


def medians_of_runs(program: str, path: Path) -> dict[Compared, list[float]]:
    """Returns the median ratio of each run of each comparison; raises RawError."""
    found: dict[Compared, list[float]] = {}
    for raw in read_runs(path):
        for compared, one in PROGRAMS[program].of(raw).items():
            found.setdefault(compared, []).append(one.ratio.median)
    return found


def stale_pages(pages: Sequence[Path], results: Path) -> dict[Path, str]:
    """Returns what pages are to hold that hold something else, those beside the results too.

    Raises RawError for a file that holds no raw results, and UnknownPartError.
    """
    known = comparisons_of_all(results)
    found = paths_of(results)

    def content(part: str) -> str | None:
        _, program, name = part.split(" ")
        if (program, name) == ("all", "summary"):
            return summary(known) or None
        if program not in PROGRAMS:
            raise UnknownPartError(f"No results are called {program}; use {', '.join(PROGRAMS)}.")
        if program not in found:
            return None
        parts = _parts(program, found[program], known)
        if name not in parts:
            raise UnknownPartError(
                f"Results of {program} have no part {name}; use {', '.join(parts)}."
            )
        return parts[name] or None

    new = {page: filled(page.read_text(), PARTS, content) for page in pages}
    new |= {path.with_suffix(".md"): page_of(name, path) for name, path in found.items()}
    return {
        page: text for page, text in new.items() if not page.exists() or page.read_text() != text
    }


def _parts(program: str, path: Path, known: Mapping[str, Comparisons]) -> Mapping[str, str]:
    if program == "scaling":
        return scaling_tables(read_raw(path))
    return {name: grid.markdown(known) for name, grid in GRIDS[program].items()}


def page_of(program: str, path: Path) -> str:
    """Returns the page with all results of a program; raises RawError."""
    comparisons = table(
        ("row", "what", "logbus", "median", "beside", "median", "ratio", "of each run", "goal"),
        _comparisons(program, path),
    )
    figures = table(("row", "contender", "figures"), _figures(path))
    return _PAGE.format(program=program, comparisons=comparisons, figures=figures)


def _comparisons(program: str, path: Path) -> Iterator[Sequence[str]]:
    of_runs = medians_of_runs(program, path)
    comparing = PROGRAMS[program]
    for compared, found in comparing.of(read_raw(path)).items():
        row, what, own, beside = compared
        goal = comparing.goals.get(compared)
        yield (
            f"`{row}`",
            what,
            own,
            figure(found.own),
            beside,
            figure(found.beside),
            f"{marked(found.ratio.median)} "
            f"({figure(found.ratio.lowest)}-{figure(found.ratio.highest)})",
            ", ".join(map(figure, of_runs[compared])),
            "" if goal is None else f"{goal:g}",
        )


def _figures(path: Path) -> Iterator[Sequence[str]]:
    for row, rounds in read_raw(path).items():
        for contender, measured in rounds.items():
            metrics = dict.fromkeys(metric for one in measured for metric in one)
            shown = (
                f"{metric}: {spread([one[metric] for one in measured if metric in one])}"
                for metric in metrics
            )
            yield f"`{row}`", contender, "; ".join(shown)


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
