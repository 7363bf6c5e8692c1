"""Readers of types without parts: from cursors to an Arrow array, one for each leaf of a schema.

Three shapes: a number of fixed size, of which several in a row are read with one look at the end
of the datum; a varint; and a length with that many bytes. What is wrong with a value but does not
change where the next one begins (a text that is not UTF-8, a symbol that the enum has not) is
found when the value is read, not when it is skipped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from avro_columns.decode.cursors import (
    TRUNCATED,
    Cursors,
    Flags,
    Longs,
    ScanError,
    scan_varint,
)
from avro_columns.values import resolved_tree as tree
from avro_columns.values.arrow_types import DURATION, arrow_type

NEGATIVE: Final = "the length {value} is negative"
NOT_UTF8: Final = "the text is not UTF-8"

_INT: Final = (-(1 << 31), (1 << 31) - 1)
_LONG: Final = (-(1 << 63), (1 << 63) - 1)
_MILLIS_A_DAY: Final = 86_400_000


def of_numpy(arrow: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    """``values`` as an array without nulls; nothing is copied."""
    return pa.Array.from_buffers(arrow, len(values), [None, pa.py_buffer(values)])


class LeafReader(ABC):
    """Base of the readers of leaves. Thread-safe, as all readers."""

    is_varint: ClassVar[bool] = False
    min_bytes: int = 1
    size: int | None = None

    def __init__(self, node: tree.Primitive | tree.Enum) -> None:
        self.place = node.place
        self.arrow = arrow_type(node)

    @abstractmethod
    def read(self, cursors: Cursors) -> pa.Array:
        """The next value of each cursor. Parked cursors have any value."""

    @abstractmethod
    def skip(self, cursors: Cursors) -> None:
        """Goes on behind the next value of each cursor."""

    @abstractmethod
    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        """The end of the value at ``at``. Raises ScanError."""


class NullReader(LeafReader):
    min_bytes = 0
    size = 0

    def read(self, cursors: Cursors) -> pa.Array:
        return pa.nulls(len(cursors))

    def read_at(self, cursors: Cursors, offset: int) -> pa.Array:
        return pa.nulls(len(cursors))

    def skip(self, cursors: Cursors) -> None:
        pass

    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        return at


# -- fixed sizes --------------------------------------------------------------------------


class FixedReader(LeafReader):
    """Values of ``size`` bytes each."""

    size: int

    def __init__(self, node: tree.Primitive, size: int) -> None:
        super().__init__(node)
        self.min_bytes = self.size = size

    def read(self, cursors: Cursors) -> pa.Array:
        cursors.need(self.size, self.place)
        array = self.read_at(cursors, 0)
        cursors.at = cursors.at + self.size
        return array

    def read_at(self, cursors: Cursors, offset: int) -> pa.Array:
        """Reads the values ``offset`` bytes after the cursors, which stay; the caller has made sure
        that they are there."""
        return self._read_at(cursors, cursors.at + offset)

    @abstractmethod
    def _read_at(self, cursors: Cursors, at: Longs) -> pa.Array:
        """The values at ``at``."""

    def skip(self, cursors: Cursors) -> None:
        cursors.need(self.size, self.place)
        cursors.at = cursors.at + self.size

    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        if end - at < self.size:
            raise ScanError(self.place, TRUNCATED, self.size - (end - at))
        return at + self.size

    def _bytes(self, cursors: Cursors, at: Longs) -> npt.NDArray[np.uint8]:
        """The values' bytes, a row each."""
        values: npt.NDArray[np.uint8] = cursors.chunk.data[at[:, None] + np.arange(self.size)]
        return values


class BooleanReader(FixedReader):
    def __init__(self, node: tree.Primitive) -> None:
        super().__init__(node, 1)

    def _read_at(self, cursors: Cursors, at: Longs) -> pa.Array:
        values = cursors.chunk.data[at]
        if values.size and values.max() > 1:
            bad = np.flatnonzero(values > 1)
            cursors.fail(bad, self.place, "the boolean is {value}, not 0 or 1", values[bad])
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(self.arrow, len(values), [None, bits])


class FloatReader(FixedReader):
    def __init__(self, node: tree.Primitive) -> None:
        super().__init__(node, 4)

    def _read_at(self, cursors: Cursors, at: Longs) -> pa.Array:
        return of_numpy(self.arrow, cursors.chunk.words[at].astype(np.uint32))


class DoubleReader(FixedReader):
    def __init__(self, node: tree.Primitive) -> None:
        super().__init__(node, 8)

    def _read_at(self, cursors: Cursors, at: Longs) -> pa.Array:
        return of_numpy(self.arrow, cursors.chunk.words[at])


class FixedBytesReader(FixedReader):
    def __init__(self, node: tree.Primitive) -> None:
        super().__init__(node, node.size)

    def _read_at(self, cursors: Cursors, at: Longs) -> pa.Array:
        return of_numpy(self.arrow, self._bytes(cursors, at))


