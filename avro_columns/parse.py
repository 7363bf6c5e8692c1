"""From a schema's text to its model, by the rules of Avro 1.12; the place of each fault is named.

Stricter than some parsers, so that what is registered can be read by all of them: a default has to
be a value of its field's type, and a decimal has to make sense. A type's own text says ``int`` or
``{"type": "int"}``; ``{"type": {"type": "int"}}`` is refused, as the libraries differ about it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from avro_columns.defaults import Defaults
from avro_columns.errors import SchemaSyntaxError
from avro_columns.json_text import parse_json
from avro_columns.model import (
    MISSING,
    PRIMITIVES,
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Primitive,
    Record,
    Schema,
    Union,
    place,
)

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ORDERS: Final = ("ascending", "descending", "ignore")
_NAMED: Final = frozenset({"type", "name", "namespace", "doc", "aliases"})
_RESERVED: Final[Mapping[str, frozenset[str]]] = {
    "record": _NAMED | {"fields"},
    "error": _NAMED | {"fields"},
    "enum": _NAMED | {"symbols", "default"},
    "fixed": _NAMED | {"size"},
    "array": frozenset({"type", "items"}),
    "map": frozenset({"type", "values"}),
}
_OF_A_FIELD: Final = frozenset({"name", "type", "doc", "default", "order", "aliases"})
_MAX_FIXED_BYTES: Final = (1 << 31) - 1

NamedType = Record | Enum | Fixed


def parse(text: str, *, known: Iterable[NamedType] = ()) -> Schema:
    """The schema that ``text`` describes. ``known`` are types that it may name without defining
    them. Raises SchemaSyntaxError."""
    return parse_value(parse_json(text), known=known)


def parse_value(value: Any, *, known: Iterable[NamedType] = ()) -> Schema:
    """Parses a schema given as JSON values, which must not be nested deeply. Raises
    SchemaSyntaxError."""
    parser = _Parser({each.name: each for each in known})
    schema = parser.schema(value, "", namespace="")
    parser.check_defaults()
    return schema


@dataclass(frozen=True, slots=True)
class _Default:
    value: Any
    schema: Schema
    place: str


class _Parser:
    """One text's named types, and the defaults to be checked when all types are known."""

    def __init__(self, named: dict[str, NamedType]) -> None:
        self._named = named
        self._given = frozenset(named)
        self._defaults: list[_Default] = []
        self._structures: Mapping[str, Callable[[dict[str, Any], str, str], Schema]] = {
            "array": self._array,
            "map": self._map,
            "enum": self._enum,
            "fixed": self._fixed,
            "record": self._record,
            "error": self._record,
        }

    def schema(self, value: Any, at: str, namespace: str) -> Schema:
        if isinstance(value, str):
            return self._by_name(value, at, namespace)
        if isinstance(value, list):
            return self._union(value, at, namespace)
        if not isinstance(value, dict):
            _refuse(at, f"A type is a name, an object or an array of types, got {_shown(value)}.")
        if "type" not in value:
            _refuse(at, f"This object has no 'type'; it has {_keys(value)}.")
        kind = value["type"]
        if not isinstance(kind, str):
            _refuse(
                place(at, ".type"),
                f"The 'type' of a type is a name, got {_shown(kind)}. Put the inner type in the "
                "place of the object around it.",
            )
        if kind in self._structures:
            return self._structures[kind](value, at, namespace)
        if kind in PRIMITIVES:
            properties = _properties(value, frozenset({"type"}))
            _check_decimal(kind, properties, at, size=None)
            return Primitive(kind, properties)
        return self._by_name(kind, place(at, ".type"), namespace)

    def check_defaults(self) -> None:
        defaults = Defaults()
        for each in self._defaults:
            try:
                fault = defaults.fault(each.value, each.schema)
            except RecursionError:
                fault = "it is nested too deeply"
            if fault is not None:
                _refuse(each.place, f"The default does not fit its type: {fault}.")

    # -- types ---------------------------------------------------------------------------

    def _by_name(self, name: str, at: str, namespace: str) -> Schema:
        if name in PRIMITIVES:
            return Primitive(name)
        full = _qualified(name, namespace)
        found = self._named.get(full)
        if found is None:
            _refuse(
                at,
                f"There is no type {full!r}. It has to be defined before it is used, or in a "
                f"schema that this one refers to; a primitive type is one of "
                f"{', '.join(PRIMITIVES)}.",
            )
        return found

    def _union(self, value: list[Any], at: str, namespace: str) -> Union:
        branches: list[Schema] = []
        seen: set[str] = set()
        for number, each in enumerate(value):
            below = place(at, f"[{number}]")
            branch = self.schema(each, below, namespace)
            if isinstance(branch, Union):
                _refuse(below, "A union cannot stand directly in a union; add its types here.")
            kind = branch.name if isinstance(branch, Named) else branch.kind
            if kind in seen:
                _refuse(below, f"The union has {kind!r} already; each type is in it once.")
            seen.add(kind)
            branches.append(branch)
        return Union(branches)

    def _array(self, value: dict[str, Any], at: str, namespace: str) -> Array:
        inner = _required(value, "items", at)
        items = self.schema(inner, place(at, ".items"), namespace)
        return Array(items, _properties(value, _RESERVED["array"]))

    def _map(self, value: dict[str, Any], at: str, namespace: str) -> Map:
        inner = _required(value, "values", at)
        values = self.schema(inner, place(at, ".values"), namespace)
        return Map(values, _properties(value, _RESERVED["map"]))

    def _enum(self, value: dict[str, Any], at: str, namespace: str) -> Enum:
        symbols = _required(value, "symbols", at)
        below = place(at, ".symbols")
        if not isinstance(symbols, list):
            _refuse(below, f"The symbols of an enum are an array, got {_shown(symbols)}.")
        seen = set()
        for number, symbol in enumerate(symbols):
            where = place(below, f"[{number}]")
            _check_name(symbol, where, "A symbol")
            if symbol in seen:
                _refuse(where, f"The symbol {symbol!r} is there twice.")
            seen.add(symbol)
        default = value.get("default")
        if default is not None and default not in symbols:
            _refuse(place(at, ".default"), f"The default {_shown(default)} is none of the symbols.")
        made = Enum(**self._head(value, at, namespace), symbols=tuple(symbols), default=default)
        self._define(made, at)
        return made

    def _fixed(self, value: dict[str, Any], at: str, namespace: str) -> Fixed:
        size = _required(value, "size", at)
        if not _is_integer(size) or not 0 <= size <= _MAX_FIXED_BYTES:
            _refuse(place(at, ".size"), f"The size is a number of bytes, got {_shown(size)}.")
        made = Fixed(**self._head(value, at, namespace), size=size)
        _check_decimal("fixed", made.properties, at, size=size)
        self._define(made, at)
        return made

    def _record(self, value: dict[str, Any], at: str, namespace: str) -> Record:
        fields = _required(value, "fields", at)
        below = place(at, ".fields")
        if not isinstance(fields, list):
            _refuse(below, f"The fields of a record are an array, got {_shown(fields)}.")
        made = Record(**self._head(value, at, namespace), kind=value["type"])
        self._define(made, at)
        taken: dict[str, str] = {}
        for number, each in enumerate(fields):
            where = place(below, f"[{number}]")
            field = self._field(each, where, made.namespace)
            if field.name in taken:
                _refuse(where, f"The record has a field {field.name!r} already.")
            taken[field.name] = where
            made.fields.append(field)
        return made

    def _field(self, value: Any, at: str, namespace: str) -> Field:
        if not isinstance(value, dict):
            _refuse(at, f"A field is an object with 'name' and 'type', got {_shown(value)}.")
        name = _check_name(_required(value, "name", at), place(at, ".name"), "A field's name")
        schema = self.schema(_required(value, "type", at), place(at, ".type"), namespace)
        order = value.get("order", "ascending")
        if order not in _ORDERS:
            _refuse(place(at, ".order"), f"An order is one of {_ORDERS}, got {_shown(order)}.")
        default = value.get("default", MISSING)
        if default is not MISSING:
            self._defaults.append(_Default(default, schema, place(at, ".default")))
        return Field(
            name=name,
            schema=schema,
            default=default,
            doc=_text_or_none(value, "doc", at),
            order=order,
            aliases=tuple(
                _check_name(alias, where, "An alias") for alias, where in _aliases(value, at)
            ),
            properties=_properties(value, _OF_A_FIELD),
        )

    # -- names ---------------------------------------------------------------------------

    def _head(self, value: dict[str, Any], at: str, namespace: str) -> dict[str, Any]:
        """Parses the attributes that all named types have."""
        name = self._full_name(value, at, namespace)
        own = name.rpartition(".")[0]
        aliases = [
            (_qualified(alias, own) if isinstance(alias, str) else alias, where)
            for alias, where in _aliases(value, at)
        ]
        return {
            "name": name,
            "doc": _text_or_none(value, "doc", at),
            "aliases": tuple(_check_full_name(alias, where) for alias, where in aliases),
            "properties": _properties(value, _RESERVED[value["type"]]),
        }

    def _full_name(self, value: dict[str, Any], at: str, namespace: str) -> str:
        name = _required(value, "name", at)
        where = place(at, ".name")
        if isinstance(name, str) and "." in name:
            return _check_full_name(name, where)
        _check_name(name, where, "A name")
        own = value.get("namespace")
        if own is not None:
            if not isinstance(own, str):
                _refuse(place(at, ".namespace"), f"A namespace is text, got {_shown(own)}.")
            namespace = own
        if namespace:
            return _check_full_name(f"{namespace}.{name}", where)
        if name in PRIMITIVES:
            _refuse(where, f"{name!r} is a primitive type; no other can have its name.")
        return str(name)

    def _define(self, made: NamedType, at: str) -> None:
        if made.name in self._named:
            where = "in a schema that is referred to" if made.name in self._given else "before"
            _refuse(
                place(at, ".name"),
                f"{made.name!r} was defined {where}; a type is defined once, and then named.",
            )
        self._named[made.name] = made


