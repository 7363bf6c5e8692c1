"""Arbitrary schemas, and values of them in the three forms that tests need.

A value is drawn as Avro's plain types, with the index of a union's member beside it; ``for_avro``
is what fastavro takes for the schema without logical types, ``for_arrow`` what Arrow takes for the
schema's column.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.resolved_tree import (
    Array,
    Enum,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    is_null,
    parse,
)
from avro_columns.values.union_matching import member_name
from tests.builders.avro import datum, without_logical

INT = st.one_of(st.integers(-70, 70), st.integers(-(1 << 31), (1 << 31) - 1))
LONG = st.one_of(st.integers(-70, 70), st.integers(-(1 << 63), (1 << 63) - 1))
MILLIS = st.integers(-(10**14), 10**14)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
DATA = st.binary(max_size=8)

LOGICAL = {
    "date": ("int", INT),
    "time-millis": ("int", st.integers(0, 86_399_999)),
    "time-micros": ("long", st.integers(0, 86_399_999_999)),
    "timestamp-millis": ("long", MILLIS),
    "timestamp-micros": ("long", LONG),
    "timestamp-nanos": ("long", LONG),
    "local-timestamp-millis": ("long", MILLIS),
    "local-timestamp-micros": ("long", LONG),
    "local-timestamp-nanos": ("long", LONG),
}
PLAIN = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": INT,
    "long": LONG,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": DATA,
    "string": TEXT,
}

#: What the members of a union are drawn of: of one type without a name each is there once.
MEMBERS = (
    ("boolean",),
    ("int", "date", "time-millis"),
    ("long", "time-micros", "timestamp-millis", "timestamp-micros", "local-timestamp-nanos"),
    ("float",),
    ("double",),
    ("string", "uuid"),
    ("bytes", "decimal"),
    ("array",),
    ("map",),
    ("record",),
    ("record",),
    ("enum",),
    ("fixed", "duration", "fixed-decimal"),
    ("fixed",),
)


@dataclass(frozen=True)
class Chosen:
    """A value of a union."""

    index: int
    value: Any


@st.composite
def schemas(draw: st.DrawFn, *, depth: int = 3) -> Any:
    """A record of up to five fields."""
    names = (f"N{number}" for number in itertools.count())
    return draw(records(names, depth))


@st.composite
def records(draw: st.DrawFn, names: Iterator[str], depth: int) -> Any:
    count = draw(st.integers(0 if depth < 3 else 1, 5))
    fields = [{"name": f"f{i}", "type": draw(types(names, depth - 1))} for i in range(count)]
    return {"type": "record", "name": next(names), "fields": fields}


@st.composite
def roots(draw: st.DrawFn) -> Any:
    """Draws any schema but that of null; records most often."""
    if draw(st.integers(0, 3)):
        return draw(schemas())
    found = types((f"N{number}" for number in itertools.count()), 2)
    return draw(found.filter(lambda schema: schema != "null" and "null" not in schema))


def types(names: Iterator[str], depth: int) -> st.SearchStrategy[Any]:
    kinds = [*PLAIN, *LOGICAL, "enum", "fixed", "decimal", "fixed-decimal", "duration"]
    if depth > 0:
        kinds += ["array", "map", "record", "nullable", "union"] * 3
    return st.sampled_from(kinds).flatmap(lambda kind: of_kind(kind, names, depth))


@st.composite
def of_kind(draw: st.DrawFn, kind: str, names: Iterator[str], depth: int) -> Any:
    if kind in PLAIN:
        return kind
    if kind in LOGICAL:
        return {"type": LOGICAL[kind][0], "logicalType": kind}
    if kind == "record":
        return draw(records(names, depth))
    if kind == "uuid":
        return {"type": "string", "logicalType": "uuid"}
    if kind == "nullable":
        other = draw(types(names, 0).filter(lambda one: one != "null"))
        return draw(st.permutations(["null", other]))
    if kind == "union":
        places = draw(st.lists(st.sampled_from(range(len(MEMBERS))), min_size=1, max_size=4,
                               unique=True))  # fmt: skip
        members = [
            draw(of_kind(draw(st.sampled_from(MEMBERS[place])), names, depth - 1))
            for place in places
        ]
        return draw(st.permutations([*members, *draw(st.sampled_from([[], ["null"]]))]))
    if kind in ("array", "map"):
        items = draw(types(names, depth - 1).filter(takes_bytes))
        return {"type": "array", "items": items} if kind == "array" else {
            "type": "map", "values": items
        }  # fmt: skip
    return draw(named(kind, next(names)))


def takes_bytes(schema: Any) -> bool:
    """Can it be an item of an array? What takes no bytes cannot."""
    if isinstance(schema, dict) and schema["type"] == "record":
        return any(takes_bytes(field["type"]) for field in schema["fields"])
    return bool(schema != "null")


@st.composite
def named(draw: st.DrawFn, kind: str, name: str) -> Any:
    if kind == "enum":
        count = draw(st.integers(1, 4))
        return {"type": "enum", "name": name, "symbols": [f"S{i}" for i in range(count)]}
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": draw(st.integers(1, 5))}
    if kind == "duration":
        return {"type": "fixed", "name": name, "size": 12, "logicalType": "duration"}
    size = draw(st.integers(1, 20))
    most = min(38, int((8 * size - 1) * 0.30102))
    precision = draw(st.integers(1, max(most, 1)))
    decimal = {
        "logicalType": "decimal",
        "precision": precision,
        "scale": draw(st.integers(0, precision)),
    }
    if kind == "decimal":
        return {"type": "bytes", **decimal}
    return {"type": "fixed", "name": name, "size": size, **decimal}


# -- values -------------------------------------------------------------------------------


def values(node: Node) -> st.SearchStrategy[Any]:
    """Values of ``node`` as Avro's plain types."""
    if isinstance(node, Union):
        return st.one_of([values(one).map(_chooser(i)) for i, one in enumerate(node.members)])
    if isinstance(node, Record):
        return st.fixed_dictionaries({one.name: values(one.node) for one in node.fields})
    if isinstance(node, Array):
        return st.lists(values(node.items), max_size=4)
    if isinstance(node, Map):
        return st.dictionaries(TEXT, values(node.values), max_size=3)
    if isinstance(node, Enum):
        return st.sampled_from(node.symbols)
    if node.logical == "decimal":
        return decimals(node)
    if node.kind == "fixed":
        return st.binary(min_size=node.size, max_size=node.size)
    return LOGICAL[node.logical][1] if node.logical in LOGICAL else PLAIN[node.kind]


