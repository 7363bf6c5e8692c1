"""Rows of an Iceberg file under columns that were renamed, moved, added and widened since."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from spark_logbus.load.lake.iceberg.projection import rows_in


def numbered(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def element(fields: list[pa.Field]) -> pa.DataType:
    return pa.list_(numbered(10, "element", pa.struct(fields)))


A, B = numbered(11, "a", pa.int32()), numbered(12, "b", pa.string())


def read(have: pa.Field, values: list[Any], want: pa.Field) -> list[Any]:
    file = io.BytesIO()
    pq.write_table(pa.table([pa.array(values, have.type)], schema=pa.schema([have])), file)
    (batch,) = rows_in(pa.py_buffer(file.getvalue()), pa.schema([want]), {}, {})
    return list(batch.column(0).to_pylist())


@pytest.mark.parametrize(
    ("have", "values", "want", "expected"),
    [
        (pa.int32(), [1, None], pa.int64(), [1, None]),
        (
            element([A, B]),
            [None, [], [None, {"a": 1, "b": "x"}], [{"a": None, "b": None}]],
            element([A, B]),
            [None, [], [None, {"a": 1, "b": "x"}], [{"a": None, "b": None}]],
        ),
        (
            element([A, B]),
            [None, [], [None, {"a": 1, "b": "x"}], [{"a": 2, "b": None}]],
            element([B, numbered(11, "renamed", pa.int64()), numbered(13, "new", pa.date32())]),
            [
                None, [], [None, {"b": "x", "renamed": 1, "new": None}],
                [{"b": None, "renamed": 2, "new": None}],
            ],
        ),
        (
            pa.struct([A]),
            [None, {"a": 1}, {"a": None}],
            pa.struct([numbered(13, "new", pa.string()), A]),
            [None, {"new": None, "a": 1}, {"new": None, "a": None}],
        ),
        (
            pa.map_(numbered(20, "key", pa.string()).with_nullable(False),
                    numbered(21, "value", pa.struct([A]))),
            [None, [], [("k", {"a": 1}), ("l", None)]],
            pa.map_(numbered(20, "key", pa.string()).with_nullable(False),
                    numbered(21, "value", pa.struct([A, B]))),
            [None, [], [("k", {"a": 1, "b": None}), ("l", None)]],
        ),
    ],
)  # fmt: skip
def test_values_are_the_same_under_the_columns_of_now(
    have: pa.DataType, values: list[Any], want: pa.DataType, expected: list[Any]
) -> None:
    assert read(numbered(1, "old", have), values, numbered(1, "now", want)) == expected


def test_columns_that_a_file_lacks_are_null_or_its_partition() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"x": [1, 2]}, schema=pa.schema([numbered(1, "x", pa.int64())])), file)
    wanted = pa.schema([numbered(2, "p", pa.string()), numbered(3, "q", pa.string())])
    (batch,) = rows_in(pa.py_buffer(file.getvalue()), wanted, {"p": pa.scalar("a")}, {})
    assert batch.to_pylist() == [{"p": "a", "q": None}] * 2
