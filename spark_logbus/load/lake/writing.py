"""Files of a lake's table, written by Spark's tasks with Arrow, where they stay.

Readers of such a table see only the files that its log names, so a file is written under the name
that it keeps: there is no staging directory and no rename. What a task that failed or was repeated
has left is in no answer of Spark's, and so in no commit.

A task tallies the records that it hands to the files, and describes each file from its footer.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import fs as pafs
from pyarrow import parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession

from spark_logbus.load.arrow_tally import ArrowTally
from spark_logbus.load.lake.dividing import Divider
from spark_logbus.load.lake.table import FileWriter, LakeFile
from spark_logbus.load.read.direct import DirectRead
from spark_logbus.load.read.values import UNDECODABLE
from spark_logbus.load.tally import NONE, RecordTally
from spark_logbus.spark.hang_ups import end_quietly_when_dropped

# Bytes in memory of a row group, of all groups that are not written yet, and of a file.
_GROUP_BYTES: Final = 64 << 20
_WAITING_BYTES: Final = 192 << 20
_FILE_BYTES: Final = 512 << 20
#: Files that a task has open; beyond them the one that waited longest is ended. Files of which all
#: rows are in memory are not open.
_OPEN_FILES: Final = 64

_DEFAULT_COMPRESSION: Final = "snappy"  # what Spark writes
#: What tasks answer: with footers and partition values as Arrow writes them, not pickled.
_FILE: Final = pa.struct(
    {"path": pa.string(), "size_bytes": pa.int64(), "values": pa.binary(), "footer": pa.binary()}
)
_ANSWER: Final = (
    "records bigint, digest bigint, "
    "files array<struct<path: string, size_bytes: bigint, values: binary, footer: binary>>"
)
_COUNTS: Final = "read bigint, read_digest bigint, dead bigint, timeless bigint"


@dataclass(frozen=True, slots=True)
class Written:
    """Files that tasks have written, and the tally of the records in them."""

    files: tuple[LakeFile, ...] = ()
    tally: RecordTally = NONE

    def with_others(self, others: Written) -> Written:
        """Joins two, which have no record in common."""
        return Written((*self.files, *others.files), self.tally.with_others(others.tally))

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def write(
    frame: DataFrame,
    writer: FileWriter,
    staging: str,
    compression: str | None = None,
    *,
    gather: bool = True,
) -> Written:
    """Writes the records of ``frame``, which has the writer's columns and those of its partitions.

    To ``gather`` is to have the records of a partition in one task, and so in one file.
    """
    names = tuple(frame.columns)
    # Under numbers, because PySpark takes a name with a dot or a backquote for an expression.
    frame = frame.toDF(*(_number(place) for place in range(len(names))))
    if gather:
        places = (names.index(name) for name in writer.partition_names)
        frame = frame.hint("rebalance", *map(_number, places))
    task = partial(_write, writer, names, staging, compression or _DEFAULT_COMPRESSION)
    written = Written()
    for row in frame.mapInArrow(task, _ANSWER).collect():
        written = written.with_others(_written(writer, row))
    return written


@dataclass(frozen=True, slots=True)
class WrittenDirectly:
    """Files that tasks have written of what they have read themselves, and what they counted."""

    written: Written
    read: RecordTally
    dead: int
    without_event_time: int


def write_directly(
    spark: SparkSession,
    source: DirectRead,
    divider: Divider,
    writer: FileWriter,
    staging: str,
    compression: str | None = None,
    *,
    gather: bool = False,
) -> WrittenDirectly:
    """Writes the records that decode of ``source``, read and written in one process a task.

    To ``gather`` is to have all in one task, and so those of a partition in one file.
    """
    task = partial(
        _write_directly, source, divider, writer, staging, compression or _DEFAULT_COMPRESSION
    )
    count = len(source.partitions)
    tasks = spark.range(0, count, numPartitions=1 if gather else count)
    written, read, dead, timeless = Written(), NONE, 0, 0
    for row in tasks.mapInArrow(task, f"{_ANSWER}, {_COUNTS}").collect():
        written = written.with_others(_written(writer, row))
        read = read.with_others(RecordTally(row["read"], row["read_digest"]))
        dead += row["dead"]
        timeless += row["timeless"]
    return WrittenDirectly(written, read, dead, timeless)


def _written(writer: FileWriter, row: Row) -> Written:
    files = [
        writer.describe(
            each["path"],
            each["size_bytes"],
            pq.read_metadata(pa.BufferReader(each["footer"])),
            _values_in(each["values"]),
        )
        for each in row["files"]
    ]
    return Written(tuple(files), RecordTally(row["records"], row["digest"]))


def _values_in(batch: bytes) -> tuple[object, ...]:
    with pa.ipc.open_stream(batch) as stream:
        return tuple(column[0].as_py() for column in stream.read_all().columns)


def _write_directly(
    source: DirectRead,
    divider: Divider,
    writer: FileWriter,
    staging: str,
    compression: str,
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    end_quietly_when_dropped()
    task, read, dead, timeless = TaskFiles(writer, staging, compression), ArrowTally(), 0, 0
    for each in numbers:
        for number in each.column(0).to_pylist():
            for batch in source.batches(number):
                read.add(batch)
                decoded = _without_dead(batch)
                dead += batch.num_rows - decoded.num_rows
                if decoded.num_rows:
                    rows = divider.divided(decoded)
                    timeless += rows.column(divider.timed).null_count if divider.timed else 0
                    task.add(rows)
    answer = _answer(task)
    columns = [*answer.columns]
    columns += [pa.array([n]) for n in (read.tally.records, read.tally.digest, dead, timeless)]
    names = [*answer.schema.names, "read", "read_digest", "dead", "timeless"]
    yield pa.RecordBatch.from_arrays(columns, names=names)


def _without_dead(batch: pa.RecordBatch) -> pa.RecordBatch:
    if UNDECODABLE not in batch.schema.names:
        return batch
    undecodable = batch.column(UNDECODABLE)
    good = batch.filter(undecodable.is_null()) if undecodable.null_count < len(batch) else batch
    return good.drop_columns([UNDECODABLE])


def _number(place: int) -> str:
    return f"c{place}"


def _write(
    writer: FileWriter,
    names: Sequence[str],
    staging: str,
    compression: str,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Writes one task's batches, and answers with its files."""
    end_quietly_when_dropped()
    task = TaskFiles(writer, staging, compression)
    for batch in batches:
        if batch.num_rows:
            task.add(batch.rename_columns([*names]))
    yield _answer(task)


