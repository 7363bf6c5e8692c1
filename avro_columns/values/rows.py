"""Rows of Python values, mappings or instances of dataclasses, as columns of a schema, and back.

Values are sorted into columns field by field; Arrow makes the leaves' arrays. A value that does not
fit is told with its row and field. Of a union's columns a row has the value that is set, and such a
value becomes a column of a member that keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from avro_columns.errors import ValueMismatchError
from avro_columns.values import resolved_tree as tree
from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.union_matching import (
    Member,
    as_arrow,
    as_mapping,
    fits,
    leaf_row,
    member_of,
    misfit,
    shown,
    takes,
    unknown_keys,
)

_ABSENT: Final = object()


def columns_of(rows: Iterable[Any], schema: tree.AnySchema) -> pa.Array:
    """A value of the schema's Arrow type for each of ``rows``.

    Records are mappings, whose keys may be left out where the schema has a default or null, or
    instances of dataclasses. The member of a union that a value is of is that of ``member_of``.
    Raises ValueMismatchError that names the row and the field, also for a datetime without a zone
    where the schema has a moment.
    """
    values = list(rows)
    return _column(values, np.arange(len(values)), tree.parse(schema))


def default_array(field: tree.Field, place: str) -> pa.Array:
    """One row of a field's default. Raises ValueMismatchError if it is no value of its type."""
    try:
        return _column([_of_json(field.node, field.default)], np.zeros(1, np.int64), field.node)
    except ValueMismatchError as error:
        raise ValueMismatchError(
            f"The default {shown(field.default)} of {tree.named(place)} is no value of its "
            f"type: {error.message}"
        ) from error


def _column(values: list[Any], rows: Any, node: tree.Node) -> pa.Array:
    """The array of ``values``, which stand in ``rows``."""
    if not tree.is_nullable(node):
        missing = next((i for i, value in enumerate(values) if value is None), None)
        if missing is not None:
            raise _misfit(node, rows[missing], None)
    if isinstance(node, tree.Union):
        return _union(values, rows, node)
    if isinstance(node, tree.Record):
        return _record(values, rows, node)
    if isinstance(node, tree.Array):
        return _array(values, rows, node)
    return _map(values, rows, node) if isinstance(node, tree.Map) else _leaf(values, rows, node)


def _present(values: list[Any], rows: Any) -> tuple[list[Any], Any, pa.Array | None]:
    """The values that are not null, their rows, and which are null, if any."""
    nulls = np.fromiter((value is None for value in values), bool, len(values))
    if not nulls.any():
        return values, rows, None
    return [value for value in values if value is not None], rows[~nulls], pa.array(nulls)


def _spread(array: pa.Array, nulls: pa.Array | None) -> pa.Array:
    if nulls is None:
        return array
    flags = np.asarray(nulls)
    return array.take(pa.array(np.cumsum(~flags) - 1, mask=flags))


# -- kinds --------------------------------------------------------------------------------


def _record(values: list[Any], rows: Any, node: tree.Record) -> pa.Array:
    values, names = (
        [_mapping(value, row, node) for value, row in zip(values, rows, strict=True)],
        {one.name for one in node.fields},
    )
    for value, row in zip(values, rows, strict=True):
        if not value.keys() <= names and (unknown := unknown_keys(node, value)):
            raise ValueMismatchError(
                f"Row {row}: {tree.named(node.place)} has {shown(min(unknown, key=str))}, which "
                f"the schema has not; its fields are {', '.join(sorted(names))}."
            )
    arrays = []
    for one in node.fields:
        column = [value.get(one.name, _ABSENT) for value in values]
        if any(value is _ABSENT for value in column):
            column = [
                _left_out(one, row) if value is _ABSENT else value
                for value, row in zip(column, rows, strict=True)
            ]
        arrays.append(_column(column, rows, one.node))
    arrow = arrow_type(node)
    if not arrays:
        return pa.Array.from_buffers(arrow, len(values), [None])
    return pa.StructArray.from_arrays(arrays, fields=list(arrow))


def _mapping(value: Any, row: int, node: tree.Record) -> Mapping[str, Any]:
    found = as_mapping(value)
    if found is None:
        raise _misfit(node, row, value)
    return found


def _left_out(field: tree.Field, row: int) -> Any:
    if field.default is not tree.NO_DEFAULT:
        return _of_json(field.node, field.default)
    if tree.is_nullable(field.node):
        return None
    raise ValueMismatchError(
        f"Row {row}: {field.node.place} is left out, and the schema has no default for it."
    )


