"""Files of an Iceberg table: tasks write and read them, and describe them for its log."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs as pafs
from pyarrow import parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    PyArrowFileIO,
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType

from spark_logbus.errors import ConfigError
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.iceberg.projection import deleted_rows, rows_in
from spark_logbus.load.lake.table import LakeFile

#: Property of a catalogue, so that pyarrow reads and writes the files of its tables.
FILE_IO: Final = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}

#: No file system takes longer names than 255 bytes; a partition has any text as its value.
_MAX_NAME: Final = 200
_COUNTS: Final = MetricsMode(MetricModeTypes.COUNTS)


@dataclass(frozen=True, slots=True)
class IcebergFileWriter:
    """Way for tasks to write files. Immutable and picklable."""

    schema: pa.Schema
    partition_names: tuple[str, ...]
    io: PyArrowFileIO
    columns: Schema
    spec: PartitionSpec
    #: The table's properties for statistics of columns.
    metrics: Mapping[str, str]
    #: Location of the files.
    base: str
    table: str

    def filesystem(self) -> pafs.FileSystem:
        return located(self.io, self.base)[0]

    def path(self, values: Sequence[object], name: str) -> str:
        directory = self.spec.partition_to_path(Record(*values), self.columns)
        parts = [_shortened(part) for part in directory.split("/") if part]
        return posixpath.join(self._base_path, *parts, name)

    def describe(
        self, path: str, size_bytes: int, metadata: pq.FileMetaData, values: Sequence[object]
    ) -> LakeFile:
        plan = compute_statistics_plan(self.columns, dict(self.metrics))
        ids = parquet_path_to_id_mapping(self.columns)
        statistics = data_file_statistics_from_parquet_metadata(
            metadata, _readable(plan, metadata, ids), ids
        )
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.base + path.removeprefix(self._base_path),
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            file_size_in_bytes=size_bytes,
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        file.spec_id = self.spec.spec_id
        return lake_file(FileScanTask(file), self.spec, self.columns)

    @property
    def _base_path(self) -> str:
        return PyArrowFileIO.parse_location(self.base, self.io.properties)[2]


@dataclass(frozen=True, slots=True)
class IcebergFileReader:
    """Way for tasks to read a table's files. Immutable and picklable."""

    schema: pa.Schema
    io: PyArrowFileIO
    #: The same columns, with their ids.
    wanted: pa.Schema
    specs: Mapping[int, PartitionSpec]
    columns: Schema
    #: Ids of columns by the names that files without ids may have for them.
    ids_by_name: Mapping[str, int]

    def read(self, file: LakeFile) -> Iterator[pa.RecordBatch]:
        task, first = task_of(file), 0
        if task.file.file_format is not FileFormat.PARQUET:
            raise WarehouseError(
                f"File {file.path} is {task.file.file_format.value}, of another writer, and loads "
                "read Parquet. Have that writer rewrite it, as rewrite_data_files does."
            )
        deleted = self._deleted(task)
        with self._opened(file.path) as stream:
            constants = self._constants(task.file)
            for batch in rows_in(stream, self.wanted, constants, self.ids_by_name):
                rows = batch.num_rows
                inside = deleted[(deleted >= first) & (deleted < first + rows)] - first
                if inside.size:
                    kept = np.ones(rows, dtype=bool)
                    kept[inside] = False
                    batch = batch.filter(pa.array(kept))
                first += rows
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def _deleted(self, task: FileScanTask) -> npt.NDArray[np.int64]:
        found = [np.empty(0, dtype=np.int64)]
        for each in task.delete_files:
            with self._opened(each.file_path) as stream:
                found.append(deleted_rows(each, task.file.file_path, stream))
        return np.concatenate(found)

    def _constants(self, file: DataFile) -> dict[str, pa.Scalar]:
        """Values of columns that a migrated file has in its partition alone."""
        spec, found = self.specs[file.spec_id], {}
        columns = {each.field_id: each for each in self.columns.fields}
        for field, value in zip(spec.fields, file.partition._data, strict=True):
            column = columns.get(field.source_id)  # gone, if another writer has dropped it
            if isinstance(field.transform, IdentityTransform) and column and value is not None:
                # A day is a number there, and Arrow makes one only of 32 bits.
                is_day = isinstance(column.field_type, DateType)
                found[column.name] = pa.scalar(value, pa.int32() if is_day else None)
        return found

    def _opened(self, location: str) -> pafs.NativeFile:
        storage, path = located(self.io, location)
        return storage.open_input_file(path)


def task_of(file: LakeFile) -> FileScanTask:
    assert isinstance(file.detail, FileScanTask), "a table names and writes its files itself"
    return file.detail


def lake_file(task: FileScanTask, spec: PartitionSpec, columns: Schema) -> LakeFile:
    file = task.file
    return LakeFile(
        path=file.file_path,
        size_bytes=file.file_size_in_bytes,
        records=file.record_count,
        partition=tuple(
            # With the name, because files of other partitions may be there, from before a change.
            None if value is None else f"{field.name}={value}"
            for field, value in zip(spec.fields, file.partition._data, strict=True)
        ),
        partitions=_bounds(file, columns, "partition"),
        offsets=_bounds(file, columns, "offset"),
        detail=task,
    )


def _bounds(file: DataFile, columns: Schema, name: str) -> tuple[int, int] | None:
    """Smallest and largest value of a column of whole numbers, where the table's log has them."""
    field = next((field for field in columns.fields if field.name == name), None)
    if field is None:
        return None
    low = (file.lower_bounds or {}).get(field.field_id)
    high = (file.upper_bounds or {}).get(field.field_id)
    if low is None or high is None:
        return None
    # Of four bytes or eight: the column may have become wider since.
    return int.from_bytes(low, "little", signed=True), int.from_bytes(high, "little", signed=True)


def _readable(
    plan: dict[int, StatisticsCollector], metadata: pq.FileMetaData, ids: Mapping[str, int]
) -> dict[int, StatisticsCollector]:
    """Leaves out the bounds of columns that have a value for which Python has none, as times after
    the year 9999: without them such a file is only read more often."""
    kept = dict(plan)
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            number = ids[column.path_in_schema]
            try:
                if column.is_stats_set:
                    _ = column.statistics.min, column.statistics.max
            except (OverflowError, ValueError):
                own = plan[number]
                kept[number] = StatisticsCollector(
                    own.field_id, own.iceberg_type, _COUNTS, own.column_name
                )
    return kept


def _shortened(part: str) -> str:
    if len(part) <= _MAX_NAME:
        return part
    return f"{part[: _MAX_NAME - 17]}-{sha256(part.encode()).hexdigest()[:16]}"


def file_io(table: Table, name: str) -> PyArrowFileIO:
    if not isinstance(table.io, PyArrowFileIO):
        raise ConfigError(
            f"The catalogue of {name} has its files read by {type(table.io).__module__}, expected "
            f"{FILE_IO['py-io-impl']}: set its property py-io-impl to that."
        )
    return table.io


def located(io: PyArrowFileIO, location: str) -> tuple[pafs.FileSystem, str]:
    """Opens the storage of a location, and returns the path there."""
    scheme, authority, path = io.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, authority), path