def _answer(task: TaskFiles) -> pa.RecordBatch:
    files, tally = task.end(), task.tally
    return pa.RecordBatch.from_arrays(
        [
            pa.array([tally.records]),
            pa.array([tally.digest]),
            pa.array([files], pa.list_(_FILE)),
        ],
        names=["records", "digest", "files"],
    )


class TaskFiles:
    """Files of one task, one open at a time for each partition."""

    def __init__(self, writer: FileWriter, staging: str, compression: str) -> None:
        self._writer = writer
        self._prefix = f"part-{staging}-{uuid.uuid4().hex}"
        self._compression = compression
        self._storage = writer.filesystem()
        self._open: dict[tuple[object, ...], _File] = {}
        self._kinds: list[pa.DataType] = []
        self._ended: list[dict[str, Any]] = []
        self._directories: set[str] = set()
        self._count = 0
        self._tally = ArrowTally()

    @property
    def tally(self) -> RecordTally:
        return self._tally.tally

    def add(self, batch: pa.RecordBatch) -> None:
        self._tally.add(batch)
        names = self._writer.partition_names
        self._kinds = [batch.schema.field(name).type for name in names]
        for values, rows in split(batch, names):
            file = self._open.pop(values, None) or self._begin(values)
            self._open[values] = file  # the last in order is the one used last
            file.add(conformed(rows, self._writer.schema))
            if file.written_bytes >= _FILE_BYTES:
                self._end(values)
        while sum(file.waiting_bytes for file in self._open.values()) > _WAITING_BYTES:
            max(self._open.values(), key=lambda file: file.waiting_bytes).flush()
            self._end_oldest()
        self._end_oldest()

    def _end_oldest(self) -> None:
        """Ends the files that waited longest, as far as too many are open."""
        begun = [values for values, file in self._open.items() if file.is_open]
        for values in begun[: max(0, len(begun) - _OPEN_FILES)]:
            self._end(values)

    def _begin(self, values: tuple[object, ...]) -> _File:
        path = self._writer.path(values, f"{self._prefix}-{self._count}.parquet")
        self._count += 1
        return _File(self._storage, path, self._writer.schema, self._compression)

    def _end(self, values: tuple[object, ...]) -> None:
        file = self._open.pop(values)
        size_bytes, footer = file.end()
        if file.is_local:
            self._directories.update(_parents(file.path))
        sink = pa.BufferOutputStream()
        footer.write_metadata_file(sink)
        self._ended.append(
            {
                "path": file.path,
                "size_bytes": size_bytes,
                "values": self._as_batch(values),
                "footer": sink.getvalue().to_pybytes(),
            }
        )

    def _as_batch(self, values: tuple[object, ...]) -> bytes:
        """Partition values as a batch of one row, with their types."""
        columns = [pa.array([v], kind) for v, kind in zip(values, self._kinds, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, names=[*self._writer.partition_names])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())

    def end(self) -> list[dict[str, Any]]:
        """Ends all files, which are on disk when this returns, and tells of each."""
        for values in [*self._open]:
            self._end(values)
        for directory in sorted(self._directories):
            _sync(directory)
        return self._ended


