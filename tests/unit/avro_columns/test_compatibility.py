"""The rules of resolution, as a table; and what they are called."""

from __future__ import annotations

import time
from typing import Any

import pytest

from avro_columns.compatibility import Compatibility, OldSchema, check, faults
from avro_columns.errors import SchemaSyntaxError, UnknownCompatibilityError
from avro_columns.model import Schema
from avro_columns.parse import parse_value

LIMIT_S = 10.0


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def map_(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}
B_OR_0 = {**B, "default": 0}
ITSELF = {"name": "r", "type": ["null", "R"]}


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ("int", "int"),
        ("long", "int"),
        ("float", "int"),
        ("double", "int"),
        ("float", "long"),
        ("double", "long"),
        ("double", "float"),
        ("bytes", "string"),
        ("string", "bytes"),
        (array("long"), array("int")),
        (map_("bytes"), map_("string")),
        (["null", "int"], "int"),
        (["null", "long"], ["null", "int"]),
        (["string", "int", "null"], ["null", "int"]),
        ("long", ["int", "long"]),
        (["null", "double"], "int"),
        ([], []),
        (record(A), record(A, B)),
        (record(A, B_OR_0), record(A)),
        (record(B_OR_0, A), record(A, B)),
        (record({**B, "aliases": ["a"]}), record(A)),
        (record(A, name="x.R"), record(A, name="y.R")),
        (record(A, name="New", aliases=["R"]), record(A)),
        ([record(A, name="New", aliases=["R"])], record(A)),
        ([record(name="x.R"), record(A, name="y.R")], record(A, name="y.R")),
        (enum("A", "B"), enum("B", "A")),
        (enum("A", default="A"), enum("B")),
        (fixed(2), fixed(2)),
        (fixed(2, "G", aliases=["F"]), fixed(2)),
        (
            record({"name": "r", "type": ["null", "R"]}),
            record({"name": "r", "type": ["null", "R"]}),
        ),
    ],
)
def test_what_a_reader_can_read(reader: Any, writer: Any) -> None:
    assert faults(parse_value(reader), parse_value(writer)) == []


@pytest.mark.parametrize(
    ("reader", "writer", "found"),
    [
        ("int", "long", ["TYPE_MISMATCH "]),
        ("int", "string", ["TYPE_MISMATCH "]),
        ("null", "int", ["TYPE_MISMATCH "]),
        ("boolean", "int", ["TYPE_MISMATCH "]),
        ("float", "double", ["TYPE_MISMATCH "]),
        (array("int"), map_("int"), ["TYPE_MISMATCH "]),
        (array("int"), array("string"), ["TYPE_MISMATCH items"]),
        (map_(array("int")), map_(array("string")), ["TYPE_MISMATCH values.items"]),
        ("int", ["int", "string"], ["TYPE_MISMATCH "]),
        (["null", "int"], "string", ["MISSING_UNION_BRANCH "]),
        (["null", "int"], ["int", "string", "boolean"], ["MISSING_UNION_BRANCH "] * 2),
        (["null", array("int")], array("string"), ["TYPE_MISMATCH [1].items"]),
        ([record(A)], record(A, name="S"), ["MISSING_UNION_BRANCH "]),
        (record(A, B), record(A), ["READER_FIELD_MISSING_DEFAULT_VALUE fields[1]"]),
        (record(A), record({**A, "type": "string"}), ["TYPE_MISMATCH fields[0].type"]),
        (record(A, name="S"), record(A), ["NAME_MISMATCH name"]),
        (record(A), enum("A", name="R"), ["TYPE_MISMATCH "]),
        (enum("A"), enum("A", "B", "C"), ["MISSING_ENUM_SYMBOLS symbols"]),
        (enum("A", name="G"), enum("A"), ["NAME_MISMATCH name"]),
        (fixed(2), fixed(3), ["FIXED_SIZE_MISMATCH "]),
        (fixed(2, "G"), fixed(3), ["NAME_MISMATCH name", "FIXED_SIZE_MISMATCH "]),
        (fixed(2), "bytes", ["TYPE_MISMATCH "]),
        (
            record({"name": "l", "type": ["null", record(A, B, name="S")]}),
            record({"name": "l", "type": ["null", record(A, name="S")]}),
            ["READER_FIELD_MISSING_DEFAULT_VALUE fields[0].type[1].fields[1]"],
        ),
    ],
)
def test_what_a_reader_cannot_read(reader: Any, writer: Any, found: list[str]) -> None:
    seen = faults(parse_value(reader), parse_value(writer))
    assert [f"{fault.rule.name} {fault.place}" for fault in seen] == found


