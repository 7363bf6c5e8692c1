"""Versions of arbitrary schemas, and what fastavro makes of a value under one."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import fastavro
from fastavro.read import SchemaResolutionError as FastavroResolutionError
from hypothesis import strategies as st

from avro_columns.branches import PROMOTIONS
from avro_columns.compatibility import faults
from avro_columns.model import Schema, Union, parts_of
from avro_columns.parse import parse_value

WIDER = {
    "int": ["long", "double"],
    "long": ["double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}
DEFAULTS = [
    ("int", 3),
    ("string", "x"),
    (["null", "long"], None),
    (["long", "null", "string"], 7),
    ({"type": "array", "items": "int"}, [1, 2]),
    ({"type": "map", "values": "string"}, {"a": "b"}),
]


@st.composite
def evolved(draw: st.DrawFn, schema: Any, numbers: Iterator[int]) -> Any:
    """Another version of ``schema``, most of which its values resolve to."""
    if draw(st.integers(0, 3)) == 0 and not isinstance(schema, list) and schema != "null":
        return draw(st.permutations(["null", draw(evolved(schema, numbers))]).filter(
            lambda union: not any(isinstance(member, list) for member in union)
        ) if not isinstance(schema, list) else st.just(schema))  # fmt: skip
    if isinstance(schema, str):
        return draw(st.sampled_from([schema, *WIDER.get(schema, [])]))
    if isinstance(schema, list):
        return draw(evolved_union(schema, numbers))
    if schema["type"] == "record":
        return draw(evolved_record(schema, numbers))
    if schema["type"] == "array":
        return {**schema, "items": draw(evolved(schema["items"], numbers))}
    if schema["type"] == "map":
        return {**schema, "values": draw(evolved(schema["values"], numbers))}
    if schema["type"] == "enum":
        kept = draw(st.lists(st.sampled_from(schema["symbols"]), min_size=1, unique=True))
        default = draw(st.sampled_from([{}, {"default": kept[0]}]))
        return {**schema, "symbols": [*kept, "NEW"], **default}
    if schema.get("logicalType") == "decimal":
        return {**schema, "precision": draw(st.integers(schema["precision"], most_digits(schema)))}
    return schema


def most_digits(decimal: Any) -> int:
    """Digits, at most, that columns and a fixed's bytes hold."""
    size = decimal.get("size", 16)
    return min(38, int((8 * size - 1) * math.log10(2)))


@st.composite
def evolved_union(draw: st.DrawFn, schema: list[Any], numbers: Iterator[int]) -> Any:
    members = [
        one if one == "null" or isinstance(one, str) else draw(evolved(one, numbers))
        for one in schema
    ]
    flat = [one for one in members if not isinstance(one, list)]
    flat += [part for one in members if isinstance(one, list) for part in one if part != "null"]
    kept = draw(st.lists(st.sampled_from(flat), min_size=1, unique_by=repr))
    return kept[0] if len(kept) == 1 and draw(st.booleans()) else kept


@st.composite
def evolved_record(draw: st.DrawFn, schema: Any, numbers: Iterator[int]) -> Any:
    fields = []
    for one in schema["fields"]:
        change = draw(st.sampled_from(["keep", "keep", "keep", "drop", "rename"]))
        if change == "drop":
            continue
        field = {"name": one["name"], "type": draw(evolved(one["type"], numbers))}
        if change == "rename":
            field = {**field, "name": f"r{next(numbers)}", "aliases": [one["name"]]}
        fields.append(field)
    for kind, default in draw(st.lists(st.sampled_from(DEFAULTS), max_size=2)):
        fields.append({"name": f"n{next(numbers)}", "type": kind, "default": default})
    return {**schema, "fields": draw(st.permutations(fields))}


def reads_as_fastavro(writer: Any, reader: Any) -> bool:
    """Are logical types the same in both, and does no union have a type before another one that is
    promoted to it? fastavro reads the types below, and takes the first member that it can read."""
    read = parse_value(reader)
    found = faults(read, parse_value(writer))
    return not _takes_another(read) and not any("not mean the same" in one.message for one in found)


def _takes_another(schema: Schema) -> bool:
    branches = schema.branches if isinstance(schema, Union) else ()
    kinds = combinations((one.kind for one in branches), 2)
    return any(before in PROMOTIONS.get(kind, ()) for before, kind in kinds) or any(
        _takes_another(part) for _, part in parts_of(schema)
    )


def read(datum: bytes, writer: Any, reader: Any) -> Any:
    """Reads a datum with fastavro; None where it does not resolve."""
    try:
        return fastavro.schemaless_reader(io.BytesIO(datum), writer, reader)
    except (FastavroResolutionError, UnicodeDecodeError):
        return None
