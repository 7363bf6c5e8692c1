"""Nulls where a type does not allow them.

Arrow does not look for them, and who reads the values does not either: code that Spark generates
asks a field for a null only if its type says that it may be one, at every depth. So what says
"never null" is held to that, when it is written and when it is read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import types

from spark_logbus.record import compute as pc


def refuse_nulls(field: pa.Field, array: pa.Array, excused: pa.Array | None = None) -> None:
    """Raises ValueError if a value of ``array``, or one inside of it, is null and ``field`` does
    not allow that. Where ``excused`` is true there is no value, so nothing has to be there.
    """
    if _cannot_be_null(field) and _may_have_one(field, array):
        _refuse(field, array, excused, field.name)


@lru_cache(maxsize=1 << 12)
def _cannot_be_null(field: Any) -> bool:
    """True if the field, or one inside of it, says so."""
    return not field.nullable or any(map(_cannot_be_null, _inner_fields(field.type)))


def _inner_fields(kind: pa.DataType) -> list[pa.Field]:
    if types.is_map(kind):
        return [kind.item_field]  # Arrow itself looks at keys
    return [kind.field(number) for number in range(kind.num_fields)]


def _inner_arrays(array: pa.Array) -> list[pa.Array]:
    """Children of an array as they are stored, with what lies under nulls."""
    if types.is_struct(array.type):
        return [array.field(number) for number in range(array.type.num_fields)]
    if types.is_map(array.type):
        return [array.items]
    return [array.values] if array.type.num_fields else []


def _may_have_one(field: pa.Field, array: pa.Array) -> bool:
    """False in most arrays, at a glance."""
    if not field.nullable and array.null_count:
        return True
    return any(
        _cannot_be_null(inner) and _may_have_one(inner, stored)
        for inner, stored in zip(_inner_fields(array.type), _inner_arrays(array), strict=True)
    )


def _refuse(field: pa.Field, array: pa.Array, excused: pa.Array | None, place: str) -> None:
    nulls = array.is_null()
    if not field.nullable and array.null_count:
        wrong = nulls if excused is None else pc.and_not(nulls, excused)
        if pc.any(wrong).as_py():
            raise ValueError(f"the field {place} is null, which its schema does not allow")
    if types.is_struct(array.type):
        excused = nulls if excused is None else pc.or_(nulls, excused)
        inside = array.flatten()
    else:
        excused, inside = None, _items(array)
    for inner, values in zip(_inner_fields(array.type), inside, strict=True):
        _refuse(inner, values, excused, f"{place}.{inner.name}")


def _items(array: pa.Array) -> list[pa.Array]:
    """Items of lists and maps, of those that are not null."""
    if not types.is_map(array.type):
        return [array.flatten()] if array.type.num_fields else []
    lists = pa.Array.from_buffers(
        pa.list_(array.type.item_field),
        len(array),
        array.buffers()[:2],
        offset=array.offset,
        children=[array.items],
    )
    return [lists.flatten()]
