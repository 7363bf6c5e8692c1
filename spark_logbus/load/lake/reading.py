"""Rows of a lake's table, read by Spark's tasks with Arrow from the files of one version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_logbus.load.arrow_tally import ArrowTally
from spark_logbus.load.lake.table import FileReader, LakeFile, LakeVersion
from spark_logbus.load.layout import Layout
from spark_logbus.load.tally import NONE, TALLIED, RecordTally
from spark_logbus.model import OffsetRange
from spark_logbus.spark.hang_ups import end_quietly_when_dropped

#: Size of files that a task reads.
_TASK_BYTES: Final = 128 << 20
#: What a file costs to open, as so many bytes.
_OPEN_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows that one file has of some ranges, as their tally, and the number of its other rows."""

    file: LakeFile
    tally: RecordTally
    others: int


def rows_of(
    spark: SparkSession,
    version: LakeVersion,
    files: Sequence[LakeFile],
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Reads ``columns``, or all, of ``files`` of that version, when an action runs."""
    reader = version.reader(columns)
    # Times without a zone stay so.
    schema = from_arrow_schema(reader.schema, prefer_timestamp_ntz=True)
    if not files:
        return spark.createDataFrame([], schema)
    shares = shared_out(files, least=spark.sparkContext.defaultParallelism)
    tasks = spark.range(0, len(shares), numPartitions=len(shares))
    return tasks.mapInArrow(partial(_read, reader, shares), schema)


def divided_rows(
    spark: SparkSession, version: LakeVersion, files: Sequence[LakeFile], layout: Layout
) -> DataFrame:
    """Reads all of ``files``, with the columns that say which partition a record belongs to."""
    frame = rows_of(spark, version, files)
    missing = {*version.partition_names} - {*frame.columns}
    return version.partitioned(frame, layout) if missing else frame


def rows_by_file(
    spark: SparkSession,
    version: LakeVersion,
    files: Sequence[LakeFile],
    ranges: Sequence[OffsetRange],
) -> list[FileRows]:
    """Looks for records of ``ranges`` in ``files``; only those that have some are returned."""
    some = [file for file in files if may_hold(file, ranges)]
    if not some:
        return []
    reader = version.reader(TALLIED)
    shares = shared_out(some, least=spark.sparkContext.defaultParallelism)
    tasks = spark.range(0, len(shares), numPartitions=len(shares))
    task = partial(_look, reader, shares, tuple(ranges))
    schema = "share int, file int, records bigint, digest bigint, others bigint"
    return [
        FileRows(
            shares[row["share"]][row["file"]],
            RecordTally(row["records"], row["digest"]),
            row["others"],
        )
        for row in tasks.mapInArrow(task, schema).collect()
    ]


def may_hold(file: LakeFile, ranges: Sequence[OffsetRange]) -> bool:
    """Tells whether a file may have records of ``ranges``, by what the table's log tells (pure)."""
    return any(
        (
            file.partitions is None
            or file.partitions[0] <= each.topic_partition.partition <= file.partitions[1]
        )
        and (file.offsets is None or (file.offsets[0] < each.end and file.offsets[1] >= each.start))
        for each in ranges
    )


def shared_out(files: Sequence[LakeFile], *, least: int) -> list[list[LakeFile]]:
    """Shares files out to tasks, of about one size, ``least`` of them where there are so many files
    (pure)."""
    sizes = sum(file.size_bytes + _OPEN_BYTES for file in files)
    count = min(len(files), max(least, sizes // _TASK_BYTES))
    shares: list[list[LakeFile]] = [[] for _ in range(count)]
    filled = [0] * count
    for file in sorted(files, key=lambda file: (-file.size_bytes, file.path)):
        place = filled.index(min(filled))
        shares[place].append(file)
        filled[place] += file.size_bytes + _OPEN_BYTES
    return shares


def _read(
    reader: FileReader, shares: Sequence[Sequence[LakeFile]], tasks: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    end_quietly_when_dropped()
    for numbers in tasks:
        for number in numbers.column(0).to_pylist():
            for file in shares[number]:
                yield from reader.read(file)


def _look(
    reader: FileReader,
    shares: Sequence[Sequence[LakeFile]],
    ranges: Sequence[OffsetRange],
    tasks: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Tallies the rows of ``ranges`` in each file of a task."""
    end_quietly_when_dropped()
    for numbers in tasks:
        for share in numbers.column(0).to_pylist():
            for place, file in enumerate(shares[share]):
                inside, others = ArrowTally(), 0
                for batch in reader.read(file):
                    found = batch.filter(pa.array(_inside(batch, ranges)))
                    inside.add(found)
                    others += batch.num_rows - found.num_rows
                tally = inside.tally
                if tally == NONE:
                    continue
                row = [share, place, tally.records, tally.digest, others]
                kinds = [pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int64()]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([each], kind) for each, kind in zip(row, kinds, strict=True)],
                    names=["share", "file", "records", "digest", "others"],
                )


def _inside(batch: pa.RecordBatch, ranges: Sequence[OffsetRange]) -> np.ndarray:
    # Rows of another writer may have neither.
    partitions, offsets = (
        batch.column(name).fill_null(-1).to_numpy(zero_copy_only=False) for name in TALLIED
    )
    inside = np.zeros(batch.num_rows, dtype=bool)
    for each in ranges:
        own = partitions == each.topic_partition.partition
        inside |= own & (offsets >= each.start) & (offsets < each.end)
    return inside
