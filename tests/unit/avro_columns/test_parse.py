"""Schemas as people write them, right and wrong, with the place of each fault."""

from __future__ import annotations

import json
import time

import pytest

from avro_columns.errors import SchemaSyntaxError, SchemaTextTooLargeError
from avro_columns.json_text import MAX_JSON_DEPTH, MAX_SCHEMA_BYTES
from avro_columns.model import MISSING, Array, Enum, Fixed, Map, Primitive, Record, Union
from avro_columns.parse import parse
from avro_columns.text import canonical_text, check_readable

LIMIT_S = 5.0  # far above what any of these takes; a quadratic one would take minutes


def record(*fields: object, **more: object) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields), **more})


def field(type_: object, **more: object) -> dict[str, object]:
    return {"name": "a", "type": type_, **more}


def refusal(text: str) -> SchemaSyntaxError:
    with pytest.raises(SchemaSyntaxError) as refused:
        parse(text)
    return refused.value


def test_a_schema_with_all_that_there_is() -> None:
    schema = parse(
        record(
            field({"type": "long", "logicalType": "timestamp-micros"}, doc="When.", order="ignore"),
            {"name": "b", "type": ["null", "R"], "default": None, "aliases": ["old"]},
            {"name": "c", "type": {"type": "array", "items": {"type": "map", "values": "bytes"}}},
            {"name": "d", "type": {"type": "enum", "name": "E", "symbols": ["X"], "default": "X"}},
            {"name": "e", "type": {"type": "fixed", "name": "other.F", "size": 4}},
            namespace="a.b",
            aliases=["Old", "c.Older"],
            owner="me",
        )
    )
    assert isinstance(schema, Record)
    assert (schema.name, schema.short_name, schema.namespace) == ("a.b.R", "R", "a.b")
    assert schema.aliases == ("a.b.Old", "c.Older")
    assert schema.properties == {"owner": "me"}
    when, again, many, one, four = schema.fields
    assert isinstance(when.schema, Primitive)
    assert when.schema.properties == {"logicalType": "timestamp-micros"}
    assert (when.doc, when.order, when.default) == ("When.", "ignore", MISSING)
    assert isinstance(again.schema, Union)
    assert again.schema.branches[1] is schema
    assert (again.default, again.has_default, again.aliases) == (None, True, ("old",))
    assert isinstance(many.schema, Array)
    assert isinstance(many.schema.items, Map)
    assert isinstance(one.schema, Enum)
    assert one.schema.name == "a.b.E"
    assert isinstance(four.schema, Fixed)
    assert four.schema.name == "other.F"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "", "no JSON"),
        ("{", "", "no JSON"),
        ("NaN", "", "no NaN"),
        ("3", "", "got 3"),
        ("null", "", "got null"),
        ("{}", "", "no 'type'"),
        ('"Order"', "", "no type 'Order'"),
        ('{"type": {"type": "int"}}', "type", "inner type"),
        ('{"type": ["null", "int"]}', "type", "inner type"),
        ('{"type": "itn"}', "type", "no type 'itn'"),
        ('["int", ["null"]]', "[1]", "directly in a union"),
        ('["int", {"type": "int"}]', "[1]", "'int' already"),
        ('{"type": "array"}', "", "no 'items' in this array"),
        ('{"type": "map", "values": 1}', "values", "got 1"),
        ('{"type": "enum", "name": "E"}', "", "no 'symbols'"),
        ('{"type": "enum", "name": "E", "symbols": "A"}', "symbols", "an array"),
        ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "symbols[1]", "twice"),
        ('{"type": "enum", "name": "E", "symbols": ["A", 1]}', "symbols[1]", "got 1"),
        ('{"type": "enum", "name": "E", "symbols": ["a-b"]}', "symbols[0]", "'a-b'"),
        ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "default", "'B'"),
        ('{"type": "fixed", "name": "F", "size": -1}', "size", "got -1"),
        ('{"type": "fixed", "name": "F", "size": true}', "size", "got True"),
        ('{"type": "fixed", "size": 1}', "", "no 'name' in this fixed"),
        ('{"type": "fixed", "name": "1F", "size": 1}', "name", "'1F'"),
        ('{"type": "fixed", "name": "a..F", "size": 1}', "name", "'a..F'"),
        ('{"type": "fixed", "name": "int", "size": 1}', "name", "primitive"),
        ('{"type": "fixed", "name": "F", "namespace": "a b", "size": 1}', "name", "'a b.F'"),
        ('{"type": "fixed", "name": "F", "namespace": 1, "size": 1}', "namespace", "got 1"),
        ('{"type": "fixed", "name": "F", "size": 1, "aliases": "G"}', "aliases", "array"),
        ('{"type": "fixed", "name": "F", "size": 1, "aliases": [1]}', "aliases[0]", "got 1"),
        ('{"type": "fixed", "name": "F", "size": 1, "doc": 1}', "doc", "is text"),
        ('{"type": "record", "name": "R"}', "", "no 'fields'"),
        ('{"type": "record", "name": "R", "fields": {}}', "fields", "an array"),
        (record(1), "fields[0]", "got 1"),
        (record({"name": "a"}), "fields[0]", "no 'type' in this field"),
        (record({"type": "int"}), "fields[0]", "no 'name' in this field"),
        (record({"name": "a.b", "type": "int"}), "fields[0].name", "'a.b'"),
        (record(field("int"), field("int")), "fields[1]", "'a' already"),
        (record(field("int", order="up")), "fields[0].order", "'up'"),
        (record(field("int"), field("R2")), "fields[1].type", "no type 'R2'"),
        (
            record(field({"type": "array", "items": {"type": "record", "name": "S", "fields": [
                {"name": "b", "type": ["null", "what"]}]}})),
            "fields[0].type.items.fields[0].type[1]",
            "no type 'what'",
        ),
        (record(field({"type": "enum", "name": "R", "symbols": []})), "fields[0].type.name",
         "defined before"),
        (record(field("int", default="1")), "fields[0].default", "is no int"),
        (record(field("int", default=1 << 31)), "fields[0].default", "is no int"),
        (record(field("int", default=True)), "fields[0].default", "is no int"),
        (record(field("null", default=0)), "fields[0].default", "is no null"),
        (record(field("string", default=None)), "fields[0].default", "is no string"),
        (record(field("bytes", default="\u0100")), "fields[0].default", "is no bytes"),
        (record(field(["null", "int"], default="x")), "fields[0].default", "none of the union"),
        (record(field({"type": "array", "items": "int"}, default=[1, "x"])), "fields[0].default",
         "is no int"),
        (record(field({"type": "map", "values": "int"}, default=[])), "fields[0].default",
         "is no map"),
        (record(field({"type": "enum", "name": "E", "symbols": ["A"]}, default="B")),
         "fields[0].default", "no symbol of E"),
        (record(field({"type": "fixed", "name": "F", "size": 2}, default="x")),
         "fields[0].default", "2 bytes of F"),
        (record(field({"type": "record", "name": "S", "fields": [field("int")]}, default={})),
         "fields[0].default", "lacks the field 'a'"),
        ('{"type": "bytes", "logicalType": "decimal"}', "precision", "got null"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}', "scale",
         "got 3"),
        ('{"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5}',
         "precision", "4 digits at most"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_place(text: str, place: str, message: str) -> None:
    error = refusal(text)
    assert error.place == place
    assert message in str(error)
    assert str(error).startswith(f"{place or 'The schema'}: ")


@pytest.mark.parametrize(
    "text",
    [
        '"int"',
        '{"type": "string"}',
        "[]",
        '["null", {"type": "int", "logicalType": "date"}]',
        '{"type": "string", "logicalType": "of-our-own"}',
        '{"type": "enum", "name": "E", "symbols": []}',
        '{"type": "error", "name": "Failed", "fields": []}',
        '{"type": "fixed", "name": "F", "size": 0}',
        '{"type": "fixed", "name": "x.F", "namespace": "ignored", "size": 1}',
        record(field(["null", "int"], default=1)),
        record(field("double", default=1)),
        record(field("R")),
        record(field({"type": "R"})),
        record(field({"type": "record", "name": "int", "namespace": "x", "fields": []})),
        record({"name": "á", "type": "int"}).replace("\\u00e1", "a"),
        '{"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}',
    ],
)
def test_what_avro_allows_is_taken(text: str) -> None:
    schema = parse(text)
    check_readable(schema)
    again = parse(canonical_text(schema))
    assert canonical_text(again) == canonical_text(schema)


def test_a_name_without_a_namespace_is_of_the_namespace_around_it() -> None:
    text = record(
        field({"type": "fixed", "name": "F", "size": 1}),
        {"name": "b", "type": "F"},
        {"name": "c", "type": "n.F"},
        namespace="n",
    )
    schema = parse(text)
    assert isinstance(schema, Record)
    assert schema.fields[0].schema is schema.fields[1].schema is schema.fields[2].schema


def test_a_known_type_is_named_without_its_definition() -> None:
    known = parse('{"type": "fixed", "name": "n.F", "size": 1}')
    assert isinstance(known, Fixed)
    schema = parse(record(field("n.F")), known=[known])
    assert isinstance(schema, Record)
    assert schema.fields[0].schema is known
    with pytest.raises(SchemaSyntaxError, match=r"referred to"):
        parse('{"type": "fixed", "name": "n.F", "size": 1}', known=[known])


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10_000,
        "[" * 10_000 + "]" * 10_000,
        '{"type": "array", "items": ' * 10_000 + '"int"' + "}" * 10_000,
        '{"a":' * 100_000,
    ],
)
def test_deep_nesting_is_refused_soon(text: str) -> None:
    began = time.process_time()
    assert f"more than {MAX_JSON_DEPTH} levels" in str(refusal(text)) or len(text) > 400_000
    assert time.process_time() - began < LIMIT_S


