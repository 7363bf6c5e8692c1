"""Columns of one schema, encoded by column into a binary column of datums.

Datums are as the specification's shortest: each array and map is one block.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from avro_columns.decode.cursors import Bytes, Longs
from avro_columns.decode.decoder import binary_buffers
from avro_columns.encode.byte_builder import ByteBuilder, Rows
from avro_columns.values import resolved_tree as tree
from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.coerce import as_lists, coerce

_CHUNK_ROWS: Final = 1 << 14
_KEY: Final = tree.Field("key", tree.Primitive("", "string"))


class Encoder:
    """Encodes columns of one schema. Thread-safe."""

    def __init__(self, schema: tree.AnySchema) -> None:
        """Raises UnsupportedTypeError."""
        self._node = tree.parse(schema)
        self.arrow_type = arrow_type(self._node)

    def encode(self, columns: Any) -> pa.Array:
        """A datum for each row of ``columns``, which are what ``coerce`` takes.

        Raises ValueMismatchError for what the schema does not take, BatchTooLargeError for
        more than a column holds.
        """
        array = coerce(columns, self._node)
        parts = []
        for row in range(0, len(array), _CHUNK_ROWS):
            part = array.slice(row, _CHUNK_ROWS)
            pieces = ByteBuilder(len(part))
            _write(part, self._node, None, pieces)
            parts.append(pieces.joined())
        if len(parts) == 1:
            return parts[0]
        return pa.concat_arrays(parts) if parts else pa.nulls(0, pa.binary())


def _write(array: pa.Array, node: tree.Node, rows: Rows, out: ByteBuilder) -> None:
    """Adds the values of ``array``, which are those of ``rows``."""
    if isinstance(node, tree.Union):
        _write_union(array, node, rows, out)
    elif isinstance(node, tree.Record):
        for one in node.fields:
            _write(array.field(one.name), one.node, rows, out)
    elif isinstance(node, tree.Array):
        _write_items(array, node.items, rows, out)
    elif isinstance(node, tree.Map):
        entry = tree.Record("", "", (_KEY, tree.Field("value", node.values)))
        _write_items(as_lists(array), entry, rows, out)
    elif isinstance(node, tree.Enum):
        _write_enum(array, node, rows, out)
    else:
        _write_leaf(array, node, rows, out)


def _chosen(rows: Rows, which: Any) -> Rows:
    chosen: Rows = which if rows is None else rows[which]
    return chosen


# -- unions -------------------------------------------------------------------------------


def _write_union(array: pa.Array, node: tree.Union, rows: Rows, out: ByteBuilder) -> None:
    others, null = node.others, node.null_index
    if not others:
        _write_indices(np.zeros(len(array), np.int64), rows, out)
    elif len(others) == 1:
        index = node.members.index(others[0])
        if not array.null_count:
            _write_indices(np.full(len(array), index), rows, out)
            _write(array, others[0], rows, out)
            return
        valid = np.asarray(array.is_valid())
        _write_indices(np.where(valid, index, -1 if null is None else null), rows, out)
        which = _chosen(rows, np.flatnonzero(valid))
        _write(array.drop_null(), others[0], which, out)
    else:
        _write_members(array, node, rows, out)


def _write_members(array: pa.Array, node: tree.Union, rows: Rows, out: ByteBuilder) -> None:
    others = node.others
    held = [np.asarray(array.field(i).is_valid()) for i in range(len(others))]
    if array.null_count:
        valid = np.asarray(array.is_valid())
        held = [flags & valid for flags in held]
    indices = np.full(len(array), -1 if node.null_index is None else node.null_index)
    for flags, member in zip(held, others, strict=True):
        indices[flags] = node.members.index(member)
    _write_indices(indices, rows, out)
    for number, (flags, member) in enumerate(zip(held, others, strict=True)):
        if flags.any():
            values = array.field(number)
            if not flags.all():
                values = values.filter(pa.array(flags))
            _write(values, member, _chosen(rows, np.flatnonzero(flags)), out)


def _write_indices(indices: Longs, rows: Rows, out: ByteBuilder) -> None:
    if indices.size and indices.max() >= 64:
        out.varints(indices, rows)
    else:
        out.fixed((indices << 1).astype(np.uint8)[:, None], rows)


# -- arrays and maps ----------------------------------------------------------------------


def _write_items(lists: pa.Array, items: tree.Node, rows: Rows, out: ByteBuilder) -> None:
    values = lists.flatten()
    pieces = ByteBuilder(len(values))
    _write(values, items, None, pieces)
    datums = pieces.joined()
    counts = np.asarray(pc.list_value_length(lists)).astype(np.int64)
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    filled = np.flatnonzero(counts)
    out.varints(counts[filled], _chosen(rows, filled))
    out.binary(datums.buffers()[2], binary_buffers(datums)[1][bounds], rows)
    out.constant(0, rows)


# -- leaves -------------------------------------------------------------------------------


def _write_enum(array: pa.Array, node: tree.Enum, rows: Rows, out: ByteBuilder) -> None:
    indices = pc.index_in(array, pa.array(node.symbols, pa.string()))
    out.varints(np.asarray(indices).astype(np.int64), rows)


def _write_leaf(array: pa.Array, node: tree.Primitive, rows: Rows, out: ByteBuilder) -> None:
    kind = node.kind
    if kind == "null":
        return
    if kind in ("int", "long"):
        out.varints(_numbers(array, node), rows)
    elif kind == "boolean":
        out.fixed(np.asarray(array.cast(pa.uint8()))[:, None], rows)
    elif kind in ("float", "double"):
        values = np.ascontiguousarray(array)
        out.fixed(values.view(np.uint8).reshape(len(values), values.itemsize), rows)
    elif node.logical == "decimal":
        _write_decimals(array, node, rows, out)
    elif node.logical == "duration":
        out.fixed(_durations(array), rows)
    elif kind == "fixed":
        out.fixed(_matrix(array, node.size), rows)
    else:
        raw = array.cast(pa.binary())
        _, offsets = binary_buffers(raw)
        out.varints(np.diff(offsets), rows)
        out.binary(raw.buffers()[2], offsets, rows)


def _numbers(array: pa.Array, node: tree.Primitive) -> Longs:
    width = pa.int32() if array.type.bit_width == 32 else pa.int64()
    numbers = np.asarray(array.view(width)).astype(np.int64)
    return numbers // 1000 if (node.logical or "").endswith("-millis") else numbers


def _matrix(array: pa.Array, width: int) -> Bytes:
    """The values of a column of fixed width, a row of bytes each."""
    if not width or not len(array):
        return np.zeros((len(array), width), np.uint8)
    raw = np.frombuffer(array.buffers()[1], np.uint8)
    return raw[array.offset * width :][: len(array) * width].reshape(len(array), width)


def _durations(array: pa.Array) -> Bytes:
    parts = np.stack([np.asarray(array.field(i)) for i in range(3)], axis=1)
    return parts.astype(np.dtype("<u4")).view(np.uint8).reshape(len(parts), 12)


def _write_decimals(array: pa.Array, node: tree.Primitive, rows: Rows, out: ByteBuilder) -> None:
    """Two's complement, the highest byte first; the schema's precision fits its fixed."""
    values = np.ascontiguousarray(_matrix(array, 16)[:, ::-1])
    signs = np.where(values[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    rest = values != signs
    sizes = np.where(rest.any(axis=1), 16 - rest.argmax(axis=1), 0)
    tops = np.take_along_axis(values, np.minimum(16 - sizes, 15)[:, None], axis=1)
    sizes += ((tops >= 0x80) != (signs == 0xFF))[:, 0]
    sizes = np.maximum(sizes, 1)
    if node.kind == "bytes":
        places = np.minimum((16 - sizes)[:, None] + np.arange(16), 15)
        out.varints(sizes, rows)
        out.ragged(np.take_along_axis(values, places, axis=1), sizes, rows)
        return
    padding = np.repeat(signs, max(node.size - 16, 0), axis=1)
    out.fixed(np.concatenate([padding, values[:, max(16 - node.size, 0) :]], axis=1), rows)
