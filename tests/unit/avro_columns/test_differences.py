from __future__ import annotations

from typing import Any

import pytest

from avro_columns.differences import Difference, differences
from avro_columns.parse import parse_value


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


A = {"name": "a", "type": "int"}


@pytest.mark.parametrize(
    ("older", "newer", "found"),
    [
        ("int", "int", []),
        ("int", "long", [("", "int", "long")]),
        ("int", {"type": "int", "logicalType": "date"}, [("logicalType", None, "date")]),
        (["null", "int"], ["null", "string"], [("[1]", None, "string"), ("[1]", "int", None)]),
        (["null", "int"], ["null", "long"], [("[1]", None, "long"), ("[1]", "int", None)]),
        (record(A), record(), [("fields[0]", "a: int", None)]),
        (record(), record({**A, "default": 3}), [("fields[0]", None, "a: int = 3")]),
        (record(A), record({**A, "type": "long"}), [("fields[0].type", "int", "long")]),
        (record(A), record({**A, "default": None, "type": ["null", "int"]}), [
            ("fields[0].default", None, "null"), ("fields[0].type", "int", "[null, int]")]),
        (record(A), record({**A, "name": "b", "aliases": ["a"]}), [
            ("fields[0].name", "a", "b"), ("fields[0].aliases", None, '["a"]')]),
        (record(A), record(A, name="S", doc="new"), [("name", "R", "S"), ("doc", None, "new")]),
        ({"type": "array", "items": "int"}, {"type": "array", "items": {"type": "map",
            "values": "int"}}, [("items", "int", "map<int>")]),
        ({"type": "fixed", "name": "F", "size": 1}, {"type": "fixed", "name": "F", "size": 2}, [
            ("size", "1", "2")]),
        ({"type": "enum", "name": "E", "symbols": ["A"]},
         {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"},
         [("symbols", '["A"]', '["A", "B"]'), ("default", None, "A")]),
        (record({"name": "r", "type": ["null", "R"]}), record({"name": "r", "type": ["null", "R"]}),
         []),
    ],
)  # fmt: skip
def test_what_changed_is_told_by_its_place(
    older: Any, newer: Any, found: list[tuple[str, str | None, str | None]]
) -> None:
    seen = differences(parse_value(older), parse_value(newer))
    assert seen == [Difference(*each) for each in found]
