"""The columns of payloads of layout 1, and what is selected of them.

They follow from the type of the values, which is that of the schema whose id the header holds, and
from the attributes; a payload does not name them. A value that is a struct is taken apart: each of
its fields is a column.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from spark_logbus.errors import InvalidRequestError
from spark_logbus.record import compute as pc
from spark_logbus.record import format as fmt
from spark_logbus.record.chunks import record_columns
from spark_logbus.record.rows.columns import HEADERS, TIMESTAMP

#: Of the columns that are not the value's.
RECORD_TYPES: Final = {
    "timestamp": TIMESTAMP,
    "key": pa.binary(),
    "headers": HEADERS,
    "offset_delta": pa.int32(),
    "tombstone": pa.bool_(),
}
_RECORD_BITS: Final = fmt.HAS_KEY | fmt.HAS_HEADERS | fmt.HAS_OFFSET_DELTA | fmt.HAS_TOMBSTONES


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """Columns and fields that are wanted of each record."""

    columns: frozenset[str]
    """Of ``timestamp``, ``key`` and ``headers``."""

    fields: tuple[int, ...] | None
    """Places of fields of the value, rising; None: all."""


ALL: Final = ColumnSelection(frozenset({"timestamp", "key", "headers"}), None)


@dataclass(frozen=True, slots=True)
class PayloadColumn:
    """A column of payloads, and what of an Arrow message is its."""

    field: Any
    nodes: range
    buffers: range


@dataclass(frozen=True)
class ColumnLayout:
    """All columns of payloads of one type of values with the same attributes."""

    schema: Any
    columns: tuple[PayloadColumn, ...]
    own: int
    """So many of them are not the value's."""

    schema_message_size: int

    @property
    def room(self) -> int:
        """Bytes before the Arrow message."""
        return fmt.CHUNKS_AT + len(self.columns) * fmt.CHUNK.size

    @cached_property
    def first_nodes(self) -> npt.NDArray[np.intp]:
        """Number of each column's own node."""
        return np.array([column.nodes.start for column in self.columns], np.intp)

    @cached_property
    def chunk_of_buffers(self) -> npt.NDArray[np.intp]:
        """Number of the column of each buffer."""
        repeats = [len(column.buffers) for column in self.columns]
        return np.repeat(np.arange(len(repeats)), repeats)


def column_layout(value_type: pa.DataType, attributes: int) -> ColumnLayout:
    """The columns of a record batch with those attributes. Raises InvalidRequestError when there
    are too many."""
    return _layout(value_type, attributes & _RECORD_BITS)


@lru_cache(maxsize=256)
def _layout(value_type: Any, record_bits: int) -> ColumnLayout:
    own = [pa.field(name, RECORD_TYPES[name]) for name in record_columns(record_bits)]
    schema = pa.schema([*own, *fields_of(value_type)])
    counts = [(_nodes(field.type), _buffers(field.type)) for field in schema]
    nodes = tuple(accumulate((count for count, _ in counts), initial=0))
    buffers = tuple(accumulate((count for _, count in counts), initial=0))
    columns = tuple(
        PayloadColumn(
            field,
            range(nodes[number], nodes[number + 1]),
            range(buffers[number], buffers[number + 1]),
        )
        for number, field in enumerate(schema)
    )
    if len(columns) > fmt.MAX_CHUNKS:
        raise InvalidRequestError(
            f"A record batch of columns has at most {fmt.MAX_CHUNKS} of them, got {len(columns)}."
        )
    return ColumnLayout(schema, columns, len(own), len(schema.serialize()))


def fields_of(value_type: pa.DataType) -> list[pa.Field]:
    """The columns of values of that type."""
    if types.is_struct(value_type):
        return list(value_type)
    return [pa.field("value", value_type)]


def _children(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(number).type for number in range(kind.num_fields)]


def _nodes(kind: pa.DataType) -> int:
    return 1 + sum(map(_nodes, _children(kind)))


def _buffers(kind: pa.DataType) -> int:
    if types.is_null(kind):
        own = 0
    elif types.is_struct(kind):
        own = 1
    else:
        own = 3 if types.is_binary(kind) or types.is_string(kind) else 2
    return own + sum(map(_buffers, _children(kind)))


def struct_of(
    values: list[pa.Array], fields: list[pa.Field], count: int, tombstones: pa.Array | None
) -> pa.Array:
    """A struct of so many rows of the ``values`` of its fields, null for ``tombstones``."""
    if values:
        return pa.StructArray.from_arrays(values, fields=fields, mask=tombstones)
    whole = pa.Array.from_buffers(pa.struct([]), count, [None])
    if tombstones is None:
        return whole
    return pc.if_else(tombstones, pa.nulls(count, whole.type), whole)
