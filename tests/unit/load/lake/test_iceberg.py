"""Iceberg tables of loads, in a catalogue in SQLite, with files that pyarrow writes as tasks do."""

from __future__ import annotations

import pickle
import socket
import traceback
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.sql import types as sp

from spark_logbus.errors import ConfigError, LogbusError
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.table import (
    TOPIC,
    Change,
    LakeFile,
    Progress,
    RestoredError,
    VersionConflictError,
)
from spark_logbus.load.layout import FileFormat, Layout, LayoutChangedError, LayoutChoice, Period
from spark_logbus.load.tables import IcebergTable
from spark_logbus.model import OffsetRange, TopicPartition

pytest.importorskip("pyiceberg")

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.manifest import FileFormat as FileFormatOfIceberg
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import BucketTransform, DayTransform, YearTransform
from pyiceberg.typedef import Record
from pyiceberg.types import StringType, UUIDType

from spark_logbus.load.lake.iceberg import IcebergLakeTable
from spark_logbus.load.lake.iceberg.columns import iceberg_schema
from spark_logbus.load.lake.iceberg.partitions import check_columns, spec_of
from spark_logbus.load.lake.iceberg.progress import PROGRESS
from spark_logbus.load.lake.iceberg.version import IcebergVersion

RECORDS = (
    sp.StructType()
    .add("partition", sp.IntegerType())
    .add("offset", sp.LongType())
    .add("timestamp", sp.TimestampType())
    .add("carrier", sp.StringType())
)


def records() -> sp.StructType:
    return sp.StructType([*RECORDS.fields])


DAY = 86_400_000_000
UNDIVIDED = Layout(period=Period.NONE)


@pytest.fixture
def name(tmp_path: Path) -> IcebergTable:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalogue.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    return IcebergTable("test", "lake.flights", properties)


@pytest.fixture
def table(name: IcebergTable) -> Iterator[IcebergLakeTable]:
    made = IcebergLakeTable(name)
    yield made
    for each in (made, *_OTHERS):
        if isinstance(each._opened, SqlCatalog):
            each._opened.engine.dispose()
    _OTHERS.clear()


_OTHERS: list[IcebergLakeTable] = []


def other(table: IcebergLakeTable) -> IcebergLakeTable:
    """Opens the table with a catalogue of its own, as another process does."""
    _OTHERS.append(IcebergLakeTable(table._table))
    return _OTHERS[-1]


def by_hand(table: IcebergLakeTable) -> Table:
    """Opens the table by the library, as another writer does."""
    return other(table)._catalog().load_table(table._table.identifier)


def rows(*offsets: int, carrier: str = "UA", at: int = 0, partition: int = 0) -> pa.Table:
    return pa.table(
        {
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([at] * len(offsets), pa.timestamp("us", "UTC")),
            "carrier": pa.array([carrier] * len(offsets), pa.string()),
        }
    )


def write(
    version: IcebergVersion, data: pa.Table, name: str = "part-1", values: Sequence[object] = ()
) -> LakeFile:
    """Writes a file as a task does: all that it has is what was pickled."""
    writer = pickle.loads(pickle.dumps(version.writer()))
    filesystem, path = writer.filesystem(), writer.path(values, f"{name}.parquet")
    filesystem.create_dir(path.rpartition("/")[0], recursive=True)
    with pq.ParquetWriter(path, writer.schema, filesystem=filesystem) as out:
        out.write_table(data.select(writer.schema.names).cast(writer.schema))
    size = filesystem.get_file_info(path).size
    described = writer.describe(path, size, pq.read_metadata(path, filesystem=filesystem), values)
    return pickle.loads(pickle.dumps(described))  # type: ignore[no-any-return]