def _chooser(index: int) -> Callable[[Any], Chosen]:
    return lambda value: Chosen(index, value)


def decimals(node: Primitive) -> st.SearchStrategy[bytes]:
    limit = 10**node.precision - 1
    numbers = st.integers(-limit, limit)
    if node.kind == "fixed":
        return numbers.map(lambda n: n.to_bytes(node.size, "big", signed=True))
    return numbers.map(lambda n: n.to_bytes(((n if n >= 0 else ~n).bit_length() + 8) // 8, "big",
                                            signed=True))  # fmt: skip


def for_avro(node: Node, value: Any) -> Any:
    if isinstance(node, Union):
        member = node.members[value.index]
        return None if is_null(member) else (member_name(member), for_avro(member, value.value))
    if isinstance(node, Record):
        return {one.name: for_avro(one.node, value[one.name]) for one in node.fields}
    if isinstance(node, Array):
        return [for_avro(node.items, item) for item in value]
    if isinstance(node, Map):
        return {key: for_avro(node.values, item) for key, item in value.items()}
    return value


def for_python(node: Node, value: Any) -> Any:
    """Returns the value in the form that producers take."""
    if isinstance(node, Union):
        member = node.members[value.index]
        own = for_python(member, value.value)
        return None if is_null(member) else (member_name(member), own)
    if isinstance(node, Record):
        return {one.name: for_python(one.node, value[one.name]) for one in node.fields}
    if isinstance(node, Array):
        return [for_python(node.items, item) for item in value]
    if isinstance(node, Map):
        return {key: for_python(node.values, item) for key, item in value.items()}
    plain = isinstance(node, Primitive) and node.logical in ("decimal", "duration")
    return for_arrow(node, value) if plain else value


def for_arrow(node: Node, value: Any) -> Any:
    if isinstance(node, Union):
        member = node.members[value.index]
        own = for_arrow(member, value.value)
        if len(node.others) == 1 or own is None:
            return own
        return {f"member{i}": own if one is member else None for i, one in enumerate(node.others)}
    if isinstance(node, Record):
        return {one.name: for_arrow(one.node, value[one.name]) for one in node.fields}
    if isinstance(node, Array):
        return [for_arrow(node.items, item) for item in value]
    if isinstance(node, Map):
        return [(key, for_arrow(node.values, item)) for key, item in value.items()]
    if isinstance(node, Primitive) and node.logical:
        return _logical(node, value)
    return value


def _logical(node: Primitive, value: Any) -> Any:
    if node.logical == "decimal":
        sign, digits, _ = Decimal(int.from_bytes(value, "big", signed=True)).as_tuple()
        return Decimal((sign, digits, -node.scale))
    if node.logical == "duration":
        parts = [int.from_bytes(value[at : at + 4], "little") for at in (0, 4, 8)]
        return dict(zip(("months", "days", "millis"), parts, strict=True))
    return value * 1000 if (node.logical or "").endswith("-millis") else value


# -- datums -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A schema, rows of it as an Arrow array, and as datums that fastavro wrote."""

    schema: Any
    expected: pa.Array
    datums: pa.Array
    plain: Any
    """The schema that fastavro reads the datums by."""
    named: list[Any]
    """The rows as values of Python, with members of unions by their names."""


@st.composite
def cases(draw: st.DrawFn, *, max_rows: int = 6, of: st.SearchStrategy[Any] | None = None) -> Case:
    schema = draw(schemas() if of is None else of)
    node = parse(schema)
    drawn = draw(st.lists(values(node), max_size=max_rows))
    drawn = drawn * draw(st.sampled_from([1, 1, 30]))  # more than are scanned one by one
    plain = fastavro.parse_schema(without_logical(schema))
    rows = [for_avro(node, value) for value in drawn]
    return Case(
        schema,
        pa.array([for_arrow(node, value) for value in drawn], arrow_type(node)),
        pa.array([datum(plain, row) for row in rows], pa.binary()),
        plain,
        [for_python(node, value) for value in drawn],
    )
