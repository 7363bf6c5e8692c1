"""Columns as a user has them, made to be exactly those of a schema.

Types that say the same are cast: narrower integers, large and dictionary-encoded texts, other units
and zones of timestamps. A cast that loses something is refused, and so is one that reads a meaning
into a value: text as a number, a time without a zone as an instant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from avro_columns.errors import ValueMismatchError
from avro_columns.values import resolved_tree as tree
from avro_columns.values.arrow_types import DURATION, arrow_type
from avro_columns.values.rows import default_array
from avro_columns.values.union_matching import shown

_Is = Callable[[pa.DataType], bool]
#: Of a place in an array, the row of the whole in which it stands; asked for errors only.
_RowOf = Callable[[int], int]


def _any(*tests: _Is) -> _Is:
    return lambda arrow: any(test(arrow) for test in tests)


_TEXTS: Final = _any(types.is_string, types.is_large_string, types.is_string_view)
_BINARIES: Final = _any(
    types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary
)
_LISTS: Final = _any(
    types.is_list,
    types.is_large_list,
    types.is_fixed_size_list,
    types.is_list_view,
    types.is_large_list_view,
)

#: What may become what: the kind of the target and those of sources.
_CASTS: Final[tuple[tuple[_Is, _Is], ...]] = (
    (types.is_boolean, types.is_boolean),
    (types.is_integer, types.is_integer),
    (types.is_floating, _any(types.is_floating, types.is_integer)),
    (types.is_string, _TEXTS),
    (_any(types.is_binary, types.is_fixed_size_binary), _any(_BINARIES, _TEXTS)),
    (types.is_decimal, types.is_decimal),
    (types.is_date, types.is_date),
    (types.is_time, types.is_time),
    (types.is_timestamp, types.is_timestamp),
)


def coerce(columns: Any, schema: tree.AnySchema, *, nullable: bool | None = None) -> pa.Array:
    """``columns`` as one array of the schema's Arrow type.

    Takes an array, a table, an arrow batch, or a DataFrame of pandas. Columns are matched by name;
    one that is not there becomes the field's default, or null. ``nullable`` lets rows be null, or
    does not, whatever the schema says. Raises ValueMismatchError that names the column and its
    type, or the row.
    """
    return _conform(_one_array(columns), tree.parse(schema), "", _same, nullable=nullable)


def _one_array(columns: Any) -> pa.Array:
    if hasattr(columns, "iloc"):  # a DataFrame of pandas, which is not imported for this
        columns = pa.Table.from_pandas(columns, preserve_index=False)
    if isinstance(columns, pa.RecordBatch):
        return columns.to_struct_array()
    if isinstance(columns, pa.Table):
        columns = columns.to_struct_array()
    if isinstance(columns, pa.ChunkedArray):
        chunks = columns.chunks
        return pa.concat_arrays(chunks) if chunks else pa.nulls(0, columns.type)
    if not isinstance(columns, pa.Array):
        raise ValueMismatchError(
            f"Expected an Arrow array, table or batch, or a DataFrame of pandas; got a "
            f"{type(columns).__name__}."
        )
    return columns


def _same(at: int) -> int:
    return at


def _conform(
    array: pa.Array,
    node: tree.Node,
    place: str,
    row_of: _RowOf,
    *,
    nullable: bool | None = None,
) -> pa.Array:
    """``nullable`` is that of ``node`` if it is not given."""
    nullable = tree.is_nullable(node) if nullable is None else nullable
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_null(array.type) and (nullable or not len(array)):
        return pa.nulls(len(array), arrow_type(node))
    if not array.null_count:
        return _present(array, node, place, row_of)
    flags = np.asarray(array.is_valid())
    if not nullable:
        raise ValueMismatchError(
            f"{_column(place)} has {array.null_count} nulls, and the schema allows none; "
            f"the first is in row {row_of(int(np.argmin(flags)))}."
        )
    present = _present(
        array.drop_null(), node, place, lambda at: row_of(int(np.flatnonzero(flags)[at]))
    )
    return present.take(pa.array(np.cumsum(flags) - 1, mask=~flags))


def _present(array: pa.Array, node: tree.Node, place: str, row_of: _RowOf) -> pa.Array:
    """An array without nulls of its own."""
    if isinstance(node, tree.Union):
        return _union(array, node, place, row_of)
    if isinstance(node, tree.Record):
        if not types.is_struct(array.type):
            raise _misfit(array, node, place)
        return _record(array, node, place, row_of)
    if isinstance(node, tree.Array):
        if not _LISTS(array.type):
            raise _misfit(array, node, place)
        return _items(array, node, place, row_of)
    if isinstance(node, tree.Map):
        return _entries(array, node, place, row_of)
    return _checked(_cast(array, node, place), node, place, row_of)


def _record(array: pa.Array, node: tree.Record, place: str, row_of: _RowOf) -> pa.Array:
    names = [one.name for one in array.type]
    unknown = sorted(set(names) - {one.name for one in node.fields})
    if unknown or len(set(names)) < len(names):
        odd = unknown[0] if unknown else next(name for name in names if names.count(name) > 1)
        problem = "is not in the schema" if unknown else "is there more than once"
        raise ValueMismatchError(
            f"The column {_below(place, odd)} {problem}; the schema's fields are "
            f"{', '.join(one.name for one in node.fields)}."
        )
    arrays = [
        _conform(array.field(one.name), one.node, _below(place, one.name), row_of)
        if one.name in names
        else absent(one, len(array), _below(place, one.name))
        for one in node.fields
    ]
    arrow = arrow_type(node)
    if not arrays:
        return pa.Array.from_buffers(arrow, len(array), [None])
    return pa.StructArray.from_arrays(arrays, fields=list(arrow))


def absent(field: tree.Field, count: int, place: str) -> pa.Array:
    """``count`` times the default of a field, or null. Raises ValueMismatchError without one."""
    if field.default is not tree.NO_DEFAULT:
        return default_array(field, place).take(pa.array(np.zeros(count, np.int64)))
    if tree.is_nullable(field.node):
        return pa.nulls(count, arrow_type(field.node))
    raise ValueMismatchError(
        f"The column {place} is missing, and the schema has no default for it."
    )


def _column(place: str) -> str:
    return f"The column {place}" if place else "The column"


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _items(array: pa.Array, node: tree.Array, place: str, row_of: _RowOf) -> pa.Array:
    sizes = np.asarray(pc.list_value_length(array))
    items = _conform(array.flatten(), node.items, f"{place}[]", _row_of_item(sizes, row_of))
    return of_sizes(arrow_type(node), sizes, items)


def _row_of_item(sizes: Any, row_of: _RowOf) -> _RowOf:
    return lambda at: row_of(int(np.searchsorted(np.cumsum(sizes), at, side="right")))


def _entries(array: pa.Array, node: tree.Map, place: str, row_of: _RowOf) -> pa.Array:
    if not types.is_map(array.type):
        raise _misfit(array, node, place)
    lists = as_lists(array)
    entries, arrow = lists.flatten(), arrow_type(node)
    keys = entries.field(0)
    if types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    if not _TEXTS(keys.type):
        raise _misfit(array, node, place)
    sizes = np.asarray(pc.list_value_length(lists))
    values = _conform(entries.field(1), node.values, f"{place}{{}}", _row_of_item(sizes, row_of))
    made = pa.StructArray.from_arrays(
        [keys.cast(pa.string()), values], fields=[arrow.key_field, arrow.item_field]
    )
    return of_sizes(arrow, sizes, made)


def as_lists(array: pa.Array) -> pa.Array:
    """Maps as lists of their entries."""
    # Not by a cast, which Arrow refuses for some types of values.
    arrow = array.type
    fields = [arrow.key_field, arrow.item_field]
    lists = pa.list_(pa.field("entries", pa.struct(fields), nullable=False))
    if not len(array):
        return pa.nulls(0, lists)
    entries = pa.StructArray.from_arrays([array.keys, array.items], fields=fields)
    return pa.Array.from_buffers(
        lists, len(array), array.buffers()[:2], offset=array.offset, children=[entries]
    )


def of_sizes(arrow: pa.DataType, sizes: Any, items: pa.Array) -> pa.Array:
    """Lists or maps of ``sizes`` items each."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(arrow, len(sizes), [None, pa.py_buffer(offsets)], children=[items])


