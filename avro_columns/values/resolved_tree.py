"""A schema with its named types in place: a tree whose leaves are the columns that it makes.

``model`` has a schema as it is written, where a type that is used twice is one object. Here it
stands wherever it is referred to, so that nothing downstream needs a table of names. That is
possible for all but recursive schemas, which no column type can hold: they are refused, and so are
schemas that would make more columns, or wider ones, than anybody has.

Each node has its place, as errors name it: ``order.items[].price``, with ``[]`` for the items of an
array, ``{}`` for the values of a map and ``member1`` for a member of a union.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from avro_columns import model
from avro_columns.errors import SchemaSyntaxError, UnsupportedTypeError, ValueMismatchError
from avro_columns.logical import Meaning, meaning_of
from avro_columns.parse import parse as parse_text
from avro_columns.parse import parse_value

#: Nodes of a tree. Named types make a short schema a wide one: each reference is a column again.
MAX_NODES: Final = 10_000

#: How deep types may be nested; Arrow's readers have a bound like it.
MAX_DEPTH: Final = 60

#: Bytes of a fixed: Arrow gives each row that many, null or not.
MAX_FIXED_BYTES: Final = 1 << 16

#: Digits of a decimal, which are those of Spark's.
MAX_PRECISION: Final = 38


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

    @property
    def meaning(self) -> Meaning:
        return Meaning(self.logical, self.precision, self.scale)


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

#: What a schema may be given as: its JSON text, what ``json`` or fastavro makes of it, the model of
#: it, as the registry has it parsed, or this tree.
AnySchema = str | dict[str, Any] | list[Any] | model.Schema | Node


def is_null(node: Node) -> bool:
    return isinstance(node, Primitive) and node.kind == "null"


def is_nullable(node: Node) -> bool:
    """Can a value of ``node`` be null?"""
    return is_null(node) or (isinstance(node, Union) and node.null_index is not None)


def named(place: str) -> str:
    """``place`` as it stands in an error."""
    return place or "the value itself"


def described(node: Node) -> str:
    """The type of ``node`` in a few words."""
    if isinstance(node, Primitive):
        if node.logical == "decimal":
            return f"a decimal of {node.precision} digits, {node.scale} after the point"
        if node.kind == "fixed" and node.logical is None:
            return f"{node.size} bytes"
        return node.logical or node.kind
    if isinstance(node, Enum):
        return f"one of {', '.join(node.symbols[:10])}{', ...' if len(node.symbols) > 10 else ''}"
    if isinstance(node, Union):
        return " or ".join(described(member) for member in node.members)
    return {Array: "an array", Map: "a map with text as keys", Record: "a record"}[type(node)]


def record_of(node: Node) -> Record:
    """``node``, which is a record. Raises UnsupportedTypeError for another."""
    if not isinstance(node, Record):
        raise UnsupportedTypeError("The schema is not a record, so it has no columns by name.")
    return node


def with_fields(record: Record, names: Collection[str]) -> Record:
    """A record with its fields ``names`` alone, in its own order.

    Raises ValueMismatchError for a name that is none of its fields.
    """
    wanted = set(names)
    fields = tuple(one for one in record.fields if one.name in wanted)
    unknown = wanted.difference(one.name for one in fields)
    if unknown:
        raise ValueMismatchError(
            f"{min(unknown)!r} is no field of {record.name}; choose among "
            f"{', '.join(one.name for one in record.fields)}."
        )
    return Record(record.place, record.name, fields, record.aliases)


def parse(schema: AnySchema) -> Node:
    """The tree of a schema; a tree is handed back.

    Raises UnsupportedTypeError for what is no schema and for what no columns can hold.
    """
    if isinstance(schema, Node):
        return schema
    try:
        return _Walk().node(_modelled(schema), "")
    except SchemaSyntaxError as error:
        raise UnsupportedTypeError(f"Not an Avro schema: {error.message}") from error
    except RecursionError as error:  # of JSON values, whose depth nothing has bounded
        raise UnsupportedTypeError(
            f"The schema is nested deeper than {MAX_DEPTH} types; Arrow's columns are not."
        ) from error


def _modelled(schema: str | dict[str, Any] | list[Any] | model.Schema) -> model.Schema:
    if isinstance(schema, model.Schema):
        return schema
    if isinstance(schema, str) and schema.strip()[:1] in ('"', "{", "["):
        return parse_text(schema)
    return parse_value(schema.strip() if isinstance(schema, str) else schema)


@dataclass(slots=True)
class _Walk:
    """One walk over a model, which counts its nodes."""

    inside: list[str] = field(default_factory=list)
    nodes: int = 0
    depth: int = 0

    def node(self, schema: model.Schema, place: str) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise UnsupportedTypeError(
                f"The schema makes more than {MAX_NODES} columns, the last at {named(place)}."
            )
        if self.depth >= MAX_DEPTH:
            raise UnsupportedTypeError(
                f"{named(place)} is nested deeper than {MAX_DEPTH} types; Arrow's columns are not."
            )
        self.depth += 1
        made = self._node(schema, place)
        self.depth -= 1
        return made

    def _node(self, schema: model.Schema, place: str) -> Node:
        match schema:
            case model.Primitive(kind=kind, properties=properties):
                return _logical(properties, Primitive(place, kind))
            case model.Array(items=items):
                return Array(place, self.node(items, f"{place}[]"))
            case model.Map(values=values):
                return Map(place, self.node(values, f"{place}{{}}"))
            case model.Union():
                return self._union(schema, place)
            case model.Fixed():
                return _fixed(schema, place)
            case model.Enum(name=name, symbols=symbols):
                if not symbols:
                    raise UnsupportedTypeError(f"The enum {name} at {named(place)} has no symbols.")
                return Enum(place, name, tuple(symbols), schema.default, tuple(schema.aliases))
            case model.Record():
                return self._record(schema, place)

    def _record(self, schema: model.Record, place: str) -> Record:
        if schema.name in self.inside:
            raise UnsupportedTypeError(
                f"The schema is recursive: {named(place)} is a {schema.name}, inside of which it "
                "stands. A column cannot hold itself; keep such values as bytes."
            )
        self.inside.append(schema.name)
        prefix = f"{place}." if place else ""
        fields = tuple(
            Field(
                one.name,
                self.node(one.schema, prefix + one.name),
                one.default if one.has_default else NO_DEFAULT,
                tuple(one.aliases),
            )
            for one in schema.fields
        )
        self.inside.pop()
        return Record(place, schema.name, fields, tuple(schema.aliases))

    def _union(self, schema: model.Union, place: str) -> Union:
        if not schema.branches:
            raise UnsupportedTypeError(f"The union at {named(place)} has no members.")
        prefix = f"{place}." if place else ""
        several = sum(branch.kind != "null" for branch in schema.branches) > 1
        members: list[Node] = []
        number = 0
        for branch in schema.branches:
            node = self.node(branch, f"{prefix}member{number}" if several else place)
            number += not is_null(node)
            members.append(node)
        return Union(place, tuple(members))


def _fixed(schema: model.Fixed, place: str) -> Primitive:
    if schema.size > MAX_FIXED_BYTES:
        raise UnsupportedTypeError(
            f"The fixed {schema.name} at {named(place)} has {schema.size} bytes, more than "
            f"{MAX_FIXED_BYTES}, and each row would take them; use bytes."
        )
    plain = Primitive(
        place, "fixed", name=schema.name, aliases=tuple(schema.aliases), size=schema.size
    )
    return _logical(schema.properties, plain)


def _logical(properties: Mapping[str, Any], plain: Primitive) -> Primitive:
    """``plain`` with its logical type, if that is known and stands on such a type."""
    meaning = meaning_of(plain.kind, properties, size=plain.size)
    if meaning.precision > MAX_PRECISION:
        raise UnsupportedTypeError(
            f"The decimal at {named(plain.place)} has {meaning.precision} digits; columns hold "
            f"{MAX_PRECISION}. Read it as bytes, without the logical type."
        )
    return replace(plain, logical=meaning.logical, precision=meaning.precision, scale=meaning.scale)
