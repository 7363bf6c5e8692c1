"""Bytes of many datums, put together from pieces that are columns themselves.

A datum is numbers, most of them varints, and texts. The numbers of all rows between two texts are
written by numpy into one binary column, a *stretch*; stretches and texts are then joined row by row
by Arrow, which copies bytes as fast as memory goes.

Every piece may belong to some of the rows only (a value that is not null, a member of a union): it
has nothing to say for the others.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from avro_columns.decode.cursors import Bytes, Longs, ULongs
from avro_columns.errors import BatchTooLargeError

_ONE: Final = np.uint64(1)
_SEVEN: Final = np.uint64(7)
_MAX_BYTES: Final = (1 << 31) - 1

#: Rows that pieces belong to; None for all of them.
Rows = npt.NDArray[np.intp] | None


class _Varints:
    """A number for each of its rows."""

    def __init__(self, values: Longs, rows: Rows) -> None:
        unsigned = values.view(np.uint64)
        self.rows = rows
        self._left: ULongs = (unsigned << _ONE) ^ (values >> 63).view(np.uint64)
        self.sizes = np.ones(len(values), np.int64)
        largest, limit = (int(self._left.max()) if len(values) else 0), 0x80
        while largest >= limit:
            self.sizes += self._left >= np.uint64(limit)
            limit <<= 7

    def write(self, data: Bytes, at: Longs) -> None:
        left, sizes = self._left, self.sizes
        while True:
            more = np.flatnonzero(sizes > 1)
            low = left.astype(np.uint8) & 0x7F
            if not more.size:
                data[at] = low
                return
            low[more] |= 0x80
            data[at] = low
            left, sizes, at = left[more] >> _SEVEN, sizes[more] - 1, at[more] + 1


class _Fixed:
    """Bytes of rows that all take the same number of them."""

    def __init__(self, values: Bytes, rows: Rows) -> None:
        self.rows = rows
        self._values = values
        self.sizes = np.full(len(values), values.shape[1], np.int64)

    def write(self, data: Bytes, at: Longs) -> None:
        width = self._values.shape[1]
        if width == 1:
            data[at] = self._values[:, 0]
        elif width:
            data[at[:, None] + np.arange(width)] = self._values


class _Ragged:
    """Bytes of different sizes, as a matrix of which each row's first count."""

    def __init__(self, values: Bytes, sizes: Longs, rows: Rows) -> None:
        self.rows = rows
        self.sizes = sizes
        self._values = values

    def write(self, data: Bytes, at: Longs) -> None:
        places = np.arange(self._values.shape[1])
        taken = places < self.sizes[:, None]
        data[(at[:, None] + places)[taken]] = self._values[taken]


class ByteBuilder:
    """Byte segments of ``count`` datums, concatenated in order. Not thread-safe."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._stretch: list[_Varints | _Fixed | _Ragged] = []
        self._columns: list[pa.Array] = []

    def varints(self, values: Longs, rows: Rows) -> None:
        self._stretch.append(_Varints(values, rows))

    def constant(self, number: int, rows: Rows) -> None:
        """Adds the same varint, of one byte, to each of ``rows``."""
        count = self.count if rows is None else len(rows)
        byte = np.full((count, 1), number << 1, np.uint8)
        self._stretch.append(_Fixed(byte, rows))

    def fixed(self, values: Bytes, rows: Rows) -> None:
        """A row of a matrix of bytes for each of ``rows``."""
        self._stretch.append(_Fixed(values, rows))

    def ragged(self, values: Bytes, sizes: Longs, rows: Rows) -> None:
        """The first ``sizes`` bytes of rows of a matrix."""
        self._stretch.append(_Ragged(values, sizes, rows))

    def binary(self, data: Any, offsets: Longs, rows: Rows) -> None:
        """Bytes between ``offsets``, one more than ``rows``, into a buffer."""
        self._end_stretch()
        sizes = np.diff(offsets) if rows is None else self._per_row(np.diff(offsets), rows)
        self._columns.append(_binary(int(offsets[0]), sizes, data))

    def joined(self) -> pa.Array:
        """The datums, as a binary column. Raises BatchTooLargeError."""
        self._end_stretch()
        if not self._columns:
            return pa.array([b""] * self.count, pa.binary())
        if len(self._columns) == 1:
            return self._columns[0]
        _check_size(sum(pc.sum(pc.binary_length(one)).as_py() or 0 for one in self._columns))
        return pc.binary_join_element_wise(*self._columns, b"")

    def _per_row(self, sizes: Longs, rows: Rows) -> Longs:
        spread = np.zeros(self.count, np.int64)
        spread[rows] = sizes
        return spread

    def _end_stretch(self) -> None:
        if not self._stretch:
            return
        sizes = np.zeros(self.count, np.int64)
        for piece in self._stretch:
            if piece.rows is None:
                sizes += piece.sizes
            else:
                sizes[piece.rows] += piece.sizes
        total = int(sizes.sum())
        _check_size(total)
        at = np.cumsum(sizes) - sizes
        data = np.empty(total, np.uint8)
        for piece in self._stretch:
            if piece.rows is None:
                piece.write(data, at)
                at += piece.sizes
            else:
                piece.write(data, at[piece.rows])
                at[piece.rows] += piece.sizes
        self._columns.append(_binary(0, sizes, pa.py_buffer(data)))
        self._stretch = []


def _binary(start: int, sizes: Longs, data: Any) -> pa.Array:
    offsets = np.empty(len(sizes) + 1, np.int64)
    offsets[0] = start
    np.cumsum(sizes, out=offsets[1:])
    offsets[1:] += start
    narrow = pa.py_buffer(offsets.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, narrow, data])


def _check_size(total: int) -> None:
    if total > _MAX_BYTES:
        raise BatchTooLargeError(
            f"The datums take {total} bytes, more than the {_MAX_BYTES} of a column; encode fewer "
            "at a time."
        )
