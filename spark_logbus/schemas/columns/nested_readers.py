"""Readers of records, unions, arrays and maps: how lanes part and come together again.

A union reads each of its members with the lanes that have it. A record reads its fields one after
another, those of fixed size in a row together. Fields that nobody wants are skipped: the lanes go
behind them, and no column is made.

The items of an array lie one after another, so they are *located* first: their beginnings are found
by skipping item by item, all lanes side by side, or at once where items have one size or are
varints. Then all items of all lanes are read together, as lanes of their own. A few long arrays
among many short ones would be a step of numpy for each item: they are scanned lane by lane.

Everything that decides where a value ends is checked when items are located, so reading them
cannot run out of the datum.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from spark_logbus.errors import UnsupportedSchemaError
from spark_logbus.schemas.columns import inlined
from spark_logbus.schemas.columns.arrow_types import arrow_type
from spark_logbus.schemas.columns.cursors import (
    TRUNCATED,
    Flags,
    Lanes,
    Longs,
    ScanError,
    scan_varint,
)
from spark_logbus.schemas.columns.leaf_readers import (
    BytesReader,
    FixedReader,
    NullReader,
    VarintReader,
    leaf_reader,
)
from spark_logbus.schemas.columns.strides import (
    INTS_AT_ONCE,
    Stride,
    Strides,
    over_ints,
    over_optional,
    over_sizes,
    over_text,
)

#: Lanes up to which each is scanned by itself: there a step of numpy costs more than as many items
#: do one by one (30 to 45 microseconds were measured, and 1 to 1.6 for an item).
FEW_LANES: Final = 24

#: Blocks that are taken at once even then, which is more than a writer makes without need.
AT_ONCE_STEPS: Final = 8

NO_MEMBER: Final = "the index {value} is none of the union's members"
TOO_MANY: Final = "a block of {value} items is longer than the rest of the value"
NEGATIVE_BLOCK: Final = "a block's size of {value} bytes is negative"
TOO_LARGE: Final = "its items would take {value} bytes as columns, more than is left"


class Reader(Protocol):
    """Reads the values of one node. Thread-safe: lanes hold what changes."""

    place: str
    arrow: pa.DataType
    is_varint: ClassVar[bool]
    min_bytes: int
    """What a value takes at least."""
    size: int | None
    """What a value takes, if that is always the same."""

    def read(self, lanes: Lanes) -> pa.Array:
        """The next value of each lane. Parked lanes have any value."""

    def skip(self, lanes: Lanes) -> None:
        """Goes on behind the next value of each lane."""

    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        """The end of the value at ``at``. Raises ScanError."""


def reader_of(node: inlined.Node) -> Reader:
    """The reader of a schema. Raises UnsupportedSchemaError for items that take no bytes."""
    if isinstance(node, inlined.Primitive | inlined.Enum):
        return leaf_reader(node)
    if isinstance(node, inlined.Record):
        return RecordReader(node)
    if isinstance(node, inlined.Array):
        return ArrayReader(node)
    if isinstance(node, inlined.Map):
        return MapReader(node)
    return NullableReader(node) if len(node.others) == 1 else UnionReader(node)


def row_bytes(arrow: pa.DataType) -> int:
    """What a row of a column takes at least, null or not."""
    if types.is_struct(arrow):
        return 1 + sum(row_bytes(one.type) for one in arrow)
    try:
        return 1 + int(arrow.bit_width) // 8
    except ValueError:  # of no fixed size: an offset
        return 5


# -- records ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """Fields of fixed size that follow each other."""

    place: str
    made: tuple[tuple[int, FixedReader | NullReader], ...]  # each with its offset
    size: int


@dataclass(frozen=True, slots=True)
class _Single:
    """Another field, of which a column is made or not."""

    reader: Reader
    is_made: bool


@dataclass(frozen=True, slots=True)
class _Passed:
    """Fields that follow each other, of which no column is made."""

    readers: tuple[Reader, ...]
    strides: Strides


class RecordReader:
    is_varint: ClassVar[bool] = False

    def __init__(self, node: inlined.Record, names: Collection[str] | None = None) -> None:
        """Columns are made of the fields ``names``, or of all. Raises SchemaMismatchError for a
        name that is none of the fields."""
        self.place = node.place
        made = node if names is None else inlined.with_fields(node, names)
        self.arrow = arrow_type(made)
        self.fields = [reader_of(one.node) for one in node.fields]
        self.min_bytes = sum(one.min_bytes for one in self.fields)
        sizes = [one.size for one in self.fields]
        self.size = None if None in sizes else self.min_bytes
        self._steps = _steps([
            _Single(reader, names is None or one.name in names)
            for reader, one in zip(self.fields, node.fields, strict=True)
        ])  # fmt: skip

    def read(self, lanes: Lanes) -> pa.Array:
        arrays: list[pa.Array] = []
        for step in self._steps:
            if isinstance(step, _Run):
                lanes.need(step.size, step.place)
                arrays += [one.read_at(lanes, offset) for offset, one in step.made]
                lanes.at = lanes.at + step.size
            elif isinstance(step, _Passed):
                step.strides.skip(lanes)
            elif step.is_made:
                arrays.append(step.reader.read(lanes))
            else:
                step.reader.skip(lanes)
            lanes.park_again()
        if not arrays:
            return pa.Array.from_buffers(self.arrow, len(lanes), [None])
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow))

    def skip(self, lanes: Lanes) -> None:
        for step in self._steps:
            if isinstance(step, _Run):
                lanes.need(step.size, step.place)
                lanes.at = lanes.at + step.size
            elif isinstance(step, _Passed):
                step.strides.skip(lanes)
            else:
                step.reader.skip(lanes)
            lanes.park_again()

    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        for one in self.fields:
            at = one.scan(data, at, end)
        return at


_Step = _Run | _Single | _Passed


def _steps(fields: list[_Single]) -> list[_Step]:
    steps: list[_Step] = []
    for kind, group in groupby(fields, _kind_of_step):
        if kind == "fixed":
            steps.append(_run(list(group)))
        elif kind == "passed":
            readers = tuple(one.reader for one in group)
            steps.append(_Passed(readers, Strides(readers, _strides_over(readers))))
        else:
            steps += group
    return steps


def _kind_of_step(field: _Single) -> str:
    if isinstance(field.reader, FixedReader | NullReader):
        return "fixed"
    return "single" if field.is_made or _stride_over(field.reader) is None else "passed"


def _strides_over(readers: Sequence[Reader]) -> list[Stride]:
    strides: list[Stride] = []
    for is_int, group in groupby(readers, _is_int):
        own = list(group)
        if is_int:
            pieces = range(0, len(own), INTS_AT_ONCE)
            strides += [over_ints(len(own[at : at + INTS_AT_ONCE])) for at in pieces]
        else:
            strides += [stride for one in own if (stride := _stride_over(one)) is not None]
    return strides


def _is_int(reader: Reader) -> bool:
    return isinstance(reader, VarintReader) and reader.is_short


def _stride_over(reader: Reader) -> Stride | None:
    if _is_int(reader):
        return over_ints(1)
    if isinstance(reader, BytesReader):
        return over_text
    return reader.stride if isinstance(reader, NullableReader) else None


def _run(fields: list[_Single]) -> _Run:
    made: list[tuple[int, FixedReader | NullReader]] = []
    size = 0
    for one in fields:
        if one.is_made and isinstance(one.reader, FixedReader | NullReader):
            made.append((size, one.reader))
        size += one.reader.min_bytes
    return _Run(fields[0].reader.place, tuple(made), size)


def zeros_of(reader: Reader) -> int:
    """The zeros that parked lanes may read before they are put back."""
    if isinstance(reader, RecordReader):
        return max(map(_zeros_of_step, reader._steps), default=0)
    if isinstance(reader, NullableReader | UnionReader):
        return max(map(zeros_of, reader.readers), default=0)
    if isinstance(reader, ArrayReader | MapReader):
        return zeros_of(reader.items)
    return reader.size or 0


def _zeros_of_step(step: _Step) -> int:
    if isinstance(step, _Run):
        return step.size
    return max(map(zeros_of, step.readers if isinstance(step, _Passed) else [step.reader]))


# -- unions -------------------------------------------------------------------------------


class _AnyUnion:
    is_varint: ClassVar[bool] = False
    min_bytes = 1
    size: int | None = None

    def __init__(self, node: inlined.Union) -> None:
        self.place = node.place
        self.arrow = arrow_type(node)
        self._members = [reader_of(member) for member in node.members]
        self.readers = [one for one in self._members if not isinstance(one, NullReader)]
        # What a member takes after its index, if a fixed size is all that there is beside null.
        self._sizes: Longs | None = None
        if len(self.readers) == 1 and self.readers[0].size is not None:
            sizes = [one.size or 0 for one in self._members]
            self._sizes = np.array([*sizes, 0], np.int64)  # the last is for -1, of lanes that fail

    def _indices(self, lanes: Lanes) -> Longs:
        """The member of each lane; -1 of those that fail."""
        indices = lanes.varints(self.place)
        if not indices.size:
            return indices
        if indices.min() < 0 or indices.max() >= len(self._members):
            bad = np.flatnonzero((indices < 0) | (indices >= len(self._members)))
            lanes.fail(bad, self.place, NO_MEMBER, indices[bad])
        if lanes.lost:
            indices[lanes.parked()] = -1
        return indices

    def skip(self, lanes: Lanes) -> None:
        indices = self._indices(lanes)
        if self._sizes is not None:
            sizes = self._sizes.take(indices)
            lanes.need(sizes, self.place)
            lanes.at = lanes.at + sizes
            return
        for index, member in enumerate(self._members):
            if isinstance(member, NullReader):
                continue
            which = np.flatnonzero(indices == index)
            if which.size == len(lanes):
                member.skip(lanes)
            elif which.size:
                chosen = lanes.select(which)
                member.skip(chosen)
                lanes.merge(which, chosen)

    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        index, at = scan_varint(data, at, end, self.place)
        if not 0 <= index < len(self._members):
            raise ScanError(self.place, NO_MEMBER, index)
        return self._members[index].scan(data, at, end)

    def _read_member(self, lanes: Lanes, reader: Reader, chosen: Flags) -> pa.Array:
        """The values of the lanes ``chosen``, null for the others."""
        which = np.flatnonzero(chosen)
        if which.size == len(lanes):
            return reader.read(lanes)
        if not which.size:
            return pa.nulls(len(lanes), reader.arrow)
        part = lanes.select(which)
        values = reader.read(part)
        lanes.merge(which, part)
        return _spread(values, chosen, which)


def _spread(values: pa.Array, chosen: Flags, which: npt.NDArray[np.intp]) -> pa.Array:
    """``values`` where ``chosen``, null elsewhere."""
    arrow = values.type
    if types.is_primitive(arrow) and not values.null_count and arrow.bit_width >= 8:
        dtype = np.dtype(f"V{arrow.bit_width // 8}" if arrow.bit_width > 64 else
                         f"u{arrow.bit_width // 8}")  # fmt: skip
        spread = np.zeros(len(chosen), dtype)
        spread[which] = np.frombuffer(values.buffers()[1], dtype)[: len(values)]
        bits = pa.py_buffer(np.packbits(chosen, bitorder="little"))
        return pa.Array.from_buffers(arrow, len(chosen), [bits, pa.py_buffer(spread)])
    places = np.cumsum(chosen) - 1
    return values.take(pa.array(places, mask=~chosen))


class NullableReader(_AnyUnion):
    """A union of one type, and null if that is a member too."""

    @property
    def stride(self) -> Stride | None:
        """Over a value, if there is one."""
        [reader] = self.readers
        if reader.size is not None:
            return over_sizes([one.size or 0 for one in self._members])
        inner = _stride_over(reader)
        if inner is None:
            return None
        return over_optional(self._members.index(reader), len(self._members), inner)

    def read(self, lanes: Lanes) -> pa.Array:
        indices = self._indices(lanes)
        return self._read_member(
            lanes, self.readers[0], indices == self._members.index(self.readers[0])
        )


class UnionReader(_AnyUnion):
    """A union of several types beside null, or of null alone."""

    def read(self, lanes: Lanes) -> pa.Array:
        indices = self._indices(lanes)
        if not self.readers:
            return pa.nulls(len(lanes))
        arrays = []
        chosen = np.zeros(len(lanes), bool)
        for index, member in enumerate(self._members):
            if not isinstance(member, NullReader):
                arrays.append(self._read_member(lanes, member, indices == index))
                chosen |= indices == index
        nulls = None if chosen.all() else pa.array(~chosen)
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow), mask=nulls)


# -- arrays and maps ----------------------------------------------------------------------


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


class _Blocks:
    """What arrays and maps share: blocks of items, each block preceded by their number."""

    is_varint: ClassVar[bool] = False
    min_bytes = 1
    size: int | None = None

    def __init__(self, place: str, arrow: pa.DataType, items: Reader) -> None:
        if not items.min_bytes:
            raise UnsupportedSchemaError(
                f"The items of {inlined.named(place)} take no bytes, so any number of them fits "
                "into nothing; such arrays are not read."
            )
        self.place = place
        self.arrow = arrow
        self.items = items
        self._item_bytes = row_bytes(items.arrow)

    def locate(self, lanes: Lanes) -> tuple[Lanes, npt.NDArray[np.int32]]:
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


class ArrayReader(_Blocks):
    def __init__(self, node: inlined.Array) -> None:
        super().__init__(node.place, arrow_type(node), reader_of(node.items))

    def read(self, lanes: Lanes) -> pa.Array:
        items, offsets = self.locate(lanes)
        values = self.items.read(items)
        return pa.Array.from_buffers(
            self.arrow, len(lanes), [None, pa.py_buffer(offsets)], children=[values]
        )


class MapReader(_Blocks):
    def __init__(self, node: inlined.Map) -> None:
        place = f"{node.place}{{}}"
        entry = inlined.Record(
            place,
            "",
            (
                inlined.Field("key", inlined.Primitive(place, "string")),
                inlined.Field("value", node.values),
            ),
        )
        self._entries = RecordReader(entry)
        super().__init__(node.place, arrow_type(node), self._entries)

    def read(self, lanes: Lanes) -> pa.Array:
        entries, offsets = self.locate(lanes)
        values = self._entries.read(entries)
        return pa.Array.from_buffers(
            self.arrow, len(lanes), [None, pa.py_buffer(offsets)], children=[values]
        )