def test_a_fault_names_what_is_wrong() -> None:
    [fault] = faults(parse_value(enum("A")), parse_value(enum("A", "B", "C")))
    assert str(fault) == (
        "symbols: the reader's enum E lacks symbols of the writer's, and has no default for them: "
        "B, C."
    )
    assert fault.detail == "[B, C]"
    [fault] = faults(parse_value("int"), parse_value("string"))
    assert str(fault).startswith("The schema: the reader has int, the writer string")


def versions(*schemas: Any) -> list[OldSchema]:
    return [OldSchema(number, parse_value(each)) for number, each in enumerate(schemas, 1)]


FIRST, SECOND, THIRD = record(A), record(A, B_OR_0), record(A, B)


@pytest.mark.parametrize(
    ("compatibility", "new", "against"),
    [
        ("NONE", "string", []),
        ("BACKWARD", THIRD, []),  # of version 2, not of version 1
        ("BACKWARD_TRANSITIVE", THIRD, [1]),
        ("BACKWARD", record(A, B, {"name": "c", "type": "int"}), [2]),
        ("FORWARD", record(B), [2]),
        ("FORWARD", record(A), []),
        ("FORWARD_TRANSITIVE", record(B, A), []),
        ("FORWARD_TRANSITIVE", record(B), [2, 1]),
        ("FULL", record(A, B_OR_0), []),
        ("FULL", record(B, {"name": "c", "type": "int"}), [2, 2]),
        ("FULL_TRANSITIVE", record(A, B), [1]),
    ],
)
def test_compatibility_with_what_was_registered(
    compatibility: str, new: Any, against: list[int]
) -> None:
    found = check(parse_value(new), versions(FIRST, SECOND), Compatibility.named(compatibility))
    assert [fault.version for fault in found] == against


def test_a_fault_says_who_cannot_read_what() -> None:
    old = versions(FIRST)
    [backward] = check(parse_value(THIRD), old, Compatibility.BACKWARD)
    assert str(backward) == (
        "READER_FIELD_MISSING_DEFAULT_VALUE at fields[1] of the new schema, which cannot read what "
        "is written with version 1: the reader's field 'b' has no default, and the writer has no "
        "such field."
    )
    [forward] = check(parse_value(record()), old, Compatibility.FORWARD)
    assert "fields[0] of version 1, which cannot read what is written with the new" in str(forward)


def test_nothing_stands_against_a_first_version() -> None:
    assert check(parse_value("int"), [], Compatibility.FULL_TRANSITIVE) == []


def test_compatibilities_by_name() -> None:
    assert Compatibility.named("full_transitive") is Compatibility.FULL_TRANSITIVE
    with pytest.raises(UnknownCompatibilityError, match="'SIDEWAYS'; there are NONE, BACKWARD"):
        Compatibility.named("SIDEWAYS")
    with pytest.raises(UnknownCompatibilityError):
        Compatibility.named(None)


def chain(name: str, length: int) -> Schema:
    """Records in a circle, all with one short name, each in a namespace of its own."""
    first = f"{name}0.R"
    inner: Any = first
    types: list[Any] = []
    for number in reversed(range(length)):
        types.append(record({"name": "next", "type": ["null", inner]}, name=f"{name}{number}.R"))
        inner = f"{name}{number}.R"
    return parse_value(inner_first(types))


def inner_first(types: list[Any]) -> Any:
    """Types that name each other in a circle, as one nested schema."""
    whole = types[0]
    for outer in types[1:]:
        outer["fields"][0]["type"][1] = whole
        whole = outer
    return whole


def test_circles_of_different_lengths_are_compared_in_every_way() -> None:
    assert faults(chain("a", 60), chain("b", 49)) == []


def test_thousands_of_types_are_compared_soon_and_without_recursion() -> None:
    chained = [record(name="R0")]
    chained += [record({"name": "x", "type": f"R{n - 1}"}, name=f"R{n}") for n in range(1, 5_000)]
    branches = [fixed(1, f"n.F{number}") for number in range(5_000)]
    others = [fixed(1, f"m.F{number}") for number in range(5_000)]
    began = time.process_time()
    assert faults(parse_value(chained), parse_value(chained)) == []
    assert faults(parse_value(branches), parse_value(others)) == []
    assert time.process_time() - began < LIMIT_S


def test_a_comparison_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avro_columns.compatibility._MAX_PAIRS", 1_000)
    with pytest.raises(SchemaSyntaxError, match="1,000 ways"):
        faults(chain("a", 60), chain("b", 49))


def test_the_faults_of_many_fields_and_versions_are_cut_off() -> None:
    fields = [{"name": f"f{number}", "type": "int"} for number in range(3_000)]
    new, old = parse_value(record(*fields)), versions(*[record()] * 50)
    assert len(faults(new, old[0].schema)) == 1_000
    assert len(check(new, old, Compatibility.BACKWARD_TRANSITIVE)) == 1_000