def read(version: IcebergVersion, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    reader = pickle.loads(pickle.dumps(version.reader(columns)))
    batches = [batch for file in version.files() for batch in reader.read(file)]
    for batch in batches:
        assert batch.schema == reader.schema
    return pa.Table.from_batches(batches, reader.schema).to_pylist()  # type: ignore[no-any-return]


def opened(table: IcebergLakeTable) -> IcebergVersion:
    version = table.newest()
    assert version is not None
    return version


def task_of(file: LakeFile) -> FileScanTask:
    assert isinstance(file.detail, FileScanTask)
    return file.detail


def progress(end: int, *, number: int = 1, token: int = 11) -> Progress:
    before = Progress("id", 0, 0, {0: 0, 1: 0})
    return before.after(number, token, [OffsetRange(TopicPartition("t", 0), 0, end)], {0: end})


def offsets(table: IcebergLakeTable) -> list[int]:
    return sorted(row["offset"] for row in read(opened(table)))


def test_a_load_adds_files_and_offsets_in_one_commit(table: IcebergLakeTable) -> None:
    assert table.newest() is None
    table.create(RECORDS, UNDIVIDED, {TOPIC: "flights"})
    table.create(RECORDS, UNDIVIDED, {TOPIC: "another"})  # another load has just made it
    version = opened(table)
    version.check_appendable()
    assert version.properties[TOPIC] == "flights"
    assert version.schema == RECORDS
    assert version.progress() is None
    assert version.files() == []

    file = write(version, rows(3, 4, 5))
    version.commit(Change(progress(6), [file]))

    assert version.files() == []  # it stays what it was
    after = opened(other(table))
    assert after.progress() == progress(6)
    assert after.files() == [file]
    assert (file.records, file.partitions, file.offsets) == (3, (0, 0), (3, 5))
    assert [row["offset"] for row in read(after)] == [3, 4, 5]
    assert read(after, ["offset", "partition"])[0] == {"offset": 3, "partition": 0}
    assert by_hand(table).scan().to_arrow().num_rows == 3


def test_of_two_loads_on_one_version_one_commits(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    first, second = opened(table), opened(other(table))
    second.commit(Change(progress(2, token=22), [write(second, rows(0, 1), "part-2")]))
    stale = write(first, rows(0, 1))
    with pytest.raises(VersionConflictError, match=r"test\.lake\.flights"):
        first.commit(Change(progress(2), [stale]))
    assert offsets(table) == [0, 1]


def test_a_stale_load_would_go_in_twice_by_the_retries_of_the_library(
    table: IcebergLakeTable,
) -> None:
    table.create(RECORDS, UNDIVIDED, {"commit.retry.min-wait-ms": "1"})
    first, zombie = opened(table), opened(other(table))
    first.commit(Change(progress(2), [write(first, rows(0, 1))]))

    # The same rows by the library alone: it finds the conflict, and adds them to the newest.
    late = zombie._table.transaction()
    late.set_properties({PROGRESS: "late"})
    append = late.update_snapshot().fast_append()
    append.append_data_file(task_of(write(zombie, rows(0, 1), "part-2")).file)
    append.commit()
    late.commit_transaction()
    assert offsets(table) == [0, 0, 1, 1]


def test_a_stale_load_does_not_commit_whatever_retries_the_table_has(
    table: IcebergLakeTable,
) -> None:
    table.create(RECORDS, UNDIVIDED, {"commit.retry.num-retries": "9"})
    first, zombie = opened(table), opened(other(table))
    first.commit(Change(progress(2), [write(first, rows(0, 1))]))
    stale = write(zombie, rows(0, 1), "part-2")
    with pytest.raises(VersionConflictError):
        zombie.commit(Change(progress(2, token=22), [stale]))
    assert offsets(table) == [0, 1]
    assert opened(table).properties["commit.retry.num-retries"] == "9"


def test_a_commit_that_is_in_though_the_catalogue_denies_it_stays_readable(
    table: IcebergLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    version = opened(table)
    commit = SqlCatalog.commit_table

    def twice(self: SqlCatalog, *arguments: Any) -> Any:
        """Commits, and loses the answer; what is sent again on the way is refused."""
        commit(self, *arguments)
        return commit(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", twice)
    with pytest.raises(VersionConflictError):
        version.commit(Change(progress(2), [write(version, rows(0, 1))]))
    after = opened(table).progress()
    assert after is not None
    assert after.token == progress(2).token  # by which a load knows its own
    assert offsets(table) == [0, 1]


def test_an_error_whose_outcome_is_not_known_is_no_conflict(
    table: IcebergLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    version = opened(table)
    commit = SqlCatalog.commit_table

    def lost(self: SqlCatalog, *arguments: Any) -> Any:
        commit(self, *arguments)
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    with pytest.raises(
        WarehouseError, match=r"Cannot commit to test\.lake\.flights: reset"
    ) as told:
        version.commit(Change(progress(2), [write(version, rows(0, 1))]))
    assert not isinstance(told.value, VersionConflictError)
    assert offsets(table) == [0, 1]


def test_a_fence_is_a_commit_without_a_file(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    before = opened(table)
    before.commit(Change(progress(0).fenced(5)))
    with pytest.raises(VersionConflictError):
        before.commit(Change(progress(2), [write(before, rows(0, 1))]))
    fenced = opened(table)
    fenced.commit(Change(progress(2), [write(fenced, rows(0, 1))]))
    again = opened(table)
    again.commit(Change(progress(2).fenced(6)))
    assert opened(table).progress() == progress(2).fenced(6)
    assert offsets(table) == [0, 1]


def test_another_writer_between_is_a_conflict_and_its_rows_stay(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    version = opened(table)
    file = write(version, rows(0, 1))
    by_hand(table).append(rows(900))
    with pytest.raises(VersionConflictError):
        version.commit(Change(progress(2), [file]))
    opened(table).commit(Change(progress(2), [file]))
    assert offsets(table) == [0, 1, 900]
    assert opened(table).progress() == progress(2)


def test_a_window_is_replaced_in_one_commit(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    version = opened(table)
    files = [write(version, rows(0, 1), "a"), write(version, rows(2, 3), "b")]
    version.commit(Change(progress(4), files))
    version = opened(table)
    [old] = [file for file in version.files() if file.offsets == (2, 3)]
    new = write(version, rows(2, 3, carrier="AA"), "c")
    version.commit(Change(progress(4, number=2, token=12), [new], [old]))
    assert {row["offset"]: row["carrier"] for row in read(opened(table))} == {
        0: "UA", 1: "UA", 2: "AA", 3: "AA",
    }  # fmt: skip
    with pytest.raises(WarehouseError, match=r"removed file .*b\.parquet of .* Nothing was"):
        opened(table).commit(Change(progress(4, number=3), [], [old]))
    assert len(offsets(table)) == 4
    assert opened(table).progress() == progress(4, number=2, token=12)


def test_compacted_files_are_told_apart_from_changed_ones(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    version = opened(table)
    version.commit(
        Change(progress(2), [write(version, rows(0), "a"), write(version, rows(1), "b")])
    )
    version = opened(table)
    whole = write(version, rows(0, 1), "c")
    version.commit(Change(progress(2), [whole], version.files(), data_change=False))
    snapshot = by_hand(table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    assert opened(table).files() == [whole]
    assert offsets(table) == [0, 1]


def test_rows_deleted_by_another_writer_stay_deleted(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    version = opened(table)
    version.commit(Change(progress(4), [write(version, rows(0, 1, 2, 3))]))
    read_before = opened(table)
    delete_positions(by_hand(table), read_before.files()[0].path, [1, 2])

    assert offsets(table) == [0, 3]
    now = opened(table)
    [old] = read_before.files()
    # What was read before the rows were deleted would bring them back.
    with pytest.raises(WarehouseError, match="deleted rows of file"):
        now.commit(Change(progress(4), [write(now, rows(0, 1, 2, 3), "new")], [old]))
    now.commit(Change(progress(4), [write(now, rows(0, 3), "new")], now.files()))
    assert offsets(table) == [0, 3]


def test_a_large_file_is_read_in_parts(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    version = opened(table)
    version.commit(Change(progress(200_000), [write(version, rows(*range(200_000)))]))
    path = opened(table).files()[0].path
    delete_positions(by_hand(table), path, [0, 65_535, 65_536, 199_999])
    now = opened(table)
    batches = list(now.reader(["offset"]).read(now.files()[0]))
    assert max(batch.num_rows for batch in batches) < 70_000
    found = [each for batch in batches for each in batch.column(0).to_pylist()]
    assert found == [n for n in range(200_000) if n not in (0, 65_535, 65_536, 199_999)]


def test_lists_of_files_are_merged_where_the_table_says_so(table: IcebergLakeTable) -> None:
    table.create(
        RECORDS,
        UNDIVIDED,
        {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"},
    )
    for number in range(1, 6):
        version = opened(table)
        file = write(version, rows(number), f"part-{number}")
        version.commit(Change(progress(number, number=number, token=number), [file]))
    snapshot = by_hand(table).current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(by_hand(table).io)) == 1
    assert offsets(table) == [1, 2, 3, 4, 5]
    assert opened(table).progress() == progress(5, number=5, token=5)


def test_only_files_of_metadata_that_are_needed_are_kept(
    table: IcebergLakeTable, tmp_path: Path
) -> None:
    table.create(RECORDS, UNDIVIDED, {"write.metadata.previous-versions-max": "3"})
    for number in range(8):
        opened(table).commit(Change(progress(0).fenced(number)))
    kept = list((tmp_path / "warehouse").rglob("*.metadata.json"))
    assert len(kept) == 4
    assert opened(table).progress() == progress(0).fenced(7)


def delete_positions(table: Table, path: str, positions: Sequence[int]) -> None:
    """Deletes rows as other writers do, by a file of positions, which the library only reads."""
    where = f"{table.location()}/data/deletes.parquet"
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
        ]
    )
    deletes = pa.table([[path] * len(positions), list(positions)], schema=schema)
    local = Path(where.removeprefix("file://"))
    pq.write_table(deletes, local)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=where,
        file_format=FileFormatOfIceberg.PARQUET,
        partition=Record(),
        file_size_in_bytes=local.stat().st_size,
        record_count=len(positions),
    )
    file.spec_id = 0
    with table.transaction() as transaction:
        producer = transaction.update_snapshot().fast_append()
        own = table.metadata.current_snapshot()
        assert own is not None
        name = f"{table.location()}/metadata/deletes-m0.avro"
        with _DeletesWriter(
            table.spec(), table.schema(), table.io.new_output(name), producer.snapshot_id, "null"
        ) as writer:
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=producer.snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
            )
        manifest = writer.to_manifest_file()
        existing = producer._existing_manifests()
        producer._existing_manifests = lambda: [*existing, manifest]  # type: ignore[method-assign]
        producer.commit()


class _DeletesWriter(ManifestWriterV2):
    """Writes a manifest of deletes, of which the library writes none."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


# -- progress ------------------------------------------------------------------------------------


def loaded(table: IcebergLakeTable, *ends: int) -> list[int]:
    """Makes a table by one load for each end, and returns their snapshots."""
    table.create(RECORDS, UNDIVIDED, {})
    snapshots, start = [], 0
    for number, end in enumerate(ends, start=1):
        version = opened(table)
        file = write(version, rows(*range(start, end)), f"part-{number}")
        version.commit(Change(progress(end, number=number, token=number), [file]))
        snapshots.append(opened(table).version)
        start = end
    return snapshots


def test_a_table_that_was_set_back_is_told_with_both_offsets(table: IcebergLakeTable) -> None:
    first, second = loaded(table, 2, 5)
    by_hand(table).manage_snapshots().rollback_to_snapshot(first).commit()
    version = opened(table)
    told = rf"snapshot {first} has offsets up to 2 of partition 0 \(it was 5\), and load 2 had"
    with pytest.raises(RestoredError, match=rf"{told} committed snapshot {second}"):
        version.progress()
    accepted = version.progress(restored=True)
    assert accepted is not None
    assert (accepted.number, accepted.ends, accepted.spans) == (2, {0: 2, 1: 0}, {0: [(0, 2)]})

    # With rows of another writer on top, it is set back all the same.
    by_hand(table).append(rows(900))
    with pytest.raises(RestoredError):
        opened(table).progress()

    # A load that goes on from there is all that counts from then on.
    now = opened(table)
    file = write(now, rows(2, 3), "part-3")
    now.commit(Change(progress(4, number=3, token=3), [file]))
    assert opened(table).progress() == progress(4, number=3, token=3)
    assert offsets(table) == [0, 1, 2, 3, 900]


def test_a_table_that_was_set_back_before_its_first_load_is_told(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    by_hand(table).append(rows(900))
    first = opened(table)
    first.commit(Change(progress(2), [write(first, rows(0, 1))]))
    by_hand(table).manage_snapshots().rollback_to_snapshot(first.version).commit()
    with pytest.raises(RestoredError, match=r"up to 0 of partition 0 \(it was 2\), and load 1"):
        opened(table).progress()
    accepted = opened(table).progress(restored=True)
    assert accepted is not None
    assert accepted.ends == {}


def test_a_table_that_lost_no_offset_by_being_set_back_goes_on(table: IcebergLakeTable) -> None:
    [first] = loaded(table, 2)
    opened(table).commit(Change(progress(2).fenced(99)))
    by_hand(table).manage_snapshots().rollback_to_snapshot(first).commit()
    assert opened(table).progress() == progress(2).fenced(99)


def test_snapshots_that_expired_are_no_way_back(table: IcebergLakeTable) -> None:
    first, second = loaded(table, 2, 5)
    by_hand(table).append(rows(900))
    by_hand(table).maintenance.expire_snapshots().by_ids([first, second]).commit()
    assert opened(table).progress() == progress(5, number=2, token=2)


def test_a_property_that_was_taken_away_or_set_back_does_not_bring_rows_twice(
    table: IcebergLakeTable,
) -> None:
    loaded(table, 2)
    before = opened(table).properties[PROGRESS]
    version = opened(table)
    version.commit(
        Change(progress(5, number=2, token=2), [write(version, rows(2, 3, 4), "part-2")])
    )
    table.set_properties({PROGRESS: before})
    assert opened(table).progress() == progress(5, number=2, token=2)
    with by_hand(table).transaction() as transaction:
        transaction.remove_properties(PROGRESS)
    assert opened(table).progress() == progress(5, number=2, token=2)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"topic-id": "x", "ends": 3}'])
def test_a_progress_that_no_load_has_written_is_refused(table: IcebergLakeTable, text: str) -> None:
    loaded(table, 2)
    table.set_properties({PROGRESS: text})
    with pytest.raises(WarehouseError, match=r"Property logbus\.progress .* no load has written"):
        opened(table).progress()


# -- partitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("period", "values", "directory"),
    [
        (Period.DAY, (15_706, "UA"), "timestamp_day=2013-01-01/carrier=UA"),
        (Period.HOUR, (376_949, "UA"), "timestamp_hour=2013-01-01-05/carrier=UA"),
        (Period.MONTH, (516, None), "timestamp_month=2013-01/carrier=null"),
        (Period.DAY, (None, "a/b?c#d"), "timestamp_day=null/carrier=a%2Fb%3Fc%23d"),
        (Period.DAY, (-1, "é" * 90), None),
        (Period.DAY, (9_000_000, ""), "timestamp_day=9000000/carrier="),
        (Period.HOUR, (216_000_000, "x"), "timestamp_hour=216000000/carrier=x"),
    ],
)
def test_files_stand_in_their_partitions(
    table: IcebergLakeTable, period: Period, values: tuple[object, ...], directory: str | None
) -> None:
    layout = Layout(period=period, columns=("carrier",))
    table.create(RECORDS, layout, {})
    version = opened(table)
    assert version.layout(LayoutChoice()) == layout
    assert version.partition_names == ("_partition_1000", "_partition_1001")
    carrier = values[1]
    assert carrier is None or isinstance(carrier, str)
    micros = {Period.DAY: DAY, Period.HOUR: DAY // 24, Period.MONTH: 0}[period]
    at = values[0] * micros if isinstance(values[0], int) else None
    data = rows(7).set_column(2, "timestamp", pa.array([at], pa.timestamp("us", "UTC")))
    data = data.set_column(3, "carrier", pa.array([carrier], pa.string()))
    file = write(version, data, values=values)
    if directory is not None:
        assert f"/data/{directory}/part-1.parquet" in file.path
    version.commit(Change(progress(8), [file]))

    after = opened(table)
    assert after.files() == [file]
    assert file.offsets == (7, 7)
    [row] = pa.Table.from_batches(after.reader().read(after.files()[0])).select(
        ["offset", "carrier"]
    ).to_pylist()  # fmt: skip
    assert row == {"offset": 7, "carrier": carrier}
    again = opened(table)
    again.commit(Change(progress(8, number=2), [write(again, data, "b", values)], again.files()))
    assert len(opened(table).files()) == 1


def test_files_of_one_partition_are_known_by_their_values(table: IcebergLakeTable) -> None:
    table.create(RECORDS, Layout(columns=("carrier",)), {})
    version = opened(table)
    files = [
        write(version, rows(0, at=3 * DAY), "a", (3, "UA")),
        write(version, rows(1, at=3 * DAY), "b", (3, "UA")),
        write(version, rows(2, at=4 * DAY), "c", (4, None)),
    ]
    version.commit(Change(progress(3), files))
    found = {file.offsets: file.partition for file in opened(table).files()}
    assert found[0, 0] == found[1, 1] == ("timestamp_day=3", "carrier=UA")
    assert found[2, 2] == ("timestamp_day=4", None)
    scan = by_hand(table).scan("timestamp >= '1970-01-04T00:00:00+00:00' and carrier = 'UA'")
    assert len(list(scan.plan_files())) == 2


def test_partitions_that_another_writer_changes_meanwhile_stop_the_commit(
    table: IcebergLakeTable,
) -> None:
    table.create(RECORDS, Layout(), {})
    version = opened(table)
    file = write(version, rows(0), values=(0,))
    version.commit(Change(progress(1), [file]))
    file = write(version, rows(1), "part-2", values=(0,))
    with by_hand(table).update_spec() as update:
        update.add_identity("carrier")
    with pytest.raises(WarehouseError, match=r"partitions of table .* were changed") as told:
        opened(table).commit(Change(progress(2), [file]))
    assert not isinstance(told.value, VersionConflictError)
    now = opened(table)
    assert now.layout(LayoutChoice()).columns == ("carrier",)
    now.commit(Change(progress(2), [write(now, rows(1), "part-3", (0, "UA"))]))
    assert offsets(table) == [0, 1]
    assert sorted(len(file.partition) for file in opened(table).files()) == [1, 2]


@pytest.mark.parametrize(
    ("transform", "column", "named"),
    [
        (YearTransform(), "timestamp", "by year of timestamp"),
        (BucketTransform(4), "carrier", r"by bucket\[4\] of carrier"),
    ],
)
def test_partitions_that_loads_do_not_write_are_refused_by_name(
    table: IcebergLakeTable, transform: Any, column: str, named: str
) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    with by_hand(table).update_spec() as update:
        update.add_field(column, transform, "other")
    with pytest.raises(ConfigError, match=named):
        opened(table).layout(LayoutChoice())


def test_a_table_by_two_times_is_refused_and_by_one_twice_is_not(table: IcebergLakeTable) -> None:
    table.create(records().add("at", sp.TimestampType()), Layout(period=Period.HOUR), {})
    with by_hand(table).update_spec() as update:
        update.add_field("timestamp", DayTransform(), "day_too")
    assert opened(table).layout(LayoutChoice()).period is Period.HOUR
    with by_hand(table).update_spec() as update:
        update.add_field("at", DayTransform(), "at_day")
    with pytest.raises(ConfigError, match="by the times timestamp, at; loads know one"):
        opened(table).layout(LayoutChoice())


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        (LayoutChoice(format=FileFormat.ORC), "--format is orc, expected parquet"),
        (LayoutChoice(prefix="event_"), "--partition-prefix is 'event_'"),
    ],
)
def test_a_layout_that_iceberg_cannot_have_is_refused(
    table: IcebergLakeTable, choice: LayoutChoice, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        table.layout_of_new(choice)


def test_another_layout_than_that_of_the_table_is_refused(table: IcebergLakeTable) -> None:
    table.create(RECORDS, Layout(period=Period.DAY), {})
    with pytest.raises(LayoutChangedError, match="with --partition-by day"):
        opened(table).layout(LayoutChoice(period=Period.HOUR))


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        (Layout(event_time="try_to_timestamp(at)"), "expected a column: an Iceberg table"),
        (Layout(event_time="timestam"), "did you mean timestamp"),
        (Layout(event_time="carrier"), "is string, expected a timestamp"),
        (Layout(columns=("timestamp",)), "names timestamp, which is timestamp; only"),
        (Layout(columns=("carier",)), "names carier, which no record has; did you mean carrier"),
    ],
)
def test_a_layout_that_the_records_do_not_have_is_refused(layout: Layout, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check_columns(layout, RECORDS)


def test_columns_may_be_called_as_periods_and_partitions_are() -> None:
    schema = sp.StructType(
        [*RECORDS.fields, *(sp.StructField(n, sp.LongType()) for n in ("date", "timestamp_day"))]
    )
    check_columns(Layout(), schema)
    spec = spec_of(Layout(), iceberg_schema(schema))
    assert [field.name for field in spec.fields] == ["timestamp_day_"]


# -- columns -------------------------------------------------------------------------------------

EVERY_TYPE = (
    sp.StructType()
    .add("b", sp.ByteType())
    .add("s", sp.ShortType())
    .add("i", sp.IntegerType())
    .add("l", sp.LongType())
    .add("f", sp.FloatType())
    .add("d", sp.DoubleType())
    .add("dec", sp.DecimalType(20, 3))
    .add("text", sp.StringType())
    .add("bytes", sp.BinaryType())
    .add("bool", sp.BooleanType())
    .add("day", sp.DateType())
    .add("at", sp.TimestampType())
    .add("local", sp.TimestampNTZType())
    .add("in", sp.StructType().add("x", sp.LongType()).add("y z", sp.ArrayType(sp.StringType())))
    .add("headers", sp.MapType(sp.StringType(), sp.BinaryType()))
    .add("a.b c", sp.StringType())
)


def test_values_of_every_type_come_back_as_they_were(table: IcebergLakeTable) -> None:
    table.create(EVERY_TYPE, UNDIVIDED, {})
    version = opened(table)
    assert version.schema["b"].dataType == version.schema["s"].dataType == sp.IntegerType()
    assert [f for f in version.schema if f.name not in "bs"] == [
        f for f in EVERY_TYPE if f.name not in "bs"
    ]
    row = {
        "b": 1,
        "s": -2,
        "i": 2**31 - 1,
        "l": -(2**63),
        "f": float("inf"),
        "d": 0.1,
        "dec": Decimal("12345678901234567.891"),
        "text": "é\0x" * 20,
        "bytes": b"\xff" * 20,
        "bool": False,
        "day": date(1969, 12, 31),
        "at": datetime(1, 1, 1, tzinfo=UTC),
        "local": datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001 - has no zone
        "in": {"x": 1, "y z": ["a", None]},
        "headers": [("k", b"v"), ("n", None)],
        "a.b c": "dotted",
    }
    nothing = dict.fromkeys(row)
    data = pa.Table.from_pylist([row, nothing], version.reader().schema)
    version.commit(Change(progress(1), [write(version, data)]))
    assert read(opened(table)) == [row, nothing]
    reader = opened(table).reader(["headers", "l"])
    assert reader.schema.names == ["headers", "l"]
    assert read(opened(table), ["headers", "l"])[0] == {k: row[k] for k in ("headers", "l")}


def test_times_that_python_does_not_have_go_in_and_come_out(table: IcebergLakeTable) -> None:
    table.create(records().add("day", sp.DateType()), UNDIVIDED, {})
    version = opened(table)
    far = 2**62  # microseconds: nanoseconds taken for them, and more
    data = rows(0, 1, at=far).append_column(
        "day", pa.array([2**30, -(2**30)], pa.int32()).cast(pa.date32())
    )
    file = write(version, data)
    version.commit(Change(progress(2), [file]))
    [found] = opened(table).files()
    assert found.offsets == (0, 1)
    [batch] = opened(table).reader().read(found)
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [far, far]
    assert batch.column("day").cast(pa.int32()).to_pylist() == [2**30, -(2**30)]


@pytest.mark.parametrize("kind", [sp.NullType(), sp.DayTimeIntervalType(), sp.StructType()])
def test_a_type_that_iceberg_does_not_have_is_refused_by_its_column(
    table: IcebergLakeTable, kind: sp.DataType
) -> None:
    schema = sp.StructType().add("in", sp.ArrayType(sp.StructType().add("x", kind)))
    with pytest.raises(ConfigError, match=r"a field in\.element\.x of the type"):
        table.create(schema, UNDIVIDED, {})
    assert table.newest() is None


def test_a_type_that_spark_does_not_have_is_refused_by_its_column(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    with by_hand(table).update_schema() as update:
        update.add_column("id", UUIDType())
    with pytest.raises(ConfigError, match=r"Column id of test\.lake\.flights has .* type uuid"):
        table.newest()


def test_columns_are_added_and_widened_and_older_files_read(table: IcebergLakeTable) -> None:
    inner = sp.StructType().add("n", sp.IntegerType())
    table.create(
        records()
        .add("delay", sp.IntegerType())
        .add("ratio", sp.FloatType())
        .add("cost", sp.DecimalType(10, 2))
        .add("plane", inner)
        .add("legs", sp.ArrayType(inner))
        .add("by", sp.MapType(sp.StringType(), inner)),
        UNDIVIDED,
        {},
    )
    with by_hand(table).update_schema(allow_incompatible_changes=True) as update:
        update.add_column("needed", StringType())
    version = opened(table)
    old = {
        **rows(0).to_pylist()[0],
        "delay": 5,
        "ratio": 0.5,
        "cost": Decimal("1.25"),
        "plane": {"n": 1},
        "legs": [{"n": 2}],
        "by": [("k", {"n": 3})],
    }
    data = pa.Table.from_pylist([old], version.reader().schema)
    stale = write(version, data, "stale")
    version.commit(Change(progress(1), [write(version, data)]))

    wide = sp.StructType().add("n", sp.LongType()).add("seats", sp.ShortType())
    table.evolve(
        sp.StructType()
        .add("delay", sp.LongType())
        .add("ratio", sp.DoubleType())
        .add("cost", sp.DecimalType(12, 2))
        .add("plane", wide)
        .add("legs", sp.ArrayType(wide))
        .add("by", sp.MapType(sp.StringType(), wide))
        .add("offset", sp.IntegerType())  # narrower: stays as it is
        .add("tail", sp.StringType())
    )
    after = opened(table)
    kinds = {field.name: field.dataType.simpleString() for field in after.schema}
    assert kinds == {
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "carrier": "string",
        "delay": "bigint",
        "ratio": "double",
        "cost": "decimal(12,2)",
        "plane": "struct<n:bigint,seats:int>",
        "legs": "array<struct<n:bigint,seats:int>>",
        "by": "map<string,struct<n:bigint,seats:int>>",
        "needed": "string",
        "tail": "string",
    }
    assert after.progress() == progress(1)
    # One that was written before the change goes in after it.
    after.commit(Change(progress(2), [stale]))
    expected = {
        **old,
        "plane": {"n": 1, "seats": None},
        "legs": [{"n": 2, "seats": None}],
        "by": [("k", {"n": 3, "seats": None})],
        "needed": None,
        "tail": None,
    }
    assert read(opened(table)) == [expected, expected]
    assert read(opened(table), ["tail"]) == [{"tail": None}] * 2
    assert read(opened(table), ["by", "tail"])[0] == {"by": expected["by"], "tail": None}
    assert [file.offsets for file in opened(table).files()] == [(0, 0), (0, 0)]


def test_a_renamed_column_keeps_its_values(table: IcebergLakeTable) -> None:
    loaded(table, 2)
    with by_hand(table).update_schema() as update:
        update.rename_column("carrier", "airline")
    assert {row["airline"] for row in read(opened(table))} == {"UA"}
    with pytest.raises(ConfigError, match="no column carrier; there are partition, offset"):
        opened(table).reader(["carrier"])


def migrated(table: Table, data: pa.Table, spec_id: int, *values: object, form: str) -> None:
    """Adds a file as a migration does: as it is, without ids, and with values of its partition in
    the table's log alone."""
    where = f"{table.location()}/data/migrated.parquet"
    local = Path(where.removeprefix("file://"))
    local.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, local)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=where,
        file_format=FileFormatOfIceberg(form),
        partition=Record(*values),
        file_size_in_bytes=local.stat().st_size,
        record_count=data.num_rows,
    )
    file.spec_id = spec_id
    with table.transaction() as transaction:
        producer = transaction.update_snapshot().fast_append()
        producer.append_data_file(file)
        producer.commit()


def test_files_that_were_migrated_are_read_by_the_names_of_then(table: IcebergLakeTable) -> None:
    schema = records().add("day", sp.DateType())
    table.create(schema, Layout(period=Period.NONE, columns=("day", "carrier")), {})
    data = rows(7, 8).drop_columns(["carrier"])
    migrated(by_hand(table), data, 0, 15_706, "UA", form="PARQUET")
    with pytest.raises(WarehouseError, match=r"no ids .* has no schema\.name-mapping\.default"):
        read(opened(table))
    names = opened(table)._columns.name_mapping.model_dump_json()
    table.set_properties({"schema.name-mapping.default": names})
    with by_hand(table).update_schema() as update:
        update.rename_column("timestamp", "at")
        update.rename_column("carrier", "airline")
    version = opened(table)
    assert version.schema.names == ["partition", "offset", "at", "airline", "day"]
    assert read(version) == [
        {
            "partition": 0,
            "offset": offset,
            "at": datetime(1970, 1, 1, tzinfo=UTC),
            "airline": "UA",
            "day": date(2013, 1, 1),
        }
        for offset in (7, 8)
    ]
    with by_hand(table).update_spec() as spec:
        spec.remove_field("carrier")
    with by_hand(table).update_schema() as update:
        update.delete_column("airline")
    assert [row["offset"] for row in read(opened(table))] == [7, 8]


def test_a_file_of_another_format_is_refused_by_name(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    migrated(by_hand(table), rows(1), 0, form="AVRO")
    with pytest.raises(WarehouseError, match=r"migrated\.parquet is AVRO, of another writer"):
        read(opened(table))


def test_two_that_add_columns_at_once_both_do(
    table: IcebergLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    commit, there = SqlCatalog.commit_table, other(table)

    def overtaken(self: SqlCatalog, *arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        there.evolve(sp.StructType().add("theirs", sp.LongType()))
        return commit(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)
    table.evolve(sp.StructType().add("ours", sp.LongType()))
    assert opened(table).schema.names[-2:] == ["theirs", "ours"]


# -- tables and catalogues -----------------------------------------------------------------------


def test_settings_that_a_load_cannot_write_under_are_refused(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    table.set_properties({"write.data.path": "s3://elsewhere/x"})
    with pytest.raises(ConfigError, match=r"has its files in s3://elsewhere/x .*write\.data\.path"):
        opened(table).check_appendable()
    by_hand(table).transaction().remove_properties("write.data.path").commit_transaction()
    opened(table).check_appendable()
    table.set_properties({"encryption.key-id": "k"})
    with pytest.raises(ConfigError, match=r"is encrypted \(property encryption\.key-id\)"):
        opened(table).check_appendable()


def test_an_older_version_of_the_format_is_refused(table: IcebergLakeTable) -> None:
    catalog = other(table)._catalog()
    catalog.create_namespace("lake")
    catalog.create_table(
        "lake.flights", iceberg_schema(RECORDS), properties={"format-version": "1"}
    )
    with pytest.raises(ConfigError, match=r"has version 1 of .* Set its property format-version"):
        opened(table).check_appendable()


def test_own_files_stand_in_the_tables_directory(table: IcebergLakeTable, tmp_path: Path) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    _, path = table.own_directory()
    assert path == f"{tmp_path}/warehouse/lake/flights/_logbus"


def test_a_file_is_described_by_its_location(table: IcebergLakeTable) -> None:
    table.create(RECORDS, UNDIVIDED, {})
    version = opened(table)
    file = write(version, rows(3, 4))
    described = version.describe(file.path)
    assert described == file
    version.commit(Change(progress(5), [described]))
    assert offsets(table) == [3, 4]
    with pytest.raises(WarehouseError, match=r"Cannot read the footer of .*/gone\.parquet"):
        version.describe(file.path.replace("part-1", "gone"))


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({}, "Cannot open the Iceberg catalogue test: URI missing"),
        (
            {"type": "sqll", "token": "s3cret"},
            "Cannot open the Iceberg catalogue test: 'sqll' is not",
        ),
        (
            {"type": "sql", "uri": "nosuchdb://u:s3cret@h/x", "warehouse": "/tmp/x"},
            "catalogue test: Can't load plugin: .*:nosuchdb",
        ),
        ({"py-catalog-impl": "no.Such", "credential": "s3cret"}, "catalogue test: Could not"),
    ],
)
def test_a_catalogue_that_is_not_known_is_told_without_secrets(
    properties: dict[str, str], named: str
) -> None:
    with pytest.raises(LogbusError, match=named) as told:
        IcebergLakeTable(IcebergTable("test", "lake.flights", properties)).newest()
    assert "--lake-properties" in told.value.message
    assert "s3cret" not in "".join(traceback.format_exception(told.value))


def test_a_catalogue_that_does_not_answer_is_told_without_secrets() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        properties = {"type": "rest", "uri": f"http://127.0.0.1:{port}", "token": "s3cret"}
        with pytest.raises(
            WarehouseError, match=r"Cannot open the Iceberg catalogue test: .*refused"
        ) as e:
            IcebergLakeTable(IcebergTable("test", "lake.flights", properties)).newest()
    assert "s3cret" not in e.value.message


def test_a_catalogue_without_a_place_for_tables_is_told(name: IcebergTable) -> None:
    properties = {key: value for key, value in name.properties.items() if key != "warehouse"}
    table = IcebergLakeTable(IcebergTable("test", "lake.flights", properties))
    with pytest.raises(ConfigError, match="needs its property warehouse"):
        table.create(RECORDS, UNDIVIDED, {})
    assert isinstance(table._opened, SqlCatalog)
    table._opened.engine.dispose()


def test_files_in_hdfs_need_its_library(
    name: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARROW_LIBHDFS_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    properties = {**name.properties, "warehouse": "hdfs://localhost:1/warehouse"}
    table = IcebergLakeTable(IcebergTable("test", "lake.flights", properties))
    with pytest.raises(ConfigError, match=r"in HDFS, .* libhdfs, and that is not here"):
        table.create(RECORDS, UNDIVIDED, {})
    assert isinstance(table._opened, SqlCatalog)
    table._opened.engine.dispose()


def test_namespaces_are_made_level_by_level(name: IcebergTable) -> None:
    table = IcebergLakeTable(IcebergTable("test", "a.b.flights", name.properties))
    table.create(RECORDS, UNDIVIDED, {})
    assert opened(table).schema == RECORDS
    assert isinstance(table._opened, SqlCatalog)
    assert table._opened.namespace_exists("a")
    table._opened.engine.dispose()
