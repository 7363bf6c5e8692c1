"""``scripts/bench compare``: raw results of one's own beside those that the documents' tables are
of. Ratios are what can be compared between machines; what else was different is told."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.harness import console
from bench.raw import RawError, runs_of
from bench.report import PROGRAMS, RESULTS, compared


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Raw results beside those of the documents: whether their ranges touch. "
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
    """0; raises SystemExit for files that cannot be compared."""
    args = parser().parse_args()
    for file in args.files:
        console.print(_beside(file, args.results), markup=False, highlight=False, soft_wrap=True)
    return 0


def _beside(file: Path, results: Path) -> str:
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
        text = compared(f"Between the tables and {file},", program, tables, file)
    except RawError as error:
        raise SystemExit(f"{error} Name a file that scripts/bench {program} wrote.") from error
    if not text:
        return f"{file} and {tables} have no ratio in common."
    theirs = {line for run in runs_of(tables) for line in run.told}
    own = dict.fromkeys(line for run in runs_of(file) for line in run.told if line not in theirs)
    return "\n\n".join([text, *(["Conditions of your own alone:", "\n".join(own)] if own else [])])