class DurationReader(FixedReader):
    def __init__(self, node: tree.Primitive) -> None:
        super().__init__(node, 12)

    def _read_at(self, cursors: Cursors, at: Longs) -> pa.Array:
        numbers = self._bytes(cursors, at).view(np.dtype("<u4")).astype(np.int64)
        parts = [of_numpy(pa.int64(), np.ascontiguousarray(numbers[:, i])) for i in range(3)]
        return pa.StructArray.from_arrays(parts, fields=list(DURATION))


class FixedDecimalReader(FixedReader):
    def __init__(self, node: tree.Primitive) -> None:
        super().__init__(node, node.size)
        self._decimals = _Decimals(node)

    def _read_at(self, cursors: Cursors, at: Longs) -> pa.Array:
        return self._decimals.read(cursors, at, np.full(len(at), self.size, np.int64))


# -- varints ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Bounds of a kind of number, and what makes Arrow's number of it."""

    lowest: int
    highest: int
    dtype: type[np.signedinteger[Any]]
    factor: int = 1


_NUMBERS: Final = {
    "int": _Numbers(*_INT, np.int32),
    "long": _Numbers(*_LONG, np.int64),
    "date": _Numbers(*_INT, np.int32),
    "time-millis": _Numbers(0, _MILLIS_A_DAY - 1, np.int64, 1000),
    "time-micros": _Numbers(0, _MILLIS_A_DAY * 1000 - 1, np.int64),
    "timestamp-millis": _Numbers(-(_LONG[1] // 1000), _LONG[1] // 1000, np.int64, 1000),
    "local-timestamp-millis": _Numbers(-(_LONG[1] // 1000), _LONG[1] // 1000, np.int64, 1000),
}


def number_bounds(node: tree.Primitive) -> tuple[int, int]:
    """The numbers that may be written as ``node``, an int or a long."""
    numbers = _NUMBERS.get(node.logical or node.kind, _NUMBERS[node.kind])
    return numbers.lowest, numbers.highest


class VarintReader(LeafReader):
    """Numbers of whatever logical type; enums are below."""

    is_varint = True

    def __init__(self, node: tree.Primitive | tree.Enum) -> None:
        super().__init__(node)
        kind = "int" if isinstance(node, tree.Enum) else node.kind
        logical = None if isinstance(node, tree.Enum) else node.logical
        #: True of numbers of 32 bits.
        self.is_short = kind == "int"
        self._numbers = _NUMBERS.get(logical or kind, _NUMBERS[kind])
        self._reason = f"the number {{value}} is out of the range of {logical or kind}"

    def read(self, cursors: Cursors) -> pa.Array:
        values, numbers = cursors.varints(self.place), self._numbers
        if values.size and numbers.lowest > _LONG[0]:
            self._check(values, cursors, numbers.lowest, numbers.highest)
        if numbers.factor != 1:
            values *= numbers.factor
        return of_numpy(self.arrow, values.astype(numbers.dtype, copy=False))

    def _check(self, values: Longs, cursors: Cursors, lowest: int, highest: int) -> None:
        if values.min() < lowest or values.max() > highest:
            bad = np.flatnonzero((values < lowest) | (values > highest))
            cursors.fail(bad, self.place, self._reason, values[bad])
            values[bad] = 0

    def skip(self, cursors: Cursors) -> None:
        cursors.skip_varints(self.place)

    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        return scan_varint(data, at, end, self.place)[1]


class EnumReader(VarintReader):
    def __init__(self, node: tree.Enum) -> None:
        super().__init__(node)
        self._symbols = pa.array(node.symbols, pa.string())
        self._reason = f"the index {{value}} is none of the enum's {len(node.symbols)} symbols"

    def read(self, cursors: Cursors) -> pa.Array:
        values = cursors.varints(self.place)
        if values.size:
            self._check(values, cursors, 0, len(self._symbols) - 1)
        return self._symbols.take(of_numpy(pa.int64(), values))


# -- lengths ------------------------------------------------------------------------------


class BytesReader(LeafReader):
    """Values that are preceded by their length."""

    def read(self, cursors: Cursors) -> pa.Array:
        at, sizes = self._extents(cursors)
        return pieces(cursors, at, sizes)

    def _extents(self, cursors: Cursors) -> tuple[Longs, Longs]:
        """Returns starts and sizes of the values and moves the cursors behind them. Cursors that
        fail have empty values."""
        sizes = cursors.varints(self.place)
        if sizes.size and sizes.min() < 0:
            bad = np.flatnonzero(sizes < 0)
            cursors.fail(bad, self.place, NEGATIVE, sizes[bad])
            sizes[bad] = 0
        cursors.need(sizes, self.place)
        if cursors.lost:
            sizes[cursors.parked()] = 0
        at = cursors.at
        cursors.at = at + sizes
        return at, sizes

    def skip(self, cursors: Cursors) -> None:
        self._extents(cursors)

    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        size, at = scan_varint(data, at, end, self.place)
        if size < 0:
            raise ScanError(self.place, NEGATIVE, size)
        if size > end - at:
            raise ScanError(self.place, TRUNCATED, size - (end - at))
        return at + size


class StringReader(BytesReader):
    def read(self, cursors: Cursors) -> pa.Array:
        at, sizes = self._extents(cursors)
        texts = pieces(cursors, at, sizes)
        try:
            return texts.cast(pa.string())
        except pa.ArrowInvalid:
            bad = np.flatnonzero(~np.fromiter(map(is_text, texts.to_pylist()), bool, len(texts)))
            cursors.fail(bad, self.place, NOT_UTF8)
            sizes[bad] = 0
            return pieces(cursors, at, sizes).cast(pa.string())


def is_text(data: bytes) -> bool:
    """Is it UTF-8?"""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def pieces(cursors: Cursors, at: Longs, sizes: Longs) -> pa.Array:
    """The bytes of ``sizes`` at ``at``, which rise, as a binary array of their own.

    Arrow copies them: to it they are every second value of an array over all of the data, the
    others being what lies between them.
    """
    count = len(at)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = np.where(sizes == 0, 0, at)
    offsets[1::2] = offsets[0:-1:2] + sizes
    offsets[-1] = 0
    np.maximum.accumulate(offsets, out=offsets)  # empty ones, wherever they are
    whole = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(offsets), cursors.chunk.buffer]
    )
    return whole.take(of_numpy(pa.int64(), np.arange(0, 2 * count, 2)))


class BytesDecimalReader(BytesReader):
    def __init__(self, node: tree.Primitive) -> None:
        super().__init__(node)
        self._decimals = _Decimals(node)

    def read(self, cursors: Cursors) -> pa.Array:
        return self._decimals.read(cursors, *self._extents(cursors))


class _Decimals:
    """Converts decimals from two's complement, highest byte first, to Arrow's 16 bytes, lowest
    first."""

    def __init__(self, node: tree.Primitive) -> None:
        self._place = node.place
        self._arrow = arrow_type(node)
        self._reason = f"the decimal has more than {node.precision} digits"
        limit = 10**node.precision
        self._above = divmod(limit, 1 << 64)
        self._lowest = divmod(1 - limit, 1 << 64)

    def read(self, cursors: Cursors, at: Longs, sizes: Longs) -> pa.Array:
        data = cursors.chunk.data
        places = np.arange(16)
        values = data[np.maximum((at + sizes - 1)[:, None] - places, 0)]
        signs = np.where((sizes > 0) & (data[at] >= 0x80), 0xFF, 0).astype(np.uint8)
        numbers = np.where(places < sizes[:, None], values, signs[:, None])
        bad = self._out_of_range(numbers)
        for cursor in np.flatnonzero(sizes > 16).tolist():
            first, size = int(at[cursor]), int(sizes[cursor])
            bad[cursor] |= (data[first : first + size - 16] != signs[cursor]).any()
            bad[cursor] |= (numbers[cursor, 15] >= 0x80) != (signs[cursor] == 0xFF)
        if bad.any():
            cursors.fail(np.flatnonzero(bad), self._place, self._reason)
            numbers[bad] = 0
        return of_numpy(self._arrow, numbers)

    def _out_of_range(self, numbers: npt.NDArray[np.uint8]) -> Flags:
        if not len(numbers):
            return np.zeros(0, bool)
        low = numbers.view(np.dtype("<u8"))[:, 0]
        high = numbers.view(np.dtype("<i8"))[:, 1]
        top, bottom = np.int64(self._above[0]), np.uint64(self._above[1])
        too_high: Flags = (high > top) | ((high == top) & (low >= bottom))
        top, bottom = np.int64(self._lowest[0]), np.uint64(self._lowest[1])
        too_low: Flags = (high < top) | ((high == top) & (low < bottom))
        return too_high | too_low


# -- which ---------------------------------------------------------------------------------

_FIXED: Final[dict[str, Callable[[tree.Primitive], FixedReader]]] = {
    "boolean": BooleanReader,
    "float": FloatReader,
    "double": DoubleReader,
}


def leaf_reader(node: tree.Primitive | tree.Enum) -> LeafReader:
    """The reader of a leaf."""
    if isinstance(node, tree.Enum):
        return EnumReader(node)
    if node.kind == "null":
        return NullReader(node)
    if node.kind in _FIXED:
        return _FIXED[node.kind](node)
    if node.kind in ("int", "long"):
        return VarintReader(node)
    if node.kind == "fixed":
        if node.logical == "duration":
            return DurationReader(node)
        return FixedDecimalReader(node) if node.logical == "decimal" else FixedBytesReader(node)
    if node.logical == "decimal":
        return BytesDecimalReader(node)
    return StringReader(node) if node.kind == "string" else BytesReader(node)
