"""Values as JSON, and what is made of JSON."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from avro_columns.errors import ValueMismatchError
from avro_columns.values.json_values import json_of_value, value_of_json
from avro_columns.values.resolved_tree import parse
from avro_columns.values.rows import columns_of, rows_of

DAY = {"type": "int", "logicalType": "date"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
TEXTS = ["string", DAY, PRICE]
ID = {"type": "fixed", "name": "id", "size": 16, "logicalType": "uuid"}
BASE64 = {"type": "map", "values": "string"}

BOTH_WAYS: list[tuple[Any, Any, Any]] = [
    (TEXTS, "2026-01-31", "2026-01-31"),
    (TEXTS, date(2026, 1, 31), {"int": "2026-01-31"}),
    (TEXTS, Decimal("1.50"), {"bytes": "1.50"}),
    ([DAY, "long"], date(2026, 1, 31), "2026-01-31"),
    ([DAY, "long"], 5, 5),
    ([PRICE, "double"], 5.0, 5.0),
    (["bytes", "int"], b"a", "a"),
    (["bytes", BASE64], b"\xff", {"bytes": {"base64": "/w=="}}),
    (["bytes", BASE64], {"base64": "/w=="}, {"base64": "/w=="}),
    (["string", BASE64], {"string": "a"}, {"map": {"string": "a"}}),
    (["null", {"type": "array", "items": TEXTS}], ["a", date(2026, 1, 31)],
     ["a", {"int": "2026-01-31"}]),
    (["float", "string"], float("inf"), {"float": "Infinity"}),
    ("double", float("-inf"), "-Infinity"),
    (ID, bytes(15) + b"a", "00000000-0000-0000-0000-000000000061"),
    (ID, b"\xff" * 16, "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    (DAY, 1 << 30, 1 << 30),
    (["float", DAY], -719_163, -719_163),  # before the first date of Python's
    (["double", "string"], float("nan"), {"double": "NaN"}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "expected"), BOTH_WAYS)
def test_values_are_written_as_they_are_read(schema: Any, value: Any, expected: Any) -> None:
    node = parse(schema)
    assert json_of_value(node, value) == expected
    read = value_of_json(node, json.loads(json.dumps(expected)))
    assert repr(rows_of(columns_of([read], node), node)) == repr([value])


READ: list[tuple[Any, Any, Any]] = [
    (PRICE, 1.5, Decimal("1.50")),
    (["int", "double"], 1 << 40, float(1 << 40)),
    (["int", "string"], {"string": "a"}, "a"),
    (["null", "string"], "a", "a"),
    (NANOS, "2026-01-31T12:00:00.000001Z", datetime(2026, 1, 31, 12, 0, 0, 1, UTC)),
]


@pytest.mark.parametrize(("schema", "given", "expected"), READ)
def test_what_people_write_is_read(schema: Any, given: Any, expected: Any) -> None:
    node = parse(schema)
    assert rows_of(columns_of([value_of_json(node, given)], node), node) == [expected]


def test_nanoseconds_are_kept() -> None:
    node = parse(NANOS)
    number = 1_769_860_800_000_001_002
    [value] = rows_of(columns_of([number], node), node)
    text = json_of_value(node, value)
    assert text == "2026-01-31T12:00:00.000001002+00:00"
    assert value_of_json(node, text) == number


@pytest.mark.parametrize(("schema", "given"), [(DAY, "x"), (PRICE, "x"), (ID, "x"), (NANOS, "x")])
def test_text_that_stands_for_nothing_is_refused(schema: Any, given: str) -> None:
    with pytest.raises(ValueMismatchError, match="is 'x'"):
        value_of_json(parse(schema), given)
