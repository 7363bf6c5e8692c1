"""Values of Python against types of a schema: what a type takes, and what it gives back; and so
which member of a union a value is of.

A type *fits* a value by a look at the value alone; it *takes* one if all its parts become columns;
and it *keeps* one if these columns give the very value back. Arrow is asked for leaves, so that the
answer is what becomes of them.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from avro_columns.errors import ValueMismatchError
from avro_columns.values import resolved_tree as tree
from avro_columns.values.arrow_types import arrow_type

#: What is below it is rounded to no more than 32 bits hold.
LARGEST_FLOAT: Final = 3.4028235677973366e38
#: The key of a mapping beside the fields of a record, whose name it has.
TYPE_KEY: Final = "-type"
_SHOWN: Final = 60  # characters of a value in an error
_DURATION: Final = ("months", "days", "millis")

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
    "uuid": (str, uuid.UUID),
}


_BOUNDS: Final = {"int": 1 << 31, "long": 1 << 63}
#: Of which all values are kept.
_KEPT: Final = {"boolean": bool, "double": float, "bytes": bytes}


def fits(node: tree.Node, value: Any) -> bool:
    """Is ``value`` of a type that ``node`` takes? Its parts are looked at when they are taken."""
    if isinstance(node, tree.Enum):
        return isinstance(value, str) and value in node.symbols
    if isinstance(node, tree.Record):
        row = as_mapping(value)
        return row is not None and not unknown_keys(node, row)
    if isinstance(node, tree.Map):
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if isinstance(node, tree.Array):
        return isinstance(value, list | tuple | np.ndarray)
    if isinstance(node, tree.Union):
        return _named(node, value) is not None or any(fits(one, value) for one in node.members)
    if isinstance(value, bool) and node.kind != "boolean":
        return False
    if node.kind in ("int", "long") and isinstance(value, int):
        return True  # the number that is written, whatever it means
    logical = (node.logical or "").partition("-")[0]
    if logical in ("timestamp", "local"):
        return isinstance(value, datetime) and _has_zone(value) == (logical == "timestamp")
    if logical == "duration":
        return _is_duration(value)
    if node.kind == "fixed" and logical in ("", "uuid"):
        is_id = logical == "uuid" and isinstance(value, uuid.UUID)
        is_data = isinstance(value, bytes | bytearray | memoryview)
        return is_id or (is_data and len(value) == node.size)
    return isinstance(value, _KINDS[logical or node.kind])


def _has_zone(value: datetime) -> bool:
    return value.tzinfo is not None and value.utcoffset() is not None


def _is_instant(node: tree.Node) -> bool:
    return isinstance(node, tree.Primitive) and (node.logical or "").startswith("timestamp-")


def _is_date(node: tree.Node) -> bool:
    return isinstance(node, tree.Primitive) and node.logical == "date"


def _is_duration(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = tuple(map(value.get, _DURATION)) if value.keys() == set(_DURATION) else None
    return (
        isinstance(value, tuple | list)
        and len(value) == len(_DURATION)
        and all(isinstance(part, int | np.integer) and 0 <= part < 1 << 32 for part in value)
    )


def as_arrow(node: tree.Primitive | tree.Enum, value: Any) -> Any:
    """``value`` as Arrow takes it."""
    if isinstance(value, uuid.UUID):
        return (
            value.bytes if isinstance(node, tree.Primitive) and node.kind == "fixed" else str(value)
        )
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if not isinstance(node, tree.Primitive):
        return value
    if (node.logical or "").endswith("-millis") and isinstance(value, int):
        return value * 1000  # columns are in microseconds
    if node.kind == "float" and value is not None and LARGEST_FLOAT <= abs(float(value)) < math.inf:
        raise OverflowError
    if node.logical == "duration" and isinstance(value, tuple | list):
        return dict(zip(_DURATION, value, strict=True))
    return value


# -- with all its parts -------------------------------------------------------------------


def takes(node: tree.Node, value: Any) -> bool:
    """Do ``value`` and all its parts become columns?"""
    return _all_parts(node, value, _leaf_takes, whole=False)


def keeps(node: tree.Node, value: Any) -> bool:
    """Do the columns that ``value`` becomes give it back, types of its parts included?"""
    return _all_parts(node, value, _leaf_keeps, whole=True)


def _all_parts(
    node: tree.Node,
    value: Any,
    of_leaf: Callable[[tree.Primitive | tree.Enum, Any], bool],
    *,
    whole: bool,
) -> bool:
    """``whole``: no field of a record may be left out."""

    def look(node: tree.Node, value: Any) -> bool:
        if isinstance(node, tree.Union):
            if value is None:
                return tree.is_nullable(node)
            named = _named(node, value)
            if named is not None:
                return look(node.others[named.number], named.value)
            return any(look(member, value) for member in node.others)
        if not fits(node, value):
            return False
        if isinstance(node, tree.Array):
            return all(look(node.items, item) for item in value)
        if isinstance(node, tree.Map):
            return all(look(node.values, item) for item in value.values())
        if isinstance(node, tree.Record):
            row = as_mapping(value) or {}
            return all(
                look(one.node, row[one.name])
                if one.name in row
                else not whole
                and (one.default is not tree.NO_DEFAULT or tree.is_nullable(one.node))
                for one in node.fields
            )
        return of_leaf(node, value)

    return look(node, value)


def _leaf_takes(node: tree.Primitive | tree.Enum, value: Any) -> bool:
    if isinstance(value, datetime) and _is_date(node):
        return False  # the time would be lost
    return _column_of(node, value) is not None


def _leaf_keeps(node: tree.Primitive | tree.Enum, value: Any) -> bool:
    known = None if isinstance(node, tree.Enum) or node.logical else _plain_keeps(node, value)
    return _gives_back(node, value) if known is None else known


def _plain_keeps(node: tree.Primitive, value: Any) -> bool | None:
    """Decides as ``_gives_back`` for most values, without Arrow, which takes longer; None: Arrow
    has to decide."""
    kind = value.__class__
    if kind is float and node.kind == "float" and abs(value) < LARGEST_FLOAT:
        return bool(float(np.float32(value)) == value)
    if kind is int and node.kind in _BOUNDS:
        return bool(-_BOUNDS[node.kind] <= value < _BOUNDS[node.kind])
    return True if kind is _KEPT.get(node.kind) else None


def _gives_back(node: tree.Primitive | tree.Enum, value: Any) -> bool:
    is_millis = isinstance(node, tree.Primitive) and (node.logical or "").endswith("-millis")
    if is_millis and getattr(value, "microsecond", 0) % 1000:
        return False  # it is cut off
    column = _column_of(node, value)
    back = None if column is None else leaf_row(column[0], node)
    if back is None or not isinstance(value, type(back)):
        return False
    if isinstance(back, Decimal):
        return bool(back.as_tuple() == value.as_tuple())  # 1.50 is equal to 1.5
    return bool(back == value) or (back != back and value != value)


def leaf_row(scalar: pa.Scalar, node: tree.Primitive | tree.Enum) -> Any:
    """The value of a scalar of the node's Arrow type: the number that is stored for a moment or a
    date that Python has no value for."""
    with suppress(ValueError, OverflowError):
        value = scalar.as_py()
        if value == value or isinstance(value, float):  # not so pandas.NaT
            return value
    is_millis = isinstance(node, tree.Primitive) and (node.logical or "").endswith("-millis")
    return scalar.value // 1000 if is_millis else scalar.value


def _column_of(node: tree.Primitive | tree.Enum, value: Any) -> pa.Array | None:
    if isinstance(node, tree.Enum):
        return pa.array([value], pa.string())
    try:
        return pa.array([as_arrow(node, value)], arrow_type(node)) if fits(node, value) else None
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None


# -- records ------------------------------------------------------------------------------


def as_mapping(value: Any) -> Mapping[str, Any] | None:
    """A record's values by field; None for what is no mapping and no instance of a dataclass."""
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return None


