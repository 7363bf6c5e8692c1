"""Cursors into many datums at once, and the numbers that all of Avro's encoding is made of.

A datum has no frame: where a field begins is known only when the one before it has been read. So
all records are read side by side: *cursors*, one for each, hold how far each has been read, and
each step reads one field of all of them with a few calls of numpy.

A cursor that does not decode is *parked*: its row is noted as a fault, with the first reason, and
the cursor is put to a stretch of zeros behind the data, where it reads on until the step is over:
zeros are a valid value of every type. So no step has to sort out who is still alive. What is read
there is thrown away with the row.

Readers check that a cursor stays within its own datum before it is believed: bytes behind it, of
which at most some dozens are touched, belong to the next datum or to the zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from avro_columns.values import resolved_tree as tree

Longs = npt.NDArray[np.int64]
ULongs = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

#: Zeros behind the data, beside those of the longest run of fixed-size fields.
MARGIN: Final = 32

#: Varints of 64 bits take no more.
MAX_VARINT_BYTES: Final = 10

_NEVER: Final = np.int64(1 << 62)
_SMALL: Final = np.array([(n >> 1) ^ -(n & 1) for n in range(256)], np.int64)
_ONE: Final = np.uint64(1)
_STOPS: Final = np.uint64(0x8080808080808080)
_SEVENS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_LENGTHS: Final = np.uint64(0x0102030405060708)  # shifted left by 8 k bits, the top byte is k + 1
_FOLDS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)

TRUNCATED: Final = "the value ends {value} bytes too early"
TOO_LONG: Final = "a number takes more than 64 bits"


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A row whose value is no datum of its schema, and why."""

    row: int
    reason: str


class Faults:
    """The first reason of each row that does not decode. Not thread-safe."""

    def __init__(self, rows: int) -> None:
        self._reasons: list[tuple[str, str]] = []
        self._numbers = np.zeros(rows, np.int32)  # of the reason, counted from 1
        self._values = np.zeros(rows, np.int64)

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def add(self, rows: Longs, place: str, reason: str, values: Longs) -> None:
        """``reason`` may hold ``{value}``. Rows that have a reason keep it."""
        if (place, reason) not in self._reasons:
            self._reasons.append((place, reason))
        fresh = np.flatnonzero(self._numbers[rows] == 0)[::-1]  # the first of a row is set last
        self._numbers[rows[fresh]] = self._reasons.index((place, reason)) + 1
        self._values[rows[fresh]] = values[fresh]

    def rows(self) -> Longs:
        return np.flatnonzero(self._numbers)

    def told(self, first_row: int) -> list[Undecodable]:
        """Each row, counted from ``first_row``, with its reason as text."""
        found = []
        for row in self.rows().tolist():
            place, reason = self._reasons[self._numbers[row] - 1]
            text = reason.format(value=int(self._values[row]))
            found.append(Undecodable(first_row + row, f"{tree.named(place)}: {text}"))
        return found


class Chunk:
    """Bytes of some datums, as cursors of any depth see them. Not thread-safe.

    ``max_bytes`` is what items of arrays and maps may take as columns.
    """

    def __init__(self, data: Bytes, *, rows: int, zeros: int, max_bytes: int) -> None:
        self.park = np.int64(len(data))
        self.data = np.concatenate([data, np.zeros(zeros + MARGIN, np.uint8)])
        self.words: ULongs = np.ndarray(
            (len(self.data) - 7,), np.dtype("<u8"), self.data, strides=(1,)
        )
        self.buffer = pa.py_buffer(self.data)
        self.faults = Faults(rows)
        self.bytes_left = max_bytes
        self._stops: Longs | None = None

    @property
    def stops(self) -> Longs:
        """Places of the bytes without a continuation bit, where varints can end."""
        if self._stops is None:
            self._stops = np.flatnonzero(self.data < 0x80)
        return self._stops


