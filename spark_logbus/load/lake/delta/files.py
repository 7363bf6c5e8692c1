"""Parquet files of a Delta table, as Spark's tasks write and read them.

Values of partition columns stand in the log, as text. Directories are named after them in the way
of Hive, with all that is not a letter or digit escaped as in a URL: some readers, Polars among
them, take the values from there. A directory whose name would be too long is left out: such a
reader fails then, and does not take a part of the value for the whole. The names of files are
unique.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs as pafs
from pyarrow import parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.delta.storage import DeltaStorage
from spark_logbus.load.lake.table import LakeFile

#: Directory of records without a value, in the words of Hive.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_MAX_NAME: Final = 255  # of all file systems
#: Characters that the library leaves as they are, beside letters and digits.
_NOT_ESCAPED: Final = "/=-_.~!$&'()+,;@:"

_MAX_TIMESTAMP_US: Final = 253_402_300_799_999_000  # the last millisecond of the year 9999
_MIN_TIMESTAMP_US: Final = -62_135_596_800_000_000  # the first of the year 1
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class NewFile:
    """Facts of a new file that the log is told. Immutable and picklable."""

    modified_ms: int
    statistics: str


@dataclass(frozen=True, slots=True)
class DeltaWriter:
    """Writer of a table's files, for tasks. Immutable and picklable."""

    storage: DeltaStorage
    schema: pa.Schema
    partition_names: tuple[str, ...]
    #: Those of them that may not be null.
    required: tuple[str, ...]

    def filesystem(self) -> pafs.FileSystem:
        return self.storage.filesystem()

    def path(self, values: Sequence[object], name: str) -> str:
        texts = dict(zip(self.partition_names, map(partition_text, values), strict=True))
        for column in self.required:
            if texts[column] is None:
                raise WarehouseError(
                    f"A record has no value for the column {column}, by which {self.storage.root} "
                    "is partitioned and which may not be null there. Allow null, or give "
                    "--dead-letters where the value does not decode."
                )
        directories = [
            f"{_escaped(column)}={_NULL if text is None else _escaped(text)}"
            for column, text in texts.items()
        ]
        short = [each for each in directories if len(each) <= _MAX_NAME]
        return self.storage.path("/".join([*short, name]))

    def describe(
        self, path: str, size_bytes: int, metadata: pq.FileMetaData, values: Sequence[object]
    ) -> LakeFile:
        found = _statistics(metadata)
        texts = tuple(map(partition_text, values))
        own = dict(zip(self.partition_names, texts, strict=True))
        return LakeFile(
            encoded_path(self.storage.relative(path)),
            size_bytes,
            metadata.num_rows,
            texts,
            found.of("partition", own),
            found.of("offset", own),
            detail=NewFile(
                time.time_ns() // 1_000_000, found.to_json(metadata.num_rows, self.schema)
            ),
        )


@dataclass(frozen=True, slots=True)
class DeltaReader:
    """Reader of a table's files, for tasks. Immutable and picklable."""

    storage: DeltaStorage
    schema: pa.Schema
    partition_names: tuple[str, ...]

    def read(self, file: LakeFile) -> Iterator[pa.RecordBatch]:
        path = decoded_path(file.path)
        own = dict(zip(self.partition_names, file.partition, strict=True))
        with (
            self.storage.errors(f"read the file {path} of"),
            self.storage.filesystem().open_input_file(self.storage.path(path)) as stream,
        ):
            # Spark writes timestamps as INT96 unless it is told otherwise.
            parquet = pq.ParquetFile(
                stream, coerce_int96_timestamp_unit="us", pre_buffer=not self.storage.is_local
            )
            there = {name.lower(): name for name in parquet.schema_arrow.names}
            names = {
                each.name: there[each.name.lower()]
                for each in self.schema
                if each.name not in own and each.name.lower() in there
            }
            for batch in parquet.iter_batches(columns=[*names.values()]):
                columns = [self._column(each, batch, names, own) for each in self.schema]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(
        self,
        column: pa.Field,
        batch: pa.RecordBatch,
        names: Mapping[str, str],
        own: Mapping[str, str | None],
    ) -> pa.Array:
        if column.name in own:
            value = pa.scalar(own[column.name], pa.string()).cast(column.type)
            return pa.repeat(value, batch.num_rows)
        if column.name not in names:
            return pa.nulls(batch.num_rows, column.type)
        values = batch.column(names[column.name])
        # Other writers have nanoseconds, which a table cuts off.
        safe = not pa.types.is_timestamp(column.type)
        return values if values.type == column.type else values.cast(column.type, safe=safe)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns as Arrow has them (pure), without what a table notes about them, which would come
    back as a note of another name."""
    bare = _without_notes(schema)
    assert isinstance(bare, StructType)
    return to_arrow_schema(bare, timezone="UTC")


def _without_notes(kind: DataType) -> DataType:
    match kind:
        case StructType():
            return StructType(
                [StructField(f.name, _without_notes(f.dataType), f.nullable) for f in kind.fields]
            )
        case ArrayType():
            return ArrayType(_without_notes(kind.elementType), kind.containsNull)
        case MapType():
            key, value = _without_notes(kind.keyType), _without_notes(kind.valueType)
            return MapType(key, value, kind.valueContainsNull)
    return kind


def partition_text(value: object) -> str | None:
    """A partition's value as the log has it (pure). An empty text is null in Delta."""
    match value:
        case None | "":
            return None
        case bool():
            return str(value).lower()
        case datetime.datetime():
            raise WarehouseError(f"Expected no time of a day as a partition's value, got {value}.")
        case datetime.date():
            return value.isoformat()
        case str() | int():
            return str(value)
    raise WarehouseError(f"Expected a text, whole number, date or boolean, got {value!r}.")