class _File:
    """One file that is being written; there is none before its first row group."""

    def __init__(
        self, storage: pafs.FileSystem, path: str, schema: pa.Schema, compression: str
    ) -> None:
        self.path = path
        self._storage = storage
        self.is_local = isinstance(storage, pafs.LocalFileSystem)
        self._schema = schema
        self._compression = compression
        self._begun: tuple[pa.NativeFile, pq.ParquetWriter] | None = None
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0

    @property
    def is_open(self) -> bool:
        return self._begun is not None

    @property
    def written_bytes(self) -> int:
        return 0 if self._begun is None else int(self._begun[0].tell())

    def _opened(self) -> tuple[pa.NativeFile, pq.ParquetWriter]:
        if self._begun is None:
            if self.is_local:
                self._storage.create_dir(os.path.dirname(self.path), recursive=True)
            stream = self._storage.open_output_stream(self.path)
            writer = pq.ParquetWriter(stream, self._schema, compression=self._compression)
            self._begun = stream, writer
        return self._begun

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        if self.waiting_bytes >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what waits as one row group."""
        if self._waiting:
            table, (_, writer) = pa.Table.from_batches(self._waiting), self._opened()
            writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self.waiting_bytes = [], 0

    def end(self) -> tuple[int, pq.FileMetaData]:
        """Ends the file. Returns its size and its footer."""
        self.flush()
        stream, writer = self._opened()
        writer.close()
        size_bytes = self.written_bytes
        stream.close()
        if self.is_local:
            _sync(self.path)
        return size_bytes, writer.writer.metadata


def split(
    batch: pa.RecordBatch, names: Sequence[str]
) -> Iterable[tuple[tuple[object, ...], pa.RecordBatch]]:
    """Splits a batch by the values of the columns called ``names`` (pure).

    Each part has memory of its own: a slice that waits for others would keep the whole batch.
    """
    if not names:
        return [((), batch)]
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    columns = [batch.column(name) for name in names]
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        both = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        _, codes = np.unique(both, return_inverse=True)  # so that they stay small
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ends = [*starts[1:], batch.num_rows]
    found = []
    for start, end in zip(starts.tolist(), map(int, ends), strict=True):
        row = int(order[start])
        values = tuple(column[row].as_py() for column in columns)
        part = batch if len(starts) == 1 else batch.take(pa.array(order[start:end]))
        found.append((values, part))
    return found


def conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, of those of ``rows`` under their names and cast to its types; null
    where there is none."""
    there = {*rows.schema.names}
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in there
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sync(path: str) -> None:
    """Brings a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parents(path: str) -> Iterator[str]:
    """The directory of a file and those above it, as far as a partition's may be new."""
    for _ in range(4):
        path = os.path.dirname(path)
        yield path
