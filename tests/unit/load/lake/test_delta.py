"""Delta tables on local disk: commits, offsets, files. No Spark session."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.sql.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_logbus.load.lake.delta import DeltaLakeTable
from spark_logbus.load.lake.delta.version import DeltaLakeVersion
from spark_logbus.load.lake.table import (
    Change,
    ConflictError,
    LakeFile,
    Progress,
    properties_of,
)
from spark_logbus.load.layout import Layout, Period
from spark_logbus.load.tables import DeltaTable
from spark_logbus.model import OffsetRange, TopicPartition

COLUMNS = StructType(
    [
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("value", BinaryType()),
    ]
)
BY_DAY = StructType([*COLUMNS.fields, StructField("date", DateType())])
BY_CARRIER = StructType([*COLUMNS.fields, StructField("carrier", StringType())])
CARRIERS = Layout(period=Period.NONE, columns=("carrier",))
NOTHING_YET = Progress("id", 0, 0, {})
A_DAY = date(2020, 1, 1)


def make_table(
    root: Path | str, schema: StructType = BY_DAY, layout: Layout | None = None
) -> DeltaLakeTable:
    table = DeltaLakeTable(DeltaTable(str(root)))
    own = Layout() if layout is None else layout
    table.create(schema, own, properties_of("flights", "id", own))
    return table


def newest(table: DeltaLakeTable) -> DeltaLakeVersion:
    version = table.newest()
    assert version is not None
    return version


def write(
    version: DeltaLakeVersion,
    offsets: range,
    values: Sequence[object] = (A_DAY,),
    name: str | None = None,
) -> LakeFile:
    """Writes a file as a task of Spark does."""
    writer = pickle.loads(pickle.dumps(version.writer()))
    path = writer.path(values, name or f"part-{offsets.start}-{offsets.stop}.parquet")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    rows = pa.table(
        {
            "partition": pa.array([0] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(
                [each * 1_000_001 for each in offsets], pa.timestamp("us", "UTC")
            ),
            "value": pa.array([b"%d" % each for each in offsets]),
        }
    ).cast(writer.schema)
    with writer.filesystem().open_output_stream(path) as stream:
        with pq.ParquetWriter(stream, writer.schema) as parquet:
            parquet.write_table(rows)
        size_bytes = stream.tell()
    file: LakeFile = pickle.loads(
        pickle.dumps(writer.describe(path, size_bytes, parquet.writer.metadata, values))
    )
    return file


def after(progress: Progress, token: int, offsets: range) -> Progress:
    span = OffsetRange(TopicPartition("flights", 0), offsets.start, offsets.stop)
    return progress.after(progress.number + 1, token, [span], {0: offsets.stop})


def load(table: DeltaLakeTable, offsets: range, token: int) -> Progress:
    version = newest(table)
    progress = after(version.progress() or NOTHING_YET, token, offsets)
    version.commit(Change(progress, [write(version, offsets)]))
    return progress


def offsets_in(root: Path) -> list[int]:
    """Offsets of all rows, as the library reads them."""
    found: list[int] = deltalake.DeltaTable(root).to_pyarrow_table()["offset"].to_pylist()
    return sorted(found)


class TestCommit:
    def test_files_and_offsets_are_in_with_one_version(self, tmp_path: Path) -> None:
        table = make_table(tmp_path / "table")
        assert newest(table).progress() is None
        progress = load(table, range(10), token=2**63 - 1)
        version = newest(table)
        assert (version.version, version.progress()) == (1, progress)
        assert progress.spans == {0: [(0, 10)]}
        assert offsets_in(tmp_path / "table") == [*range(10)]

    def test_of_two_on_one_version_the_second_is_told_of_the_first(self, tmp_path: Path) -> None:
        table = make_table(tmp_path / "table")
        one, two = newest(table), newest(table)
        ours = after(NOTHING_YET, 1, range(10))
        one.commit(Change(ours, [write(one, range(10))]))
        with pytest.raises(ConflictError, match="Another writer has committed version 1 of"):
            two.commit(Change(after(NOTHING_YET, 2, range(12)), [write(two, range(12))]))
        assert newest(table).progress() == ours
        assert offsets_in(tmp_path / "table") == [*range(10)]