class Cursors:
    """Positions of many values that are read side by side. Not thread-safe.

    ``at`` is the next byte of each and ``end`` the one after its datum; ``rows`` are the rows that
    they belong to, whose order they are in.
    """

    __slots__ = ("at", "chunk", "end", "lost", "rows")

    def __init__(self, chunk: Chunk, at: Longs, end: Longs, rows: Longs) -> None:
        self.chunk = chunk
        self.at = at
        self.end = end
        self.rows = rows
        self.lost = False  # is any cursor parked?

    def __len__(self) -> int:
        return len(self.at)

    def select(self, which: npt.NDArray[Any]) -> Cursors:
        """Cursors of their own for ``which`` of these; see ``merge``."""
        cursors = Cursors(self.chunk, self.at[which], self.end[which], self.rows[which])
        cursors.lost = self.lost
        return cursors

    def merge(self, which: npt.NDArray[Any], cursors: Cursors) -> None:
        """Goes on where ``cursors``, which were selected by ``which``, have come to."""
        self.at[which] = cursors.at
        if cursors.lost:
            self.end[which] = cursors.end
            self.lost = True

    def fail(self, which: npt.NDArray[Any], place: str, reason: str, values: Any = None) -> None:
        """Parks the cursors ``which`` (indices), whose rows do not decode."""
        if not len(which):
            return
        alive = which[self.end[which] != _NEVER] if self.lost else which
        if values is None:
            values = np.zeros(len(which), np.int64)
        if len(alive) < len(which):
            values = values[self.end[which] != _NEVER]
        self.chunk.faults.add(self.rows[alive], place, reason, values)
        self.at[which] = self.chunk.park
        self.end[which] = _NEVER
        self.lost = True

    def parked(self) -> Flags:
        parked: Flags = self.end == _NEVER
        return parked

    def park_again(self) -> None:
        """Puts parked cursors back to the first zero, before the next field."""
        if self.lost:
            self.at[self.end == _NEVER] = self.chunk.park

    def need(self, sizes: Longs | int, place: str) -> None:
        """Parks the cursors whose datums end before ``sizes`` more bytes."""
        missing = sizes - (self.end - self.at)
        if missing.size and missing.max() > 0:
            which = np.flatnonzero(missing > 0)
            self.fail(which, place, TRUNCATED, missing[which])

    def varints(self, place: str) -> Longs:
        """The next number of each cursor; 0 for those that have none."""
        first = self.chunk.data[self.at]
        if first.size and first.max() >= 0x80:
            values = self._long_varints(first, place)
        else:
            values = _SMALL.take(first)
            self.at = self.at + 1
        if self.at.size and (self.at > self.end).any():
            which = np.flatnonzero(self.at > self.end)
            self.fail(which, place, TRUNCATED, (self.at - self.end)[which])
            values[which] = 0
        return values

    def skip_varints(self, place: str) -> None:
        """Goes on behind the next number of each cursor, which is not put together."""
        at = self.at + 1
        which = np.flatnonzero(self.chunk.data[self.at] >= 0x80)
        endless = which[:0]
        if which.size:
            sizes = _measured(self.chunk, self.at[which])[2]
            at[which] += sizes - 1
            endless = which[sizes > MAX_VARINT_BYTES]
        self.at = at
        self.fail(endless, place, TOO_LONG)
        if at.size and (self.at > self.end).any():
            late = np.flatnonzero(self.at > self.end)
            self.fail(late, place, TRUNCATED, (self.at - self.end)[late])

    def _long_varints(self, first: Bytes, place: str) -> Longs:
        which = np.flatnonzero(first >= 0x80)
        if len(which) == len(self):
            values, sizes = _folded(self.chunk, self.at)
            self.at = self.at + sizes
        else:
            values = _SMALL.take(first)
            at = self.at + 1
            values[which], sizes = _folded(self.chunk, self.at[which])
            at[which] += sizes - 1
            self.at = at
        if sizes.max() > MAX_VARINT_BYTES:
            endless = which[sizes > MAX_VARINT_BYTES]
            self.fail(endless, place, TOO_LONG)
            values[endless] = 0
        return values


def _measured(chunk: Chunk, at: Longs) -> tuple[ULongs, ULongs, Longs]:
    """The words at ``at``, in each the bit where a number ends, or none, and the numbers' sizes: 11
    where they have no end within 64 bits."""
    words = chunk.words[at]
    stops = ~words & _STOPS
    lowest = stops & (~stops + _ONE)
    sizes = _bytes_up_to(lowest)
    longest = np.flatnonzero(lowest == 0)
    if longest.size:
        more = chunk.data[at[longest] + 8] >= 0x80
        tenth = chunk.data[at[longest] + 9]
        sizes[longest] = np.where(more, np.where(tenth > 1, MAX_VARINT_BYTES + 1, 10), 9)
    return words, lowest, sizes


def _bytes_up_to(lowest: ULongs) -> Longs:
    """Counts the bytes of each word up to the one whose highest bit is set; 0 where none is."""
    return (((lowest >> np.uint64(7)) * _LENGTHS) >> np.uint64(56)).astype(np.int64)


def ends_of_numbers(chunk: Chunk, at: Longs, count: int) -> Longs:
    """The bytes that ``count`` numbers at each place take together; 0 if it is more than eight."""
    stops = ~chunk.words[at] & _STOPS
    for _ in range(count - 1):
        stops &= stops - _ONE
    return _bytes_up_to(stops & (~stops + _ONE))


def _folded(chunk: Chunk, at: Longs) -> tuple[Longs, Longs]:
    """Numbers of any size at ``at``, and their sizes."""
    words, lowest, sizes = _measured(chunk, at)
    values = words & (lowest | (lowest - _ONE)) & _SEVENS
    for low, high, shift in _FOLDS:
        values = (values & low) | ((values & high) >> shift)
    longest = np.flatnonzero(lowest == 0)
    if longest.size:
        ninth = chunk.data[at[longest] + 8].astype(np.uint64)
        tenth = chunk.data[at[longest] + 9].astype(np.uint64)
        tops = (ninth & np.uint64(0x7F)) << np.uint64(56)
        tops |= np.where(ninth >= 0x80, tenth << np.uint64(63), np.uint64(0))
        values[longest] |= tops
    return unzigzag(values), sizes


def unzigzag(values: ULongs) -> Longs:
    folded: Longs = ((values >> _ONE) ^ (~(values & _ONE) + _ONE)).view(np.int64)
    return folded


# -- one cursor at a time -------------------------------------------------------------------


class ScanError(Exception):
    """A single cursor that does not decode: the place, the reason and its value."""

    def __init__(self, place: str, reason: str, value: int = 0) -> None:
        super().__init__(place, reason, value)
        self.place = place
        self.reason = reason
        self.value = value


def scan_varint(data: Sequence[int], at: int, end: int, place: str) -> tuple[int, int]:
    """The number at ``at`` and the byte after it. Raises ScanError."""
    number = shift = 0
    for position in range(at, min(end, at + MAX_VARINT_BYTES)):
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                raise ScanError(place, TOO_LONG)
            return (number >> 1) ^ -(number & 1), position + 1
        shift += 7
    if end - at >= MAX_VARINT_BYTES:
        raise ScanError(place, TOO_LONG)
    raise ScanError(place, TRUNCATED, 1)
