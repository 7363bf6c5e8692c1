"""Avro's schemas as objects.

A named type is one object wherever it is used, so a schema that contains itself is a cycle of
objects: compare types by identity, and walk them with a record of what was seen. Properties that
Avro does not know, and those of logical types, are kept in ``properties``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

PRIMITIVES: Final = (
    "null", "boolean", "int", "long", "float", "double", "bytes", "string",
)  # fmt: skip


class Missing(enum.Enum):
    """The default of a field that has none: None is a default."""

    DEFAULT = enum.auto()


MISSING: Final = Missing.DEFAULT


@dataclass(eq=False, slots=True)
class Primitive:
    kind: str
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Array:
    items: Schema
    properties: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "array"


@dataclass(eq=False, slots=True)
class Map:
    values: Schema
    properties: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "map"


@dataclass(eq=False, slots=True)
class Union:
    branches: Sequence[Schema]
    kind: str = "union"


@dataclass(eq=False, slots=True, kw_only=True)
class Named:
    """``name`` is the full name, with the namespace; so are ``aliases``."""

    name: str
    doc: str | None = None
    aliases: Sequence[str] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def namespace(self) -> str:
        return self.name.rpartition(".")[0]


@dataclass(eq=False, slots=True, kw_only=True)
class Enum(Named):
    symbols: Sequence[str]
    default: str | None = None
    kind: str = "enum"


@dataclass(eq=False, slots=True, kw_only=True)
class Fixed(Named):
    size: int
    kind: str = "fixed"


@dataclass(eq=False, slots=True, kw_only=True)
class Field:
    name: str
    schema: Schema
    default: Any = MISSING
    doc: str | None = None
    order: str = "ascending"
    aliases: Sequence[str] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING


@dataclass(eq=False, slots=True, kw_only=True)
class Record(Named):
    """``fields`` are filled in after the record is known by name, as they may contain it."""

    fields: list[Field] = field(default_factory=list)
    kind: str = "record"


Schema = Primitive | Array | Map | Union | Enum | Fixed | Record


def parts_of(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas that this one consists of, and where they stand in it."""
    match schema:
        case Array(items=items):
            yield ".items", items
        case Map(values=values):
            yield ".values", values
        case Union(branches=branches):
            for number, branch in enumerate(branches):
                yield f"[{number}]", branch
        case Record(fields=fields):
            for number, each in enumerate(fields):
                yield f".fields[{number}].type", each.schema


def named_types(schema: Schema) -> dict[str, Record | Enum | Fixed]:
    """All named types in a schema by full name."""
    found: dict[str, Record | Enum | Fixed] = {}
    waiting = [schema]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Record | Enum | Fixed):
            found[each.name] = each
        waiting.extend(part for _, part in parts_of(each))
    return found


def place(above: str, step: str) -> str:
    """A place in a schema, ``step`` below another."""
    return f"{above}{step}" if above else step.removeprefix(".")
