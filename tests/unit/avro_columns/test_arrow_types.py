"""Schemas as column types and back, and the schemas that no columns hold."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from avro_columns import model
from avro_columns.errors import UnsupportedTypeError
from avro_columns.parse import parse as parse_text
from avro_columns.values.arrow_types import DURATION, arrow_schema, arrow_type, avro_schema
from avro_columns.values.resolved_tree import Record, parse


def record(*fields: Any, name: str = "r") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{i}", "type": one} for i, one in enumerate(fields)],
    }


def long(logical: str) -> dict[str, Any]:
    return {"type": "long", "logicalType": logical}


TYPES = [
    ("int", pa.int32()),
    ('"string"', pa.string()),
    ("bytes", pa.binary()),
    ({"type": "int", "logicalType": "time-millis"}, pa.time64("us")),
    (long("timestamp-millis"), pa.timestamp("us", tz="UTC")),
    (long("timestamp-nanos"), pa.timestamp("ns", tz="UTC")),
    (long("local-timestamp-millis"), pa.timestamp("us")),
    (long("date"), pa.int64()),  # which is not for a long
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, pa.decimal128(9, 2)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": "x"}, None),
    ({"type": "fixed", "name": "f", "size": 12, "logicalType": "duration"}, DURATION),
    ({"type": "fixed", "name": "f", "size": 16, "logicalType": "uuid"}, pa.binary(16)),
    ({"type": "fixed", "name": "f", "size": 3, "logicalType": "uuid"}, pa.binary(3)),
    ({"type": "enum", "name": "e", "symbols": ["A"]}, pa.string()),
    (["null", "long"], pa.int64()),
    (["null"], pa.null()),
    (
        ["string", "null", "long"],
        pa.struct([("member0", pa.string()), ("member1", pa.int64())]),
    ),
    (
        {"type": "array", "items": "long"},
        pa.list_(pa.field("item", pa.int64(), nullable=False)),
    ),
    (
        {"type": "map", "values": ["null", "long"]},
        pa.map_(pa.string(), pa.field("value", pa.int64())),
    ),
    (record(["null", "int"]), pa.struct([pa.field("f0", pa.int32())])),
]


@pytest.mark.parametrize(("schema", "arrow"), TYPES)
def test_each_schema_has_a_type(schema: Any, arrow: pa.DataType | None) -> None:
    if arrow is None:
        with pytest.raises(UnsupportedTypeError):
            arrow_type(schema)
    else:
        assert arrow_type(schema).equals(arrow)


def test_named_types_are_put_where_they_are_referred_to() -> None:
    inner = record("int", name="inner")
    schema = record(inner, "inner", {"type": "array", "items": "inner"})
    made = arrow_schema(json.dumps(schema))
    assert made.field("f1").type == made.field("f0").type == made.field("f2").type.value_type
    parsed = fastavro.parse_schema(schema)
    assert arrow_schema(parsed) == made
    tree = parse(parsed)
    assert isinstance(tree, Record)
    assert arrow_schema(tree) == made


def test_a_schema_that_refers_to_others_has_their_columns() -> None:
    item = parse_text(json.dumps(record("int", name="shop.Item")))
    assert isinstance(item, model.Record)
    order = parse_text(json.dumps(record("shop.Item", name="shop.Order")), known=[item])
    assert arrow_schema(order) == arrow_schema(record(record("int", name="Item")))
    tree = parse(order)
    assert parse(tree) is tree


UNSUPPORTED = [
    (record(["null", "r"]), "The schema is recursive: f0 is a r"),
    (record({"type": "array", "items": "r"}), r"f0\[\] is a r"),
    (
        record({"type": "bytes", "logicalType": "decimal", "precision": 39}),
        "decimal at f0 has 39 digits; columns hold 38",
    ),
    (record({"type": "fixed", "name": "f", "size": 1 << 20}), "f0 has 1048576 bytes"),
    (
        record({"type": "fixed", "name": "f", "size": -1}),
        r"fields\[0\]\.type\.size: .* bytes, got -1",
    ),
    (record([]), "The union at f0 has no members"),
    (
        record([["null"], "int"]),
        r"fields\[0\]\.type\[0\]: A union cannot stand directly in a union",
    ),
    (record("nothing"), r"Not an Avro schema: fields\[0\]\.type: There is no type 'nothing'"),
    ({"type": "record"}, "Not an Avro schema: The schema: There is no 'fields' in this record"),
    ("{", "Not an Avro schema: The schema: This is no JSON"),
    ("record", "Not an Avro schema: The schema: There is no type 'record'"),
    ({"type": {"type": "int"}}, "Not an Avro schema: type: The 'type' of a type is a name"),
    ('"' + "x" * 1_000_000 + '"', "1,000,002 bytes, and 400,000 at most are taken"),
    (
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "default": "x"}]},
        r"fields\[0\]\.default: The default does not fit its type: 'x' is no int",
    ),
    (record("int", {"type": "enum", "name": "e", "symbols": []}), "has no symbols"),
]


@pytest.mark.parametrize(("schema", "text"), UNSUPPORTED)
def test_what_no_columns_hold_is_refused_with_its_place(schema: Any, text: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=text):
        arrow_type(schema)


def test_a_schema_that_names_make_huge_is_refused() -> None:
    schema: Any = "int"
    for level in range(30):
        schema = record(schema, f"t{level - 1}" if level else "int", name=f"t{level}")
    with pytest.raises(UnsupportedTypeError, match="more than 10000 columns"):
        arrow_type(schema)


def test_a_schema_that_is_nested_too_deep_is_refused() -> None:
    schema: Any = "int"
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(UnsupportedTypeError, match="nested deeper than 60 types"):
        arrow_type(schema)
    schema = parse_text('{"type": "array", "items": ' * 100 + '"int"' + "}" * 100)
    with pytest.raises(UnsupportedTypeError, match="nested deeper than 60 types"):
        arrow_type(schema)
    shallow: Any = "int"
    for _ in range(100):
        shallow = {"type": "array", "items": shallow}
    with pytest.raises(UnsupportedTypeError, match="nested deeper than 60 types"):
        arrow_type(shallow)


def test_only_a_record_has_columns() -> None:
    with pytest.raises(UnsupportedTypeError, match="not a record"):
        arrow_schema("int")


# -- back ---------------------------------------------------------------------------------

COLUMNS = pa.schema(
    [
        pa.field("a", pa.int16(), nullable=False),
        pa.field("b", pa.large_string()),
        pa.field("c", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("d", pa.timestamp("ms", tz="Europe/Berlin"), nullable=False),
        pa.field("e", pa.timestamp("ns"), nullable=False),
        pa.field("f", pa.list_(pa.struct([("x", pa.float16()), ("y", pa.binary(3))]))),
        pa.field("g", pa.struct([("x", pa.struct([("y", pa.binary(3))]))])),
        pa.field("h", pa.map_(pa.string(), pa.uint32())),
        pa.field("i", pa.decimal128(5, 2), nullable=False),
        pa.field("j", pa.date64(), nullable=False),
        pa.field("k", pa.time32("s"), nullable=False),
        pa.field("l", pa.null()),
    ]
)


def test_columns_have_a_schema_that_reads_them() -> None:
    schema = avro_schema(COLUMNS, name="rows")
    types = {one["name"]: one["type"] for one in schema["fields"]}
    assert types["a"] == "int"
    assert types["b"] == ["null", "string"]
    assert types["d"] == {"type": "long", "logicalType": "timestamp-millis"}
    assert types["e"] == {"type": "long", "logicalType": "local-timestamp-nanos"}
    assert types["h"] == ["null", {"type": "map", "values": ["null", "long"]}]
    assert types["l"] == "null"
    assert [one.get("default", 0) for one in schema["fields"]][:2] == [0, None]
    fastavro.parse_schema(schema)
    assert arrow_schema(schema).names == COLUMNS.names
    assert [one.nullable for one in arrow_schema(schema)] == [one.nullable for one in COLUMNS]


@pytest.mark.parametrize("schema", [one for one, _ in TYPES[2:9]])
def test_types_of_schemas_come_back(schema: Any) -> None:
    columns = arrow_schema(record(schema, ["null", schema]))
    assert arrow_schema(avro_schema(columns)) == columns


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (pa.field("a", pa.uint64()), "column a is uint64"),
        (pa.field("a", pa.struct([("b", pa.duration("us"))])), r"column a\.b is duration"),
        (pa.field("a", pa.map_(pa.int32(), pa.int32())), "column a is map<int32, int32"),
        (pa.field("a", pa.decimal256(50, 2)), "is decimal256"),
        (pa.field("1", pa.int32()), "'1' cannot be named so in Avro"),
    ],
)
def test_columns_without_a_schema_are_named(one: pa.Field, text: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=text):
        avro_schema(pa.schema([one]))
