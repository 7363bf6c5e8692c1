"""What programs that measure rows share: flags, the choice of rows, and who is at hand."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TypeVar

from bench.harness import console
from bench.peers import PeerUnavailableError

_Peer = TypeVar("_Peer")


def parser_of(
    description: str,
    *,
    rows: Collection[str],
    rounds: int,
    by_default: Collection[str] | None = None,
    flag: str = "--rows",
) -> argparse.ArgumentParser:
    """With the flags that all have: ``--rows``, or what ``flag`` calls them, ``--rounds`` and
    ``--csv``. A mapping of rows gives their titles."""
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
    parser.add_argument(
        "--csv", type=Path, help="a file for the result of each round; conditions go beside it"
    )
    return parser


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
