"""Rows of Python values as columns, and the values that do not fit."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from spark_logbus.errors import SchemaMismatchError
from spark_logbus.schemas.columns.arrow_types import arrow_type
from spark_logbus.schemas.columns.rows import columns_of

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
    with pytest.raises(SchemaMismatchError, match=text):
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
    with pytest.raises(SchemaMismatchError, match="Row 0: the value itself is"):
        columns_of([value], schema)
