"""Columns of arbitrary schemas, as a DataFrame has them that was read from a topic."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import given, settings
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from avro_columns.values.coerce import coerce
from spark_logbus.datasource.value_types import retyped, spark_type
from spark_logbus.sink.typed_columns import check_typed_columns
from tests.property.avro_columns.columns.strategies import Case, cases
from tests.property.examples import examples

DEFAULT = settings(max_examples=examples(100))


@DEFAULT
@given(cases(max_rows=4))
def test_columns_that_spark_has_read_fit_the_schema_that_they_are_of(case: Case) -> None:
    fields = [
        StructField(field.name, spark_type(field.type), field.nullable)
        for field in case.expected.type
    ]
    check_typed_columns(StructType(fields), json.dumps(case.schema), topic="t")
    if "nanos" in json.dumps(case.schema):
        return  # Spark has microseconds
    kinds = to_arrow_schema(StructType(fields), timezone="UTC")
    assert coerce(retyped(case.expected, pa.struct(kinds)), case.schema).equals(case.expected)
