"""Record batches of a schema's columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_logbus.model import Compression
from spark_logbus.record.arrow import TIMESTAMP
from spark_logbus.record.column_encoder import encode_columns
from spark_logbus.schemas.columns.rows import columns_of

T0: Final = 1_700_000_000_000_000

FLIGHT: Final = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "carrier", "type": "string"},
            {"name": "number", "type": "int"},
            {"name": "delay", "type": ["null", "double"], "default": None},
            {"name": "tail", "type": ["null", "string"], "default": None},
        ],
    }
)


def flight(number: int) -> dict[str, Any]:
    return {
        "carrier": ("AA", "UA", "DL")[number % 3],
        "number": number,
        "delay": None if number % 7 == 0 else number / 4,
        "tail": f"N{number:05}" * 3,
    }


def flights(first: int, count: int) -> list[dict[str, Any]]:
    return [flight(number) for number in range(first, first + count)]


def typed_record_batch(
    rows: list[Any],
    *,
    schema: str = FLIGHT,
    schema_id: int = 1,
    keys: Sequence[bytes | None] | None = None,
    compression: Compression = Compression.NONE,
) -> memoryview:
    """A row that is None is a tombstone."""
    present = columns_of([row for row in rows if row is not None], schema)
    there = np.array([row is not None for row in rows])
    value = present.take(pa.array(np.cumsum(there) - 1, mask=~there))
    columns = {
        "timestamp": pa.array([T0 + number for number in range(len(rows))], TIMESTAMP),
        "value": value,
    }
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    arrow_batch = pa.RecordBatch.from_pydict(columns)
    return encode_columns(arrow_batch, schema_id=schema_id, compression=compression)
