"""Rows of Python values, mappings or instances of dataclasses, as columns of a schema.

Values are sorted into columns field by field; Arrow makes the leaves' arrays. A value that does not
fit is told with its row and field.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_logbus.errors import SchemaMismatchError
from spark_logbus.schemas.columns import inlined
from spark_logbus.schemas.columns.arrow_types import arrow_type

#: What is below it is rounded to no more than 32 bits hold.
LARGEST_FLOAT: Final = 3.4028235677973366e38
_SHOWN: Final = 60  # characters of a value in an error
_ABSENT: Final = object()
_DURATION: Final = ("months", "days", "millis")


def columns_of(rows: Iterable[Any], schema: inlined.AnySchema) -> pa.Array:
    """A value of the schema's Arrow type for each of ``rows``.

    Records are mappings, whose keys may be left out where the schema has a default or null, or
    instances of dataclasses. Members of a union are told apart by the types of values. A datetime
    without a zone is UTC. Raises SchemaMismatchError that names the row and the field.
    """
    values = list(rows)
    return _column(values, np.arange(len(values)), inlined.parse(schema))


def default_array(field: inlined.Field, place: str) -> pa.Array:
    """One row of a field's default. Raises SchemaMismatchError if it is no value of its type."""
    try:
        return _column([_of_json(field.node, field.default)], np.zeros(1, np.int64), field.node)
    except SchemaMismatchError as error:
        raise SchemaMismatchError(
            f"The default {_shown(field.default)} of {inlined.named(place)} is no value of its "
            f"type: {error.message}"
        ) from error


def _column(values: list[Any], rows: Any, node: inlined.Node) -> pa.Array:
    """The array of ``values``, which stand in ``rows``."""
    if not inlined.is_nullable(node):
        missing = next((i for i, value in enumerate(values) if value is None), None)
        if missing is not None:
            raise _misfit(node, rows[missing], None)
    if isinstance(node, inlined.Union):
        return _union(values, rows, node)
    if isinstance(node, inlined.Record):
        return _record(values, rows, node)
    if isinstance(node, inlined.Array):
        return _array(values, rows, node)
    return _map(values, rows, node) if isinstance(node, inlined.Map) else _leaf(values, rows, node)


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


