"""One version of an Iceberg table, and the commit that makes the next.

Progress stands in a property of the table, set in the transaction that adds the files, and in the
summary of the snapshot that it makes. Every commit of ours makes one, also where it adds no file:
the catalogue compares the snapshot that a commit goes on from, and nothing else of the table.

The library would repeat a commit that lost against another, on the newest snapshot and without
asking, so that the rows of a load that another one has overtaken went in twice. It would also
delete what such a commit has written, which is wrong where it was in and only the answer was lost
on the way. Both are off here: ``LakeTarget`` looks, and decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pyarrow import parquet as pq
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.types import strtobool
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from spark_logbus.errors import ConfigError
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.dividing import Divider
from spark_logbus.load.lake.iceberg import columns as column_types
from spark_logbus.load.lake.iceberg import partitions
from spark_logbus.load.lake.iceberg.asking import asking, conflict
from spark_logbus.load.lake.iceberg.files import (
    IcebergFileReader,
    IcebergFileWriter,
    file_io,
    lake_file,
    located,
    task_of,
)
from spark_logbus.load.lake.iceberg.progress import PROGRESS, Mark
from spark_logbus.load.lake.table import (
    LAYOUT,
    Change,
    LakeFile,
    Progress,
    RestoredError,
    missing_files,
)
from spark_logbus.load.layout import DEFAULT_LAYOUT, Layout, LayoutChoice, settle
from spark_logbus.load.tables import IcebergTable

#: Version of the format that loads write.
FORMAT_VERSION: Final = 2

_RETRIES: Final = "commit.retry.num-retries"
#: Whether the table's lists of files, of which each commit adds one, are merged now and then.
_MERGES: Final = "commit.manifest-merge.enabled"
#: So many partitions are named in a message.
_LISTED: Final = 10


class IcebergVersion:
    """A table at one of its snapshots, or before its first. Thread-safe: it only reads."""

    def __init__(self, table: Table, name: IcebergTable) -> None:
        self._table = table
        self._name = name
        self._metadata: TableMetadata = table.metadata
        self._columns = self._metadata.schema()
        self._spec = partitions.with_all_times(self._metadata.spec())
        snapshot = self._metadata.current_snapshot()
        #: Id of the snapshot; 0 where there is none.
        self.version = snapshot.snapshot_id if snapshot is not None else 0
        self.schema = column_types.spark_schema(self._columns, table=str(name))
        self.properties: Mapping[str, str] = dict(self._metadata.properties)

    @property
    def table_id(self) -> str:
        return str(self._metadata.table_uuid)

    @property
    def partition_names(self) -> tuple[str, ...]:
        return partitions.partition_names(self._spec, self._columns)

    def layout(self, choice: LayoutChoice) -> Layout:
        event_time = _event_time(self.properties.get(LAYOUT))
        name = str(self._name)
        kept = partitions.layout_of(self._spec, self._columns, event_time, table=name)
        return settle(kept, choice, where=name)

    def partitioned(self, frame: DataFrame, layout: Layout) -> DataFrame:
        values = partitions.partition_columns(
            self._spec, self._columns, frame.schema, table=str(self._name)
        )
        return frame.withColumns(dict(zip(self.partition_names, values, strict=True)))

    def timed_name(self, layout: Layout) -> str | None:
        return partitions.timed_name(self._spec, self._columns, layout)

    def divider(self, layout: Layout, schema: StructType) -> Divider | None:
        timed = self.timed_name(layout)
        return partitions.divider(self._spec, self._columns, schema, timed)

    def progress(self, *, restored: bool = False) -> Progress | None:
        kept, found = self._kept(), self._of_snapshots()
        if kept is None or (found is not None and found.sequence_number >= kept.sequence_number):
            # Whoever takes the property away or sets it back leaves the rows where they are.
            return found.progress if found is not None else None
        last = kept.progress
        there = found.progress if found is not None else Progress(last.topic_id, 0, 0, {})
        changed = [each for each, end in last.ends.items() if there.ends.get(each, 0) != end]
        if not changed or self._has_forgotten(kept):
            return last
        if restored:
            return replace(last, ends=there.ends, spans=there.spans)
        listed = ", ".join(
            f"{there.ends.get(each, 0)} of partition {each} (it was {last.ends[each]})"
            for each in sorted(changed)[:_LISTED]
        )
        more = ", ..." if len(changed) > _LISTED else ""
        raise RestoredError(
            f"Table {self._name} was set back: snapshot {self.version} has offsets up to "
            f"{listed}{more}, and load {last.number} had committed snapshot {kept.snapshot_id}. "
            "Nothing was loaded. Give --accept-restore to load again from there, or set the table "
            "to that snapshot."
        )

    def _kept(self) -> Mark | None:
        text = self.properties.get(PROGRESS)
        return None if text is None else Mark.from_json(text, table=str(self._name))

    def _of_snapshots(self) -> Mark | None:
        """The progress of the newest load whose snapshot this version goes back to."""
        for snapshot in self._line():
            text = None if snapshot.summary is None else snapshot.summary.get(PROGRESS)
            if text is not None:
                return Mark.from_json(text, table=str(self._name))
        return None

    def _line(self) -> Iterator[Snapshot]:
        """The snapshots that this version goes back to, as far as none has expired."""
        yield from ancestors_of(self._metadata.current_snapshot(), self._metadata)

    def _has_forgotten(self, mark: Mark) -> bool:
        """Tells whether the snapshot of ``mark`` has expired, and was not set back from: all that
        is known of the line came after it."""
        numbers = [snapshot.sequence_number or 0 for snapshot in self._line()]
        gone = self._metadata.snapshot_by_id(mark.snapshot_id) is None
        return gone and bool(numbers) and min(numbers) > mark.sequence_number

    def check_appendable(self) -> None:
        version = self._metadata.format_version
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"Table {self._name} has version {version} of the Iceberg format, and loads write "
                f"version {FORMAT_VERSION}. "
                + (
                    "Set its property format-version to 2."
                    if version < FORMAT_VERSION
                    else "Load into another table."
                )
            )
        data = self.properties.get("write.data.path", "")
        if data and not data.startswith(f"{self._table.location()}/"):
            raise ConfigError(
                f"Table {self._name} has its files in {data} (property write.data.path), outside "
                f"of its own {self._table.location()}, where a load could not clear away what one "
                "before has left. Unset the property, or load into another table."
            )
        encrypted = next((key for key in self.properties if key.startswith("encryption.")), None)
        if encrypted is not None:
            raise ConfigError(
                f"Table {self._name} is encrypted (property {encrypted}), and loads write files "
                "that are not. Load into another table."
            )

    def files(self) -> list[LakeFile]:
        with asking(f"list the files of {self._name}", self._name):
            try:
                tasks = list(self._table.scan().plan_files())
            except ValueError as error:
                if "equality deletes" not in str(error):
                    raise
                raise ConfigError(
                    f"Table {self._name} has equality deletes, of another writer, which loads "
                    "cannot read. Have that writer rewrite its files, as rewrite_data_files does."
                ) from error
        specs = self._metadata.specs()
        return [lake_file(task, specs[task.file.spec_id], self._columns) for task in tasks]

    def writer(self) -> IcebergFileWriter:
        table = str(self._name)
        base = self.properties.get("write.data.path") or f"{self._table.location()}/data"
        return IcebergFileWriter(
            schema=column_types.arrow_schema(self._columns, ids=True),
            partition_names=self.partition_names,
            io=file_io(self._table, table),
            columns=self._columns,
            spec=self._spec,
            metrics={
                name: value
                for name, value in self.properties.items()
                if name.startswith("write.metadata.metrics.")
            },
            base=base.rstrip("/"),
            table=table,
        )

    def reader(self, columns: Sequence[str] | None = None) -> IcebergFileReader:
        names = self.schema.names if columns is None else columns
        fields = {field.name: field for field in self._columns.fields}
        missing = [name for name in names if name not in fields]
        if missing:
            raise ConfigError(
                f"Table {self._name} has no column {', '.join(missing)}; there are "
                f"{', '.join(fields)}."
            )
        projected = Schema(*(fields[name] for name in names))
        return IcebergFileReader(
            schema=column_types.arrow_schema(projected, ids=False),
            io=file_io(self._table, str(self._name)),
            wanted=column_types.arrow_schema(projected, ids=True),
            specs=self._metadata.specs(),
            columns=self._columns,
            ids_by_name={
                name: each.field_id
                for each in self._metadata.name_mapping() or ()
                for name in each.names
                if each.field_id is not None
            },
        )

    def describe(self, path: str) -> LakeFile:
        if not self._spec.is_unpartitioned():
            raise WarehouseError(
                f"Table {self._name} is partitioned, and file {path} does not say by which values."
            )
        writer = self.writer()
        with asking(f"read the footer of {path}", self._name):
            filesystem, own = located(writer.io, path)
            size = filesystem.get_file_info(own).size
            return writer.describe(own, size, pq.read_metadata(own, filesystem=filesystem), ())

    def missing(self, paths: Sequence[str]) -> list[str]:
        with asking(f"look for files of {self._name}", self._name):
            io = file_io(self._table, str(self._name))
            found = {path: located(io, path)[1] for path in paths}
            storage, _ = located(io, self._table.location())
            return missing_files(storage, found)

    def commit(self, change: Change) -> None:
        self._check(change)
        # On a handle of its own, because the library puts the next version into it.
        metadata = self._metadata.model_copy(
            update={
                "properties": {**self._metadata.properties, _RETRIES: "0"},
                "partition_specs": [
                    partitions.with_all_times(spec) for spec in self._metadata.partition_specs
                ],
            }
        )
        table = self._table
        handle = Table(
            table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config
        )
        with asking(f"commit to {self._name}", self._name):
            transaction = handle.transaction()
            self._add(transaction, change)
            try:
                transaction.commit_transaction()
            except CommitFailedException as error:
                raise conflict(str(self._name)) from error

    def _add(self, transaction: Transaction, change: Change) -> None:
        """Writes the manifests of a change, and adds the snapshot to the transaction."""
        update = transaction.update_snapshot()
        if change.removed:
            producer: _SnapshotProducer[Any] = update.overwrite()
        elif strtobool(self.properties.get(_MERGES, "false")):
            producer = update.merge_append()
        else:
            producer = update.fast_append()
        number = transaction.table_metadata.next_sequence_number()
        text = Mark(change.progress, producer.snapshot_id, number).to_json()
        producer.snapshot_properties = {PROGRESS: text}
        transaction.set_properties({PROGRESS: text})
        # A catalogue compares what it is asked to: the files are written for these columns.
        transaction._requirements += (
            AssertCurrentSchemaId.model_validate(
                {"current-schema-id": self._metadata.current_schema_id}
            ),
            AssertDefaultSpecId.model_validate({"default-spec-id": self._metadata.default_spec_id}),
        )
        for file in change.added:
            producer.append_data_file(task_of(file).file)
        for file in change.removed:
            producer.delete_data_file(task_of(file).file)
        producer.commit()
        # What the library is to repeat, and to clean up after a failure: nothing.
        transaction._snapshot_producers.clear()
        if not change.data_change:
            transaction._updates = tuple(map(_without_change, transaction._updates))

    def _check(self, change: Change) -> None:
        """Raises WarehouseError where another writer has changed what the files rest on."""
        spec = self._metadata.default_spec_id
        for file in change.added:
            if task_of(file).file.spec_id != spec:
                raise WarehouseError(
                    f"The partitions of table {self._name} were changed while files were written "
                    "by the old ones. Nothing was committed. Run it again."
                )
        if not change.removed:
            return
        there = {file.path: task_of(file) for file in self.files()}
        for file in change.removed:
            now = there.get(file.path)
            if now is None or now.delete_files != task_of(file).delete_files:
                done = "removed" if now is None else "deleted rows of"
                raise WarehouseError(
                    f"Another writer has {done} file {file.path} of table {self._name} since it "
                    "was read to be replaced. Nothing was committed. Run it again."
                )


def _without_change(update: TableUpdate) -> TableUpdate:
    """Returns the same snapshot as one that stores its rows anew, which the library never makes."""
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.summary is None:
        return update
    summary = update.snapshot.summary.model_copy(update={"operation": Operation.REPLACE})
    snapshot = update.snapshot.model_copy(update={"summary": summary})
    return update.model_copy(update={"snapshot": snapshot})


def _event_time(text: str | None) -> str:
    """The event time of a layout that a load has kept; the default where it says none."""
    try:
        return Layout.from_json(json.loads(text or "")).event_time
    except (KeyError, TypeError, ValueError):
        return DEFAULT_LAYOUT.event_time
