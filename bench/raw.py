"""Raw results: each value of each round as CSV, and beside it the conditions of the run.

``peers.csv`` has a line for each value; ``peers.txt`` says on which machine, with which versions
and settings it was measured. ``scripts/bench report`` makes tables and charts of them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from bench.harness import console
from bench.result import Metrics, Result, Rounds

COLUMNS: Final = ("row", "contender", "round", "metric", "value")

Raw = Mapping[str, Rounds]
"""The rounds of each row."""


class RawError(Exception):
    """A file does not hold raw results."""


class RawResults:
    """A file of raw results that is written as they come; without a path there is none."""

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: dict[str, Rounds] = {}
        """What was added, as ``read_raw`` would read it."""
        self._conditions = None if path is None else path.with_suffix(".txt").open("w")
        self._file = None if path is None else path.open("w", newline="")
        self._write(*COLUMNS)
        self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._file, self._conditions):
            if file is not None:
                file.close()

    def tell(self, *lines: str) -> None:
        """Print conditions of the run, and keep them beside the results."""
        for line in lines:
            console.print(line, markup=False, highlight=False)
            if self._conditions is not None:
                self._conditions.write(f"{line}\n")
                self._conditions.flush()

    def add(self, result: Result) -> None:
        self.rows[result.row] = result.rounds
        for contender, rounds in result.rounds.items():
            for number, metrics in enumerate(rounds, 1):
                for metric, value in metrics.items():
                    self._write(result.row, contender, number, metric, round(value, 6))
        self._flush()

    def _flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def _write(self, *cells: object) -> None:
        if self._file is not None:
            csv.writer(self._file).writerow(cells)


def read_raw(path: Path) -> Raw:
    """All results of a file; raises RawError for one that is something else."""
    raw: dict[str, dict[str, list[Metrics]]] = {}
    with path.open(newline="") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != COLUMNS:
            raise RawError(
                f"{path} has the columns {lines.fieldnames}, not {', '.join(COLUMNS)}; write it "
                "anew with --csv."
            )
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


def conditions_of(path: Path) -> list[str]:
    """What the run that wrote the results told; empty if nothing is there."""
    beside = path.with_suffix(".txt")
    return beside.read_text().splitlines() if beside.exists() else []
