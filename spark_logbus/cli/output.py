"""What verbs print: for people at a terminal, for programs behind a pipe, and as JSON.

A table holds values, not text. A terminal gets boxes, heads in words, and numbers, sizes and times
as people read them; a pipe gets aligned columns under upper-case heads, where values are raw and
hold no spaces of ours; ``--json`` an object a line, whose keys are the columns'. Rich draws, and is
imported for a terminal only: it takes longer than the rest of a verb's start.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TextIO

from spark_logbus.sizes import human_bytes

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.table import Table as RichTable

_GAP: Final = "  "
_NO_VALUE: Final = "-"
_BROKEN_AT: Final = 8  # a word that is longer than a terminal's line, such as an odd topic name


# -- values -------------------------------------------------------------------------------


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


def _mark(is_so: bool) -> str:
    return "*" if is_so else _NO_VALUE


def _utc_in_one_word(time_us: int) -> str:
    shown = utc(time_us)
    return shown.replace(" ", "T") + "Z" if shown[-1].isdigit() else shown.replace(" ", "")


# -- tables -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """Ways to show a column's values to people and to programs; numbers are set flush right."""

    human: Callable[[Any], str] = str
    plain: Callable[[Any], str] = str
    right: bool = True


TEXT: Final = Kind(right=False)
WORDS: Final = Kind(", ".join, ",".join, right=False)
NUMBER: Final = Kind("{:,}".format)
CHANGE: Final = Kind("{:+,}".format, "{:+}".format)
SIZE: Final = Kind(human_bytes)
MARK: Final = Kind(_mark, _mark, right=False)
MOMENT: Final = Kind(utc, _utc_in_one_word, right=False)
AGE: Final = Kind(ago, lambda age_us: ago(age_us).replace(" ", ""))


@dataclass(frozen=True, slots=True)
class Column:
    """``key`` in JSON, KEY in a pipe; ``head`` in a terminal, by default the key's words. ``of`` is
    where ``Table.fill`` finds the value: the path of an attribute, by default the key."""

    key: str
    kind: Kind = TEXT
    head: str | None = None
    of: str | Callable[[Any], Any] | None = None

    def value(self, item: object) -> Any:
        return self.of(item) if callable(self.of) else attrgetter(self.of or self.key)(item)


class Table:
    """Rows of values by key; None is shown as ``-``. Keys without a column are for JSON only."""

    def __init__(self, *columns: Column, title: str | None = None) -> None:
        self._columns = columns
        self._title = title
        self._rows: list[Mapping[str, Any]] = []
        self._styles: list[Mapping[str, str]] = []

    def add(self, values: Mapping[str, Any], *, styles: Mapping[str, str] | None = None) -> None:
        """A row; ``styles`` (Rich's) are of cells, by key, for terminals."""
        self._rows.append(values)
        self._styles.append(styles or {})

    def fill(self, items: Iterable[object], **same: Any) -> Self:
        """Adds a row for each item: values that are the ``same`` in all, and its columns' own."""
        own = [column for column in self._columns if column.key not in same]
        for item in items:
            self.add({**same, **{column.key: column.value(item) for column in own}})
        return self

    def __len__(self) -> int:
        return len(self._rows)

    def plain(self) -> list[str]:
        """The lines for a pipe."""
        heads = [
            column.key.removesuffix("_us").upper().replace("_", "-") for column in self._columns
        ]
        cells = [
            [_cell(row.get(column.key), column.kind.plain) for column in self._columns]
            for row in self._rows
        ]
        widths = [max(map(len, each)) for each in zip(heads, *cells, strict=True)]
        return [
            _GAP.join(
                cell.rjust(width) if column.kind.right else cell.ljust(width)
                for column, cell, width in zip(self._columns, line, widths, strict=True)
            ).rstrip()
            for line in [heads, *cells]
        ]

    def boxed(self, room: int) -> tuple[RichTable, int]:
        """Lays the table out for a terminal of ``room`` columns, and returns its width.

        Cells and heads are broken between words, never within but for a word that is longer than a
        line: an address, a name or a number that is cut in two cannot be copied. What does not fit
        with a frame goes without, and what does not fit then is wider than the terminal, which
        breaks its lines.
        """
        from rich.box import HEAVY_HEAD
        from rich.cells import cell_len
        from rich.table import Table as RichTable
        from rich.text import Text

        heads = [column.head or column.key.replace("_", " ") for column in self._columns]
        cells = [
            [_cell(row.get(column.key), column.kind.human) for column in self._columns]
            for row in self._rows
        ]
        texts = list(zip(heads, *cells, strict=True))
        whole = [max(map(cell_len, each)) for each in texts]
        words = [[word for text in each for word in text.split()] for each in texts]
        least = [max(_least_width(cell_len(word), room) for word in each) for each in words]
        framed = [
            one if column.kind is MOMENT else other
            for column, one, other in zip(self._columns, whole, least, strict=True)
        ]
        frame = 3 * len(whole) + 1
        box = sum(least) + frame <= room
        if sum(framed) + frame > room:
            framed = least
        between = 3 * len(whole) + 1 if box else len(_GAP) * (len(whole) - 1)
        widths = _fitted(whole, framed if box else least, room - between)
        made = RichTable(
            title=self._title,
            box=HEAVY_HEAD if box else None,
            padding=(0, 1) if box else (0, len(_GAP), 0, 0),
            pad_edge=box,
            collapse_padding=not box,
        )
        for column, head, width in zip(self._columns, heads, widths, strict=True):
            justify: Literal["left", "right"] = "right" if column.kind.right else "left"
            made.add_column(head, justify=justify, width=width, overflow="fold")
        for line, styles in zip(cells, self._styles, strict=True):
            made.add_row(
                *(
                    Text(cell, styles.get(column.key, ""))
                    for column, cell in zip(self._columns, line, strict=True)
                )
            )
        return made, max(room, sum(widths) + between)

    def print(self, *, as_json: bool = False, empty: str | None = None) -> None:
        """Prints to standard output. ``empty`` is said to people, where there is no row."""
        if as_json:
            print_json(*self._rows)
        elif self._rows or empty is None:
            console().print(self)
        elif (out := console()).is_terminal:
            out.print(empty)
        else:
            console(stderr=True).print(empty)