def _array(values: list[Any], rows: Any, node: tree.Array) -> pa.Array:
    for value, row in zip(values, rows, strict=True):
        if not fits(node, value):
            raise _misfit(node, row, value)
    sizes = [len(value) for value in values]
    items = _column(
        [item for value in values for item in value], np.repeat(rows, sizes), node.items
    )
    return _of_sizes(arrow_type(node), sizes, items)


def _map(values: list[Any], rows: Any, node: tree.Map) -> pa.Array:
    for value, row in zip(values, rows, strict=True):
        if not fits(node, value):
            raise _misfit(node, row, value)
    sizes, arrow = [len(value) for value in values], arrow_type(node)
    keys = _leaf([key for value in values for key in value], np.repeat(rows, sizes),
                 tree.Primitive(f"{node.place}{{}}", "string"))  # fmt: skip
    items = _column(
        [item for value in values for item in value.values()], np.repeat(rows, sizes), node.values
    )
    entries = pa.StructArray.from_arrays([keys, items], fields=[arrow.key_field, arrow.item_field])
    return _of_sizes(arrow, sizes, entries)


def _of_sizes(arrow: pa.DataType, sizes: list[int], items: pa.Array) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(arrow, len(sizes), [None, pa.py_buffer(offsets)], children=[items])


def _union(values: list[Any], rows: Any, node: tree.Union) -> pa.Array:
    others = node.others
    if not others:
        return _leaf(values, rows, node.members[0])  # type: ignore[arg-type]
    if len(others) == 1:
        values = [
            member_of(node, value).value if value.__class__ is tuple else value for value in values
        ]
        present, kept, nulls = _present(values, rows)
        return _spread(_column(present, kept, others[0]), nulls)
    chosen = [_chosen(node, value, row) for value, row in zip(values, rows, strict=True)]
    numbers = np.array([-1 if one is None else one.number for one in chosen], np.int64)
    arrays = []
    for number, member in enumerate(others):
        held = numbers == number
        part = [one.value for one in chosen if one is not None and one.number == number]
        array = _column(part, rows[held], member)
        arrays.append(array.take(pa.array(np.cumsum(held) - 1, mask=~held)))
    return pa.StructArray.from_arrays(
        arrays, fields=list(arrow_type(node)), mask=pa.array(numbers < 0)
    )


def _chosen(node: tree.Union, value: Any, row: int) -> Member | None:
    if value is None:
        return None
    try:
        return member_of(node, value)
    except ValueMismatchError as error:
        raise _in_row(row, error) from error


def _leaf(values: list[Any], rows: Any, node: tree.Primitive | tree.Enum) -> pa.Array:
    arrow = arrow_type(node)
    try:
        samples = dict(zip(map(type, values), values, strict=True))
        checked: Iterable[Any] = samples.values() if _is_of_type(node) else values
        if _is_of_clock(node) and samples.keys() <= {datetime}:
            zones = dict(zip(map(_zone_of, values), values, strict=True))
            checked = [*samples.values(), *zones.values()]
        if all(fits(node, value) or value is None for value in checked):
            if _is_plain(node) and samples.keys() <= _PLAIN_TYPES:
                return pa.array(values, arrow)
            return pa.array([as_arrow(node, value) for value in values], arrow)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass
    for value, row in zip(values, rows, strict=True):
        try:
            if not fits(node, value):
                raise _misfit(node, row, value)
            pa.array([as_arrow(node, value)], arrow)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise _misfit(node, row, value) from error
    raise ValueMismatchError(f"The values of {tree.named(node.place)} are too many for one column.")


def _is_of_type(node: tree.Primitive | tree.Enum) -> bool:
    """Does a value fit if its type does?"""
    return not (isinstance(node, tree.Enum) or node.kind == "fixed" or _is_of_clock(node))


def _is_of_clock(node: tree.Primitive | tree.Enum) -> bool:
    """Does a datetime fit if others of its time zone do?"""
    return isinstance(node, tree.Primitive) and "timestamp" in (node.logical or "")


_zone_of: Final = attrgetter("tzinfo")


_PLAIN_TYPES: Final = frozenset(
    {type(None), bool, int, float, str, bytes, Decimal, date, datetime, time}
)


def _is_plain(node: tree.Primitive | tree.Enum) -> bool:
    """Does Arrow take values of ``_PLAIN_TYPES`` as they are?"""
    if isinstance(node, tree.Enum):
        return True
    return node.kind != "float" and not (node.logical or "").endswith("-millis")


# -- defaults -----------------------------------------------------------------------------


