"""The baselines: sources that yield ready-made Arrow batches or nothing, a sink that discards.

They are what PySpark's Python Data Source API itself costs, without any log behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

ALL_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, "
    "timestamp timestamp, timestampType int"
)


@lru_cache(maxsize=1)
def ready_made(rows: int, value_bytes: int) -> pa.RecordBatch:
    """Makes one arrow batch as the connector would yield it, with all columns."""
    value = b"x" * value_bytes
    made: dict[str, Any] = {
        "key": pa.nulls(rows, pa.binary()),
        "value": pa.array([value] * rows, pa.binary()),
        "topic": pa.array(["bench"] * rows, pa.string()),
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * rows, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(made)


PARTITIONS: Final = 2


@lru_cache(maxsize=1)
def _in_memory(path: str) -> list[pa.RecordBatch]:
    """Reads the arrow batches of a file, once in each worker."""
    with pa.ipc.open_file(pa.py_buffer(Path(path).read_bytes())) as file:
        return [file.get_batch(number) for number in range(file.num_record_batches)]


class ReadyMadeReader(DataSourceReader):
    """Yields the arrow batches of a file, which are in memory, until there are enough rows."""

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


class ReadyMade(DataSource):
    """``spark.read.format("ready_made")``: the ceiling of every Python source."""

    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyMadeReader(schema, path=self.options["path"], rows=int(self.options["rows"]))


def write_ready_made(path: Path, batches: Sequence[pa.RecordBatch]) -> None:
    """Writes the file that the source reads."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write(batch)


def repeated(sizes: Sequence[int], rows: int) -> Iterator[tuple[int, int]]:
    """Yields which of the arrow batches of these sizes follow one another, and how many rows of
    each, so that together they have so many rows."""
    for number in itertools.cycle(range(len(sizes))):
        if rows <= 0:
            return
        yield number, min(sizes[number], rows)
        rows -= sizes[number]


class NothingReader(DataSourceStreamReader):
    """A new micro-batch at each trigger, or none ever; one task, with ready-made rows or none."""

    def __init__(self, *, idle: bool, rows: int, value_bytes: int) -> None:
        self._idle = idle
        self._rows = rows
        self._value_bytes = value_bytes

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return start if self._idle and start["at"] else {"at": start["at"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self._rows:
            yield ready_made(self._rows, self._value_bytes)


class Nothing(DataSource):
    """``spark.readStream.format("nothing")``: what a micro-batch costs without a source's work."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return ALL_COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NothingReader(
            idle=self.options.get("idle") == "true",
            rows=int(self.options.get("rows", "0")),
            value_bytes=int(self.options.get("valueBytes", "0")),
        )


@dataclass
class Counted(WriterCommitMessage):
    rows: int


class DiscardingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Counted(sum(batch.num_rows for batch in iterator))


class Discard(DataSource):
    """``df.write.format("discard")``: the ceiling of every Python sink."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return DiscardingWriter()
