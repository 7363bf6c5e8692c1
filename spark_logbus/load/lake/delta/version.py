"""One version of a Delta table, and the commit after it.

A commit is made on the version that was looked at, by making the file of the number after it, once;
the library's own retries, which go on to a later number, are off.

A RESTORE of the table sets back its files and columns, and leaves the transactions with our
offsets. It is seen in the commits after ours.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import deltalake
import pyarrow as pa
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
from pyarrow import parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ByteType,
    IntegerType,
    LongType,
    ShortType,
    StructType,
    TimestampType,
)

from spark_logbus.errors import ConfigError
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.columns import nullable
from spark_logbus.load.lake.delta.files import (
    DeltaReader,
    DeltaWriter,
    NewFile,
    arrow_schema,
    decoded_path,
    is_removable,
)
from spark_logbus.load.lake.delta.layout import layout_of
from spark_logbus.load.lake.delta.log import NOTHING, CommitLog
from spark_logbus.load.lake.delta.offsets import VERSION, OffsetTransactions
from spark_logbus.load.lake.delta.protocol import (
    DELETION_VECTORS,
    check_columns,
    check_readable,
    check_removable,
    check_writable,
)
from spark_logbus.load.lake.delta.storage import DeltaStorage
from spark_logbus.load.lake.dividing import Divider, Rule
from spark_logbus.load.lake.table import (
    LAYOUT,
    TOPIC_ID,
    Change,
    LakeFile,
    Progress,
    RestoredError,
    VersionConflictError,
    missing_files,
)
from spark_logbus.load.layout import Layout, LayoutChoice, Period
from spark_logbus.load.read.reading import partitioned
from spark_logbus.plurals import plural

_FOOTERS_AT_ONCE: Final = 16
#: Columns of a period; a month's text is Spark's own.
_RULES: Final = {Period.HOUR: (Rule.DATE, Rule.HOUR_OF_DAY), Period.DAY: (Rule.DATE,)}
_UNCOUNTED: Final = -1


def open_newest(storage: DeltaStorage, log: CommitLog) -> DeltaLakeVersion | None:
    """Opens the newest version; None: no table. Raises WarehouseError."""
    with storage.errors("open"):
        try:
            handle = deltalake.DeltaTable(storage.root, storage_options=dict(storage.options))
        except TableNotFoundError:
            return None
        return DeltaLakeVersion(storage, log, handle)


class DeltaLakeVersion:
    """One version of a Delta table. Not thread-safe."""

    def __init__(self, storage: DeltaStorage, log: CommitLog, handle: deltalake.DeltaTable) -> None:
        self._storage = storage
        self._handle = handle
        self._log = log
        metadata = handle.metadata()
        self.table_id = str(metadata.id)
        self.version = handle.version()
        self.schema: StructType = StructType.fromJson(json.loads(handle.schema().to_json()))
        self.properties: Mapping[str, str] = dict(metadata.configuration)
        self._partition_names = tuple(metadata.partition_columns)

    @property
    def partition_names(self) -> tuple[str, ...]:
        return self._partition_names

    @property
    def _where(self) -> str:
        return self._storage.root

    def _other(self, version: int) -> DeltaLakeVersion:
        with self._storage.errors(f"open version {version} of"):
            options = dict(self._storage.options)
            handle = deltalake.DeltaTable(self._where, version=version, storage_options=options)
            return DeltaLakeVersion(self._storage, self._log, handle)

    # -- what a load must keep to -----------------------------------------------------------------

    def layout(self, choice: LayoutChoice) -> Layout:
        told = self.properties.get(LAYOUT)
        return layout_of(told, self._partition_names, choice, where=self._where)

    def partitioned(self, frame: DataFrame, layout: Layout) -> DataFrame:
        return partitioned(frame, layout)

    def timed_name(self, layout: Layout) -> str | None:
        return layout.period_columns[0] if layout.period_columns else None

    def divider(self, layout: Layout, schema: StructType) -> Divider | None:
        timed = self.timed_name(layout)
        rules: dict[str, tuple[Rule, str]] = {}
        if timed is not None:
            event_time = layout.event_time
            if event_time not in schema.names:
                return None
            wanted = _RULES.get(layout.period)
            if wanted is None or not isinstance(schema[event_time].dataType, TimestampType):
                return None
            names = zip(layout.period_columns, wanted, strict=True)
            rules = {name: (rule, event_time) for name, rule in names}
        return Divider(rules, timed)

    def check_appendable(self) -> None:
        features = self._handle.protocol().writer_features or ()
        check_writable(features, self.schema, self.properties, where=self._where)

    # -- progress ---------------------------------------------------------------------------------

    def progress(self, *, restored: bool = False) -> Progress | None:
        since = self._transaction(VERSION)
        if since is None:
            return None
        progress = self._offsets(self._topic_id(since), since).progress()
        if progress is None or (origin := self._origin(since)) >= since:
            return progress
        before = None if origin == NOTHING else self._other(origin).progress(restored=True)
        ends, spans = (before.ends, before.spans) if before else ({}, {})
        if restored:
            return replace(progress, ends=ends, spans=spans)
        to = "an empty table" if origin == NOTHING else f"its version {origin}"
        raise RestoredError(
            f"Table {self._where} was set back to {to} after version {since}, which load "
            f"{progress.number} had brought to the offsets {_shown(progress.ends)}; what is there "
            f"now goes up to {_shown(ends)}. Nothing was loaded. Give --accept-restore to load "
            f"again from there, or restore the table to version {since}."
        )

    def _transaction(self, name: str) -> int | None:
        with self._storage.errors("read the offsets of"):
            return self._handle.transaction_version(name)

    def _offsets(self, topic_id: str, since: int | None) -> OffsetTransactions:
        """Numbers of a topic, as our last commit, ``since``, has them; where its file has been
        cleared away, from the log as a whole."""
        numbers = (None if since is None else self._log.numbers(since)) or {}
        is_ours = numbers.get(VERSION) == since
        return OffsetTransactions(topic_id, numbers.get if is_ours else self._transaction)

    def _topic_id(self, since: int) -> str:
        """Id of the topic that is loaded. A property goes where the table is set back."""
        own = self.properties.get(TOPIC_ID) or self._other(since).properties.get(TOPIC_ID)
        if own is None:
            raise WarehouseError(
                f"Table {self._where} has offsets of a topic, and no longer tells of which one. "
                f"Set its property {TOPIC_ID} to the id that the topic has."
            )
        return own

    def _origin(self, since: int) -> int:
        """The version whose files this one has; ``since`` or later where the table was not set back
        beyond that."""
        version = self.version
        restores = self._log.restores(self.table_id, range(since + 1, version + 1))
        while version > since:
            restore = restores.get(version)
            if restore is None:
                version -= 1
            else:
                version = self._same_files(version) if restore.to is None else restore.to
        return version

    def _same_files(self, restored: int) -> int:
        """The newest version before with the files of one that was restored to a time."""
        wanted = {*self._other(restored)._handle.file_uris()}
        for version in range(restored - 1, NOTHING, -1):
            if {*self._other(version)._handle.file_uris()} == wanted:
                return version
        raise WarehouseError(
            f"Table {self._where} was set back in version {restored} to a time, and no version "
            "before that has the same files. Restore a version by its number."
        )

    # -- files ------------------------------------------------------------------------------------

    def files(self) -> list[LakeFile]:
        with self._storage.errors("list the files of"):
            found = pa.table(self._handle.get_add_actions())
            least, most = self._known_bounds(found, "min"), self._known_bounds(found, "max")
            files = [
                LakeFile(
                    path,
                    size_bytes,
                    _UNCOUNTED if records is None else records,
                    partition,
                    self._bounds("partition", partition, low, high),
                    self._bounds("offset", partition, low, high),
                    is_removable(path),
                )
                for path, size_bytes, records, partition, low, high in zip(
                    found.column("path").to_pylist(),
                    found.column("size_bytes").to_pylist(),
                    found.column("num_records").to_pylist(),
                    self._partitions(found),
                    least,
                    most,
                    strict=True,
                )
            ]
            return self._counted(files)

    def _partitions(self, found: pa.Table) -> list[tuple[str | None, ...]]:
        if not self._partition_names or not found.num_rows:
            return [()] * found.num_rows
        values = found.column("partition").combine_chunks()
        texts = [values.field(name).cast(pa.string()) for name in self._partition_names]
        return list(zip(*(each.to_pylist() for each in texts), strict=True))

    def _bounds(
        self,
        name: str,
        partition: tuple[str | None, ...],
        low: Mapping[str, Any],
        high: Mapping[str, Any],
    ) -> tuple[int, int] | None:
        if name in self._partition_names and self._is_whole(name):
            text = partition[self._partition_names.index(name)]
            return None if text is None else (int(text), int(text))
        least, most = low.get(name), high.get(name)
        return None if least is None or most is None else (least, most)

    def _known_bounds(self, found: pa.Table, kind: str) -> list[Mapping[str, Any]]:
        """Smallest or largest values of each file, of the columns that say which record a row is;
        empty where the log does not tell."""
        nothing: list[Mapping[str, Any]] = [{}] * found.num_rows
        if kind not in found.column_names or not found.num_rows:
            return nothing
        bounds = found.column(kind).combine_chunks()
        names = [each.name for each in bounds.type if self._is_whole(each.name)]
        columns = [bounds.field(name).to_pylist() for name in names]
        rows = zip(*columns, strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows] or nothing

    def _is_whole(self, name: str) -> bool:
        """Tells whether it is a column of whole numbers that says which record a row is."""
        return name in ("partition", "offset") and isinstance(
            self.schema[name].dataType, (ByteType, ShortType, IntegerType, LongType)
        )

    def _counted(self, files: list[LakeFile]) -> list[LakeFile]:
        """Returns the files, with the records that the log does not tell from their footers."""
        uncounted = [file for file in files if file.records == _UNCOUNTED]
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
            footers = [*pool.map(self._footer, [decoded_path(file.path) for file in uncounted])]
        told = {
            file.path: footer.num_rows for file, (_, footer) in zip(uncounted, footers, strict=True)
        }
        return [replace(file, records=told.get(file.path, file.records)) for file in files]

    def _footer(self, path: str) -> tuple[int, pq.FileMetaData]:
        """Size and footer of a file in the table's directory."""
        with self._storage.filesystem().open_input_file(self._storage.path(path)) as stream:
            return stream.size(), pq.ParquetFile(stream).metadata

    def describe(self, path: str) -> LakeFile:
        path = decoded_path(path)
        with self._storage.errors(f"read the file {path} of"):
            size_bytes, footer = self._footer(path)
        return self.writer().describe(self._storage.path(path), size_bytes, footer, ())

    def missing(self, paths: Sequence[str]) -> list[str]:
        found = {path: self._storage.path(decoded_path(path)) for path in paths}
        with self._storage.errors("look for files of"):
            return missing_files(self._storage.filesystem(), found)

    def writer(self) -> DeltaWriter:
        fields = [each for each in self.schema.fields if each.name not in self._partition_names]
        required = [name for name in self._partition_names if not self.schema[name].nullable]
        return DeltaWriter(
            self._storage, arrow_schema(StructType(fields)), self._partition_names, tuple(required)
        )

    def reader(self, columns: Sequence[str] | None = None) -> DeltaReader:
        features = self._handle.protocol().reader_features or ()
        check_readable(features, self.properties, where=self._where)
        self._check_no_deletion_vectors()
        unknown = [name for name in columns or () if name not in self.schema.names]
        if unknown:
            raise ConfigError(
                f"Table {self._where} has no column {unknown[0]}; it has "
                f"{', '.join(self.schema.names)}."
            )
        names = self.schema.names if columns is None else columns
        schema = nullable(StructType([self.schema[name] for name in names]))
        assert isinstance(schema, StructType)
        check_columns(schema, where=self._where)
        return DeltaReader(self._storage, arrow_schema(schema), self._partition_names)

    def _check_no_deletion_vectors(self) -> None:
        if DELETION_VECTORS not in (self._handle.protocol().reader_features or ()):
            return
        with self._storage.errors("read the deletion vectors of"):
            vectors = pa.RecordBatchReader.from_stream(self._handle.deletion_vectors())
            files = vectors.read_all().num_rows
        if files:
            raise ConfigError(
                f"Table {self._where} has {plural(files, 'file')} with deletion vectors: rows that "
                "are deleted and still in the files, which loads would take for rows. Rewrite "
                "these files, as REORG TABLE ... APPLY (PURGE) does."
            )

    # -- the commit -------------------------------------------------------------------------------

    def commit(self, change: Change) -> None:
        self._check_removed(change)
        progress, partition_by = change.progress, list(self._partition_names)
        offsets = self._offsets(progress.topic_id, self._transaction(VERSION))
        numbers = {**offsets.after(progress), VERSION: self.version + 1}
        properties = CommitProperties(
            custom_metadata={"logbus.load": progress.number},
            max_commit_retries=0,
            app_transactions=[Transaction(name, number) for name, number in numbers.items()],
        )
        with self._storage.errors("commit to"):
            try:
                self._handle.create_write_transaction(
                    [*self._adds(change), *self._removes(change)],
                    "append",
                    self._handle.schema(),
                    partition_by=partition_by,
                    commit_properties=properties,
                )
            except Exception:
                if not self._is_in(offsets.name("token"), progress.token):
                    raise
            self._log.sync(self.version + 1)

    def _is_in(self, name: str, token: int) -> bool:
        """Tells whether a commit that ended with an error has been made all the same; False: nobody
        knows. Raises VersionConflictError where another has made the next version."""
        numbers = self._log.numbers(self.version + 1)
        if numbers is None:
            return False
        if numbers.get(name) == token:
            return True
        raise VersionConflictError(
            f"Another writer has committed version {self.version + 1} of {self._where}."
        )

    def _check_removed(self, change: Change) -> None:
        """Raises VersionConflictError where a file to be removed is gone, and ConfigError where one
        cannot be removed."""
        if not change.removed:
            return
        if change.data_change:
            check_removable(self.properties, where=self._where)
        # Rows may have been deleted since the file was read, and it has its name still.
        self._check_no_deletion_vectors()
        with self._storage.errors("list the files of"):
            there = {*pa.table(self._handle.get_add_actions()).column("path").to_pylist()}
        for file in change.removed:
            if file.path not in there:
                raise VersionConflictError(
                    f"Another writer has replaced {file.path} of {self._where}."
                )
            if not is_removable(file.path):
                raise ConfigError(
                    f"The log of {self._where} names the file {file.path}, in which the library "
                    "deltalake would escape other characters, so that it would not be removed. "
                    "Let the program rewrite it that has written it."
                )

    def _adds(self, change: Change) -> Iterator[AddAction]:
        for file in change.added:
            assert isinstance(file.detail, NewFile), "only a file that was described is added"
            yield AddAction(
                decoded_path(file.path),
                file.size_bytes,
                dict(zip(self._partition_names, file.partition, strict=True)),
                file.detail.modified_ms,
                change.data_change,
                file.detail.statistics,
            )

    def _removes(self, change: Change) -> Iterator[RemoveAction]:
        now_ms = time.time_ns() // 1_000_000
        for file in change.removed:
            yield RemoveAction(
                decoded_path(file.path),
                change.data_change,
                now_ms,
                file.size_bytes,
                dict(zip(self._partition_names, file.partition, strict=True)),
            )


def _shown(ends: Mapping[int, int]) -> str:
    return ", ".join(f"{each}: {end:,}" for each, end in sorted(ends.items())) or "none"
