from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_logbus.datasource.columns import ColumnChoice, full_schema
from spark_logbus.datasource.options import ValueOptions
from spark_logbus.datasource.value_schemas import ReadSchemas
from spark_logbus.datasource.value_types import spark_type
from spark_logbus.errors import InvalidOptionError
from spark_logbus.offsets.snapshot import Snapshot
from spark_logbus.schemas.registry import SchemaRegistry

TYPED = StructType().add("value", spark_type(pa.struct([("number", pa.int32())])))


def no_registry() -> SchemaRegistry:
    raise AssertionError("a registry is of no use here")


@pytest.mark.parametrize("schema", [TYPED, full_schema(include_headers=False)])
def test_where_all_topics_are_away_no_schema_is_wrong(schema: StructType) -> None:
    choice = ColumnChoice(schema, ValueOptions(flatten=True))
    assert ReadSchemas(choice, include_headers=False).find(Snapshot({}, {}), no_registry) == {}


def test_topics_without_a_schema_need_no_registry_and_have_bytes() -> None:
    plain = ColumnChoice(full_schema(include_headers=False))
    seen = Snapshot({"t": "id"}, {}, {"t": {}})
    assert ReadSchemas(plain, include_headers=False).find(seen, no_registry) == {}
    with pytest.raises(InvalidOptionError, match=r"value the type struct<number:int>.* with t;"):
        ReadSchemas(ColumnChoice(TYPED), include_headers=False).find(seen, no_registry)
