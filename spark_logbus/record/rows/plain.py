"""Plain Python values as Arrow scalars and arrays, made from their bytes.

``pa.scalar`` and ``pa.array`` import pandas, where it is installed, before they convert their
first value: half a second for each of Spark's Python workers, which need no pandas here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import pyarrow as pa

_TYPE_CODES = {4: "i", 8: "q"}  # by the bytes of one integer


def integers(numbers: Iterable[int], kind: pa.DataType) -> pa.Array:
    """Does what ``pa.array(numbers, kind)`` does, for types of 32 or 64 bits that are signed
    integers within, as timestamps are. Raises OverflowError."""
    values = array(_TYPE_CODES[kind.bit_width // 8], numbers)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def repeated(number: int, count: int, kind: pa.DataType) -> pa.Array:
    """Does what ``pa.repeat`` does with what ``scalar`` makes of a number."""
    values = array(_TYPE_CODES[kind.bit_width // 8], [number]) * count
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])


def scalar(value: int | str | None, kind: pa.DataType) -> pa.Scalar:
    """Does what ``pa.scalar(value, kind)`` does, for null, strings and what ``integers`` makes."""
    if value is None:
        return pa.nulls(1, kind)[0]
    if isinstance(value, int):
        return integers([value], kind)[0]
    text = value.encode()
    offsets = pa.py_buffer(array("i", [0, len(text)]))
    return pa.Array.from_buffers(kind, 1, [None, offsets, pa.py_buffer(text)])[0]
