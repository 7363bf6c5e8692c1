"""What a row check takes is what becomes columns, and no larger than it says."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from avro_columns.errors import ValueMismatchError
from avro_columns.values.resolved_tree import (
    Array,
    Enum,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    parse,
)
from avro_columns.values.row_check import RowCheck
from avro_columns.values.rows import columns_of
from tests.property.avro_columns.columns.strategies import schemas
from tests.property.examples import examples

DEFAULT = settings(max_examples=examples(200))

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, "x", b"x", 1.5, {}, [], {"f0": 1}, object, uuid.UUID(int=3), np.int32(4)]
)
WHOLE = st.one_of(
    st.integers(-5, 5),
    st.sampled_from(
        [-(1 << 31) - 1, (1 << 31) - 1, 1 << 31, (1 << 53) + 1, (1 << 63) - 1, 1 << 63]
    ),
    st.sampled_from([np.int16(7), np.int64(1 << 40), np.bool_(True)]),
)
REAL = st.one_of(st.floats(), st.sampled_from([3.5e38, -3.4e38, np.float32(1.5), 1 << 30, 7]))
MOMENT = st.one_of(
    st.datetimes(),
    st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))])),
    st.integers(-(10**15), 10**15),
)
DATA = st.one_of(st.binary(max_size=12), st.binary(max_size=3).map(bytearray))
OF_LOGICAL: dict[str, st.SearchStrategy[Any]] = {
    "decimal": st.one_of(
        st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9),
        st.decimals(-9, 9, places=2),
        st.sampled_from([Decimal("1E+3"), Decimal("NaN"), Decimal("0.0000000000"), 5]),
    ),
    "date": st.one_of(
        st.dates(), st.sampled_from([date(1, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), 20_000])
    ),
    "time": st.one_of(st.times(), st.sampled_from([time(1, tzinfo=UTC), 5_000])),
    "timestamp": MOMENT,
    "local": MOMENT,
    "duration": st.sampled_from(
        [(1, 2, 3), {"months": 1, "days": 2, "millis": 3}, [1], (1, 2, -3)]
    ),
}
OF_KIND: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.sampled_from([True, False, np.bool_(True)]),
    "int": WHOLE,
    "long": WHOLE,
    "float": REAL,
    "double": REAL,
    "bytes": DATA,
    "fixed": DATA,
    "string": st.one_of(st.text(max_size=6), st.sampled_from(["\ud800", "€" * 30])),
}


def given_for(node: Node) -> st.SearchStrategy[Any]:
    """Values that a caller may give, of which many fit."""
    fits = fitting(node)
    if isinstance(node, Record):
        return fits
    return st.integers(0, 9).flatmap(lambda number: fits if number else ODD)


def fitting(node: Node) -> st.SearchStrategy[Any]:
    if isinstance(node, Union):
        return st.one_of([given_for(member) for member in node.members])
    if isinstance(node, Record):
        fields = {one.name: given_for(one.node) for one in node.fields}
        odd = st.sampled_from([{}] * 9 + [{"other": 1}])
        return st.tuples(st.fixed_dictionaries(fields), odd).map(lambda two: {**two[0], **two[1]})
    if isinstance(node, Array):
        items = st.lists(given_for(node.items), max_size=3)
        return st.one_of(items, items.map(tuple))
    if isinstance(node, Map):
        return st.dictionaries(st.text(max_size=3), given_for(node.values), max_size=3)
    if isinstance(node, Enum):
        return st.sampled_from([*node.symbols, "S9"])
    assert isinstance(node, Primitive)
    logical = (node.logical or "").partition("-")[0]
    if node.logical in (None, "uuid") and node.kind == "fixed":
        return st.binary(min_size=node.size, max_size=node.size)
    return OF_LOGICAL.get(logical, OF_KIND[node.kind])


def taken(check: RowCheck, row: Any) -> tuple[bool, Any]:
    try:
        return True, check.take(row)
    except ValueMismatchError:
        return False, None


def column(row: Any, node: Node) -> pa.Array | None:
    try:
        return columns_of([row], node)
    except ValueMismatchError:
        return None


@DEFAULT
@given(schemas(), st.data())
def test_what_is_taken_becomes_columns_with_all_others(schema: Any, data: st.DataObject) -> None:
    node = parse(schema)
    check = RowCheck(node)
    rows = data.draw(st.lists(given_for(node), min_size=1, max_size=5))
    columns = [column(row, node) for row in rows]
    results = [taken(check, row) for row in rows]
    assert [is_taken for is_taken, _ in results] == [each is not None for each in columns]
    kept = [row for is_taken, row in results if is_taken]
    expected = [each for each in columns if each is not None]
    if not kept:
        return
    together = columns_of(kept, node)
    assert str(together) == str(pa.concat_arrays(expected))
