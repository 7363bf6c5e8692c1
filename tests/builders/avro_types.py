"""All types of Avro, with values; the unions of two of them; and versions of a schema that has
these."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from avro_columns.values.rows import columns_of
from avro_columns.values.union_matching import Member

_AT: Final = dt.datetime(2024, 1, 2, 3, 4, 5, 678_000, dt.UTC)
_LOCAL: Final = _AT.replace(tzinfo=None)


@dataclass(frozen=True)
class AvroType:
    """``json`` is its definition, and ``name`` its full name if it has one."""

    json: Any
    values: tuple[Any, Any]
    kind: str
    name: str = ""

    @property
    def branch(self) -> str:
        """Name of the type, of which a union may have one."""
        return self.name or self.kind


def _plain(kind: str, *values: Any) -> AvroType:
    first, second = values
    return AvroType(kind, (first, second), kind)


def _logical(kind: str, logical: str, *values: Any, **more: Any) -> AvroType:
    first, second = values
    return AvroType({"type": kind, "logicalType": logical, **more}, (first, second), kind)


def _named(kind: str, name: str, *values: Any, **more: Any) -> AvroType:
    first, second = values
    return AvroType({"type": kind, "name": name, **more}, (first, second), kind, name)


def _record(name: str, field: str, kind: str, *values: Any) -> AvroType:
    fields = [{"name": field, "type": kind}]
    return _named("record", name, *({field: value} for value in values), fields=fields)


#: Names are shared across namespaces, and each value has one that the type before would change.
TYPES: Final = {
    "boolean": _plain("boolean", True, False),
    "int": _plain("int", 7, -(1 << 31)),
    "long": _plain("long", 9007199254740993, -(1 << 63)),
    "float": _plain("float", 0.5, -2.0),
    "double": _plain("double", 0.1, 1e300),
    "bytes": _plain("bytes", b"\xff\x00", b"text"),
    "string": _plain("string", "text", "ä"),
    "array": AvroType({"type": "array", "items": "long"}, ([1, 1 << 53], []), "array"),
    "map": AvroType({"type": "map", "values": ["null", "int"]}, ({"a": 1}, {}), "map"),
    "record a.R": _record("a.R", "x", "int", 1, 2),
    "record b.R": _record("b.R", "x", "int", 3, 4),
    "record c.Wide": _record("c.Wide", "x", "long", 1 << 40, 5),
    "enum a.E": _named("enum", "a.E", "A", "B", symbols=["A", "B"]),
    "enum b.E": _named("enum", "b.E", "B", "A", symbols=["B", "A"]),
    "fixed a.F": _named("fixed", "a.F", b"ab", b"\xff\xfe", size=2),
    "fixed b.F": _named("fixed", "b.F", b"abc", b"\xff\xfe\xfd", size=3),
    "fixed c.F": _named("fixed", "c.F", b"cd", b"\xff\xfd", size=2),
    "decimal of bytes": _logical(
        "bytes", "decimal", Decimal("1.50"), Decimal("-99.99"), precision=4, scale=2
    ),
    "decimal of a fixed": _named(
        "fixed", "d.F", Decimal("1.5"), Decimal("-9.9"), size=4, logicalType="decimal",
        precision=4, scale=1,
    ),
    "uuid of a string": _logical("string", "uuid", str(uuid.UUID(int=1)), str(uuid.UUID(int=2))),
    "uuid of a fixed": _named(
        "fixed", "u.F", b"0123456789abcdef", b"\xff" * 16, size=16, logicalType="uuid"
    ),
    "duration": _named(
        "fixed", "v.F", {"months": 1, "days": 2, "millis": 3},
        {"months": 0, "days": 0, "millis": 4_294_967_295}, size=12, logicalType="duration",
    ),
    "date": _logical("int", "date", dt.date(2024, 1, 2), dt.date(1969, 1, 2)),
    "time-millis": _logical("int", "time-millis", dt.time(1, 2, 3, 4_000), dt.time(23, 59)),
    "time-micros": _logical("long", "time-micros", dt.time(1, 2, 3, 4_005), dt.time(23, 59)),
    **{
        f"timestamp-{unit}": _logical("long", f"timestamp-{unit}", _AT, _AT.replace(year=1969))
        for unit in ("millis", "micros", "nanos")
    },
    **{
        f"local-timestamp-{unit}": _logical(
            "long", f"local-timestamp-{unit}", _LOCAL, _LOCAL.replace(year=1969)
        )
        for unit in ("millis", "micros", "nanos")
    },
}  # fmt: skip

#: In which types a union stands: the type around it, and a value around its value.
CONTEXTS: Final[dict[str, tuple[Callable[[str, Any], Any], Callable[[Any], Any]]]] = {
    "a field": (lambda name, union: union, lambda value: value),
    "an array": (lambda name, union: {"type": "array", "items": union}, lambda value: [value] * 2),
    "a map": (lambda name, union: {"type": "map", "values": union}, lambda value: {"k": value}),
    "a record": (
        lambda name, union: {
            "type": "record", "name": f"in_{name}", "fields": [{"name": "u", "type": union}]
        },
        lambda value: {"u": value},
    ),
}  # fmt: skip


#: The unions of two types that Avro allows, in both orders.
ALL_PAIRS: Final = [
    (one, other)
    for one, other in itertools.permutations(TYPES, 2)
    if TYPES[one].branch != TYPES[other].branch
]


class Definitions:
    """Types of one schema, whose named ones are defined where they stand first."""

    def __init__(self) -> None:
        self._defined: set[str] = set()

    def of(self, name: str) -> Any:
        made = TYPES[name]
        if made.name in self._defined:
            return made.name
        if made.name:
            self._defined.add(made.name)
        return made.json


def all_unions(
    context: str,
    *,
    nullable: bool,
    newer: bool = False,
    of: Sequence[tuple[str, str]] = ALL_PAIRS,
) -> Any:
    """A record with a field for each pair; ``newer`` is the next version of it, which has changed
    elsewhere."""
    around, _ = CONTEXTS[context]
    types = Definitions()
    null = ["null"] if nullable else []
    fields: list[dict[str, Any]] = [{"name": "count", "type": "long" if newer else "int"}]
    for number, (one, other) in enumerate(of):
        union = [types.of(one), *null, types.of(other)]
        fields.append({"name": f"f{number}", "type": around(f"f{number}", union)})
    if newer:
        fields.append({"name": "more", "type": "string", "default": ""})
    return {"type": "record", "name": "t.All", "fields": fields}


def rows_of_all_unions(
    context: str, *, nullable: bool, of: Sequence[tuple[str, str]] = ALL_PAIRS
) -> pa.Array:
    """Values of ``all_unions``: each member twice, and null where that is allowed."""
    _, around = CONTEXTS[context]
    rows = []
    for number, which in itertools.product((0, 1), (0, 1)):
        row: dict[str, Any] = {"count": number}
        for place, pair in enumerate(of):
            value = TYPES[pair[number]].values[which]
            row[f"f{place}"] = around(Member(number, value))
        rows.append(row)
    if nullable:
        rows.append({"count": 9, **{f"f{place}": around(None) for place in range(len(of))}})
    return columns_of(rows, all_unions(context, nullable=nullable, of=of))
