"""A schema as a tree whose leaves are the columns that it makes.

Named types are put where they are referred to, so that nothing downstream needs a table of names.
That is possible for all but recursive schemas, which no column type can hold: they are refused,
and so are schemas that would make more columns, or wider ones, than anybody has.

Each node has its place, as errors name it: ``order.items[].price``, with ``[]`` for the items of an
array, ``{}`` for the values of a map and ``member1`` for a member of a union.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from fastavro.schema import SchemaParseException, parse_schema

from spark_logbus.errors import UnsupportedSchemaError

#: Nodes of a tree. Named types make a short schema a wide one: each reference is a column again.
MAX_NODES: Final = 10_000

#: How deep types may be nested; Arrow's readers have a bound like it.
MAX_DEPTH: Final = 60

#: Bytes of a fixed: Arrow gives each row that many, null or not.
MAX_FIXED_BYTES: Final = 1 << 16

#: Digits of a decimal, which are those of Spark's.
MAX_PRECISION: Final = 38

PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)

#: Logical types that are known, and the types they stand on; others are left out, as the
#: specification wants it.
_LOGICAL: Final = {
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "duration": ("fixed",),
}
_SIZES: Final = {"uuid": 16, "duration": 12}

# fastavro tells by its own errors (UnknownType is a ValueError), and by what befalls it.
_PARSER_ERRORS: Final = (
    SchemaParseException,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    ArithmeticError,
    RecursionError,
)

#: What a schema may be given as: its JSON text, or what ``json`` or fastavro makes of it.
Schema = str | Mapping[str, Any] | list[Any]


class _NoDefault:
    """The default of a field that has none; ``None`` is one."""

    def __repr__(self) -> str:
        return "no default"


NO_DEFAULT: Final = _NoDefault()


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """A type without parts, ``fixed`` included, which has a name and a size."""

    place: str
    kind: str
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    name: str = ""
    aliases: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Enum:
    place: str
    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    place: str
    items: Node


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    place: str
    values: Node


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    name: str
    node: Node
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    place: str
    name: str
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    place: str
    members: tuple[Node, ...]

    @property
    def null_index(self) -> int | None:
        """The index of the member that is null."""
        return next((i for i, member in enumerate(self.members) if is_null(member)), None)

    @property
    def others(self) -> tuple[Node, ...]:
        """The members that are not null, in order."""
        return tuple(member for member in self.members if not is_null(member))


Node = Primitive | Enum | Array | Map | Record | Union


def is_null(node: Node) -> bool:
    return isinstance(node, Primitive) and node.kind == "null"


def named(place: str) -> str:
    """``place`` as it stands in an error."""
    return place or "the value itself"


def parse(schema: Schema | Node) -> Node:
    """The tree of a schema; a tree is handed back.

    Raises UnsupportedSchemaError for what is no schema and for what no columns can hold.
    """
    if isinstance(schema, Primitive | Enum | Array | Map | Record | Union):
        return schema
    try:
        raw = _from_text(schema) if isinstance(schema, str) else schema
        parsed = parse_schema(cast("dict[str, Any]", raw))
    except _PARSER_ERRORS as error:
        raise UnsupportedSchemaError(f"Not an Avro schema: {_reason(error)}.") from error
    return _Walk().node(parsed, "")


def _from_text(text: str) -> Any:
    stripped = text.strip()
    return json.loads(stripped) if stripped[:1] in ('"', "{", "[") else stripped


def _reason(error: BaseException) -> str:
    text = str(error).rstrip(".") or type(error).__name__
    return f"{text} is missing" if isinstance(error, KeyError) else text


@dataclass(slots=True)
class _Walk:
    """One walk over a parsed schema, which counts its nodes."""

    names: dict[str, Any] = field(default_factory=dict)
    inside: list[str] = field(default_factory=list)
    nodes: int = 0
    depth: int = 0

    def node(self, raw: Any, place: str) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise UnsupportedSchemaError(
                f"The schema makes more than {MAX_NODES} columns, the last at {named(place)}."
            )
        if self.depth >= MAX_DEPTH:
            raise UnsupportedSchemaError(
                f"{named(place)} is nested deeper than {MAX_DEPTH} types; Arrow's columns are not."
            )
        self.depth += 1
        try:
            return self._node(raw, place)
        except (KeyError, TypeError, AttributeError) as error:
            raise UnsupportedSchemaError(
                f"Not an Avro schema at {named(place)}: {_reason(error)}."
            ) from error
        finally:
            self.depth -= 1

    def _node(self, raw: Any, place: str) -> Node:
        if isinstance(raw, list):
            return self._union(raw, place)
        if isinstance(raw, str):
            return Primitive(place, raw) if raw in PRIMITIVES else self._reference(raw, place)
        kind = raw["type"]
        if kind in PRIMITIVES:
            return _logical(raw, Primitive(place, kind))
        if kind == "array":
            return Array(place, self.node(raw["items"], f"{place}[]"))
        if kind == "map":
            return Map(place, self.node(raw["values"], f"{place}{{}}"))
        self.names[raw["name"]] = raw
        return self._named(raw, place)

    def _reference(self, name: str, place: str) -> Node:
        if name in self.inside:
            raise UnsupportedSchemaError(
                f"The schema is recursive: {named(place)} is a {name}, inside of which it stands. "
                "A column cannot hold itself; keep such values as bytes."
            )
        if name not in self.names:
            raise UnsupportedSchemaError(f"The type {name} at {named(place)} is not defined.")
        return self._named(self.names[name], place)

    def _named(self, raw: Mapping[str, Any], place: str) -> Node:
        kind, name = raw["type"], raw["name"]
        aliases = _aliases(raw.get("aliases", ()), name)
        if kind == "enum":
            symbols = tuple(raw["symbols"])
            if not symbols:
                raise UnsupportedSchemaError(f"The enum {name} at {named(place)} has no symbols.")
            return Enum(place, name, symbols, raw.get("default"), aliases)
        if kind == "fixed":
            size = raw["size"]
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise UnsupportedSchemaError(
                    f"The fixed {name} at {named(place)} has the size {size!r}; "
                    "expected a number of bytes."
                )
            if size > MAX_FIXED_BYTES:
                raise UnsupportedSchemaError(
                    f"The fixed {name} at {named(place)} has {size} bytes, more than "
                    f"{MAX_FIXED_BYTES}, and each row would take them; use bytes."
                )
            plain = Primitive(place, "fixed", name=name, aliases=aliases, size=size)
            return _logical(raw, plain)
        if kind not in ("record", "error"):
            raise UnsupportedSchemaError(f"The type {kind} at {named(place)} is not known.")
        self.inside.append(name)
        prefix = f"{place}." if place else ""
        fields = tuple(
            Field(
                one["name"],
                self.node(one["type"], prefix + one["name"]),
                one.get("default", NO_DEFAULT),
                tuple(one.get("aliases", ())),
            )
            for one in raw["fields"]
        )
        self.inside.pop()
        names = [one.name for one in fields]
        if len(set(names)) < len(names):
            raise UnsupportedSchemaError(f"The record {name} has several fields of one name.")
        return Record(place, name, fields, aliases)

    def _union(self, raw: list[Any], place: str) -> Node:
        if not raw:
            raise UnsupportedSchemaError(f"The union at {named(place)} has no members.")
        prefix = f"{place}." if place else ""
        several = sum(member not in ("null", {"type": "null"}) for member in raw) > 1
        members: list[Node] = []
        number = 0
        for member in raw:
            if isinstance(member, list):
                raise UnsupportedSchemaError(f"The union at {named(place)} holds a union.")
            node = self.node(member, f"{prefix}member{number}" if several else place)
            number += not is_null(node)
            members.append(node)
        if sum(map(is_null, members)) > 1:
            raise UnsupportedSchemaError(f"The union at {named(place)} holds null more than once.")
        return Union(place, tuple(members))


def _aliases(aliases: Any, name: str) -> tuple[str, ...]:
    namespace = name.rpartition(".")[0]
    return tuple(
        alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in aliases
    )


def _logical(raw: Mapping[str, Any], plain: Primitive) -> Primitive:
    """``plain`` with its logical type, if that is known and stands on such a type."""
    logical = raw.get("logicalType")
    if not isinstance(logical, str) or plain.kind not in _LOGICAL.get(logical, ()):
        return plain
    if plain.kind == "fixed" and plain.size != _SIZES.get(logical, plain.size):
        return plain
    precision, scale = raw.get("precision", 0), raw.get("scale", 0)
    if logical == "decimal":
        if not isinstance(precision, int) or not isinstance(scale, int):
            return plain
        if not precision > 0 or not 0 <= scale <= precision:
            return plain
        if precision > MAX_PRECISION:
            raise UnsupportedSchemaError(
                f"The decimal at {named(plain.place)} has {precision} digits; columns hold "
                f"{MAX_PRECISION}. Read it as bytes, without the logical type."
            )
    else:
        precision = scale = 0
    return Primitive(
        plain.place,
        plain.kind,
        logical,
        precision,
        scale,
        plain.name,
        plain.aliases,
        plain.size,
    )