def unknown_keys(node: tree.Record, row: Mapping[str, Any]) -> set[str]:
    """The keys of ``row`` that are no fields of ``node``; the record's name may be beside them."""
    unknown = row.keys() - {one.name for one in node.fields}
    return unknown - {TYPE_KEY} if row.get(TYPE_KEY) == node.name else unknown


# -- unions -------------------------------------------------------------------------------


class Member(NamedTuple):
    """A value whose member of a union is known; ``number`` leaves out null."""

    number: int
    value: Any


def member_name(node: tree.Node) -> str:
    """The name of a union's member: a record's, enum's or fixed's own, else the type's."""
    if isinstance(node, tree.Record | tree.Enum):
        return node.name
    if isinstance(node, tree.Primitive):
        return node.name or node.kind
    return "array" if isinstance(node, tree.Array) else "map"


def member_of(node: tree.Union, value: Any) -> Member:
    """The member that ``value``, which is not None, is of: the one that it names, as fastavro has
    it; else the first that keeps it, or else the first that takes it.

    A value names its member as ``(name, value)``. Records of other names fit no mapping that has a
    name under the key ``-type``. Raises ValueMismatchError if none fits.
    """
    named = _named(node, value)
    if named is not None:
        return named
    fitting = [number for number, member in enumerate(node.others) if fits(member, value)]
    if isinstance(value, datetime) and any(map(_is_instant, node.others)):
        # One without a zone is none of these, and no date either, which would lose its time.
        fitting = [number for number in fitting if not _is_date(node.others[number])]
    if not fitting:
        raise misfit(node, value)
    if len(fitting) > 1:
        for test in (keeps, takes):
            found = next((one for one in fitting if test(node.others[one], value)), None)
            if found is not None:
                return Member(found, value)
    return Member(fitting[0], value)


def _named(node: tree.Union, value: Any) -> Member | None:
    """The member whose name ``value`` has; None if it has none."""
    if value.__class__ is Member:
        return value
    if isinstance(value, tuple) and len(value) == 2:
        for number, member in enumerate(node.others):
            if member_name(member) == value[0]:
                return Member(number, value[1])
    return None


# -- errors -------------------------------------------------------------------------------


def misfit(node: tree.Node, value: Any) -> ValueMismatchError:
    """The error for a value that is none of ``node``."""
    remedy = ""
    members = node.others if isinstance(node, tree.Union) else (node,)
    if any(map(_is_instant, members)) and isinstance(value, datetime) and not _has_zone(value):
        remedy = (
            " A datetime without a time zone is no moment; give it one, as in "
            ".replace(tzinfo=timezone.utc) or .astimezone()."
        )
    return ValueMismatchError(
        f"{tree.named(node.place)} is {shown(value)} ({type(value).__name__}), "
        f"expected {tree.described(node)}.{remedy}"
    )


def shown(value: Any) -> str:
    """A value in an error."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