def decoded_path(path: str) -> str:
    """Path of a file from the table's directory on, of one as the log has it (pure). Raises
    WarehouseError for a file that is elsewhere."""
    decoded = unquote(path)
    if "://" in path or path.startswith(("/", "file:")):
        raise WarehouseError(
            f"File {decoded} is outside of its table's directory, as in a shallow clone, and loads "
            "read no such files. Copy the table as a whole."
        )
    return decoded


def is_removable(path: str) -> bool:
    """Tells whether the library would name a file as the log does when it removes it (pure).

    Readers compare names as they stand: under another one it would be there still.
    """
    return encoded_path(unquote(path)) == path


def encoded_path(path: str) -> str:
    """Path of a file as the library ``deltalake`` writes it into the log (pure)."""
    return quote(path, safe=_NOT_ESCAPED)


def _escaped(text: str) -> str:
    return quote(text, safe="")


@dataclass(frozen=True, slots=True)
class _Statistics:
    """Smallest and largest values of columns, and numbers of nulls. Immutable."""

    #: As Parquet stores them: numbers, days or microseconds since 1970.
    bounds: Mapping[str, tuple[int, int]]
    nulls: Mapping[str, int]

    def of(self, name: str, partition: Mapping[str, str | None]) -> tuple[int, int] | None:
        """Bounds of a column of whole numbers, which may be one of the partition's."""
        if name in partition:
            text = partition[name]
            return None if text is None else (int(text), int(text))
        return self.bounds.get(name)

    def to_json(self, records: int, schema: pa.Schema) -> str:
        """Statistics as the log has them."""
        least: dict[str, object] = {}
        most: dict[str, object] = {}
        for name, (low, high) in self.bounds.items():
            shown = _shown(schema.field(name).type) if name in schema.names else None
            both = (None, None) if shown is None else (shown(low, False), shown(high, True))
            if None not in both:
                least[name], most[name] = both
        return json.dumps(
            {
                "numRecords": records,
                "minValues": least,
                "maxValues": most,
                "nullCount": dict(self.nulls),
            }
        )


def _statistics(metadata: pq.FileMetaData) -> _Statistics:
    """Reads bounds and nulls of the columns that are whole numbers, dates and timestamps, and the
    nulls of other columns, from a footer."""
    bounds: dict[str, tuple[int, int]] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(each) for each in range(metadata.num_row_groups)]
    for place in range(metadata.num_columns):
        column = metadata.schema.column(place)
        if column.max_repetition_level or column.path != column.name:
            continue  # within a list, a map or a struct
        chunks = [group.column(place) for group in groups]
        parts = [chunk.statistics for chunk in chunks if chunk.is_stats_set]
        if len(parts) < len(chunks) or not all(each.has_null_count for each in parts):
            continue
        nulls[column.name] = sum(each.null_count for each in parts)
        filled = [each for each, chunk in zip(parts, chunks, strict=True) if each.num_values]
        if (
            filled
            and column.physical_type in ("INT32", "INT64")
            and all(each.has_min_max for each in filled)
        ):
            low, high = min(each.min_raw for each in filled), max(each.max_raw for each in filled)
            bounds[column.name] = (low, high)
    return _Statistics(bounds, nulls)


def _shown(kind: pa.DataType) -> Callable[[int, bool], Any] | None:
    """Returns what makes a bound of a type as the log has it; None: it is left out. The flag is
    True for the upper bound."""
    if pa.types.is_signed_integer(kind):
        return lambda value, _: value
    if pa.types.is_date32(kind):
        return lambda value, _: _day(value)
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        return lambda value, upper: _moment(value, upper, zone)
    return None


def _day(value: int) -> str | None:
    try:
        return (_EPOCH.date() + datetime.timedelta(days=value)).isoformat()
    except OverflowError:
        return None


def _moment(value_us: int, upper: bool, zone: str) -> str | None:
    """Shows a moment in milliseconds, which all readers know, rounded outwards: all values of the
    file lie between."""
    if not _MIN_TIMESTAMP_US <= value_us <= _MAX_TIMESTAMP_US:
        return None
    value_ms = -(-value_us // 1000) if upper else value_us // 1000
    moment = (_EPOCH + datetime.timedelta(milliseconds=value_ms)).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds") + zone