def test_nesting_up_to_the_limit_is_taken() -> None:
    depth = MAX_JSON_DEPTH
    schema = parse('{"type": "array", "items": ' * depth + '"int"' + "}" * depth)
    check_readable(schema)
    inner: object = "int"
    for number in range(MAX_JSON_DEPTH // 3 - 1):
        inner = {"type": "record", "name": f"R{number}", "fields": [{"name": "a", "type": inner}]}
    check_readable(parse(json.dumps(inner)))


def test_brackets_in_texts_are_no_nesting() -> None:
    parse(record(field("int", doc="[" * 1000 + '"' + "{" * 1000 + "\\")))


def test_a_large_schema_is_taken_up_to_the_limit_and_no_further() -> None:
    fields = [{"name": f"f{number}", "type": ["null", "string"], "default": None}
              for number in range(6_000)]  # fmt: skip
    text = record(*fields)
    assert MAX_SCHEMA_BYTES * 0.8 < len(text) < MAX_SCHEMA_BYTES
    began = time.process_time()
    check_readable(parse(text))
    assert time.process_time() - began < LIMIT_S
    with pytest.raises(SchemaTextTooLargeError, match=r"1,000,0.. bytes, and 400,000 at most"):
        parse(record(doc="x" * (1_000_000 - 40)))


def test_a_default_of_recursive_unions_is_checked_soon() -> None:
    inner = {"type": "record", "name": "S", "fields": [{"name": "x", "type": ["T", "S"]}]}
    outer = {"type": "record", "name": "T", "fields": [{"name": "x", "type": ["T", inner]}]}
    value: object = 0
    for _ in range(60):
        value = {"x": value}
    began = time.process_time()
    assert "none of the union" in str(refusal(record(field(outer, default=value))))
    assert time.process_time() - began < LIMIT_S


@pytest.mark.parametrize("text", ['"\\ud800"', '{"type": "int", "doc": "\\udfff"}', "1" * 10_000])
def test_json_that_no_text_can_hold(text: str) -> None:
    assert refusal(text).place == ""
    assert "half a character" in str(refusal('"\ud800"'))
