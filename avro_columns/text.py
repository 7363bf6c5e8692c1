"""From a schema's model to its text, in the forms that are compared and kept.

* ``canonical_text``: what is registered. The schema in Avro's order of keys, without white space;
  documentation, aliases, defaults and properties stay. Texts that differ in layout alone are one
  schema.
* ``normalized_text``: full names, and keys in one order, so that schemas that mean the same have
  the same text.
* ``parsing_form``: Avro's Parsing Canonical Form, which keeps what matters to a reader of data, and
  of which fingerprints are made.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, Final

import fastavro.schema

from avro_columns.errors import SchemaSyntaxError
from avro_columns.json_text import MAX_JSON_DEPTH
from avro_columns.model import (
    PRIMITIVES,
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
)

# Of JSON, that a type takes.
_LEVELS: Final = {"record": 3, "error": 3, **dict.fromkeys(PRIMITIVES, 0)}
_FIRST: Final = ("logicalType", "precision", "scale")


def canonical_text(schema: Schema, *, known: Collection[str] = ()) -> str:
    """``known`` are the full names of types that are defined elsewhere, in references."""
    return _dumped(_Canonical(known).value(schema, ""))


def self_contained(schema: Schema) -> Any:
    """The schema as JSON, with all that it refers to: what Avro's libraries take."""
    return _Canonical(()).value(schema, "")


def normalized_text(schema: Schema, *, known: Collection[str] = ()) -> str:
    return _dumped(_Normalized(known).value(schema, ""))


def parsing_form(schema: Schema) -> str:
    """Raises SchemaSyntaxError where fastavro does not take the schema."""
    return str(_by_fastavro(fastavro.schema.to_parsing_canonical_form, self_contained(schema)))


def fingerprint(schema: Schema, algorithm: str = "CRC-64-AVRO") -> str:
    """Returns the fingerprint in hexadecimal; ``algorithm`` is CRC-64-AVRO, SHA-256 or MD5."""
    return fastavro.schema.fingerprint(parsing_form(schema), algorithm)


def check_readable(schema: Schema) -> None:
    """Raises SchemaSyntaxError where fastavro, which reads data here, does not take the schema."""
    _by_fastavro(fastavro.schema.parse_schema, self_contained(schema))


def _by_fastavro(function: Any, value: Any) -> Any:
    try:
        return function(value)
    except (fastavro.schema.SchemaParseException, ValueError, TypeError, KeyError) as error:
        raise SchemaSyntaxError(f"fastavro does not take it ({error}).") from error


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Writer(ABC):
    """Writes a type where it is first met, and its name from then on."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = set(known)
        self._depth = 0

    def value(self, schema: Schema, namespace: str) -> Any:
        """Raises SchemaSyntaxError for what would be nested too deeply: types that were defined
        beside each other, in several schemas, come to stand in one another."""
        levels = _LEVELS.get(schema.kind, 1)
        self._depth += levels
        if self._depth > MAX_JSON_DEPTH:
            raise SchemaSyntaxError(
                "With all that it refers to, it is nested in more than "
                f"{MAX_JSON_DEPTH} levels. Refer to fewer schemas that refer to others."
            )
        written = self._written(schema, namespace)
        self._depth -= levels
        return written

    @abstractmethod
    def _written(self, schema: Schema, namespace: str) -> Any: ...


class _Canonical(_Writer):
    def _written(self, schema: Schema, namespace: str) -> Any:
        match schema:
            case Primitive(kind=kind, properties=properties):
                return {"type": kind, **properties} if properties else kind
            case Array(items=items, properties=properties):
                return {"type": "array", "items": self.value(items, namespace), **properties}
            case Map(values=values, properties=properties):
                return {"type": "map", "values": self.value(values, namespace), **properties}
            case Union(branches=branches):
                return [self.value(branch, namespace) for branch in branches]
            case _:
                return self._named(schema, namespace)

    def _named(self, schema: Record | Enum | Fixed, namespace: str) -> Any:
        own = schema.namespace
        if schema.name in self._known:
            short = own == namespace and schema.short_name not in PRIMITIVES
            return schema.short_name if short else schema.name
        self._known.add(schema.name)
        written: dict[str, Any] = {"type": schema.kind, "name": schema.short_name}
        if own != namespace:
            written["namespace"] = own
        if schema.doc is not None:
            written["doc"] = schema.doc
        match schema:
            case Record(fields=fields):
                written["fields"] = [self._field(field, own) for field in fields]
            case Enum(symbols=symbols, default=default):
                written["symbols"] = list(symbols)
                if default is not None:
                    written["default"] = default
            case Fixed(size=size):
                written["size"] = size
        written |= schema.properties
        if schema.aliases:
            written["aliases"] = [_relative(alias, own) for alias in schema.aliases]
        return written

    def _field(self, field: Field, namespace: str) -> dict[str, Any]:
        return {
            "name": field.name,
            "type": self.value(field.schema, namespace),
            **_details(field),
            **field.properties,
        }


class _Normalized(_Writer):
    def _written(self, schema: Schema, namespace: str) -> Any:
        match schema:
            case Primitive(kind=kind, properties=properties):
                return {"type": kind, **_sorted(properties)} if properties else kind
            case Array(items=items, properties=properties):
                return {"type": "array", "items": self.value(items, ""), **_sorted(properties)}
            case Map(values=values, properties=properties):
                return {"type": "map", "values": self.value(values, ""), **_sorted(properties)}
            case Union(branches=branches):
                return [self.value(branch, "") for branch in branches]
            case _:
                return self._named(schema)

    def _named(self, schema: Record | Enum | Fixed) -> Any:
        if schema.name in self._known:
            return schema.name
        self._known.add(schema.name)
        written: dict[str, Any] = {"name": schema.name, "type": schema.kind}
        match schema:
            case Record(fields=fields):
                written["fields"] = [
                    {
                        "name": field.name,
                        "type": self.value(field.schema, ""),
                        **_deeply_sorted(_details(field)),
                        **_sorted(field.properties),
                    }
                    for field in fields
                ]
            case Enum(symbols=symbols, default=default):
                written["symbols"] = list(symbols)
                if default is not None:
                    written["default"] = default
            case Fixed(size=size):
                written["size"] = size
        if schema.aliases:
            written["aliases"] = sorted(schema.aliases)
        if schema.doc is not None:
            written["doc"] = schema.doc
        return written | _sorted(schema.properties)


def _details(field: Field) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if field.doc is not None:
        written["doc"] = field.doc
    if field.has_default:
        written["default"] = field.default
    if field.order != "ascending":
        written["order"] = field.order
    if field.aliases:
        written["aliases"] = list(field.aliases)
    return written


def _relative(name: str, namespace: str) -> str:
    space, _, short = name.rpartition(".")
    return short if space == namespace else name


def _sorted(properties: Mapping[str, Any]) -> dict[str, Any]:
    first = {key: properties[key] for key in _FIRST if key in properties}
    return first | {key: _deeply_sorted(properties[key]) for key in sorted(properties)}


def _deeply_sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _deeply_sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_deeply_sorted(each) for each in value]
    return value
