"""The source's columns, and the choice that a schema makes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from spark_logbus.datasource.columns import ColumnChoice, check_columns, full_schema
from spark_logbus.errors import InvalidOptionError


def test_the_columns_are_those_of_the_kafka_source() -> None:
    assert full_schema(include_headers=True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert "headers" not in full_schema(include_headers=False).names


def test_a_schema_chooses_and_orders_columns() -> None:
    schema = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
    check_columns(schema, full_schema(include_headers=False))
    chosen = ColumnChoice(schema)
    assert chosen.names == ["offset", "value"]
    assert chosen.arrow_schema() == pa.schema([("offset", pa.int64()), ("value", pa.binary())])


def field(name: str, dtype: object = None, *, nullable: bool = True) -> StructField:
    return StructField(name, dtype or BinaryType(), nullable)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([field("values")], "values.*did you mean value"),
        ([field("Offset", LongType())], "Offset.*did you mean offset"),
        ([field("zzz")], "it has key, value"),
        ([field("value", StringType())], "column value the type string.*binary"),
        ([field("offset", StringType())], "column offset the type string.*bigint"),
        ([field("value", nullable=False)], "value is NOT NULL"),
        ([field("headers", ArrayType(StringType()))], "includeHeaders"),
        ([field("value"), field("value")], "twice"),
        ([], "at least one column"),
    ],
)
def test_unusable_schemas_name_the_column(fields: list[StructField], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        check_columns(StructType(fields), full_schema(include_headers=False))


def test_a_column_that_is_never_null_may_be_declared_so() -> None:
    schema = StructType([field("offset", LongType(), nullable=False)])
    check_columns(schema, full_schema(include_headers=False))
    assert not ColumnChoice(schema).arrow_schema().field(0).nullable
