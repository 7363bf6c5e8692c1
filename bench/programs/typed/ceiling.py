"""The ceiling: a source that yields arrow batches of flights which it has in memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bench.programs.typed.flights import repeated

PARTITIONS = 2

_T0_US = 1_700_000_000_000_000


@lru_cache(maxsize=1)
def _in_memory(path: str) -> list[pa.RecordBatch]:
    """The arrow batches of a file, read once by each worker."""
    with pa.ipc.open_file(pa.py_buffer(Path(path).read_bytes())) as file:
        return [file.get_batch(number) for number in range(file.num_record_batches)]


class FlightsReader(DataSourceReader):
    def __init__(self, schema: StructType, *, path: str, rows: int) -> None:
        self._schema = schema
        self._path = path
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        batches = [
            pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)
            for batch in _in_memory(self._path)
        ]
        places = repeated([batch.num_rows for batch in batches], self._rows)
        for place, (number, rows) in enumerate(places):
            if place % PARTITIONS == partition.value:
                batch = batches[number]
                yield batch if rows == batch.num_rows else batch.slice(0, rows)


class ReadyMadeFlights(DataSource):
    """``spark.read.format("ready_made_flights")``: what a Python source of them costs at least."""

    @classmethod
    def name(cls) -> str:
        return "ready_made_flights"

    def reader(self, schema: StructType) -> DataSourceReader:
        return FlightsReader(schema, path=self.options["path"], rows=int(self.options["rows"]))


def write_ready_made(path: Path, batches: list[pa.RecordBatch]) -> None:
    """The file that the source reads, with the columns of every record beside the flights'."""
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
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            rows = batch.num_rows
            own = [
                pa.array(range(rows), kind)
                if name == "offset"
                else pa.repeat(pa.scalar(values.get(name), kind), rows)
                for name, kind in kinds.items()
            ]
            writer.write(pa.RecordBatch.from_arrays([*batch.columns, *own], schema=schema))


def ready_made(spark: SparkSession, path: Path, schema: StructType, *, rows: int) -> DataFrame:
    reader = spark.read.format(ReadyMadeFlights.name()).schema(schema)
    return reader.option("rows", rows).load(str(path))