# -- unions -------------------------------------------------------------------------------


def _union(array: pa.Array, node: tree.Union, place: str, row_of: _RowOf) -> pa.Array:
    others, arrow = node.others, arrow_type(node)
    if len(others) == 1:
        return _conform(array, others[0], place, row_of)
    if not others:
        raise _misfit(array, node, place)
    if _has_members(array.type, arrow):
        return _members(array, node, place, row_of)
    same = [i for i, member in enumerate(others) if arrow_type(member).equals(array.type)]
    for number in same or range(len(others)):
        try:
            values = _conform(array, others[number], place, row_of)
        except ValueMismatchError:
            continue
        return as_member(values, number, arrow)
    raise _misfit(array, node, place)


def _has_members(given: pa.DataType, arrow: pa.StructType) -> bool:
    """Is it a union's struct of its members?"""
    return types.is_struct(given) and [one.name for one in given] == [one.name for one in arrow]


def _members(array: pa.Array, node: tree.Union, place: str, row_of: _RowOf) -> pa.Array:
    members = [
        _conform(array.field(i), member, _below(place, f"member{i}"), row_of, nullable=True)
        for i, member in enumerate(node.others)
    ]
    counts = np.sum([np.asarray(member.is_valid()) for member in members], axis=0)
    wrong = (counts > 1) | (counts < (0 if tree.is_nullable(node) else 1))
    if wrong.any():
        at = int(np.argmax(wrong))
        found = [f"member{i}" for i, member in enumerate(members) if member[at].is_valid]
        raise ValueMismatchError(
            f"{_column(place)} has {' and '.join(found) or 'no member'} set in row {row_of(at)}; "
            f"of a union it is one of {', '.join(one.name for one in array.type)}"
            f"{', or none for null' if tree.is_nullable(node) else ''}."
        )
    mask = pa.array(counts == 0) if len(array) and not counts.min() else None
    return pa.StructArray.from_arrays(members, fields=list(arrow_type(node)), mask=mask)


