"""Columns of Avro schemas are columns of Spark's."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from avro_columns.decode.decoder import Decoder
from avro_columns.encode.encoder import Encoder
from avro_columns.values.arrow_types import arrow_schema
from avro_columns.values.rows import columns_of

pytestmark = pytest.mark.long

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def long(logical: str) -> dict[str, Any]:
    return {"type": "long", "logicalType": logical}


def fixed(name: str, size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


COLUMNS: dict[str, tuple[Any, Any]] = {
    "flag": ("boolean", True),
    "small": ("int", 1),
    "large": ("long", 1 << 40),
    "half": ("float", 0.5),
    "whole": ("double", 0.1),
    "data": ("bytes", b"a"),
    "text": ("string", "ä"),
    "state": ({"type": "enum", "name": "state", "symbols": ["A", "B"]}, "B"),
    "code": (fixed("code", 2), b"ab"),
    "day": ({"type": "int", "logicalType": "date"}, date(2026, 1, 2)),
    "clock": ({"type": "int", "logicalType": "time-millis"}, time(1, 2, 3)),
    "exact_clock": (long("time-micros"), time(1, 2, 3, 4)),
    "at_millis": (long("timestamp-millis"), NOON),
    "at_micros": (long("timestamp-micros"), NOON),
    "at_nanos": (long("timestamp-nanos"), NOON),
    "local": (long("local-timestamp-micros"), NOON.replace(tzinfo=None)),
    "id": ({"type": "string", "logicalType": "uuid"}, "x"),
    "price": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
        Decimal("1.50"),
    ),
    "span": (fixed("span", 12, logicalType="duration"), (1, 2, 3)),
    "maybe": (["null", "long"], None),
    "either": (["null", "long", "string"], "x"),
    "items": ({"type": "array", "items": ["null", "int"]}, [1, None]),
    "by_name": ({"type": "map", "values": "int"}, {"a": 1}),
    "inner": (
        {"type": "record", "name": "inner", "fields": [{"name": "x", "type": "int"}]},
        {"x": 1},
    ),
}
SCHEMA = {
    "type": "record",
    "name": "all",
    "fields": [{"name": name, "type": kind} for name, (kind, _) in COLUMNS.items()],
}


def test_spark_takes_the_columns_of_every_type(spark: SparkSession) -> None:
    row = {name: value for name, (_, value) in COLUMNS.items()}
    made = columns_of([row, row], SCHEMA)
    decoded = Decoder(SCHEMA).decode(Encoder(SCHEMA).encode(made)).checked()
    table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(decoded)])
    schema = from_arrow_schema(arrow_schema(SCHEMA))
    frame = spark.createDataFrame(table, schema=schema)
    assert frame.schema == schema
    back = frame.toArrow()
    assert back.num_rows == 2
    # Spark's own units and encodings, of the same values.
    expected = table.cast(to_arrow_schema(frame.schema, timezone="UTC"))
    for name in back.column_names:
        assert back[name].to_pylist() == expected[name].to_pylist(), name
