"""Defaults of fields: JSON that stands for a value of the field's schema."""

from __future__ import annotations

import sys
from typing import Any, Final

from avro_columns.logical import meaning_of
from avro_columns.model import Array, Enum, Fixed, Map, Primitive, Record, Schema, Union

_RANGES: Final = {"int": 1 << 31, "long": 1 << 63}
_LARGEST_FLOAT: Final = (2 - 2**-23) * 2.0**127
_MOST_MILLIS: Final = ((1 << 63) - 1) // 1000  # columns have microseconds


class Defaults:
    """Checks values against schemas. For the values of one text, which stay as they are: what was
    found once is remembered, as unions of records would else be tried again at each level."""

    def __init__(self, *, kept: bool = False) -> None:
        """``kept``: a default has to be one that readers can give, too. Numbers may be out of the
        range of what they mean, which was never a reason to refuse a schema."""
        self._kept = kept
        self._found: dict[tuple[int, int], str | None] = {}

    def fault(self, value: Any, schema: Schema) -> str | None:
        """Returns the reason why ``value`` is no value of ``schema``; None where it is one.

        Takes any branch of a union, as Avro does since 1.12. Goes as deep as the value does.
        """
        if isinstance(schema, Primitive):
            fault = _primitive_fault(value, schema.kind)
            return fault or (self._kept_fault(value, schema) if self._kept else None)
        key = id(value), id(schema)
        if key not in self._found:
            self._found[key] = self._look(value, schema)
        return self._found[key]

    def _kept_fault(self, value: Any, schema: Primitive | Fixed) -> str | None:
        size = schema.size if isinstance(schema, Fixed) else 0
        meaning = meaning_of(schema.kind, schema.properties, size=size)
        if schema.kind in ("float", "double"):
            limit = _LARGEST_FLOAT if schema.kind == "float" else sys.float_info.max
            return None if -limit <= value <= limit else f"{_shown(value)} is out of range"
        if meaning.logical == "decimal":
            number = int.from_bytes(value.encode("latin-1"), "big", signed=True)
            if abs(number) >= 10**meaning.precision:
                return f"{_shown(value)} has more than {meaning.precision} digits"
        is_millis = meaning.logical in ("timestamp-millis", "local-timestamp-millis")
        if is_millis and not -_MOST_MILLIS <= value <= _MOST_MILLIS:
            return f"{_shown(value)} is out of range"
        return None

    def _look(self, value: Any, schema: Schema) -> str | None:
        match schema:
            case Array(items=items):
                if not isinstance(value, list):
                    return f"{_shown(value)} is no array"
                return _first(self.fault(each, items) for each in value)
            case Map(values=values):
                if not isinstance(value, dict):
                    return f"{_shown(value)} is no map"
                return _first(self.fault(each, values) for each in value.values())
            case Union(branches=branches):
                if any(self.fault(value, branch) is None for branch in branches):
                    return None
                return f"{_shown(value)} is of none of the union's types"
            case Enum(name=name, symbols=symbols):
                known = isinstance(value, str) and value in symbols
                return None if known else f"{_shown(value)} is no symbol of {name}"
            case Fixed(name=name, size=size):
                if _primitive_fault(value, "bytes") is None and len(value) == size:
                    return self._kept_fault(value, schema) if self._kept else None
                return f"{_shown(value)} is not of the {size} bytes of {name}"
            case Record():
                return self._record_fault(value, schema)
        return None

    def _record_fault(self, value: Any, schema: Record) -> str | None:
        if not isinstance(value, dict):
            return f"{_shown(value)} is no record"
        for field in schema.fields:
            if field.name in value:
                fault = self.fault(value[field.name], field.schema)
                if fault is not None:
                    return fault
            elif not field.has_default:
                return f"{_shown(value)} lacks the field {field.name!r} of {schema.name}"
        return None


def _primitive_fault(value: Any, kind: str) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "null":
            fits = value is None
        case "boolean":
            fits = isinstance(value, bool)
        case "int" | "long":
            limit = _RANGES[kind]
            fits = is_number and isinstance(value, int) and -limit <= value < limit
        case "float" | "double":
            fits = is_number
        case "string":
            fits = isinstance(value, str)
        case _:  # bytes, each as the character of that number
            fits = isinstance(value, str) and all(ord(each) < 256 for each in value)
    return None if fits else f"{_shown(value)} is no {kind}"


def _first(faults: Any) -> str | None:
    return next((fault for fault in faults if fault is not None), None)


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
