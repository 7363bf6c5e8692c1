"""What programs that measure rows share: flags, the choice of rows, and who is at hand."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TypeVar

from bench.charts import Chart, draw_all, require_matplotlib
from bench.harness import console
from bench.peers import PeerUnavailableError
from bench.raw import RawResults

_Peer = TypeVar("_Peer")


def parser_of(
    description: str,
    *,
    rows: Collection[str],
    rounds: int,
    by_default: Collection[str] | None = None,
    flag: str = "--rows",
    charts: bool = False,
) -> argparse.ArgumentParser:
    """With the flags that all have: ``--rows``, or what ``flag`` calls them, ``--rounds``, those of
    raw results, and ``--charts`` for those that draw. A mapping of rows gives their titles."""
    parser = argparse.ArgumentParser(description=description)
    by_default = rows if by_default is None else by_default
    if isinstance(rows, Mapping):
        text = "; ".join(f"{name}: {title}" for name, title in rows.items())
    else:
        text = f"of {', '.join(rows)}"
    if len(by_default) < len(rows):
        text += f"; default: {', '.join(by_default)}"
    parser.add_argument(flag, default=",".join(by_default), help=text)
    parser.add_argument("--rounds", type=int, default=rounds, help="after one that does not count")
    add_raw_flags(parser)
    if charts:
        parser.add_argument(
            "--charts", type=Path, help="a directory for charts, which needs the package matplotlib"
        )
    return parser


def add_raw_flags(parser: argparse.ArgumentParser) -> None:
    """``--csv`` and ``--add``, which ``raw_results`` takes."""
    parser.add_argument(
        "--csv", type=Path, help="a file for the result of each round; conditions go beside it"
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep the runs that the file has of the same rows, and add this one to them",
    )


def raw_results(args: argparse.Namespace) -> RawResults:
    """Where the arguments want them; raises SystemExit where they cannot be kept there."""
    return RawResults(args.csv, add=args.add)


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments; raises SystemExit where charts are asked for that cannot be drawn."""
    args = parser.parse_args()
    if getattr(args, "charts", None) is not None:
        require_matplotlib()
    return args


def draw_charts(args: argparse.Namespace, charts: Sequence[Chart]) -> None:
    """If they are asked for."""
    if args.charts is not None:
        for path in draw_all(charts, args.charts):
            console.print(f"Drew {path}.", markup=False, highlight=False)


def chosen(given: str, known: Collection[str], what: str = "row") -> list[str]:
    """Names that are separated by commas; raises SystemExit for those that are not known."""
    names = given.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"No {what} is called {', '.join(unknown)}; use {', '.join(known)}.")
    return names


def at_hand(
    stack: ExitStack, name: str, start: Callable[[], AbstractContextManager[_Peer]]
) -> _Peer | None:
    """A peer until ``stack`` is closed; None, and a line that says why, where one lacks."""
    try:
        return stack.enter_context(start())
    except PeerUnavailableError as error:
        console.print(f"{name} is left out, as it is not at hand: {error}", markup=False)
        return None