def as_member(values: pa.Array, number: int, arrow: pa.StructType) -> pa.Array:
    """A union's values that are all its member ``number``."""
    members = [
        values if i == number else pa.nulls(len(values), one.type) for i, one in enumerate(arrow)
    ]
    return pa.StructArray.from_arrays(members, fields=list(arrow))


# -- leaves -------------------------------------------------------------------------------


def _cast(array: pa.Array, node: tree.Primitive | tree.Enum, place: str) -> pa.Array:
    arrow = arrow_type(node)
    if array.type.equals(arrow):
        return array
    if arrow.equals(DURATION) and types.is_struct(array.type):
        return _duration(array, node, place)
    allowed = any(target(arrow) and source(array.type) for target, source in _CASTS)
    if not allowed or not _same_clock(arrow, array.type):
        raise _misfit(array, node, place)
    try:
        made = array.cast(arrow)
        if types.is_floating(arrow) and not made.cast(array.type).equals(array):
            nan = pc.is_nan(array) if types.is_floating(array.type) else False
            kept = pc.or_(nan, pc.equal(made.cast(array.type), array))
            if not pc.all(kept).as_py():
                raise _misfit(array, node, place, "some of its numbers have more digits")
    except pa.ArrowException as error:
        raise _misfit(array, node, place, str(error)) from error
    return made


def _checked(
    array: pa.Array, node: tree.Primitive | tree.Enum, place: str, row_of: _RowOf
) -> pa.Array:
    """A column of the schema's type with values that a datum can hold."""
    if isinstance(node, tree.Enum):
        known = np.asarray(pc.is_in(array, pa.array(node.symbols, pa.string())))
        if not known.all():
            at = int(np.argmin(known))
            raise ValueMismatchError(
                f"{_column(place)} is {shown(array[at].as_py())} in row {row_of(at)}, which is "
                f"none of the symbols {', '.join(node.symbols)}."
            )
    elif node.logical == "duration":
        parts = np.stack([np.asarray(array.field(i)) for i in range(3)])
        fit = ((parts >= 0) & (parts < 1 << 32)).all(axis=0)
        if not fit.all():
            at = int(np.argmin(fit))
            raise ValueMismatchError(
                f"{_column(place)} is {array[at]} in row {row_of(at)}; the parts of a duration are "
                f"from 0 to {(1 << 32) - 1}."
            )
    elif (node.logical or "").endswith("-millis"):
        return _whole_millis(array)
    return array


def _whole_millis(array: pa.Array) -> pa.Array:
    """Times in microseconds with what a schema in milliseconds does not hold cut off."""
    numbers = np.asarray(array.view(pa.int64()))
    finer = numbers % 1000
    if not finer.any():
        return array
    return pa.Array.from_buffers(array.type, len(array), [None, pa.py_buffer(numbers - finer)])


def _same_clock(target: pa.DataType, source: pa.DataType) -> bool:
    """Are both instants, or both times of some clock on a wall?"""
    if types.is_timestamp(target) and types.is_timestamp(source):
        return (target.tz is None) == (source.tz is None)
    return True


def _duration(array: pa.Array, node: tree.Primitive | tree.Enum, place: str) -> pa.Array:
    if {one.name for one in array.type} != {one.name for one in DURATION}:
        raise _misfit(array, node, place)
    parts = []
    for one in DURATION:
        part = array.field(one.name)
        if part.null_count or not types.is_integer(part.type):
            raise _misfit(array, node, place)
        parts.append(part.cast(pa.int64()))
    return pa.StructArray.from_arrays(parts, fields=list(DURATION))


def _misfit(array: pa.Array, node: tree.Node, place: str, why: str = "") -> ValueMismatchError:
    reason = f" ({why.splitlines()[0].rstrip('.')})" if why else ""
    remedy = ""
    if types.is_timestamp(array.type) and "timestamp" in tree.described(node):
        remedy = (
            " Give it the zone that its times are of."
            if array.type.tz is None
            else " Take its zone away."
        )
    return ValueMismatchError(
        f"{_column(place)} is {array.type}, which does not become {tree.described(node)}"
        f"{reason}; cast it first.{remedy}"
    )
