"""Raw results: each value of each round as CSV, and beside it the conditions of the run.

``peers.csv`` has a line for each value; ``peers.txt`` says which rows were measured together, on
which machine, with which versions and settings. ``scripts/bench report`` makes tables and charts of
them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.harness import console
from bench.result import Metrics, Result, Rounds

COLUMNS: Final = ("row", "contender", "round", "metric", "value")

_ROWS: Final = "Rows: "
_BETWEEN: Final = "; "

Raw = Mapping[str, Rounds]
"""The rounds of each row."""


class RawError(Exception):
    """A file does not hold raw results."""


class RawResults:
    """Raw results that are kept in a file as they come; without a path there is none.

    Rows that the file has of earlier runs stay, with the conditions of these runs, until they are
    measured anew: a program can be run row by row.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises SystemExit for a file that holds something else."""
        self._path = path
        self.rows: dict[str, Rounds] = {}
        """What was added, as ``read_raw`` would read it."""
        self._told: list[str] = []
        self._before: Raw = {}
        self._runs_before: Sequence[Run] = ()
        if path is not None and path.exists():
            try:
                self._before = read_raw(path)
            except RawError as error:
                raise SystemExit(f"{error} Name another file, or remove it.") from error
            self._runs_before = runs_of(path)

    def tell(self, *lines: str) -> None:
        """Print conditions of the run, and keep them beside the results."""
        for line in lines:
            console.print(line, markup=False, highlight=False)
        self._told += lines
        self._save()

    def add(self, result: Result) -> None:
        self.add_rounds(result.row, result.rounds)

    def add_rounds(self, row: str, rounds: Rounds) -> None:
        """All rounds of a row that there are by now."""
        self.rows[row] = rounds
        self._save()

    def _save(self) -> None:
        if self._path is None or not self.rows:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        runs = [
            Run([row for row in run.rows if row not in self.rows], run.told)
            for run in self._runs_before
        ]
        runs = [*(run for run in runs if run.rows), Run([*self.rows], self._told)]
        _replace(self._path, _as_csv({**self._before, **self.rows}))
        _replace(conditions_path(self._path), "\n".join(map(str, runs)))


class Run(NamedTuple):
    """One run of a program: the rows that are of it, and what it told of its conditions."""

    rows: Sequence[str]
    told: Sequence[str]

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in (f"{_ROWS}{_BETWEEN.join(self.rows)}", *self.told))


def _as_csv(raw: Raw) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for row, contenders in raw.items():
        for contender, rounds in contenders.items():
            for number, metrics in enumerate(rounds, 1):
                for metric, value in metrics.items():
                    lines.writerow((row, contender, number, metric, round(value, 6)))
    return text.getvalue()


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}")
    fresh.write_text(text)
    fresh.replace(path)


def read_raw(path: Path) -> Raw:
    """All results of a file; raises RawError for one that is something else."""
    raw: dict[str, dict[str, list[Metrics]]] = {}
    with path.open(newline="") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != COLUMNS:
            raise RawError(f"{path} has the columns {lines.fieldnames}, not {', '.join(COLUMNS)}.")
        for line in lines:
            rounds = raw.setdefault(line["row"], {}).setdefault(line["contender"], [])
            try:
                number, value = int(line["round"]), float(line["value"])
            except (TypeError, ValueError) as error:
                raise RawError(f"{path}, line {lines.line_num}: {error}.") from error
            if number == len(rounds) + 1:
                rounds.append({})
            elif number != len(rounds):
                raise RawError(
                    f"{path}, line {lines.line_num}: round {number} of {line['contender']} comes "
                    f"after {len(rounds)} rounds; rounds are in order, from 1."
                )
            rounds[-1][line["metric"]] = value
    return raw


def conditions_path(path: Path) -> Path:
    return path.with_suffix(".txt")


def conditions_of(path: Path) -> list[str]:
    """What the runs told that wrote the results; empty if nothing is there."""
    beside = conditions_path(path)
    return beside.read_text().splitlines() if beside.exists() else []


def runs_of(path: Path) -> list[Run]:
    """The runs that wrote the results."""
    runs: list[Run] = []
    for line in filter(None, conditions_of(path)):
        if line.startswith(_ROWS):
            runs.append(Run(line.removeprefix(_ROWS).split(_BETWEEN), []))
        elif runs:
            runs[-1] = Run(runs[-1].rows, [*runs[-1].told, line])
    return runs
