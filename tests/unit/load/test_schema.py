"""What a load may change of a warehouse's columns, as a table of cases."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from spark_logbus.load import Commit, IncompatibleColumnsError
from spark_logbus.load.schema import merged

INT, LONG, DOUBLE, TEXT = IntegerType(), LongType(), DoubleType(), StringType()


def of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("kept", "new", "expected"),
    [
        (of(), of(a=INT), of(a=INT)),
        (of(a=INT), of(a=INT), of(a=INT)),
        (of(a=INT, b=TEXT), of(c=INT, b=TEXT), of(a=INT, b=TEXT, c=INT)),
        (of(a=of(x=INT)), of(a=of(y=TEXT)), of(a=of(x=INT, y=TEXT))),
        (of(a=ArrayType(of(x=INT))), of(a=ArrayType(of(y=INT))), of(a=ArrayType(of(x=INT, y=INT)))),
        (of(a=MapType(TEXT, of())), of(a=MapType(TEXT, of(x=INT))), of(a=MapType(TEXT, of(x=INT)))),
        # A promise that there is no null is none that a warehouse keeps.
        (
            StructType([StructField("a", ArrayType(INT, containsNull=False), nullable=False)]),
            of(a=ArrayType(INT)),
            of(a=ArrayType(INT)),
        ),
    ],
)
def test_columns_may_be_added_and_left_out(
    kept: StructType, new: StructType, expected: StructType
) -> None:
    assert merged(kept, new, where="/data") == expected


@pytest.mark.parametrize(
    ("kept", "new", "words"),
    [
        (of(a=INT), of(a=TEXT), "Field a of /data has the type int, and string in this load"),
        (of(a=INT), of(a=LONG), "Field a of /data has the type int, and bigint in this load"),
        (of(a=LONG), of(a=INT), "Field a of /data has the type bigint, and int in this load"),
        (of(a=of(x=INT)), of(a=of(x=DOUBLE)), "Field a.x of /data has the type int, and double"),
        (of(a=of(x=INT)), of(a=INT), "Field a of /data has the type struct<x:int>, and int"),
        (of(a=ArrayType(INT)), of(a=ArrayType(TEXT)), "Field a.element of /data has the type int"),
        (
            of(a=MapType(TEXT, INT)),
            of(a=MapType(TEXT, LONG)),
            "Field a.value of /data has the type int, and bigint",
        ),
        (of(a=DecimalType(5, 2)), of(a=DecimalType(6, 2)), "type decimal(5,2), and decimal(6,2)"),
        (of(delay=INT), of(Delay=INT), "Field delay of /data is written Delay in this load"),
    ],
)
def test_types_may_not_change(kept: StructType, new: StructType, words: str) -> None:
    with pytest.raises(IncompatibleColumnsError) as refused:
        merged(kept, new, where="/data")
    assert words in refused.value.message
    assert "or load into another directory." in refused.value.message


def test_a_commit_keeps_the_schema() -> None:
    schema = of(a=ArrayType(of(x=DecimalType(5, 2))), b=TEXT)
    commit = Commit(1, "1-a", "5f0c", (), {0: 1}, 0, (), schema)
    assert Commit.from_json("t", commit.to_json()) == commit
