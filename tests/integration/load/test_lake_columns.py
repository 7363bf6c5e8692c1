"""Columns of a table beside those of a load, as a table of cases."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql.types import StructField, StructType

from spark_logbus.load import IncompatibleColumnsError
from spark_logbus.load.lake.columns import Fit, fit

pytestmark = pytest.mark.usefixtures("spark")  # DDL is parsed by Spark


def schema(ddl: str) -> StructType:
    return cast(StructType, StructType.fromDDL(ddl))


def fitted(table: str, load: str, *, evolve: bool = False, widens: bool = False) -> Fit:
    return fit(schema(table), schema(load), evolve=evolve, widens=widens, where="lake.t")


@pytest.mark.parametrize(
    ("table", "load"),
    [
        ("a int, b string", "a int, b string"),
        ("a int, b string", "b string"),  # what is left out is null
        ("a bigint", "a int"),
        ("a bigint", "a tinyint"),
        ("a double", "a float"),
        ("a decimal(20,2)", "a decimal(10,2)"),
        ("a struct<x: bigint, y: int>", "a struct<y: int, x: int>"),
        ("a array<bigint>", "a array<int>"),
        ("a map<string, bigint>", "a map<string, int>"),
    ],
)
def test_what_a_table_takes_as_it_is(table: str, load: str) -> None:
    found = fitted(table, load)
    assert found.schema == schema(table)
    assert not found.changes


@pytest.mark.parametrize(
    ("table", "load", "told"),
    [
        ("a int", "a int, b int", r"lake.t has no column b \(int\).*--evolve"),
        ("a struct<x: int>", "a struct<x: int, y: int>", r"no column a\.y .*--evolve"),
        ("a array<struct<x: int>>", "a array<struct<y: int>>", r"no column a\.element\.y"),
        ("a int", "a string", "a of lake.t is int, and the load has it as string"),
        ("a int", "a double", "of which it does not take every value"),
        ("a float", "a int", "of which it does not take every value"),
        ("a int", "a bigint", "wider"),
        ("a decimal(10,2)", "a decimal(10,3)", "does not take every value"),
        ("a timestamp", "a timestamp_ntz", "does not take every value"),
        ("a date", "a timestamp", "does not take every value"),
        ("id int", "ID int", "written ID in this load"),
        ("a struct<x: int>", "a int", "does not take every value"),
        ("a map<int, int>", "a map<string, int>", r"a\.key of lake.t"),
    ],
)
def test_what_a_table_does_not_take(table: str, load: str, told: str) -> None:
    with pytest.raises(IncompatibleColumnsError, match=told) as error:
        fitted(table, load)
    assert "Nothing was written." in error.value.message


def test_new_fields_are_added_and_types_widened_where_both_is_wanted() -> None:
    table, load = "a int, s struct<x: int>", "b date, a bigint, s struct<x: bigint, y: string>"
    found = fitted(table, load, evolve=True, widens=True)
    assert found.schema == schema("a bigint, s struct<x: bigint, y: string>, b date")
    assert found.added == ("s.y", "b")
    assert found.widened == ("a", "s.x")
    with pytest.raises(IncompatibleColumnsError, match="not widened"):
        fitted(table, load, evolve=True)
    with pytest.raises(IncompatibleColumnsError, match=r"wider\. Nothing was written. Give --evol"):
        fitted("a int", "a bigint", widens=True)


def test_a_column_that_must_not_be_null_must_be_loaded() -> None:
    kind = schema("a int").fields[0].dataType
    table = StructType([StructField("a", kind), StructField("own", kind, nullable=False)])
    with pytest.raises(IncompatibleColumnsError, match="own of t may not be null"):
        fit(table, schema("a int"), evolve=True, widens=True, where="t")
