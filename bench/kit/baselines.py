"""The baselines: sources that yield ready-made Arrow batches or nothing, a sink that discards.

They are what PySpark's Python Data Source API itself costs, without any log behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

ALL_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, "
    "timestamp timestamp, timestampType int"
)


def ready_made(rows: int, value_bytes: int, columns: list[str]) -> pa.RecordBatch:
    """One arrow batch as the connector would yield it."""
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
    return pa.RecordBatch.from_pydict({name: made[name] for name in columns})


class ReadyMadeReader(DataSourceReader):
    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._columns = schema.fieldNames()
        self._rows = int(options["rows"])
        self._partitions = int(options["partitions"])
        self._value_bytes = int(options["valuebytes"])
        self._batch_rows = int(options.get("batchrows", "50000"))

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = ready_made(self._batch_rows, self._value_bytes, self._columns)
        left = self._rows // self._partitions
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


class ReadyMade(DataSource):
    """``spark.read.format("ready_made")``: the ceiling of every Python source."""

    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def schema(self) -> str:
        return ALL_COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyMadeReader(schema, {k.lower(): v for k, v in self.options.items()})


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
            columns = [field.split()[0] for field in ALL_COLUMNS.split(", ")]
            yield _cached_ready_made(self._rows, self._value_bytes, tuple(columns))


@lru_cache(maxsize=1)
def _cached_ready_made(rows: int, value_bytes: int, columns: tuple[str, ...]) -> pa.RecordBatch:
    return ready_made(rows, value_bytes, list(columns))


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