def _record(values: list[Any], rows: Any, node: inlined.Record) -> pa.Array:
    values, names = (
        [_mapping(value, row, node) for value, row in zip(values, rows, strict=True)],
        {one.name for one in node.fields},
    )
    for value, row in zip(values, rows, strict=True):
        if not value.keys() <= names:
            raise SchemaMismatchError(
                f"Row {row}: {inlined.named(node.place)} has "
                f"{_shown(sorted(value.keys() - names)[0])}, which the schema has not; "
                f"its fields are {', '.join(sorted(names))}."
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


def _mapping(value: Any, row: int, node: inlined.Record) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    raise _misfit(node, row, value)


def _left_out(field: inlined.Field, row: int) -> Any:
    if field.default is not inlined.NO_DEFAULT:
        return _of_json(field.node, field.default)
    if inlined.is_nullable(field.node):
        return None
    raise SchemaMismatchError(
        f"Row {row}: {field.node.place} is left out, and the schema has no default for it."
    )


def _array(values: list[Any], rows: Any, node: inlined.Array) -> pa.Array:
    for value, row in zip(values, rows, strict=True):
        if not _fits(node, value):
            raise _misfit(node, row, value)
    sizes = [len(value) for value in values]
    items = _column(
        [item for value in values for item in value], np.repeat(rows, sizes), node.items
    )
    return _of_sizes(arrow_type(node), sizes, items)


def _map(values: list[Any], rows: Any, node: inlined.Map) -> pa.Array:
    for value, row in zip(values, rows, strict=True):
        if not _fits(node, value):
            raise _misfit(node, row, value)
    sizes, arrow = [len(value) for value in values], arrow_type(node)
    keys = _leaf([key for value in values for key in value], np.repeat(rows, sizes),
                 inlined.Primitive(f"{node.place}{{}}", "string"))  # fmt: skip
    items = _column(
        [item for value in values for item in value.values()], np.repeat(rows, sizes), node.values
    )
    entries = pa.StructArray.from_arrays([keys, items], fields=[arrow.key_field, arrow.item_field])
    return _of_sizes(arrow, sizes, entries)


def _of_sizes(arrow: pa.DataType, sizes: list[int], items: pa.Array) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(arrow, len(sizes), [None, pa.py_buffer(offsets)], children=[items])


def _union(values: list[Any], rows: Any, node: inlined.Union) -> pa.Array:
    others = node.others
    if not others:
        return _leaf(values, rows, node.members[0])  # type: ignore[arg-type]
    if len(others) == 1:
        present, kept, nulls = _present(values, rows)
        return _spread(_column(present, kept, others[0]), nulls)
    chosen = np.array([_member(others, value, row, node)
                       for value, row in zip(values, rows, strict=True)], np.int64)  # fmt: skip
    arrays = []
    for number, member in enumerate(others):
        held = chosen == number
        part = [value for value, own in zip(values, held, strict=True) if own]
        array = _column(part, rows[held], member)
        arrays.append(array.take(pa.array(np.cumsum(held) - 1, mask=~held)))
    return pa.StructArray.from_arrays(
        arrays, fields=list(arrow_type(node)), mask=pa.array(chosen < 0)
    )


def _member(others: Sequence[inlined.Node], value: Any, row: int, node: inlined.Union) -> int:
    if value is None:
        return -1
    fitting = [number for number, member in enumerate(others) if _fits(member, value)]
    if not fitting:
        raise _misfit(node, row, value)
    if len(fitting) > 1:
        whole = (number for number in fitting if _fits_whole(others[number], value))
        return next(whole, fitting[0])
    return fitting[0]


def _fits_whole(node: inlined.Node, value: Any) -> bool:
    """Do ``value`` and all its parts fit?"""
    if isinstance(node, inlined.Union):
        return any(_fits_whole(member, value) for member in node.members)
    if not _fits(node, value):
        return False
    if isinstance(node, inlined.Array):
        return all(_fits_whole(node.items, item) for item in value)
    if isinstance(node, inlined.Map):
        return all(_fits_whole(node.values, item) for item in value.values())
    if isinstance(node, inlined.Record) and isinstance(value, Mapping):
        return all(
            _fits_whole(one.node, value[one.name])
            if one.name in value
            else one.default is not inlined.NO_DEFAULT or inlined.is_nullable(one.node)
            for one in node.fields
        )
    return True


def _leaf(values: list[Any], rows: Any, node: inlined.Primitive | inlined.Enum) -> pa.Array:
    arrow = arrow_type(node)
    try:
        samples = dict(zip(map(type, values), values, strict=True))
        checked = samples.values() if _is_of_type(node) else values
        if all(_fits(node, value) or value is None for value in checked):
            if _is_plain(node) and samples.keys() <= _PLAIN_TYPES:
                return pa.array(values, arrow)
            return pa.array([_plain(node, value) for value in values], arrow)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass
    for value, row in zip(values, rows, strict=True):
        try:
            if not _fits(node, value):
                raise _misfit(node, row, value)
            pa.array([_plain(node, value)], arrow)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise _misfit(node, row, value) from error
    raise SchemaMismatchError(
        f"The values of {inlined.named(node.place)} are too many for one column."
    )


_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool, np.bool_),
    "int": (int, np.integer),
    "long": (int, np.integer),
    "float": (float, int, np.floating, np.integer),
    "double": (float, int, np.floating, np.integer),
    "bytes": (bytes, bytearray, memoryview),
    "fixed": (bytes, bytearray, memoryview),
    "string": (str,),
    "decimal": (Decimal, int),
    "date": (date,),
    "time": (time,),
    "timestamp": (datetime,),
    "local": (datetime,),
    "uuid": (str, uuid.UUID),
}


def _fits(node: inlined.Node, value: Any) -> bool:
    """Is ``value`` of a type that ``node`` takes? Its parts are looked at when they are taken."""
    if isinstance(node, inlined.Enum):
        return isinstance(value, str) and value in node.symbols
    if isinstance(node, inlined.Record):
        if isinstance(value, Mapping):
            return value.keys() <= {one.name for one in node.fields}
        return is_dataclass(value)
    if isinstance(node, inlined.Map):
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if isinstance(node, inlined.Array):
        return isinstance(value, list | tuple | np.ndarray)
    if isinstance(node, inlined.Union):
        return any(_fits(member, value) for member in node.members)
    if isinstance(value, bool) and node.kind != "boolean":
        return False
    if node.kind in ("int", "long") and isinstance(value, int):
        return True  # the number that is written, whatever it means
    logical = (node.logical or "").partition("-")[0]
    if logical == "local" and getattr(value, "tzinfo", None) is not None:
        return False
    if logical == "duration":
        return _is_duration(value)
    if node.kind == "fixed" and logical in ("", "uuid"):
        is_id = logical == "uuid" and isinstance(value, uuid.UUID)
        is_data = isinstance(value, bytes | bytearray | memoryview)
        return is_id or (is_data and len(value) == node.size)
    return isinstance(value, _KINDS[logical or node.kind])


