"""Raw results: each value of each round as CSV, and beside it the conditions of the run.

``peers.csv`` has a line for each value; ``peers.txt`` says which rows were measured together, on
which machine, with which versions and settings. ``scripts/bench report`` makes tables and charts of
them.

A row may have several runs, each with servers and processes of its own: what these have for their
lifetime, and what the machine does in that hour, lies between runs and not between rounds of one.
The n-th run of a row is of the n-th run in the conditions that names it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from bench.kit.harness import console
from bench.kit.result import Metrics, Rounds

COLUMNS: Final = ("row", "run", "contender", "round", "metric", "value")

_ROWS: Final = "Rows: "
_BETWEEN: Final = "; "

Raw = Mapping[str, Rounds]
"""The rounds of each row."""

_Item = TypeVar("_Item")

_Read = dict[str, list[dict[str, list[Metrics]]]]
"""For each row its runs, for each run its contenders' rounds."""


class RawError(Exception):
    """A file does not hold raw results."""


class RawResults:
    """Raw results that are kept in a file as they come; without a path there is none.

    Rows that the file has of earlier runs stay, with the conditions of these runs, until they are
    measured anew: a program can be run row by row. With ``add`` rows that are measured anew get one
    more run beside what they have.
    """

    def __init__(self, path: Path | None, *, add: bool = False) -> None:
        """Raises SystemExit for a file that holds something else, and without one to add to."""
        if add and path is None:
            raise SystemExit("--add adds a run to a file of raw results; name it with --csv.")
        self._path = path
        self._add = add
        self.rows: dict[str, Rounds] = {}
        """What was added, as ``read_raw`` would read it."""
        self._told: list[str] = []
        self._before: Mapping[str, Sequence[Rounds]] = {}
        self._runs_before: Sequence[Run] = ()
        if path is not None and path.exists():
            try:
                self._before = _read(path)
            except RawError as error:
                raise SystemExit(f"{error} Name another file, or remove it.") from error
            self._runs_before = runs_of(path)

    def tell(self, *lines: str) -> None:
        """Print conditions of the run, and keep them beside the results."""
        for line in lines:
            console.print(line, markup=False, highlight=False)
        self._told += lines
        self._save()

    def add_rounds(self, row: str, rounds: Rounds) -> None:
        """All rounds of a row that there are by now."""
        self.rows[row] = rounds
        self._save()

    def _save(self) -> None:
        if self._path is None or not self.rows:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        runs = [
            Run([row for row in run.rows if self._add or row not in self.rows], run.told)
            for run in self._runs_before
        ]
        runs = [*(run for run in runs if run.rows), Run([*self.rows], self._told)]
        added = {
            row: [*(self._before.get(row, ()) if self._add else ()), rounds]
            for row, rounds in self.rows.items()
        }
        _replace(self._path, _as_csv({**self._before, **added}))
        _replace(conditions_path(self._path), "\n".join(map(str, runs)))


class Run(NamedTuple):
    """One run of a program: the rows that are of it, and what it told of its conditions."""

    rows: Sequence[str]
    told: Sequence[str]

    @property
    def named(self) -> str:
        """A line with its rows."""
        return f"{_ROWS}{_BETWEEN.join(self.rows)}"

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in (self.named, *self.told))


def _as_csv(raw: Mapping[str, Sequence[Rounds]]) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for row, runs in raw.items():
        for run, contenders in enumerate(runs, 1):
            for contender, rounds in contenders.items():
                for number, metrics in enumerate(rounds, 1):
                    for metric, value in metrics.items():
                        lines.writerow((row, run, contender, number, metric, round(value, 6)))
    return text.getvalue()


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}")
    fresh.write_text(text)
    fresh.replace(path)


def read_raw(path: Path) -> Raw:
    """All results of a file, one after the other the rounds of a row's runs, empty those that a
    contender was not in. Raises RawError for a file that holds something else."""
    return {row: _pooled(of_row) for row, of_row in _read(path).items()}


def read_runs(path: Path) -> list[Raw]:
    """The runs of a file: the n-th has the n-th run of each row that has so many. Raises RawError
    as ``read_raw`` does."""
    runs = _read(path)
    most = max(map(len, runs.values()), default=0)
    return [
        {row: of_row[number] for row, of_row in runs.items() if number < len(of_row)}
        for number in range(most)
    ]


def _pooled(runs: Sequence[Rounds]) -> Rounds:
    names = dict.fromkeys(name for run in runs for name in run)
    return {
        name: [metrics for run in runs for metrics in run.get(name, [{}] * _most_rounds(run))]
        for name in names
    }


def _most_rounds(run: Rounds) -> int:
    return max(map(len, run.values()))


def _read(path: Path) -> _Read:
    raw: _Read = {}
    with path.open(newline="") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != COLUMNS:
            raise RawError(f"{path} has the columns {lines.fieldnames}, not {', '.join(COLUMNS)}.")
        for line in lines:
            try:
                run, number = int(line["run"]), int(line["round"])
                value = float(line["value"])
                runs = raw.setdefault(line["row"], [])
                contenders = _last(runs, run, {}, f"run {run} of {line['row']}")
                rounds = contenders.setdefault(line["contender"], [])
                metrics = _last(rounds, number, {}, f"round {number} of {line['contender']}")
            except (TypeError, ValueError) as error:
                raise RawError(f"{path}, line {lines.line_num}: {error}.") from error
            metrics[line["metric"]] = value
    for contenders in (contenders for runs in raw.values() for contenders in runs):
        most = _most_rounds(contenders)
        for rounds in contenders.values():
            rounds += [{} for _ in range(most - len(rounds))]
    return raw


def _last(found: list[_Item], number: int, new: _Item, name: str) -> _Item:
    """The last of ``found``, which a file numbers from 1 and has in order, or one more."""
    if number == len(found) + 1:
        found.append(new)
    elif not found or number != len(found):
        raise ValueError(f"{name} comes after {len(found)}; they are in order, from 1")
    return found[-1]


def conditions_path(path: Path) -> Path:
    return path.with_suffix(".txt")


def conditions_of(path: Path) -> list[str]:
    """Returns what the runs told that wrote the results; empty if nothing is there."""
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
