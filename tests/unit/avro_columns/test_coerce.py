"""Columns as users have them, as a schema's; what is lost or guessed is refused by its name."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from avro_columns.errors import ValueMismatchError
from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.coerce import coerce


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    made = [{"name": name, "type": kind} for name, kind in fields]
    return {"type": "record", "name": "r", "fields": made}


TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)

TAKEN = [
    (pa.array([1, 2], pa.int8()), "long", [1, 2]),
    (pa.array([1], pa.uint64()), "int", [1]),
    (pa.array([1], pa.int32()), "double", [1.0]),
    (pa.array([0.5], pa.float64()), "float", [0.5]),
    (pa.array([float("nan")]), "float", None),
    (pa.array(["a"], pa.large_string()), "string", ["a"]),
    (pa.array(["a", None]).dictionary_encode(), ["null", "string"], ["a", None]),
    (pa.array(["a"], pa.string_view()), "bytes", [b"a"]),
    (pa.array([b"ab"], pa.large_binary()), {"type": "fixed", "name": "f", "size": 2}, [b"ab"]),
    (pa.array(["A"]).dictionary_encode(), {"type": "enum", "name": "e", "symbols": ["A"]}, ["A"]),
    (pa.array([NOON], pa.timestamp("ns", tz="Europe/Berlin")), TIMESTAMP, [NOON]),
    (pa.array([NOON], pa.timestamp("s", tz="UTC")), TIMESTAMP, [NOON]),
    (
        pa.array([NOON.replace(tzinfo=None)], pa.timestamp("ms")),
        LOCAL,
        [NOON.replace(tzinfo=None)],
    ),
    (pa.array([NOON.date()], pa.date64()), DATE, [NOON.date()]),
    (pa.array([Decimal("1.50")], pa.decimal128(20, 4)), DECIMAL, [Decimal("1.50")]),
    (
        pa.array([[1], None], pa.large_list(pa.int16())),
        ["null", {"type": "array", "items": "long"}],
        [[1], None],
    ),
    (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), {"type": "array", "items": "long"}, [[1, 2]]),
    (
        pa.array([[("a", 1)], [("b", 2), ("c", 3)]], pa.map_(pa.large_string(), pa.int8()))[1:],
        {"type": "map", "values": "long"},
        [[("b", 2), ("c", 3)]],
    ),
    (pa.nulls(2), ["null", "string"], [None, None]),
    (pa.array([1], pa.int32()), ["null", "string", "long"], [{"member0": None, "member1": 1}]),
    (pa.array(["a"]), ["bytes", "string"], [{"member0": None, "member1": "a"}]),
    (
        pa.array([{"y": "b", "x": 1}]),
        record(("x", "int"), ("y", "string")),
        [{"x": 1, "y": "b"}],
    ),
    (
        pa.array([{"months": 1, "millis": 3, "days": 2}]),
        {"type": "fixed", "name": "f", "size": 12, "logicalType": "duration"},
        [{"months": 1, "days": 2, "millis": 3}],
    ),
]


@pytest.mark.parametrize(("array", "schema", "expected"), TAKEN)
def test_types_that_say_the_same_are_cast(array: pa.Array, schema: Any, expected: Any) -> None:
    made = coerce(array, schema)
    made.validate(full=True)
    assert made.type.equals(arrow_type(schema))
    assert expected is None or made.to_pylist() == expected


REFUSED = [
    (pa.array(["1"]), "int", "The column is string, which does not become int"),
    (pa.array([1]), "string", "is int64, which does not become string"),
    (pa.array([True]), "int", "is bool"),
    (pa.array([1 << 40]), "int", "not in range"),
    (pa.array([0.1]), "float", "more digits"),
    (pa.array([(1 << 53) + 1]), "double", "int64, which does not become double"),
    (pa.array([1.5]), "long", "is double"),
    (pa.array([NOON.replace(tzinfo=None)]), TIMESTAMP, "Give it the zone that its times are of"),
    (pa.array([NOON]), LOCAL, "Take its zone away"),
    (pa.array([1], pa.timestamp("ns", tz="UTC")), TIMESTAMP, "would lose data"),
    (pa.array([1]), TIMESTAMP, "is int64"),
    (pa.array([Decimal("1.555")]), DECIMAL, "does not become a decimal of 6 digits"),
    (pa.array([b"abc"]), {"type": "fixed", "name": "f", "size": 2}, "does not become 2 bytes"),
    (pa.array([1, None]), "long", "has 1 nulls, and the schema allows none; the first is in row 1"),
    (pa.array([[1, None]]), {"type": "array", "items": "long"}, r"The column \[\] has 1 nulls"),
    (pa.array([1]), {"type": "array", "items": "long"}, "does not become an array"),
    (pa.array([1]), record(("x", "int")), "does not become a record"),
    (pa.array([1.5]), ["null", "string", "long"], "does not become null or string or long"),
    (
        pa.array([{"a": {"x": "1"}}]),
        record(("a", {"type": "record", "name": "i", "fields": [{"name": "x", "type": "int"}]})),
        r"The column a\.x is string",
    ),
    (pa.array([{"x": 1, "y": 2}]), record(("x", "int")), "The column y is not in the schema"),
    (pa.array([{"x": 1}]), record(("x", "int"), ("y", "int")), "The column y is missing"),
    (
        pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
        {"type": "map", "values": "long"},
        r"The column \{\} is string",
    ),
    (
        pa.array([[(1, 1)]], pa.map_(pa.int32(), pa.int64())),
        {"type": "map", "values": "long"},
        "does not become a map",
    ),
    ([1], "int", "got a list"),
]


@pytest.mark.parametrize(("array", "schema", "text"), REFUSED)
def test_what_is_lost_or_guessed_is_refused(array: pa.Array, schema: Any, text: str) -> None:
    with pytest.raises(ValueMismatchError, match=text):
        coerce(array, schema)


UNION = ["int", "string"]
OPTIONAL = ["string", "null", "int"]
NONE_SET = {"member0": None, "member1": None}
INT_SET = {"member0": 1, "member1": None}
BOTH_SET = {"member0": 1, "member1": "a"}
ENUM = {"type": "enum", "name": "e", "symbols": ["A"]}
DURATION = {"type": "fixed", "name": "f", "size": 12, "logicalType": "duration"}
DAY = {"months": 0, "days": 1, "millis": 0}
ITEMS = record(("a", {"type": "array", "items": {"type": "map", "values": UNION}}))


def test_a_union_is_the_struct_of_its_members() -> None:
    members = pa.struct([("member0", pa.large_string()), ("member1", pa.int8())])
    rows = [{"member0": "a"}, {"member1": 1}, {}, None]
    made = coerce(pa.array(rows, members), OPTIONAL)
    made.validate(full=True)
    assert made.type.equals(arrow_type(OPTIONAL))
    assert made.to_pylist() == [
        {"member0": "a", "member1": None},
        {"member0": None, "member1": 1},
        None,
        None,
    ]


NO_DATUMS: list[tuple[Any, list[Any], str]] = [
    (ENUM, ["A", "B"], "The column is 'B' in row 1, which is none of the symbols A"),
    (DURATION, [DAY, {**DAY, "days": -1}], "in row 1; the parts of a duration are from 0"),
    (UNION, [INT_SET, NONE_SET], "has no member set in row 1; of a union it is one of member0, "),
    (UNION, [INT_SET, BOTH_SET], "The column has member0 and member1 set in row 1; of a union"),
    (["null", *UNION], [None, BOTH_SET], "set in row 1; .*, member1, or none for null"),
    (UNION, [INT_SET, None], "The column has 1 nulls, .* in row 1"),
    (
        ITEMS,
        [{"a": []}, {"a": [[], [("k", INT_SET)]]}, {"a": [[("k", INT_SET), ("l", NONE_SET)]]}],
        r"The column a\[\]\{\} has no member set in row 2",
    ),
]


@pytest.mark.parametrize(("schema", "rows", "text"), NO_DATUMS)
def test_values_that_no_datum_holds_are_refused_with_their_row(
    schema: Any, rows: list[Any], text: str
) -> None:
    with pytest.raises(ValueMismatchError, match=text):
        coerce(pa.array(rows, arrow_type(schema)), schema)


def test_what_is_finer_than_the_milliseconds_of_a_schema_is_cut_off() -> None:
    schema = {"type": "long", "logicalType": "timestamp-millis"}
    made = coerce(pa.array([-1, 1_999, 2_000], pa.timestamp("us", tz="UTC")), schema)
    assert made.view(pa.int64()).to_pylist() == [-1_000, 1_000, 2_000]


SCHEMA = {
    "type": "record",
    "name": "flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "double"]},
        {"name": "at", "type": TIMESTAMP},
        {"name": "source", "type": "string", "default": "?"},
        {"name": "note", "type": ["null", "string"]},
    ],
}


def test_tables_batches_and_frames_of_pandas_are_taken_alike() -> None:
    frame = pd.DataFrame(
        {
            "at": pd.to_datetime([NOON, NOON]),
            "carrier": pd.Categorical(["UA", "AA"]),
            "delay": [1.5, None],
        },
        index=[7, 3],
    )
    made = coerce(frame, SCHEMA)
    expected = [
        {"carrier": "UA", "delay": 1.5, "at": NOON, "source": "?", "note": None},
        {"carrier": "AA", "delay": None, "at": NOON, "source": "?", "note": None},
    ]
    assert made.to_pylist() == expected
    table = pa.Table.from_pandas(frame, preserve_index=False)
    assert coerce(table, SCHEMA).equals(made)
    assert coerce(pa.concat_tables([table, table]), SCHEMA).to_pylist() == expected * 2
    assert coerce(table.to_batches()[0], SCHEMA).equals(made)
    assert coerce(table.slice(1), SCHEMA).equals(made.slice(1))
    assert coerce(table.slice(0, 0), SCHEMA).to_pylist() == []


def test_a_column_that_is_there_twice_is_refused() -> None:
    table = pa.table([[1], [2]], names=["x", "x"])
    with pytest.raises(ValueMismatchError, match="The column x is there more than once"):
        coerce(table, record(("x", "long")))


def test_nothing_is_copied_when_nothing_is_to_be_done() -> None:
    array = pa.array([{"x": "a"}], arrow_type(record(("x", "string"))))
    made = coerce(array, record(("x", "string")))
    assert made.field(0).buffers()[2].address == array.field(0).buffers()[2].address