def _of_json(node: tree.Node, default: Any) -> Any:
    """The value that a default in a schema stands for."""
    if isinstance(node, tree.Union):
        if default is None and tree.is_nullable(node):
            return None
        for number, member in enumerate(node.others):
            if _json_fits(member, default):
                value = _of_json(member, default)
                return Member(number, value) if len(node.others) > 1 else value
        return default
    if isinstance(node, tree.Record) and isinstance(default, Mapping):
        return {
            one.name: _of_json(one.node, default[one.name])
            for one in node.fields
            if one.name in default
        }
    if isinstance(node, tree.Array) and isinstance(default, list):
        return [_of_json(node.items, item) for item in default]
    if isinstance(node, tree.Map) and isinstance(default, Mapping):
        return {key: _of_json(node.values, value) for key, value in default.items()}
    return _leaf_of_json(node, default) if isinstance(node, tree.Primitive) else default


def _leaf_of_json(node: tree.Primitive, default: Any) -> Any:
    if node.kind in ("bytes", "fixed") and isinstance(default, str):
        try:
            raw = default.encode("latin-1")  # each character is a byte
        except UnicodeEncodeError:
            return default
        if node.logical == "decimal":
            sign, digits, _ = Decimal(int.from_bytes(raw, "big", signed=True)).as_tuple()
            return Decimal((sign, digits, -node.scale))
        if node.logical == "duration":
            return tuple(int.from_bytes(raw[i : i + 4], "little") for i in (0, 4, 8))
        return raw
    return default


def _json_fits(node: tree.Node, default: Any) -> bool:
    """Does ``default``, with all its parts, stand for a value of ``node``?"""
    if isinstance(node, tree.Union):
        return any(_json_fits(member, default) for member in node.members)
    if isinstance(node, tree.Record):
        return isinstance(default, Mapping) and all(
            _json_fits(one.node, default[one.name])
            if one.name in default
            else one.default is not tree.NO_DEFAULT
            for one in node.fields
        )
    if isinstance(node, tree.Array):
        return isinstance(default, list) and all(_json_fits(node.items, item) for item in default)
    if isinstance(node, tree.Map):
        items = default.values() if isinstance(default, Mapping) else [_ABSENT]
        return all(_json_fits(node.values, item) for item in items)
    if tree.is_null(node):
        return default is None
    value = _leaf_of_json(node, default) if isinstance(node, tree.Primitive) else default
    return value is not None and takes(node, value)


# -- and back -----------------------------------------------------------------------------


def rows_of(column: pa.Array, schema: tree.AnySchema) -> list[Any]:
    """The values of a column of the schema's Arrow type, which ``columns_of`` takes: records and
    maps as dicts, of a union the value of the member that is set, None for null.

    A moment or a date that Python has no value for is the number that is stored.
    """
    return _rows(column, tree.parse(schema))


def _rows(column: pa.Array, node: tree.Node) -> list[Any]:
    if isinstance(node, tree.Union):
        return _set_members(column, node)
    if isinstance(node, tree.Record):
        names = [one.name for one in node.fields]
        parts = [
            _rows(part, one.node) for part, one in zip(column.flatten(), node.fields, strict=True)
        ]
        made: Iterable[Any] = (
            (dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True))
            if names
            else ({} for _ in range(len(column)))
        )
        return _where_valid(column, made)
    if isinstance(node, tree.Array):
        items = _rows(column.values, node.items)
        return _where_valid(column, (items[a:b] for a, b in pairwise(column.offsets.to_pylist())))
    if isinstance(node, tree.Map):
        pairs = list(zip(column.keys.to_pylist(), _rows(column.items, node.values), strict=True))
        bounds = pairwise(column.offsets.to_pylist())
        return _where_valid(column, (dict(pairs[a:b]) for a, b in bounds))
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        return [leaf_row(each, node) for each in column]
    if types.is_timestamp(column.type) and any(value != value for value in values):  # NaT
        return [leaf_row(each, node) for each in column]
    return values


def _where_valid(column: pa.Array, made: Iterable[Any]) -> list[Any]:
    if not column.null_count:
        return list(made)
    valid = column.is_valid().to_pylist()
    return [one if there else None for one, there in zip(made, valid, strict=True)]


def _set_members(column: pa.Array, node: tree.Union) -> list[Any]:
    others = node.others
    if not others:
        return [None] * len(column)
    if len(others) == 1:
        return _rows(column, others[0])
    members = [_rows(part, one) for part, one in zip(column.flatten(), others, strict=True)]
    return [
        next((value for value in row if value is not None), None)
        for row in zip(*members, strict=True)
    ]


# -- errors -------------------------------------------------------------------------------


def _misfit(node: tree.Node, row: int, value: Any) -> ValueMismatchError:
    return _in_row(row, misfit(node, value))


def _in_row(row: int, error: ValueMismatchError) -> ValueMismatchError:
    return ValueMismatchError(f"Row {row}: {error.message}")
