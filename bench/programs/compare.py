"""``scripts/bench compare``: raw results of one's own beside those that the documents' tables are
of. Ratios are what can be compared between machines; what else was different is told."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from bench.kit.harness import console
from bench.kit.raw import RawError, read_raw, runs_of
from bench.programs.report.program import PROGRAMS, RESULTS


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Ratios of raw results beside those of the documents. "
        "Example: scripts/bench clients --csv own/clients.csv, then scripts/bench compare "
        "own/clients.csv"
    )
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        help=f"what programs wrote with --csv, named by them: of {', '.join(PROGRAMS)}.csv",
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="a directory of what to compare with"
    )
    return parser


def main() -> int:
    """Returns 0; raises SystemExit for files that cannot be compared."""
    args = parser().parse_args()
    for file in args.files:
        _show(file, args.results)
    return 0


def _show(file: Path, results: Path) -> None:
    program = file.stem
    if program not in PROGRAMS:
        raise SystemExit(
            f"{file}: no results are called {program}; name it by its program, of "
            f"{', '.join(PROGRAMS)}."
        )
    tables = results / f"{program}.csv"
    for path in (tables, file):
        if not path.exists():
            raise SystemExit(
                f"{path} is not there; scripts/bench {program} --csv {path} writes such a file."
            )
    try:
        theirs, own = (PROGRAMS[program].of(read_raw(path)) for path in (tables, file))
    except RawError as error:
        raise SystemExit(f"{error} Name a file that scripts/bench {program} wrote.") from error
    shown = Table("row", "what", "logbus", "beside", "the documents'", "your own", title=str(file))
    for compared, found in own.items():
        if compared in theirs:
            shown.add_row(*compared, str(theirs[compared].ratio), str(found.ratio))
    if not shown.row_count:
        console.print(f"{file} and {tables} have no ratio in common.", soft_wrap=True)
        return
    console.print(shown)
    told = {line for run in runs_of(tables) for line in run.told}
    new = dict.fromkeys(line for run in runs_of(file) for line in run.told if line not in told)
    if new:
        text = "\n".join(["Conditions of your own alone:", *new])
        console.print(text, markup=False, highlight=False, soft_wrap=True)