def _is_duration(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = tuple(map(value.get, _DURATION)) if value.keys() == set(_DURATION) else None
    return (
        isinstance(value, tuple | list)
        and len(value) == len(_DURATION)
        and all(isinstance(part, int | np.integer) and 0 <= part < 1 << 32 for part in value)
    )


def _is_of_type(node: inlined.Primitive | inlined.Enum) -> bool:
    """Does a value fit if its type does?"""
    if isinstance(node, inlined.Enum) or node.kind == "fixed":
        return False
    return not (node.logical or "").startswith("local-")


_PLAIN_TYPES: Final = frozenset(
    {type(None), bool, int, float, str, bytes, Decimal, date, datetime, time}
)


def _is_plain(node: inlined.Primitive | inlined.Enum) -> bool:
    """Does Arrow take values of ``_PLAIN_TYPES`` as they are?"""
    if isinstance(node, inlined.Enum):
        return True
    return node.kind != "float" and not (node.logical or "").endswith("-millis")


def _plain(node: inlined.Primitive | inlined.Enum, value: Any) -> Any:
    """``value`` as Arrow takes it."""
    if isinstance(value, uuid.UUID):
        return (
            value.bytes
            if isinstance(node, inlined.Primitive) and node.kind == "fixed"
            else str(value)
        )
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if not isinstance(node, inlined.Primitive):
        return value
    if (node.logical or "").endswith("-millis") and isinstance(value, int):
        return value * 1000  # columns are in microseconds
    if node.kind == "float" and value is not None and LARGEST_FLOAT <= abs(float(value)) < math.inf:
        raise OverflowError
    if node.logical == "duration" and isinstance(value, tuple | list):
        return dict(zip(_DURATION, value, strict=True))
    return value


# -- defaults -----------------------------------------------------------------------------


def _of_json(node: inlined.Node, default: Any) -> Any:
    """The value that a default in a schema stands for."""
    if isinstance(node, inlined.Union):
        fitting = [member for member in node.members if _json_fits(member, default)]
        return _of_json(fitting[0], default) if fitting else default
    if isinstance(node, inlined.Record) and isinstance(default, Mapping):
        return {
            one.name: _of_json(one.node, default[one.name])
            for one in node.fields
            if one.name in default
        }
    if isinstance(node, inlined.Array) and isinstance(default, list):
        return [_of_json(node.items, item) for item in default]
    if isinstance(node, inlined.Map) and isinstance(default, Mapping):
        return {key: _of_json(node.values, value) for key, value in default.items()}
    return _leaf_of_json(node, default) if isinstance(node, inlined.Primitive) else default


def _leaf_of_json(node: inlined.Primitive, default: Any) -> Any:
    if node.kind in ("bytes", "fixed") and isinstance(default, str):
        try:
            raw = default.encode("latin-1")  # each character is a byte
        except UnicodeEncodeError:
            return default
        if node.logical == "decimal":
            unscaled = int.from_bytes(raw, "big", signed=True)
            return Decimal(unscaled).scaleb(-node.scale)
        if node.logical == "duration":
            return tuple(int.from_bytes(raw[i : i + 4], "little") for i in (0, 4, 8))
        return raw
    return default


def _json_fits(node: inlined.Node, default: Any) -> bool:
    if inlined.is_null(node):
        return default is None
    if isinstance(node, inlined.Primitive) and node.kind in ("bytes", "fixed"):
        return isinstance(default, str)
    if isinstance(node, inlined.Primitive) and node.kind == "string":
        return isinstance(default, str)
    return default is not None and _fits(node, default)


# -- errors -------------------------------------------------------------------------------


def _misfit(node: inlined.Node, row: int, value: Any) -> SchemaMismatchError:
    return SchemaMismatchError(f"Row {row}: {misfit(node, value).message}")


def misfit(node: inlined.Node, value: Any) -> SchemaMismatchError:
    """The error for a value that is none of ``node``."""
    return SchemaMismatchError(
        f"{inlined.named(node.place)} is {_shown(value)} ({type(value).__name__}), "
        f"expected {inlined.described(node)}."
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
