"""Datums of one schema, a binary column of them, decoded by column into an Arrow array.

The column is cut into chunks that fit a processor's cache. A value that does not decode makes its
row null and is told, with the reason: the caller decides whether it fails, drops the row or keeps
the bytes. Whatever bytes there are, nothing else is raised, and what is allocated is bounded by the
bytes, the width of the schema and ``max_decoded_bytes``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from avro_columns.decode.cursors import Chunk, Cursors, Flags, Longs, Undecodable
from avro_columns.decode.nested_readers import RecordReader, reader_of, zeros_of
from avro_columns.errors import (
    BatchTooLargeError,
    UndecodableDatumError,
    ValueMismatchError,
)
from avro_columns.values import resolved_tree as tree
from avro_columns.values.arrow_types import row_bytes

__all__ = ["MAX_DECODED_BYTES", "Decoded", "Decoder", "Undecodable"]

#: Bytes of columns that a call makes, beside texts and bytes, which are those of the datums.
MAX_DECODED_BYTES: Final = 1 << 30

_CHUNK_ROWS: Final = 1 << 14
_CHUNK_BYTES: Final = 1 << 21
_MAX_CHUNK_BYTES: Final = (1 << 31) - 1  # what offsets of 32 bits reach
_TRAILING: Final = "{value} bytes follow the value"
_SHORT: Final = "the value has {value} bytes too few before the datum"


@dataclass(frozen=True, slots=True)
class Decoded:
    """A value for each row, and the rows whose values are none, in order."""

    values: pa.Array
    undecodable: list[Undecodable]

    def checked(self) -> pa.Array:
        """The values. Raises UndecodableDatumError if any is undecodable."""
        if self.undecodable:
            first = self.undecodable[0]
            raise UndecodableDatumError(
                f"{len(self.undecodable)} of {len(self.values)} records do not decode; the first "
                f"is row {first.row}: {first.reason}."
            )
        return self.values


class Decoder:
    """Decodes datums of one schema. Thread-safe."""

    def __init__(self, schema: tree.AnySchema, *, fields: Collection[str] | None = None) -> None:
        """Makes columns of a record's ``fields`` only, in the schema's order; None: of all. Others
        are skipped: damage in them is found only where it hides the end of the value.

        Raises UnsupportedTypeError, and ValueMismatchError for a name that is no field.
        """
        node = tree.parse(schema)
        self._reader = (
            reader_of(node)
            if fields is None
            else RecordReader(tree.record_of(node), frozenset(fields))
        )
        self.arrow_type = self._reader.arrow
        self._zeros = zeros_of(self._reader)
        self._row_bytes = row_bytes(self.arrow_type)

    def decode(
        self,
        values: pa.Array | pa.ChunkedArray,
        *,
        start: int = 0,
        max_decoded_bytes: int = MAX_DECODED_BYTES,
    ) -> Decoded:
        """A value of ``arrow_type`` for each of ``values``, a binary column; null for null.

        The datums begin after ``start`` bytes of each value. Raises ValueMismatchError for a
        column that is not binary, and BatchTooLargeError when as many rows would take more
        than ``max_decoded_bytes`` whatever is in them. A row whose items would is undecodable.
        """
        bytes_left = max_decoded_bytes - len(values) * self._row_bytes
        if bytes_left < 0:
            raise BatchTooLargeError(
                f"{len(values)} records would take {len(values) * self._row_bytes} bytes or more "
                f"as columns, the limit is {max_decoded_bytes}; decode fewer at a time."
            )
        arrays, undecodable = [], []
        first_row = 0
        for part in _chunks(values):
            chunk, array = self._decode(part, start, bytes_left)
            bytes_left = chunk.bytes_left
            arrays.append(array)
            if chunk.faults:
                undecodable += chunk.faults.told(first_row)
            first_row += len(part.offsets) - 1
        return Decoded(_joined(arrays, self.arrow_type), undecodable)

    def _decode(self, part: _Part, start: int, bytes_left: int) -> tuple[Chunk, pa.Array]:
        rows = len(part.offsets) - 1
        base = int(part.offsets[0])
        data = part.data[base : int(part.offsets[-1])]
        chunk = Chunk(data, rows=rows, zeros=self._zeros, max_bytes=bytes_left)
        offsets = part.offsets - base
        which = np.arange(rows) if part.valid is None else np.flatnonzero(part.valid)
        cursors = Cursors(chunk, offsets[:-1][which], offsets[1:][which], which)
        if start:
            short = np.flatnonzero(cursors.end - cursors.at < start)
            cursors.at = cursors.at + start
            cursors.fail(short, "", _SHORT, (cursors.at - cursors.end)[short])
        array = self._reader.read(cursors)
        behind = cursors.end - cursors.at
        if behind.any():
            trailing = np.flatnonzero((behind != 0) & ~cursors.parked())
            cursors.fail(trailing, "", _TRAILING, behind[trailing])
        return chunk, _with_nulls(array, part, chunk)


def _with_nulls(array: pa.Array, part: _Part, chunk: Chunk) -> pa.Array:
    """``array`` with nulls where there is no value or none that decodes."""
    if part.valid is None and not chunk.faults:
        return array
    valid = np.ones(len(part.offsets) - 1, bool) if part.valid is None else part.valid.copy()
    places = np.cumsum(valid) - 1
    valid[chunk.faults.rows()] = False
    return array.take(pa.array(places, mask=~valid))


def _joined(arrays: list[pa.Array], arrow: pa.DataType) -> pa.Array:
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, arrow)


# -- chunks -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a binary column: ``offsets`` into ``data``, one more than rows."""

    data: Any  # bytes, as numpy's
    offsets: Longs
    valid: Flags | None


def _chunks(values: pa.Array | pa.ChunkedArray) -> Iterator[_Part]:
    """``values`` in parts that fit a cache, of one row at least."""
    for array in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        data, offsets = binary_buffers(array)
        valid = np.asarray(array.is_valid()) if array.null_count else None
        row = 0
        while row < len(array):
            end = np.searchsorted(offsets, offsets[row] + _CHUNK_BYTES, side="right")
            end = max(row + 1, min(row + _CHUNK_ROWS, int(end) - 1))
            if offsets[end] - offsets[row] > _MAX_CHUNK_BYTES:
                raise BatchTooLargeError(
                    f"A value of {offsets[end] - offsets[row]} bytes does not fit a column, "
                    f"which takes {_MAX_CHUNK_BYTES}."
                )
            part_valid = None if valid is None else valid[row:end]
            yield _Part(data, offsets[row : end + 1], part_valid)
            row = end


def binary_buffers(array: pa.Array) -> tuple[Any, Longs]:
    """The bytes of a binary column as numpy's, and its offsets, one more than rows.

    Raises ValueMismatchError for another type.
    """
    if types.is_binary(array.type):
        dtype: Any = np.int32
    elif types.is_large_binary(array.type):
        dtype = np.int64
    else:
        raise ValueMismatchError(
            f"Expected a column of datums, of type binary; got {array.type}. Cast it first."
        )
    _, offsets, data = array.buffers()
    taken = np.frombuffer(offsets, dtype)[array.offset :][: len(array) + 1] if offsets else [0]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return raw, np.asarray(taken, np.int64)
