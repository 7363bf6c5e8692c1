"""Output of the commands: a console, tables, times and sizes."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Collection

from rich.console import Console
from rich.table import Table

# A pipe has no width, and what reads it wants whole lines.
_PIPE_WIDTH = 1_000


def console(*, stderr: bool = False) -> Console:
    """Messages are never broken into lines; tables fit the terminal, if it is one.

    What is printed is text, not markup: names and messages may hold brackets.
    """
    made = Console(stderr=stderr, soft_wrap=True, markup=False, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _PIPE_WIDTH
    return made


def table(*columns: str, numbers: Collection[str] = (), title: str | None = None) -> Table:
    """An empty table; the columns ``numbers`` are set flush right."""
    made = Table(title=title)
    for column in columns:
        # In a narrow terminal heads are broken between words, never cut.
        words = max(map(len, column.split()))
        made.add_column(column, justify="right" if column in numbers else "left", min_width=words)
    return made


def utc(time_us: int) -> str:
    """µs since 1970 as a date and time (UTC), as far as there is one."""
    try:
        moment = dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_us} µs"
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def ago(duration_us: int) -> str:
    """A duration in its largest unit; 0 for a time to come, as another machine's clock gives."""
    seconds = max(0, duration_us) // 1_000_000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def human_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
