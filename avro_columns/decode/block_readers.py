"""The reader of arrays and maps: items that are located before they are read.

The items of an array lie one after another, so they are *located* first: their beginnings are found
by skipping item by item, all cursors side by side, or at once where items have one size or are
varints. Then all items of all cursors are read together, as cursors of their own. A few long arrays
among many short ones would be a step of numpy for each item: they are scanned cursor by cursor.

Everything that decides where a value ends is checked when items are located, so reading them
cannot run out of the datum.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from avro_columns.decode.cursors import (
    TRUNCATED,
    Cursors,
    Longs,
    ScanError,
    scan_varint,
)
from avro_columns.decode.reader import Reader
from avro_columns.errors import UnsupportedTypeError
from avro_columns.values import resolved_tree as tree
from avro_columns.values.arrow_types import row_bytes

#: Cursors up to which each is scanned by itself: there a step of numpy costs more than as many
#: items do one by one (30 to 45 microseconds were measured, and 1 to 1.6 for an item).
FEW_CURSORS: Final = 24

#: Blocks that are taken at once even then, which is more than a writer makes without need.
AT_ONCE_STEPS: Final = 8

TOO_MANY: Final = "a block of {value} items is longer than the rest of the value"
NEGATIVE_BLOCK: Final = "a block's size of {value} bytes is negative"
TOO_LARGE: Final = "its items would take {value} bytes as columns, more than is left"


class _Located:
    """Beginnings of items, as they are found."""

    def __init__(self) -> None:
        self.cursors: list[Longs] = []
        self.starts: list[Longs] = []

    def add(self, cursors: Longs, starts: Longs) -> None:
        self.cursors.append(cursors)
        self.starts.append(starts)

    def in_order(self) -> tuple[Longs, Longs]:
        """Cursor and beginning of each item, cursor by cursor."""
        if not self.cursors:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        cursors, starts = np.concatenate(self.cursors), np.concatenate(self.starts)
        if len(self.cursors) > 1:
            order = np.argsort(cursors, kind="stable")
            cursors, starts = cursors[order], starts[order]
        return cursors, starts


class BlockReader:
    """Reads arrays, and maps as arrays of their entries: blocks of items behind their number."""

    is_varint: ClassVar[bool] = False
    min_bytes = 1
    size: int | None = None

    def __init__(self, place: str, arrow: pa.DataType, items: Reader) -> None:
        if not items.min_bytes:
            raise UnsupportedTypeError(
                f"The items of {tree.named(place)} take no bytes, so any number of them fits "
                "into nothing; such arrays are not read."
            )
        self.place = place
        self.arrow = arrow
        self.items = items
        self._item_bytes = row_bytes(items.arrow)

    def read(self, cursors: Cursors) -> pa.Array:
        items, offsets = self._locate(cursors)
        values = self.items.read(items)
        return pa.Array.from_buffers(
            self.arrow, len(cursors), [None, pa.py_buffer(offsets)], children=[values]
        )

    def _locate(self, cursors: Cursors) -> tuple[Cursors, npt.NDArray[np.int32]]:
        """Cursors for all items, and the offsets that share them out among ``cursors``."""
        located = _Located()
        self._walk(cursors, located)
        owners, starts = located.in_order()
        counts = np.bincount(owners, minlength=len(cursors))
        if cursors.lost:
            counts[cursors.parked()] = 0
        taken = np.cumsum(counts * self._item_bytes)
        if taken.size and taken[-1] > cursors.chunk.bytes_left:
            bad = np.flatnonzero((taken > cursors.chunk.bytes_left) & (counts > 0))
            cursors.fail(bad, self.place, TOO_LARGE, (counts * self._item_bytes)[bad])
            counts[bad] = 0
        if cursors.lost and owners.size:
            kept = counts[owners] > 0
            owners, starts = owners[kept], starts[kept]
        cursors.chunk.bytes_left -= len(owners) * self._item_bytes
        offsets = np.zeros(len(cursors) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return Cursors(cursors.chunk, starts, cursors.end[owners], cursors.rows[owners]), offsets

    def skip(self, cursors: Cursors) -> None:
        self._walk(cursors, None)

    def _walk(self, cursors: Cursors, located: _Located | None) -> None:
        """Goes on behind the arrays of all cursors."""
        which = np.arange(len(cursors))
        left = np.zeros(len(cursors), np.int64)  # items of the block that each cursor is in
        steps = AT_ONCE_STEPS if self._at_once else 0
        while which.size > FEW_CURSORS or (which.size and steps):
            steps = max(steps - 1, 0)
            part = cursors.select(which)
            fresh = np.flatnonzero(left == 0)
            if fresh.size:
                heads = part.select(fresh)
                left[fresh] = self._heads(heads)
                part.merge(fresh, heads)
            inside = np.flatnonzero(left)
            if inside.size < which.size:
                cursors.merge(which, part)
                which, left = which[inside], left[inside]
                part = cursors.select(which)
            if not which.size:
                return
            if self._at_once:
                self._block(part, which, left, located)
                left[:] = 0
            else:
                if located is not None:
                    located.add(which, part.at.copy())
                self.items.skip(part)
                left -= 1
            if part.lost:
                left[part.parked()] = 0
                part.park_again()
            cursors.merge(which, part)
        for cursor, items in zip(which.tolist(), left.tolist(), strict=True):
            self._scan_cursor(cursors, cursor, items, located)

    @property
    def _at_once(self) -> bool:
        """Are the items of a block found without looking at each of them?"""
        return self.items.size is not None or self.items.is_varint

    def _heads(self, cursors: Cursors) -> Longs:
        """The number of items of the next block of each cursor, 0 at the end."""
        counts = cursors.varints(self.place)
        negative = np.flatnonzero(counts < 0)
        if negative.size:
            sized = cursors.select(negative)
            sizes = sized.varints(self.place)
            bad = np.flatnonzero(sizes < 0)
            sized.fail(bad, self.place, NEGATIVE_BLOCK, sizes[bad])
            cursors.merge(negative, sized)
            counts[negative] = -counts[negative]  # the lowest number stays negative
        many = (counts < 0) | (counts > (cursors.end - cursors.at) // self.items.min_bytes)
        if many.any():
            bad = np.flatnonzero(many)
            cursors.fail(bad, self.place, TOO_MANY, counts[bad])
        if cursors.lost:
            counts[cursors.parked()] = 0
        return counts

    def _block(self, part: Cursors, which: Longs, left: Longs, located: _Located | None) -> None:
        """Whole blocks of items of one size, or of varints."""
        before = np.cumsum(left) - left
        numbers = np.arange(int(left.sum())) - np.repeat(before, left)
        if self.items.size is not None:
            if located is not None:
                starts = np.repeat(part.at, left) + numbers * self.items.size
                located.add(np.repeat(which, left), starts)
            part.at = part.at + left * self.items.size
            return
        stops = part.chunk.stops
        first = np.searchsorted(stops, part.at)
        last = first + left - 1
        ends = stops[np.minimum(last, len(stops) - 1)] + 1
        if located is not None:
            ordinals = np.minimum(np.repeat(first, left) + numbers, len(stops)) - 1
            starts = np.where(numbers == 0, np.repeat(part.at, left), stops[ordinals] + 1)
            located.add(np.repeat(which, left), starts)
        late = np.flatnonzero((last >= len(stops)) | (ends > part.end))
        part.at = ends
        part.fail(late, self.place, TRUNCATED, np.maximum(ends - part.end, 1)[late])

    def _scan_cursor(
        self, cursors: Cursors, cursor: int, left: int, located: _Located | None
    ) -> None:
        """One cursor to the end of its array, without numpy."""
        if cursors.lost and cursors.parked()[cursor]:
            return
        starts = array("q")
        try:
            at = self._scan_items(
                memoryview(cursors.chunk.buffer).cast("B"),
                int(cursors.at[cursor]),
                int(cursors.end[cursor]),
                left,
                starts if located is not None else None,
            )
        except ScanError as error:
            cursors.fail(np.array([cursor]), error.place, error.reason, np.array([error.value]))
            return
        cursors.at[cursor] = at
        if located is not None and starts:
            located.add(np.full(len(starts), cursor), np.frombuffer(starts, np.int64))

    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        return self._scan_items(data, at, end, 0, None)

    def _scan_items(
        self, data: Sequence[int], at: int, end: int, left: int, starts: array[int] | None
    ) -> int:
        """The end of an array of whose block ``left`` items are left."""
        while True:
            if not left:
                left, at = self._scan_head(data, at, end)
            if not left:
                return at
            for _ in range(left):
                if starts is not None:
                    starts.append(at)
                at = self.items.scan(data, at, end)
            left = 0

    def _scan_head(self, data: Sequence[int], at: int, end: int) -> tuple[int, int]:
        """The items of the next block, and where they begin."""
        items, at = scan_varint(data, at, end, self.place)
        if items < 0:
            items = -items
            size, at = scan_varint(data, at, end, self.place)
            if size < 0:
                raise ScanError(self.place, NEGATIVE_BLOCK, size)
        if items > (end - at) // self.items.min_bytes:
            raise ScanError(self.place, TOO_MANY, items if items < 1 << 63 else -items)
        return items, at
