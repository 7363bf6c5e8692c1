"""The one shape of programs that measure rows: flags, what is opened for all rows, and what is kept
and shown of each.

A program names its ``Row``s, opens what they share, and says under which conditions it runs. Each
row measures contenders in turn; ``Program.main`` prints their medians and ratios, keeps the raw
results, and in the end prints all comparisons beside the ratios that are wanted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from rich.table import Table

from bench.kit.charts import require_matplotlib
from bench.kit.comparing import Comparing
from bench.kit.harness import console
from bench.kit.machine import described
from bench.kit.raw import Raw, RawError, RawResults, read_raw
from bench.kit.result import Rounds, figure, median, spread

B = TypeVar("B")
_B = TypeVar("_B", contravariant=True)


class Row(Protocol[_B]):
    """Row of a program: what is measured of several contenders in turn."""

    @property
    def title(self) -> str: ...
    @property
    def unit(self) -> str: ...

    def measure(self, bench: _B) -> Iterable[tuple[str, Rounds]]:
        """Yields each part of the row as soon as it is measured: what is added to the row's name
        for it, and all its rounds by now."""


@dataclass(frozen=True)
class Whole(Generic[B]):
    """Row of a single part, which a function measures."""

    title: str
    unit: str
    rounds_of: Callable[[B], Rounds]

    def measure(self, bench: B) -> Iterable[tuple[str, Rounds]]:
        yield "", self.rounds_of(bench)


class Opening(NamedTuple):
    """Arguments that a program opens its bench with."""

    args: argparse.Namespace
    rows: Sequence[str]
    """Names of the rows that are asked for."""
    stack: ExitStack
    """Closes servers and sessions at the end of the run."""
    tell: Callable[[str], None]
    """Prints a condition of the run, and keeps it beside the raw results."""


def no_more(_: argparse.ArgumentParser) -> None:
    """Adds no flags."""


@dataclass(frozen=True)
class Program(Generic[B]):
    """A benchmark of rows, as ``scripts/bench`` runs it."""

    name: str
    description: str
    rows: Mapping[str, Row[B]]
    open_bench: Callable[[Opening], B]
    """Opens what all rows share."""
    comparing: Comparing
    conditions: Callable[[B, argparse.Namespace], Iterable[str]] | None = None
    """Tells what the results depend on beside the machine; None: the flags."""
    rounds: int = 5
    add_flags: Callable[[argparse.ArgumentParser], None] = no_more
    packages: Sequence[str] = ("pyarrow",)
    """Python packages whose versions are conditions too."""
    by_default: Collection[str] = ()
    """Rows that run if none are named; nothing: all."""
    rows_flag: str = "--rows"
    show: Callable[[str, Raw], None] | None = None
    """Prints the parts of one row; None: as tables of medians and ratios."""
    draw: Callable[[Raw, Path], Sequence[Path]] | None = None
    """Draws charts into a directory; None: there are none."""

    def parser(self) -> argparse.ArgumentParser:
        """Returns a parser of the flags that all programs have, and of the program's own."""
        parser = argparse.ArgumentParser(
            prog=f"scripts/bench {self.name}", description=self.description
        )
        text = "; ".join(f"{name}: {row.title}" for name, row in self.rows.items())
        if self.by_default:
            text += f"; default: {', '.join(self.by_default)}"
        default = ",".join(self.by_default or self.rows)
        parser.add_argument(self.rows_flag, dest="chosen", default=default, help=text)
        parser.add_argument(
            "--rounds", type=int, default=self.rounds, help="after one that does not count"
        )
        parser.add_argument(
            "--csv", type=Path, help="a file for the result of each round; conditions go beside it"
        )
        parser.add_argument(
            "--add",
            action="store_true",
            help="keep the runs that the file has of the same rows, and add this one to them",
        )
        if self.draw is not None:
            parser.add_argument("--charts", type=Path, help="a directory for charts, as SVG")
        parser.add_argument(
            "--from",
            dest="kept",
            type=Path,
            metavar="CSV",
            help="show what such a file holds instead of measuring",
        )
        self.add_flags(parser)
        return parser

    def main(self) -> None:
        """Runs the rows that the command line asks for; raises SystemExit where that fails."""
        args = self.parser().parse_args()
        charts: Path | None = getattr(args, "charts", None)
        if charts is not None:
            require_matplotlib()
        rows = chosen(args.chosen, self.rows)
        if args.kept is not None:
            kept = _kept(args.kept)
            for name in rows:
                self._show_row(name, kept)
            self._conclude(kept, charts)
            return
        raw = RawResults(args.csv, add=args.add)
        with ExitStack() as stack:
            bench = self.open_bench(Opening(args, rows, stack, raw.tell))
            raw.tell(*described(*self.packages), *(self.conditions or _flags)(bench, args))
            for name in rows:
                for part, rounds in self.rows[name].measure(bench):
                    raw.add_rounds(f"{name}{part}", rounds)
                self._show_row(name, raw.rows)
        self._conclude(raw.rows, charts)

    def _show_row(self, name: str, raw: Raw) -> None:
        """Prints all parts of a row."""
        begins = (f"{name}, ", f"{name} ")
        parts = {part: raw[part] for part in raw if part == name or part.startswith(begins)}
        if parts:
            (self.show or self._show)(name, parts)

    def _conclude(self, raw: Raw, charts: Path | None) -> None:
        """Prints all comparisons, and draws charts into a directory."""
        self._show_comparisons(raw)
        if charts is not None and self.draw is not None:
            for path in self.draw(raw, charts):
                console.print(f"Drew {path}.", markup=False, highlight=False)

    def _show(self, name: str, parts: Raw) -> None:
        row = self.rows[name]
        for part, rounds in parts.items():
            count = max(map(len, rounds.values()))
            title = f"{part}: {', '.join(filter(None, (row.title, row.unit)))}; rounds: {count}"
            console.print(title, markup=False, highlight=False)
            console.print(medians_table(rounds, self.comparing))

    def _show_comparisons(self, raw: Raw) -> None:
        table = Table("row", "what", "logbus", "beside", "ratio", "goal", title="Times as fast")
        for compared, found in self.comparing.of(raw).items():
            goal = self.comparing.goals.get(compared)
            table.add_row(*compared, str(found.ratio), "" if goal is None else f"{goal:g}")
        if table.row_count:
            console.print(table)


