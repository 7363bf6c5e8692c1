"""Rows of Python values as columns, and the values that do not fit."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from avro_columns.errors import ValueMismatchError
from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.row_check import RowCheck
from avro_columns.values.rows import columns_of, rows_of

ITEM = {
    "type": "record",
    "name": "item",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int", "default": 1}],
}
ORDER = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"]},
        {"name": "items", "type": {"type": "array", "items": ITEM}, "default": []},
        {
            "name": "extra",
            "type": {"type": "map", "values": ["null", "long", "string"]},
            "default": {},
        },
    ],
}


@dataclass
class Item:
    sku: str
    count: int


def test_mappings_and_dataclasses_are_records() -> None:
    rows = [
        {"id": 1, "items": [Item("a", 2), {"sku": "b"}], "extra": {"x": 1, "y": "z", "n": None}},
        {"id": np.int64(2), "who": "me"},
    ]
    made = columns_of(rows, ORDER)
    made.validate(full=True)
    assert made.type.equals(arrow_type(ORDER))
    members = [
        ("x", {"member0": 1, "member1": None}),
        ("y", {"member0": None, "member1": "z"}),
        ("n", None),
    ]
    items = [{"sku": "a", "count": 2}, {"sku": "b", "count": 1}]
    assert made.to_pylist() == [
        {"id": 1, "who": None, "items": items, "extra": members},
        {"id": 2, "who": "me", "items": [], "extra": []},
    ]
    assert columns_of([], ORDER).to_pylist() == []


ID = uuid.UUID(int=5)
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
VALUES = [
    ({"type": "string", "logicalType": "uuid"}, ID, str(ID)),
    ({"type": "fixed", "name": "f", "size": 16, "logicalType": "uuid"}, ID, ID.bytes),
    ({"type": "int", "logicalType": "date"}, date(2026, 1, 1), date(2026, 1, 1)),
    ({"type": "int", "logicalType": "time-millis"}, time(1, 2), time(1, 2)),
    ({"type": "long", "logicalType": "timestamp-millis"}, NOON, NOON),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        Decimal("1.5"),
        Decimal("1.50"),
    ),
    (
        {"type": "fixed", "name": "f", "size": 12, "logicalType": "duration"},
        (1, 2, 3),
        {"months": 1, "days": 2, "millis": 3},
    ),
    ("bytes", bytearray(b"a"), b"a"),
    ("double", 1, 1.0),
    ("float", float("-inf"), float("-inf")),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        5,
        datetime(1970, 1, 1, 0, 0, 0, 5000, UTC),
    ),
    ({"type": "array", "items": "long"}, np.array([1, 2]), [1, 2]),
    (["string", "long"], 1, {"member0": None, "member1": 1}),
    (["null"], None, None),
]


@pytest.mark.parametrize(("schema", "value", "expected"), VALUES)
def test_values_of_every_type(schema: Any, value: Any, expected: Any) -> None:
    assert columns_of([value], schema).to_pylist() == [expected]


FLOATS = ["null", "float", "double"]
WHOLE = ["int", "long", "double"]
DAY = {"type": "int", "logicalType": "date"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MOMENTS = [DAY, MILLIS]
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
CENTS = {"type": "fixed", "name": "cents", "size": 4, "logicalType": "decimal", "precision": 4,
         "scale": 2}  # fmt: skip
MILLS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}
SHORT = {"type": "record", "name": "shop.Short", "fields": [
    {"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 1}]}  # fmt: skip
LONG = {"type": "record", "name": "shop.Long", "fields": [{"name": "a", "type": "long"}]}
RECORDS = [SHORT, LONG, {"type": "map", "values": "string"}]
LISTS = [{"type": "array", "items": "int"}, {"type": "map", "values": ["int", "string"]}, "string"]
TWO_NAMES = ["string", {"type": "enum", "name": "shop.E", "symbols": ["x"]}]


@dataclass
class Short:
    a: int
    b: int


MEMBERS = [
    (FLOATS, 0.5, 0),
    (FLOATS, 0.1, 1),
    (FLOATS, float("nan"), 0),
    (FLOATS, np.float64(0.1), 1),
    (FLOATS, 1, 0),
    (WHOLE, 5, 0),
    (WHOLE, 1 << 40, 1),
    (["int", "double"], 1 << 40, 1),
    (WHOLE, np.int64(1 << 40), 1),
    (WHOLE, 5.0, 2),
    (MOMENTS, NOON, 1),
    (MOMENTS, NOON.date(), 0),
    ([DAY, LOCAL], NOON.replace(tzinfo=None), 1),
    ([CENTS, MILLS], Decimal("1.50"), 0),
    ([CENTS, MILLS], Decimal("1.500"), 1),
    ([CENTS, MILLS], Decimal("1234.5"), 1),
    (RECORDS, {"a": 1, "b": 2}, 0),
    (RECORDS, {"a": 1}, 1),
    (RECORDS, Short(1, 2), 0),
    (RECORDS, {"a": "1"}, 2),
    (RECORDS, {"-type": "shop.Short", "a": 1}, 0),
    (RECORDS, ("shop.Short", {"a": 1}), 0),
    (LISTS, [1], 0),
    (LISTS, (1, 2), 0),
    (LISTS, ("string", "a"), 2),
    (LISTS, ("map", {"k": ("string", "a")}), 1),
    (["bytes", {"type": "string", "logicalType": "uuid"}], ID, 1),
    (TWO_NAMES, "x", 0),
    (TWO_NAMES, ("shop.E", "x"), 1),
]


@pytest.mark.parametrize(("schema", "value", "number"), MEMBERS)
def test_a_value_goes_to_the_first_member_that_keeps_it_or_the_one_it_names(
    schema: Any, value: Any, number: int
) -> None:
    for taken in (value, RowCheck(schema).take(value)):
        [row] = columns_of([taken], schema).to_pylist()
        assert [name for name, one in row.items() if one is not None] == [f"member{number}"]


def test_the_name_of_a_record_may_stand_beside_its_fields() -> None:
    row = {"-type": "shop.Long", "a": 5}
    assert columns_of([row, RowCheck(LONG).take(row)], LONG).to_pylist() == [{"a": 5}] * 2
    for check in (RowCheck(LONG).take, lambda given: columns_of([given], LONG)):
        with pytest.raises(ValueMismatchError, match="has '-type', which the schema has not"):
            check({**row, "-type": "shop.Short"})


def test_a_default_is_of_the_first_member_that_it_fits_with_all_its_parts() -> None:
    fields = [{"name": "a", "type": [SHORT, "int", LONG], "default": {"a": 1 << 40}},
              {"name": "d", "type": [DAY, "long"], "default": 5},
              {"name": "c", "type": {**MILLS, "precision": 38},
               "default": (10**37 + 1).to_bytes(16, "big").decode("latin-1")}]  # fmt: skip
    [row] = columns_of([{}], {"type": "record", "name": "r", "fields": fields}).to_pylist()
    assert row["a"] == {"member0": None, "member1": None, "member2": {"a": 1 << 40}}
    assert row["d"] == {"member0": date(1970, 1, 6), "member1": None}
    assert row["c"] == Decimal(f"{10**34}.001")


def test_what_python_has_no_value_for_is_the_number_that_is_stored() -> None:
    schema = {"type": "array", "items": ["null", DAY, MILLIS]}
    numbers = [5, -(1 << 31), None, 1 << 52]
    nested = [[("int", numbers[0]), ("int", numbers[1]), None, ("long", numbers[3])]]
    rows = rows_of(columns_of(nested, schema), schema)
    assert rows == [[date(1970, 1, 6), *numbers[1:]]]
    nanos = {"type": "long", "logicalType": "timestamp-nanos"}
    assert rows_of(columns_of([-(1 << 63)], nanos), nanos) == [-(1 << 63)]


def order(**more: Any) -> dict[str, Any]:
    return {"id": 1, **more}


REFUSED = [
    ([order(), {"who": "x"}], "Row 1: id is left out, and the schema has no default for it"),
    ([order(), order(id="x")], r"Row 1: id is 'x' \(str\), expected long"),
    ([order(id=None)], r"Row 0: id is None \(NoneType\), expected long"),
    ([order(id=True)], "Row 0: id is True"),
    ([order(id=1 << 70)], "Row 0: id is 1180591620717411303424"),
    ([order(id=1.5)], "Row 0: id is 1.5"),
    ([order(who=5)], "Row 0: who is 5"),
    ([order(items=[Item("a", 1), {"sku": 5}])], r"Row 0: items\[\]\.sku is 5"),
    ([order(), order(items=[{"sku": "a", "count": 1 << 40}])], r"Row 1: items\[\]\.count is 1099"),
    ([order(items="abc")], r"Row 0: items is 'abc' \(str\), expected an array"),
    ([order(extra={"x": 1.5})], r"Row 0: extra\{\} is 1.5 \(float\), expected null or long or"),
    ([order(extra={5: 1})], "Row 0: extra is {5: 1}"),
    ([order(other=1)], "Row 0: the value itself has 'other', which the schema has not"),
    (["x"], r"Row 0: the value itself is 'x' \(str\), expected a record"),
]


@pytest.mark.parametrize(("rows", "text"), REFUSED)
def test_a_value_that_does_not_fit_is_told_with_its_row_and_field(
    rows: list[Any], text: str
) -> None:
    with pytest.raises(ValueMismatchError, match=text):
        columns_of(rows, ORDER)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "B"),
        ({"type": "fixed", "name": "f", "size": 2}, b"abc"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, Decimal("1.5")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, Decimal(100)),
        ("string", "\ud800"),
        ({"type": "long", "logicalType": "timestamp-millis"}, date(2026, 1, 1)),
        ("null", 1),
        ("float", 1e300),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, NOON),
    ],
)
def test_values_out_of_a_types_range_are_refused(schema: Any, value: Any) -> None:
    with pytest.raises(ValueMismatchError, match="Row 0: the value itself is"):
        columns_of([value], schema)
