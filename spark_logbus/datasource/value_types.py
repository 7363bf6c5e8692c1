"""Types of typed values: Spark's for those of Arrow that schemas have, and arrays made to be
exactly what Spark expects for them.

Spark names the items of lists differently, has one kind of binary and one unit of time; all else
is the same memory under another type.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyarrow import types
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from spark_logbus.record import compute as pc
from spark_logbus.record.columns.layout import struct_of
from spark_logbus.record.rows.plain import scalar

_NANOS: Final = scalar(1000, pa.int64())  # in a microsecond


def spark_type(arrow: pa.DataType) -> DataType:
    """The type of a column in Spark."""
    return from_arrow_type(arrow)


def retyped(array: pa.Array, target: pa.DataType) -> pa.Array:
    """``array`` as Spark's ``target`` for it, whose fields may be fewer and in another order; its
    buffers are not copied where they can stay."""
    source = array.type
    if types.is_struct(source):
        arrays = [retyped(array.field(field.name), field.type) for field in target]
        tombstones = array.is_null() if array.null_count else None
        return struct_of(arrays, list(target), len(array), tombstones)
    if types.is_list(source):
        return _of_items(array, target, retyped(array.values, target.value_type))
    if types.is_map(source):
        pairs = struct_of(
            [retyped(array.keys, target.key_type), retyped(array.items, target.item_type)],
            [target.key_field, target.item_field],
            len(array.keys),
            None,
        )
        return _of_items(array, target, pairs)
    if types.is_timestamp(source) and source.unit == "ns":
        array = _micros(array)
    return array if source == target else array.cast(target, safe=False)


def _micros(nanos: pa.Array) -> pa.Array:
    """Instants cut off to the microsecond before, not towards 1970 as a cast does."""
    numbers = nanos.view(pa.int64())
    towards_0 = pc.divide(numbers, _NANOS)
    after = pc.less(numbers, pc.multiply(towards_0, _NANOS))
    made = pc.subtract(towards_0, after.cast(pa.int64()))
    return made.view(pa.timestamp("us", nanos.type.tz))


def _of_items(array: pa.Array, target: pa.DataType, items: pa.Array) -> pa.Array:
    """Lists or maps with other items in the same places."""
    own = array.buffers()[:2]
    return pa.Array.from_buffers(target, len(array), own, array.null_count, array.offset, [items])
