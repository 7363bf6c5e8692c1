"""Readers of records and unions: how cursors part and come together again.

A union reads each of its members with the cursors that have it. A record reads its fields one after
another, those of fixed size in a row together. Fields that nobody wants are skipped: the cursors go
behind them, and no column is made. A map is an array of records of a key and a value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from avro_columns.decode.block_readers import BlockReader
from avro_columns.decode.cursors import (
    Cursors,
    Flags,
    Longs,
    ScanError,
    scan_varint,
)
from avro_columns.decode.fixed_runs import (
    INTS_AT_ONCE,
    FixedRuns,
    Stride,
    over_ints,
    over_optional,
    over_sizes,
    over_text,
)
from avro_columns.decode.leaf_readers import (
    BytesReader,
    FixedReader,
    NullReader,
    VarintReader,
    leaf_reader,
)
from avro_columns.decode.reader import Reader
from avro_columns.values import resolved_tree as tree
from avro_columns.values.arrow_types import arrow_type

NO_MEMBER: Final = "the index {value} is none of the union's members"


def reader_of(node: tree.Node) -> Reader:
    """The reader of a schema. Raises UnsupportedTypeError for items that take no bytes."""
    if isinstance(node, tree.Primitive | tree.Enum):
        return leaf_reader(node)
    if isinstance(node, tree.Record):
        return RecordReader(node)
    if isinstance(node, tree.Array):
        return BlockReader(node.place, arrow_type(node), reader_of(node.items))
    if isinstance(node, tree.Map):
        return BlockReader(node.place, arrow_type(node), _entries_of(node))
    return NullableReader(node) if len(node.others) == 1 else UnionReader(node)


def _entries_of(node: tree.Map) -> RecordReader:
    place = f"{node.place}{{}}"
    key = tree.Field("key", tree.Primitive(place, "string"))
    return RecordReader(tree.Record(place, "", (key, tree.Field("value", node.values))))


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
    fixed_runs: FixedRuns


class RecordReader:
    is_varint: ClassVar[bool] = False

    def __init__(self, node: tree.Record, names: Collection[str] | None = None) -> None:
        """Columns are made of the fields ``names``, or of all. Raises ValueMismatchError for a
        name that is none of the fields."""
        self.place = node.place
        made = node if names is None else tree.with_fields(node, names)
        self.arrow = arrow_type(made)
        self.fields = [reader_of(one.node) for one in node.fields]
        self.min_bytes = sum(one.min_bytes for one in self.fields)
        sizes = [one.size for one in self.fields]
        self.size = None if None in sizes else self.min_bytes
        self._steps = _steps([
            _Single(reader, names is None or one.name in names)
            for reader, one in zip(self.fields, node.fields, strict=True)
        ])  # fmt: skip

    def read(self, cursors: Cursors) -> pa.Array:
        arrays: list[pa.Array] = []
        for step in self._steps:
            if isinstance(step, _Run):
                cursors.need(step.size, step.place)
                arrays += [one.read_at(cursors, offset) for offset, one in step.made]
                cursors.at = cursors.at + step.size
            elif isinstance(step, _Passed):
                step.fixed_runs.skip(cursors)
            elif step.is_made:
                arrays.append(step.reader.read(cursors))
            else:
                step.reader.skip(cursors)
            cursors.park_again()
        if not arrays:
            return pa.Array.from_buffers(self.arrow, len(cursors), [None])
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow))

    def skip(self, cursors: Cursors) -> None:
        for step in self._steps:
            if isinstance(step, _Run):
                cursors.need(step.size, step.place)
                cursors.at = cursors.at + step.size
            elif isinstance(step, _Passed):
                step.fixed_runs.skip(cursors)
            else:
                step.reader.skip(cursors)
            cursors.park_again()

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
            steps.append(_Passed(readers, FixedRuns(readers, _strides_over(readers))))
        else:
            steps += group
    return steps


def _kind_of_step(field: _Single) -> str:
    if isinstance(field.reader, FixedReader | NullReader):
        return "fixed"
    return "single" if field.is_made or _stride_over(field.reader) is None else "passed"


def _strides_over(readers: Sequence[Reader]) -> list[Stride]:
    fixed_runs: list[Stride] = []
    for is_int, group in groupby(readers, _is_int):
        own = list(group)
        if is_int:
            pieces = range(0, len(own), INTS_AT_ONCE)
            fixed_runs += [over_ints(len(own[at : at + INTS_AT_ONCE])) for at in pieces]
        else:
            fixed_runs += [stride for one in own if (stride := _stride_over(one)) is not None]
    return fixed_runs


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
    """The zeros that parked cursors may read before they are put back."""
    if isinstance(reader, RecordReader):
        return max(map(_zeros_of_step, reader._steps), default=0)
    if isinstance(reader, NullableReader | UnionReader):
        return max(map(zeros_of, reader.readers), default=0)
    if isinstance(reader, BlockReader):
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

    def __init__(self, node: tree.Union) -> None:
        self.place = node.place
        self.arrow = arrow_type(node)
        self._members = [reader_of(member) for member in node.members]
        self.readers = [one for one in self._members if not isinstance(one, NullReader)]
        # What a member takes after its index, if a fixed size is all that there is beside null.
        self._sizes: Longs | None = None
        if len(self.readers) == 1 and self.readers[0].size is not None:
            sizes = [one.size or 0 for one in self._members]
            self._sizes = np.array(
                [*sizes, 0], np.int64
            )  # the last is for -1, of cursors that fail

    def _indices(self, cursors: Cursors) -> Longs:
        """The member of each cursor; -1 of those that fail."""
        indices = cursors.varints(self.place)
        if not indices.size:
            return indices
        if indices.min() < 0 or indices.max() >= len(self._members):
            bad = np.flatnonzero((indices < 0) | (indices >= len(self._members)))
            cursors.fail(bad, self.place, NO_MEMBER, indices[bad])
        if cursors.lost:
            indices[cursors.parked()] = -1
        return indices

    def skip(self, cursors: Cursors) -> None:
        indices = self._indices(cursors)
        if self._sizes is not None:
            sizes = self._sizes.take(indices)
            cursors.need(sizes, self.place)
            cursors.at = cursors.at + sizes
            return
        for index, member in enumerate(self._members):
            if isinstance(member, NullReader):
                continue
            which = np.flatnonzero(indices == index)
            if which.size == len(cursors):
                member.skip(cursors)
            elif which.size:
                chosen = cursors.select(which)
                member.skip(chosen)
                cursors.merge(which, chosen)

    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        index, at = scan_varint(data, at, end, self.place)
        if not 0 <= index < len(self._members):
            raise ScanError(self.place, NO_MEMBER, index)
        return self._members[index].scan(data, at, end)

    def _read_member(self, cursors: Cursors, reader: Reader, chosen: Flags) -> pa.Array:
        """The values of the cursors ``chosen``, null for the others."""
        which = np.flatnonzero(chosen)
        if which.size == len(cursors):
            return reader.read(cursors)
        if not which.size:
            return pa.nulls(len(cursors), reader.arrow)
        part = cursors.select(which)
        values = reader.read(part)
        cursors.merge(which, part)
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
        """Stride over a value; None where its size does not follow from its first bytes."""
        [reader] = self.readers
        if reader.size is not None:
            return over_sizes([one.size or 0 for one in self._members])
        inner = _stride_over(reader)
        if inner is None:
            return None
        return over_optional(self._members.index(reader), len(self._members), inner)

    def read(self, cursors: Cursors) -> pa.Array:
        indices = self._indices(cursors)
        return self._read_member(
            cursors, self.readers[0], indices == self._members.index(self.readers[0])
        )


class UnionReader(_AnyUnion):
    """A union of several types beside null, or of null alone."""

    def read(self, cursors: Cursors) -> pa.Array:
        indices = self._indices(cursors)
        if not self.readers:
            return pa.nulls(len(cursors))
        arrays = []
        chosen = np.zeros(len(cursors), bool)
        for index, member in enumerate(self._members):
            if not isinstance(member, NullReader):
                arrays.append(self._read_member(cursors, member, indices == index))
                chosen |= indices == index
        nulls = None if chosen.all() else pa.array(~chosen)
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow), mask=nulls)