def _least_width(word: int, room: int) -> int:
    return word if word <= room else _BROKEN_AT


def _fitted(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths that fit into ``room`` together, as far as none has to be less than its ``least``: the
    widest give way first."""
    widths = list(wanted)
    for _ in range(sum(widths) - room):
        slack = [number for number, width in enumerate(widths) if width > least[number]]
        if not slack:
            break
        widths[max(slack, key=lambda number: widths[number])] -= 1
    return widths


def _cell(value: Any, show: Callable[[Any], str]) -> str:
    if value is None or (isinstance(value, list | tuple) and not value):
        return _NO_VALUE
    return value if isinstance(value, str) else show(value)


def print_json(*rows: Mapping[str, Any]) -> None:
    """An object a line, on standard output."""
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


def text_of(data: bytes | None) -> str | dict[str, str] | None:
    """Returns bytes as JSON has them: text where they are UTF-8, else base64."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}


# -- where it goes ------------------------------------------------------------------------


class Console:
    """Standard output or standard error. What is printed is text, not markup: names and messages
    may hold brackets. Messages are never broken into lines; tables fit the terminal, if it is
    one and no word is too long for that."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()

    def print(self, *what: str | Table, style: str = "", end: str = "\n") -> None:
        """Text, styled in a terminal, and tables."""
        if self.is_terminal:
            rich = self.rich()
            for each in what:
                if isinstance(each, Table):
                    shown, width = each.boxed(rich.width)
                    self.rich(width=width).print(shown, style=style or None, end=end)
                else:
                    rich.print(each, style=style or None, end=end)
            return
        for each in what:
            lines = each.plain() if isinstance(each, Table) else [each]
            self._stream.write("\n".join(lines) + end)

    def status(self, doing: str) -> AbstractContextManager[object]:
        """Shows what is being done, in a terminal, for as long as it takes."""
        return self.rich().status(doing) if self.is_terminal else nullcontext()

    def rich(self, *, width: int | None = None) -> RichConsole:
        """Rich's console of the same stream, for bars that move; as wide as the terminal, or
        ``width``."""
        from rich.console import Console as RichConsole

        return RichConsole(
            file=self._stream, soft_wrap=True, markup=False, highlight=False, width=width
        )


def console(*, stderr: bool = False) -> Console:
    """The console of today's stream: tests and pipes put others in its place."""
    return Console(sys.stderr if stderr else sys.stdout)
