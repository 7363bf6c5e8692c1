"""Arbitrary schemas, what becomes of them over time, and data that goes everywhere in them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
SYMBOLS = ("A", "B", "C", "D")
FIELDS = ("a", "b", "c", "d")
WIDER = {
    "int": ["long", "double"],
    "long": ["double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}
_MAX_DEPTH = 3


class _Names:
    def __init__(self) -> None:
        self.count = 0

    def next(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    """JSON of a schema. Named types have names of their own: fastavro compares them without
    namespaces, and takes the first of a union."""
    return _schema(draw, _Names(), 0)


def _schema(draw: st.DrawFn, names: _Names, depth: int, *, in_union: bool = False) -> Any:
    kinds = ["primitive", "primitive", "enum", "fixed"]
    if depth < _MAX_DEPTH:
        kinds += ["array", "map", "record", "record"] + ([] if in_union else ["union"])
    match draw(st.sampled_from(kinds)):
        case "enum":
            symbols = draw(st.lists(st.sampled_from(SYMBOLS), unique=True, min_size=1))
            made = {"type": "enum", "name": names.next("E"), "symbols": symbols}
            return made | ({"default": symbols[0]} if draw(st.booleans()) else {})
        case "fixed":
            return {"type": "fixed", "name": names.next("F"), "size": draw(st.integers(1, 3))}
        case "array":
            return {"type": "array", "items": _schema(draw, names, depth + 1)}
        case "map":
            return {"type": "map", "values": _schema(draw, names, depth + 1)}
        case "union":
            count = draw(st.integers(1, 4))
            branches = [_schema(draw, names, depth + 1, in_union=True) for _ in range(count)]
            return unique_kinds(branches)
        case "record":
            fields = draw(st.lists(st.sampled_from(FIELDS), unique=True, max_size=3))
            name = names.next("R")
            typed = [_field(draw, names, depth, each) for each in fields]
            return {"type": "record", "name": name, "fields": typed}
        case _:
            return draw(st.sampled_from(PRIMITIVES))


def _field(draw: st.DrawFn, names: _Names, depth: int, name: str) -> dict[str, Any]:
    field = {"name": name, "type": _schema(draw, names, depth + 1)}
    if draw(st.booleans()):
        field["default"] = default_of(field["type"])
    return field


def unique_kinds(branches: list[Any]) -> list[Any]:
    """Keeps one of each unnamed type, as a union has to."""
    by_kind: dict[str, Any] = {}
    for branch in branches:
        kind = branch if isinstance(branch, str) else branch.get("name", branch["type"])
        by_kind.setdefault(kind, branch)
    return list(by_kind.values())


def default_of(schema: Any) -> Any:
    if isinstance(schema, list):
        return default_of(schema[0])
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "enum":
            return schema["symbols"][0]
        case "fixed":
            return "x" * schema["size"]
        case "array":
            return []
        case "map":
            return {}
        case "record":
            return {field["name"]: default_of(field["type"]) for field in schema["fields"]}
        case "null":
            return None
        case "boolean":
            return False
        case "bytes" | "string":
            return ""
    return 0


@st.composite
def evolved(draw: st.DrawFn, schema: Any) -> Any:
    """A schema after some changes, good ones and bad ones."""
    root = {"type": "map", "values": copy.deepcopy(schema)}
    names = _Names()
    names.count = 100
    for _ in range(draw(st.integers(0, 3))):
        _change(draw, names, draw(st.sampled_from(list(_holders(root)))))
    for holder in _holders(root):
        if "default" in holder and "symbols" not in holder:  # what it is of may have changed
            holder["default"] = default_of(holder["type"])
    return root["values"]


def _holders(schema: Any) -> Iterator[Any]:
    """Yields what holds types: fields, arrays, maps, unions."""
    if isinstance(schema, list):
        yield schema
        for branch in schema:
            yield from _holders(branch)
    elif isinstance(schema, dict):
        match schema["type"]:
            case "array" | "map":
                yield schema
                yield from _holders(schema.get("items", schema.get("values")))
            case "record":
                yield schema
                for field in schema["fields"]:
                    yield field
                    yield from _holders(field["type"])
            case "enum":
                yield schema


def _change(draw: st.DrawFn, names: _Names, holder: Any) -> None:
    if isinstance(holder, list):
        if draw(st.booleans()) and len(holder) > 1:
            holder.pop(draw(st.integers(0, len(holder) - 1)))
        else:
            holder.append(_schema(draw, names, _MAX_DEPTH, in_union=True))
        holder[:] = unique_kinds(holder)
    elif holder["type"] == "enum":
        symbols = draw(st.lists(st.sampled_from(SYMBOLS), unique=True, min_size=1))
        holder["symbols"] = symbols
        if "default" in holder:
            holder["default"] = symbols[0]
    elif holder["type"] == "record":
        fields = holder["fields"]
        free = [name for name in FIELDS if name not in {field["name"] for field in fields}]
        adding: bool = draw(st.booleans())
        if free and adding:
            field = _field(draw, names, _MAX_DEPTH, draw(st.sampled_from(free)))
            fields.insert(draw(st.integers(0, len(fields))), field)
        elif fields:
            fields.pop(draw(st.integers(0, len(fields) - 1)))
    elif "items" in holder:
        holder["items"] = _other(draw, names, holder["items"])
    elif "values" in holder:
        holder["values"] = _other(draw, names, holder["values"])
    else:
        holder["type"] = _other(draw, names, holder["type"])


def _other(draw: st.DrawFn, names: _Names, schema: Any) -> Any:
    """Another type in the place of one: wider at times, in a union at others."""
    if isinstance(schema, str) and schema in WIDER and draw(st.booleans()):
        return draw(st.sampled_from(WIDER[schema]))
    in_union: bool = draw(st.booleans())
    if not isinstance(schema, list) and schema != "null" and in_union:
        return ["null", schema]
    return _schema(draw, names, _MAX_DEPTH)


def covering(schema: Any, named: dict[str, Any] | None = None) -> list[Any]:
    """Data that together go into every branch of every union and use every symbol of every enum,
    with no array and no map empty. Records of one schema vary one field at a time."""
    if isinstance(schema, list):
        return [_tagged(branch, value) for branch in schema for value in covering(branch)]
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "enum":
            return list(schema["symbols"])
        case "fixed":
            return [b"x" * schema["size"]]
        case "array":
            return [covering(schema["items"])]
        case "map":
            return [{"k": value} for value in covering(schema["values"])] or [{}]
        case "record":
            return _records(schema)
    data: dict[str, list[Any]] = {
        "null": [None],
        "boolean": [True],
        "int": [-7],
        "long": [1 << 40],
        "float": [0.5],
        "double": [0.1],
        "bytes": [b"text"],
        "string": ["text"],
    }
    return data[kind]


def _tagged(branch: Any, value: Any) -> Any:
    """The branch is named to fastavro, which would guess."""
    if isinstance(branch, dict) and "name" in branch:
        return (branch["name"], value)
    return (branch if isinstance(branch, str) else branch["type"], value)


def _records(schema: Any) -> list[Any]:
    choices = {field["name"]: covering(field["type"]) for field in schema["fields"]}
    if not all(choices.values()):
        return []  # a field that nothing can be written to
    first = {name: values[0] for name, values in choices.items()}
    return [first] + [
        {**first, name: value} for name, values in choices.items() for value in values[1:]
    ]
