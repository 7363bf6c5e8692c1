"""Columns of one schema read as another's, and what does not resolve."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from avro_columns.decode.evolution import Resolver
from avro_columns.errors import ResolutionError, ValueMismatchError
from avro_columns.values.arrow_types import arrow_type


def record(*fields: dict[str, Any], name: str = "r", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def resolve(writer: Any, reader: Any, values: list[Any]) -> list[Any]:
    resolver = Resolver(writer, reader)
    resolved = resolver.resolve(pa.array(values, arrow_type(writer)))
    resolved.values.validate(full=True)
    assert resolved.values.type == resolver.arrow_type
    made: list[Any] = resolved.checked().to_pylist()
    return made


def enum(*symbols: str, name: str = "e", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


CASES = [
    ("int", "long", [1, -1], [1, -1]),
    ("int", "float", [1], [1.0]),
    ("long", "double", [1 << 53], [float(1 << 53)]),
    ("float", "double", [0.5], [0.5]),
    ("string", "bytes", ["ä"], ["ä".encode()]),
    ("bytes", "string", [b"a"], ["a"]),
    ("int", ["null", "string", "long"], [1], [{"member0": None, "member1": 1}]),
    (["null", "int"], ["long", "null"], [1, None], [1, None]),
    (["null", "int"], "int", [1], [1]),
    (["int", "string"], "string", [{"member0": None, "member1": "a"}], ["a"]),
    (
        ["null", "int", "string"],
        ["string", "null", "double"],
        [{"member0": 1}, {"member1": "a"}, None],
        [{"member0": None, "member1": 1.0}, {"member0": "a", "member1": None}, None],
    ),
    (enum("A", "B"), enum("A", default="A"), ["A", "B"], ["A", "A"]),
    (enum("A", name="x.e"), enum("B", "A", name="y.e"), ["A"], ["A"]),
    (enum("A"), enum("A", name="g", aliases=["e"]), ["A"], ["A"]),
    (fixed(1), fixed(1, name="g", aliases=["f"]), [b"a"], [b"a"]),
    (
        record(field("a", "int"), field("gone", "string")),
        record(field("new", ["null", "string"], default=None), field("a", "long")),
        [{"a": 1, "gone": "x"}],
        [{"new": None, "a": 1}],
    ),
    (
        record(field("a", "int")),
        record(field("b", "int", aliases=["a"]), name="s", aliases=["r"]),
        [{"a": 1}],
        [{"b": 1}],
    ),
    (
        record(field("a", {"type": "array", "items": record(field("x", "int"), name="i")})),
        record(
            field(
                "a",
                {
                    "type": "array",
                    "items": record(
                        field("y", "bytes", default="\u00ff"), field("x", "double"), name="i"
                    ),
                },
            )
        ),
        [{"a": [{"x": 1}, {"x": 2}]}, {"a": []}],
        [{"a": [{"y": b"\xff", "x": 1.0}, {"y": b"\xff", "x": 2.0}]}, {"a": []}],
    ),
    (
        {"type": "map", "values": "int"},
        {"type": "map", "values": ["null", "long"]},
        [[("a", 1)], []],
        [[("a", 1)], []],
    ),
    (
        logical("long", "timestamp-nanos"),
        logical("long", "timestamp-micros"),
        [1_999],
        [pa.scalar(1, pa.timestamp("us", tz="UTC")).as_py()],
    ),
    (
        logical("long", "timestamp-millis"),
        logical("long", "timestamp-micros"),
        [5_000],
        [pa.scalar(5_000, pa.timestamp("us", tz="UTC")).as_py()],
    ),
    (logical("long", "timestamp-millis"), "long", [5_000], [5]),
    (logical("long", "timestamp-micros"), "long", [-(1 << 63)], [-(1 << 63)]),
    (
        logical("int", "time-millis"),
        logical("long", "time-micros"),
        [7_000],
        [pa.scalar(7_000, pa.time64("us")).as_py()],
    ),
    (logical("int", "date"), "long", [3], [3]),
    (
        "long",
        logical("long", "timestamp-millis"),
        [5],
        [pa.scalar(5_000, pa.timestamp("us", tz="UTC")).as_py()],
    ),
]


@pytest.mark.parametrize(("writer", "reader", "values", "expected"), CASES)
def test_values_become_the_readers(writer: Any, reader: Any, values: Any, expected: Any) -> None:
    assert resolve(writer, reader, values) == expected
    assert resolve(writer, reader, values * 2) == expected * 2
    assert resolve(writer, reader, []) == []


DEFAULTS = [
    ("long", 3, 3),
    ("double", 1, 1.0),
    ("bytes", "\u0001\u00ff", b"\x01\xff"),
    (fixed(2), "ab", b"ab"),
    (enum("A", "B"), "B", "B"),
    (["string", "null"], "x", "x"),
    (["null", "string", "long"], None, None),
    (["long", "string"], 4, {"member0": 4, "member1": None}),
    ({"type": "array", "items": "int"}, [1], [1]),
    ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
    (record(field("x", "int"), field("y", "int", default=2), name="i"), {"x": 1}, {"x": 1, "y": 2}),
    (logical("int", "date"), 1, pa.scalar(1, pa.date32()).as_py()),
    (
        logical("long", "timestamp-millis"),
        1,
        pa.scalar(1_000, pa.timestamp("us", tz="UTC")).as_py(),
    ),
    (
        logical("bytes", "decimal", precision=4, scale=2),
        "\u0001\u0000",
        pa.scalar("2.56").cast(pa.decimal128(4, 2)).as_py(),
    ),
    (
        fixed(12, logicalType="duration"),
        "\u0001" + "\0" * 11,
        {"months": 1, "days": 0, "millis": 0},
    ),
]


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS)
def test_defaults_of_every_type_are_filled_in(kind: Any, default: Any, expected: Any) -> None:
    writer = record(field("a", "int"))
    reader = record(field("new", kind, default=default))
    assert resolve(writer, reader, [{"a": 1}, {"a": 2}]) == [{"new": expected}] * 2


REFUSED = [
    ("string", "int", "the value itself was written as string, which cannot be read as int"),
    ("long", "int", "written as long"),
    ("int", "null", "cannot be read as null"),
    (
        record(field("a", record(field("b", "string"), name="i"))),
        record(field("a", record(field("b", "int"), name="i"))),
        r"a\.b was written as string",
    ),
    (
        record(field("a", "int")),
        record(field("b", "int")),
        "The field b is not in the writer's r, and the reader's schema has no default",
    ),
    (record(), record(name="s"), "their names are r and s; add an alias"),
    (enum("A"), enum("A", name="g"), "their names are e and g"),
    (fixed(1), fixed(2), "the sizes are 1 and 2"),
    (["int", "string"], "bytes", None),
    (["int", "long"], "string", "written as int"),
    ("null", "int", "written as null"),
    ("string", ["null", "int"], "cannot be read as null or int"),
    (
        logical("bytes", "decimal", precision=4, scale=2),
        logical("bytes", "decimal", precision=6, scale=3),
        "4 digits, 2 after the point",
    ),
    (logical("bytes", "decimal", precision=4, scale=2), "bytes", "written as a decimal"),
    (fixed(12, logicalType="duration"), fixed(12), "written as duration"),
    ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "written as an array"),
    (
        record(field("a", logical("int", "date"))),
        record(field("a", ["null", logical("long", "timestamp-millis")])),
        "a was written as date, which cannot be read as timestamp-millis",
    ),
    ("int", ["string", logical("long", "timestamp-micros"), "double"], "read as timestamp-micros"),
    (
        record(field("x", "int"), field("y", "int"), name="a.r"),
        [record(field("x", "string"), name="a.r"), record(field("x", "int"), name="b.r")],
        "x was written as int, which cannot be read as string",
    ),
]


@pytest.mark.parametrize(("writer", "reader", "text"), REFUSED)
def test_schemas_that_do_not_resolve_are_refused(writer: Any, reader: Any, text: str) -> None:
    if text is None:
        assert Resolver(writer, reader)  # one of its members does
        return
    with pytest.raises(ResolutionError, match=text):
        Resolver(writer, reader)


UNRESOLVED = [
    (enum("A", "B"), enum("A"), ["A", "B"], "the symbol is none of the reader's"),
    (["null", "int"], "int", [1, None], "is null, which the reader's schema does not allow"),
    (
        ["int", "string"],
        "long",
        [{"member0": 1}, {"member1": "a"}],
        "of a member that the reader's schema has not",
    ),
    (
        {"type": "map", "values": ["null", logical("int", "date")]},
        {"type": "map", "values": ["null", logical("long", "timestamp-millis")]},
        [[("a", None)], [("a", 3)]],
        "has not: {} was written as date, which cannot be read as timestamp-millis: they do not",
    ),
    ("bytes", "string", [b"a", b"\xff"], "not UTF-8"),
    (
        {"type": "array", "items": enum("A", "B")},
        {"type": "array", "items": enum("A")},
        [["A"], ["A", "B"]],
        r"[]: the symbol",
    ),
    ("long", logical("long", "timestamp-millis"), [1, 1 << 62], "4611686018427387904 is out"),
    (
        logical("long", "timestamp-micros"),
        logical("long", "timestamp-nanos"),
        [0, 1 << 62],
        "out of the range",
    ),
]


@pytest.mark.parametrize(("writer", "reader", "values", "text"), UNRESOLVED)
def test_values_that_do_not_resolve_are_told(
    writer: Any, reader: Any, values: list[Any], text: str
) -> None:
    resolved = Resolver(writer, reader).resolve(pa.array(values, arrow_type(writer)))
    assert [one.row for one in resolved.undecodable] == [1]
    assert text in resolved.undecodable[0].reason
    assert [value is None for value in resolved.values.to_pylist()] == [False, True]


def test_nulls_of_rows_that_did_not_decode_stay_nulls() -> None:
    writer, reader = record(field("a", "int")), record(field("a", "long"))
    values = pa.array([None, {"a": 1}, None], arrow_type(writer))
    resolved = Resolver(writer, reader).resolve(values)
    assert resolved.undecodable == []
    assert resolved.values.to_pylist() == [None, {"a": 1}, None]


def test_a_default_that_is_no_value_of_its_type_is_refused() -> None:
    writer = record(field("a", "int"))
    reader = record(field("b", logical("bytes", "decimal", precision=2), default="\u0001\u0000"))
    with pytest.raises(ResolutionError, match=r"The default .* of b is no value of its type"):
        Resolver(writer, reader)


def test_a_column_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueMismatchError, match="got string"):
        Resolver("int", "long").resolve(pa.array(["a"]))
