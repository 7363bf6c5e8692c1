"""Checks of single values against a schema, before they wait for others to become columns with.

What to look at follows from the schema alone, so it is worked out once, into a function for each
field; then a value of five plain fields costs about a microsecond. A value is taken over: what its
owner changes afterwards does not change what was checked. What fits here is what ``columns_of``
takes; of a value of a rarer type it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np

from avro_columns.errors import ValueMismatchError
from avro_columns.values import resolved_tree as tree
from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.rows import columns_of
from avro_columns.values.union_matching import (
    LARGEST_FLOAT,
    TYPE_KEY,
    Member,
    as_mapping,
    member_of,
    misfit,
    unknown_keys,
)

Take = Callable[[Any], Any]
SizeOf = Callable[[Any], int]

# Of which every value fits.
_EXACT: Final = {"boolean": bool, "double": float, "bytes": bytes}
_RANGES: Final = {"int": 1 << 31, "long": 1 << 63}
# Years that nanoseconds in 64 bits reach for certain.
_NANO_YEARS: Final = range(1678, 2262)
# Immutable, and taken by ``columns_of`` beside any others that it takes.
_KEPT: Final = frozenset(
    {type(None), bool, int, float, str, bytes, Decimal, date, datetime, time, UUID}
)
_LENGTH_BYTES: Final = 6  # of a text: an offset or a varint, and whether it is null


class RowCheck:
    """Takes values of one schema. Thread-safe."""

    def __init__(self, schema: tree.AnySchema) -> None:
        """Raises UnsupportedTypeError."""
        compiled = _compiled(tree.parse(schema))
        self._fixed_bytes = compiled.fixed_bytes
        self._size_of = compiled.size_of
        #: The value that ``columns_of`` is to have, which nobody else changes. Raises
        #: ValueMismatchError that names the field.
        self.take: Take = compiled.take

    def size(self, taken: Any) -> int:
        """Approximate bytes that the row ``taken`` is written in, rather more than fewer."""
        if taken is None or self._size_of is None:
            return self._fixed_bytes
        return self._fixed_bytes + self._size_of(taken)


class _Compiled(NamedTuple):
    take: Take
    fixed_bytes: int
    size_of: SizeOf | None = None
    """Of a value that is not None, beside the fixed bytes."""


def _compiled(node: tree.Node) -> _Compiled:
    if isinstance(node, tree.Record):
        return _record(node)
    if isinstance(node, tree.Array):
        return _array(node)
    if isinstance(node, tree.Map):
        return _map(node)
    if isinstance(node, tree.Union):
        return _union(node)
    if isinstance(node, tree.Enum):
        return _Compiled(_symbol(node), _LENGTH_BYTES, _text_size)
    return _leaf(node)


def _asked(node: tree.Node) -> Take:
    """Takes what ``columns_of`` does."""

    def take(value: Any) -> Any:
        try:
            columns_of([value], node)
        except ValueMismatchError as error:
            raise ValueMismatchError(error.message.removeprefix("Row 0: ")) from error
        return value if value.__class__ in _KEPT else _owned(value)

    return take


def _owned(value: Any) -> Any:
    """A value, and its parts, as nobody else changes them."""
    if isinstance(value, Mapping):
        return {key: _owned(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_owned(part) for part in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


# -- values with parts --------------------------------------------------------------------


def _record(node: tree.Record) -> _Compiled:
    compiled = {one.name: _compiled(one.node) for one in node.fields}
    takes = tuple((name, each.take) for name, each in compiled.items())
    sizes = tuple((name, each.size_of) for name, each in compiled.items() if each.size_of)
    optional = frozenset(
        one.name
        for one in node.fields
        if one.default is not tree.NO_DEFAULT or tree.is_nullable(one.node)
    )
    count = len(takes)

    def take(value: Any) -> Any:
        row: dict[str, Any] = dict(value) if value.__class__ is dict else _as_dict(value, node)
        left_out = 0
        for name, take_field in takes:
            try:
                given = row[name]
            except KeyError:
                if name not in optional:
                    raise _missing(node, name) from None
                left_out += 1
                continue
            taken = take_field(given)
            if taken is not given:
                row[name] = taken
        if len(row) + left_out != count:
            if unknown_keys(node, row):
                raise _unknown(node, row)
            del row[TYPE_KEY]
        return row

    def size_of(row: Any) -> int:
        size = 0
        for name, size_of_field in sizes:
            given = row.get(name)
            if given is not None:
                size += size_of_field(given)
        return size

    defaults = sum(len(repr(one.default)) for one in node.fields)
    fixed_bytes = 1 + defaults + sum(each.fixed_bytes for each in compiled.values())
    return _Compiled(take, fixed_bytes, size_of if sizes else None)


def _as_dict(value: Any, node: tree.Node) -> dict[str, Any]:
    row = as_mapping(value)
    if row is None:
        raise misfit(node, value)
    return dict(row)


def _missing(node: tree.Record, name: str) -> ValueMismatchError:
    place = next(one.node.place for one in node.fields if one.name == name)
    return ValueMismatchError(f"{place} is left out, and the schema has no default for it.")


def _unknown(node: tree.Record, row: Mapping[Any, Any]) -> ValueMismatchError:
    names = {one.name for one in node.fields}
    other = next(name for name in row if name not in names)
    return ValueMismatchError(
        f"{tree.named(node.place)} has {other!r}, which the schema has not; its fields are "
        f"{', '.join(sorted(names))}."
    )


def _array(node: tree.Array) -> _Compiled:
    item = _compiled(node.items)

    def take(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, list | tuple):
            raise misfit(node, value)
        return [item.take(each) for each in value]

    return _Compiled(take, _LENGTH_BYTES, _items_size(item))


def _map(node: tree.Map) -> _Compiled:
    item = _compiled(node.values)
    take_key = _leaf(tree.Primitive(f"{node.place}{{}}", "string")).take
    items_size = _items_size(item)

    def take(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise misfit(node, value)
        return {take_key(key): item.take(each) for key, each in value.items()}

    def size_of(value: Any) -> int:
        keys = sum(_LENGTH_BYTES + _text_size(key) for key in value)
        return keys + items_size(value.values())

    return _Compiled(take, _LENGTH_BYTES, size_of)


def _items_size(item: _Compiled) -> SizeOf:
    fixed_bytes, item_size = item.fixed_bytes, item.size_of

    def size_of(items: Any) -> int:
        size = fixed_bytes * len(items)
        if item_size is not None:
            size += sum(item_size(each) for each in items if each is not None)
        return size

    return size_of


def _union(node: tree.Union) -> _Compiled:
    members = [_compiled(other) for other in node.others]
    if not members:
        return _Compiled(_asked(node), 1)
    # Of a struct of the members each takes room, whichever is there.
    fixed_bytes = 1 + sum(member.fixed_bytes for member in members)
    nullable = tree.is_nullable(node)
    if len(members) == 1:
        inner = members[0].take

        def take(value: Any) -> Any:
            if value is None and nullable:
                return None
            return inner(member_of(node, value).value if value.__class__ is tuple else value)

        return _Compiled(take, fixed_bytes, members[0].size_of)

    def take_member(value: Any) -> Any:
        if value is None and nullable:
            return None
        chosen = member_of(node, value)
        return Member(chosen.number, members[chosen.number].take(chosen.value))

    def size_of(chosen: Any) -> int:
        size_of_member = members[chosen.number].size_of
        return 0 if size_of_member is None else size_of_member(chosen.value)

    return _Compiled(take_member, fixed_bytes, size_of)


# -- leaves -------------------------------------------------------------------------------


def _leaf(node: tree.Primitive) -> _Compiled:
    take = (_logical if node.logical else _plain)(node)
    if node.kind == "string":
        return _Compiled(take, _LENGTH_BYTES, _text_size)
    if node.kind == "bytes" and node.logical is None:
        return _Compiled(take, _LENGTH_BYTES, len)
    if node.kind == "null":
        return _Compiled(take, 1)
    width = 24 if node.logical == "duration" else arrow_type(node).bit_width // 8
    return _Compiled(take, width + 3)  # of a varint at most two more, and whether it is null


def _text_size(value: Any) -> int:
    if value.__class__ is not str:
        return len(str(value))
    return len(value) if value.isascii() else len(value.encode())


def _symbol(node: tree.Enum) -> Take:
    symbols = frozenset(node.symbols)
    asked = _asked(node)

    def take(value: Any) -> Any:
        return value if value.__class__ is str and value in symbols else asked(value)

    return take


def _plain(node: tree.Primitive) -> Take:
    kind, asked = node.kind, _asked(node)
    if kind in _EXACT:
        exact = _EXACT[kind]

        def take(value: Any) -> Any:
            return value if value.__class__ is exact else asked(value)

    elif kind in _RANGES:
        bound = _RANGES[kind]

        def take(value: Any) -> Any:
            return value if value.__class__ is int and -bound <= value < bound else asked(value)

    elif kind == "string":

        def take(value: Any) -> Any:
            return value if value.__class__ is str and value.isascii() else asked(value)

    elif kind == "float":

        def take(value: Any) -> Any:
            fits = value.__class__ is float and -LARGEST_FLOAT < value < LARGEST_FLOAT
            return value if fits else asked(value)

    else:
        return asked
    return take


def _logical(node: tree.Primitive) -> Take:
    logical, asked = node.logical or "", _asked(node)
    if "timestamp" in logical:
        zone = None if logical.startswith("local-") else UTC
        years = _NANO_YEARS if logical.endswith("nanos") else range(1, 10_000)

        def take(value: Any) -> Any:
            fits = value.__class__ is datetime and value.tzinfo is zone and value.year in years
            return value if fits else asked(value)

    elif logical == "date":

        def take(value: Any) -> Any:
            return value if value.__class__ is date else asked(value)

    elif logical == "decimal":
        scale, whole = node.scale, node.precision - node.scale

        def take(value: Any) -> Any:
            if value.__class__ is Decimal:
                _, digits, exponent = value.as_tuple()
                if (
                    exponent.__class__ is int
                    and -scale <= exponent <= 0
                    and len(digits) + exponent <= whole
                ):
                    return value
            return asked(value)

    else:
        return asked
    return take
