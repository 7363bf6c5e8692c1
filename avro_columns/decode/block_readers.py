"""The reader of arrays and maps: items that are located before they are read.

The items of an array lie one after another, so they are *located* first: their beginnings are found
by skipping item by item, all lanes side by side, or at once where items have one size or are
varints. Then all items of all lanes are read together, as lanes of their own. A few long arrays
among many short ones would be a step of numpy for each item: they are scanned lane by lane.

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
    Lanes,
    Longs,
    ScanError,
    scan_varint,
)
from avro_columns.decode.reader import Reader
from avro_columns.errors import UnsupportedTypeError
from avro_columns.values import inlined
from avro_columns.values.arrow_types import row_bytes

#: Lanes up to which each is scanned by itself: there a step of numpy costs more than as many items
#: do one by one (30 to 45 microseconds were measured, and 1 to 1.6 for an item).
FEW_LANES: Final = 24

#: Blocks that are taken at once even then, which is more than a writer makes without need.
AT_ONCE_STEPS: Final = 8

TOO_MANY: Final = "a block of {value} items is longer than the rest of the value"
NEGATIVE_BLOCK: Final = "a block's size of {value} bytes is negative"
TOO_LARGE: Final = "its items would take {value} bytes as columns, more than is left"


class _Located:
    """Beginnings of items, as they are found."""

    def __init__(self) -> None:
        self.lanes: list[Longs] = []
        self.starts: list[Longs] = []

    def add(self, lanes: Longs, starts: Longs) -> None:
        self.lanes.append(lanes)
        self.starts.append(starts)

    def in_order(self) -> tuple[Longs, Longs]:
        """Lane and beginning of each item, lane by lane."""
        if not self.lanes:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        lanes, starts = np.concatenate(self.lanes), np.concatenate(self.starts)
        if len(self.lanes) > 1:
            order = np.argsort(lanes, kind="stable")
            lanes, starts = lanes[order], starts[order]
        return lanes, starts


class BlockReader:
    """Reads arrays, and maps as arrays of their entries: blocks of items behind their number."""

    is_varint: ClassVar[bool] = False
    min_bytes = 1
    size: int | None = None

    def __init__(self, place: str, arrow: pa.DataType, items: Reader) -> None:
        if not items.min_bytes:
            raise UnsupportedTypeError(
                f"The items of {inlined.named(place)} take no bytes, so any number of them fits "
                "into nothing; such arrays are not read."
            )
        self.place = place
        self.arrow = arrow
        self.items = items
        self._item_bytes = row_bytes(items.arrow)

    def read(self, lanes: Lanes) -> pa.Array:
        items, offsets = self._locate(lanes)
        values = self.items.read(items)
        return pa.Array.from_buffers(
            self.arrow, len(lanes), [None, pa.py_buffer(offsets)], children=[values]
        )

    def _locate(self, lanes: Lanes) -> tuple[Lanes, npt.NDArray[np.int32]]:
        """Lanes for all items, and the offsets that share them out among ``lanes``."""
        located = _Located()
        self._walk(lanes, located)
        owners, starts = located.in_order()
        counts = np.bincount(owners, minlength=len(lanes))
        if lanes.lost:
            counts[lanes.parked()] = 0
        taken = np.cumsum(counts * self._item_bytes)
        if taken.size and taken[-1] > lanes.chunk.bytes_left:
            bad = np.flatnonzero((taken > lanes.chunk.bytes_left) & (counts > 0))
            lanes.fail(bad, self.place, TOO_LARGE, (counts * self._item_bytes)[bad])
            counts[bad] = 0
        if lanes.lost and owners.size:
            kept = counts[owners] > 0
            owners, starts = owners[kept], starts[kept]
        lanes.chunk.bytes_left -= len(owners) * self._item_bytes
        offsets = np.zeros(len(lanes) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return Lanes(lanes.chunk, starts, lanes.end[owners], lanes.rows[owners]), offsets

    def skip(self, lanes: Lanes) -> None:
        self._walk(lanes, None)

    def _walk(self, lanes: Lanes, located: _Located | None) -> None:
        """Goes on behind the arrays of all lanes."""
        which = np.arange(len(lanes))
        left = np.zeros(len(lanes), np.int64)  # items of the block that each lane is in
        steps = AT_ONCE_STEPS if self._at_once else 0
        while which.size > FEW_LANES or (which.size and steps):
            steps = max(steps - 1, 0)
            part = lanes.select(which)
            fresh = np.flatnonzero(left == 0)
            if fresh.size:
                heads = part.select(fresh)
                left[fresh] = self._heads(heads)
                part.merge(fresh, heads)
            inside = np.flatnonzero(left)
            if inside.size < which.size:
                lanes.merge(which, part)
                which, left = which[inside], left[inside]
                part = lanes.select(which)
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
            lanes.merge(which, part)
        for lane, items in zip(which.tolist(), left.tolist(), strict=True):
            self._scan_lane(lanes, lane, items, located)

    @property
    def _at_once(self) -> bool:
        """Are the items of a block found without looking at each of them?"""
        return self.items.size is not None or self.items.is_varint

    def _heads(self, lanes: Lanes) -> Longs:
        """The number of items of the next block of each lane, 0 at the end."""
        counts = lanes.varints(self.place)
        negative = np.flatnonzero(counts < 0)
        if negative.size:
            sized = lanes.select(negative)
            sizes = sized.varints(self.place)
            bad = np.flatnonzero(sizes < 0)
            sized.fail(bad, self.place, NEGATIVE_BLOCK, sizes[bad])
            lanes.merge(negative, sized)
            counts[negative] = -counts[negative]  # the lowest number stays negative
        many = (counts < 0) | (counts > (lanes.end - lanes.at) // self.items.min_bytes)
        if many.any():
            bad = np.flatnonzero(many)
            lanes.fail(bad, self.place, TOO_MANY, counts[bad])
        if lanes.lost:
            counts[lanes.parked()] = 0
        return counts

    def _block(self, part: Lanes, which: Longs, left: Longs, located: _Located | None) -> None:
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

    def _scan_lane(self, lanes: Lanes, lane: int, left: int, located: _Located | None) -> None:
        """One lane to the end of its array, without numpy."""
        if lanes.lost and lanes.parked()[lane]:
            return
        starts = array("q")
        try:
            at = self._scan_items(
                memoryview(lanes.chunk.buffer).cast("B"),
                int(lanes.at[lane]),
                int(lanes.end[lane]),
                left,
                starts if located is not None else None,
            )
        except ScanError as error:
            lanes.fail(np.array([lane]), error.place, error.reason, np.array([error.value]))
            return
        lanes.at[lane] = at
        if located is not None and starts:
            located.add(np.full(len(starts), lane), np.frombuffer(starts, np.int64))

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