# -- help ---------------------------------------------------------------------------------


def _refuse(at: str, message: str) -> NoReturn:
    raise SchemaSyntaxError(message, at)


def _required(value: dict[str, Any], key: str, at: str) -> Any:
    if key not in value:
        what = value.get("type") if isinstance(value.get("type"), str) else None
        owner = f"this {what}" if what in _RESERVED else "this field"
        _refuse(at, f"There is no {key!r} in {owner}; it has {_keys(value)}.")
    return value[key]


def _check_name(name: Any, at: str, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        _refuse(
            at,
            f"{what} is a letter or '_', and then letters, digits and '_', got {_shown(name)}.",
        )
    return name


def _check_full_name(name: Any, at: str) -> str:
    parts = name.split(".") if isinstance(name, str) else ()
    if not parts or not all(_NAME.fullmatch(part) for part in parts):
        _refuse(
            at,
            "A full name is names with dots between them, each a letter or '_', and then letters, "
            f"digits and '_', got {_shown(name)}.",
        )
    return str(name)


def _qualified(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _aliases(value: dict[str, Any], at: str) -> list[tuple[Any, str]]:
    aliases = value.get("aliases")
    below = place(at, ".aliases")
    if aliases is None:
        return []
    if not isinstance(aliases, list):
        _refuse(below, f"Aliases are an array of names, got {_shown(aliases)}.")
    return [(alias, place(below, f"[{number}]")) for number, alias in enumerate(aliases)]


def _text_or_none(value: dict[str, Any], key: str, at: str) -> str | None:
    found = value.get(key)
    if found is not None and not isinstance(found, str):
        _refuse(place(at, f".{key}"), f"{key!r} is text, got {_shown(found)}.")
    return found


def _properties(value: dict[str, Any], reserved: frozenset[str]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if key not in reserved}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_decimal(kind: str, properties: Mapping[str, Any], at: str, *, size: int | None) -> None:
    """Avro would have a reader take a decimal that makes no sense as plain bytes; some libraries
    refuse to, and none can mean it."""
    if properties.get("logicalType") != "decimal" or kind not in ("bytes", "fixed"):
        return
    precision: Any = properties.get("precision")
    scale = properties.get("scale", 0)
    if not _is_integer(precision) or precision < 1:
        _refuse(
            place(at, ".precision"),
            f"The precision of a decimal is a number from 1, got {_shown(precision)}.",
        )
    if not _is_integer(scale) or not 0 <= scale <= precision:
        _refuse(
            place(at, ".scale"),
            f"The scale of a decimal is from 0 to its precision, {precision}, got {_shown(scale)}.",
        )
    if size is not None:
        most = max(0, math.floor(math.log10(2) * (8 * size - 1)))
        if precision > most:
            _refuse(
                place(at, ".precision"),
                f"A decimal in {size} bytes has {most} digits at most, got {precision}.",
            )


def _keys(value: dict[str, Any]) -> str:
    return ", ".join(map(repr, list(value)[:10])) or "nothing"


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