def _flags(_: object, args: argparse.Namespace) -> Iterable[str]:
    """Tells the values of all flags that results depend on."""
    of_all = ("chosen", "csv", "add", "charts", "kept")
    flags = {name: value for name, value in vars(args).items() if name not in of_all}
    yield ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in flags.items()) + "."


def _kept(path: Path) -> Raw:
    try:
        return read_raw(path)
    except (RawError, FileNotFoundError) as error:
        raise SystemExit(f"{error} Name a file that --csv wrote.") from error


def medians_table(rounds: Rounds, comparing: Comparing) -> Table:
    """Returns a table with the medians of each contender, and the ratios of logbus's ways to
    others where these are compared."""
    metrics = dict.fromkeys(metric for each in rounds.values() for one in each for metric in one)
    table = Table("", *metrics)
    for column in table.columns:
        column.overflow = "fold"  # names of metrics are long words
        column.justify = "left" if column is table.columns[0] else "right"
    for name, each in rounds.items():
        medians = (median(each, metric) for metric in metrics)
        table.add_row(name, *("" if one is None else figure(one) for one in medians))
    for own, other in comparing.pairs(rounds):
        ratios = {
            metric: comparing.ratios(rounds[own], rounds[other], metric)
            for metric in metrics
            if metric in comparing.metrics
        }
        cells = (str(spread(found)) if (found := ratios.get(each)) else "" for each in metrics)
        table.add_row(f"{own} beside {other}", *cells)
    return table


def chosen(given: str, known: Collection[str], what: str = "row") -> list[str]:
    """Returns names that are separated by commas; raises SystemExit for those that are not
    known."""
    names = given.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"No {what} is called {', '.join(unknown)}; use {', '.join(known)}.")
    return names
