"""Confluent's wire format: a byte 0 and the schema's id before each datum.

::

    0       1                               5
    +-------+-------------------------------+--------
    |   0   |  schema id, the highest byte  |  datum
    |       |  first, 4 bytes               |
    +-------+-------------------------------+--------

Records with different ids have different schemas, so a caller decodes them in groups: the decoder
is told to begin after ``PREFIX_BYTES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from avro_columns.decode.cursors import Longs, Undecodable
from avro_columns.decode.decoder import binary_buffers
from avro_columns.errors import ValueMismatchError

MAGIC: Final = 0
PREFIX_BYTES: Final = 5

#: The id of a value that has none.
NO_ID: Final = -1

_SHORT: Final = "the value has {size} bytes, fewer than the {expected} of a magic byte and an id"
_OTHER: Final = "the first byte is {byte}, not the magic byte 0 before a schema's id"


@dataclass(frozen=True, slots=True)
class SchemaIds:
    """The schema's id of each value, ``NO_ID`` for null and for what is not of this format."""

    ids: Longs
    undecodable: list[Undecodable]

    def groups(self) -> dict[int, Longs]:
        """The rows of each id, in order."""
        order = np.argsort(self.ids, kind="stable")
        found, starts = np.unique(self.ids[order], return_index=True)
        parts = np.split(order, starts)[1:]
        return {
            schema_id: rows
            for schema_id, rows in zip(found.tolist(), parts, strict=True)
            if schema_id != NO_ID
        }


def confluent_ids(values: pa.Array) -> SchemaIds:
    """The ids before the datums of a binary column. Raises ValueMismatchError for another type."""
    data, offsets = binary_buffers(values)
    sizes = np.diff(offsets)
    ids = np.full(len(values), NO_ID, np.int64)
    valid = np.asarray(values.is_valid())
    long_enough = valid & (sizes >= PREFIX_BYTES)
    at = offsets[:-1][long_enough]
    numbers = np.zeros(len(at), np.int64)
    for place in range(1, PREFIX_BYTES):
        numbers = numbers << 8 | data[at + place]
    magic = data[at] == MAGIC
    rows = np.flatnonzero(long_enough)
    ids[rows[magic]] = numbers[magic]
    return SchemaIds(ids, _undecodable(data, offsets, np.flatnonzero(valid & (ids == NO_ID))))


def _undecodable(data: Any, offsets: Longs, rows: Any) -> list[Undecodable]:
    told = []
    for row in rows.tolist():
        start, end = int(offsets[row]), int(offsets[row + 1])
        if end - start < PREFIX_BYTES:
            reason = _SHORT.format(size=end - start, expected=PREFIX_BYTES)
        else:
            reason = _OTHER.format(byte=int(data[start]))
        told.append(Undecodable(row, reason))
    return told


def with_confluent_id(datums: pa.Array, schema_id: int) -> pa.Array:
    """``datums`` with the id of their schema before each of them; null stays null."""
    if not 0 <= schema_id < 1 << 31:
        raise ValueMismatchError(
            f"The schema id {schema_id} does not fit the format; expected 0 to {(1 << 31) - 1}."
        )
    prefix = pa.scalar(bytes([MAGIC]) + schema_id.to_bytes(4, "big"))
    return pc.binary_join_element_wise(prefix, datums, b"")
