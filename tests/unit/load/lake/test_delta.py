"""Delta tables on local disk: commits, offsets, files. No Spark session."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import polars
import pyarrow as pa
import pytest
from deltalake.transaction import AddAction
from pyarrow import parquet as pq
from pyroaring import BitMap
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from spark_logbus.errors import ConfigError
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.delta import DeltaLakeTable
from spark_logbus.load.lake.delta.layout import options_for
from spark_logbus.load.lake.delta.storage import DeltaStorage
from spark_logbus.load.lake.delta.version import DeltaLakeVersion
from spark_logbus.load.lake.table import (
    LAYOUT,
    TOPIC_ID,
    Change,
    LakeFile,
    Progress,
    RestoredError,
    VersionConflictError,
    properties_of,
)
from spark_logbus.load.layout import FileFormat, Layout, LayoutChangedError, LayoutChoice, Period
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
    )
    rows = rows.select(writer.schema.names).cast(writer.schema)
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


def test_directories_tell_the_whole_value_or_nothing(tmp_path: Path) -> None:
    writer = newest(make_table(tmp_path, BY_CARRIER, CARRIERS)).writer()
    named = {text: writer.path([text], "f").removeprefix(f"{tmp_path}/") for text in (
        "a b", "a/b", "..", "50%", "\u00fc", None, "", "x" * 247, "x" * 248,
    )}  # fmt: skip
    assert named == {
        "a b": "carrier=a%20b/f",
        "a/b": "carrier=a%2Fb/f",
        "..": "carrier=../f",
        "50%": "carrier=50%25/f",
        "\u00fc": "carrier=%C3%BC/f",
        None: "carrier=__HIVE_DEFAULT_PARTITION__/f",
        "": "carrier=__HIVE_DEFAULT_PARTITION__/f",
        "x" * 247: f"carrier={'x' * 247}/f",
        "x" * 248: "f",
    }


def offsets_in(root: Path) -> list[int]:
    """Offsets of all rows, as the library reads them."""
    found: list[int] = deltalake.DeltaTable(root).to_pyarrow_table()["offset"].to_pylist()
    return sorted(found)


def offsets_in_rust(root: Path) -> list[int]:
    """Offsets of all rows, as the library's own engine reads them, which knows more features."""
    rows = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(root))
    found = pa.table(rows.execute("select offset from t").read_all())
    return sorted(found["offset"].to_pylist())


def rows_of(
    version: DeltaLakeVersion, columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Rows of all files, as a task of Spark reads them."""
    reader = pickle.loads(pickle.dumps(version.reader(columns)))
    batches = [batch for file in version.files() for batch in reader.read(file)]
    assert all(batch.schema == reader.schema for batch in batches)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, reader.schema).to_pylist()
    return rows


def commit_of(root: Path, version: int) -> Path:
    return root / "_delta_log" / f"{version:020}.json"


def numbers_of(root: Path, version: int) -> dict[str, int]:
    actions = [json.loads(line) for line in commit_of(root, version).read_text().splitlines()]
    numbers = [action["txn"] for action in actions if "txn" in action]
    return {each["appId"]: each["version"] for each in numbers}


def foreign_table(
    root: Path,
    schema: StructType,
    *,
    properties: Mapping[str, str] | None = None,
    writer_features: Sequence[str] | None = None,
    reader_features: Sequence[str] = (),
    adds: Sequence[str] = (),
    statistics: str | None = '{"numRecords": 3}',
    metadata: dict[str, Any] | None = None,
    vector: Mapping[str, Any] | None = None,
) -> None:
    """Writes the log of a table as another writer does, with files of the offsets 0 to 2."""
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if writer_features is not None:
        protocol |= {"minWriterVersion": 7, "writerFeatures": [*writer_features]}
    if reader_features:
        protocol |= {"minReaderVersion": 3, "readerFeatures": [*reader_features]}
    fields = [StructField(f.name, f.dataType, f.nullable, metadata or f.metadata) for f in schema]
    described = {
        "id": "a-table",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(StructType(fields).jsonValue()),
        "partitionColumns": [],
        "configuration": dict(properties or {}),
        "createdTime": 1,
    }
    actions: list[dict[str, Any]] = [{"protocol": protocol}, {"metaData": described}]
    for path in adds:
        file = root / unquote(path)
        if not path.startswith("file:"):
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"offset": pa.array(range(3), pa.int64())}), file)
        size_bytes = file.stat().st_size if file.exists() else 1
        add: dict[str, Any] = {"path": path, "partitionValues": {}, "size": size_bytes}
        add |= {"modificationTime": 1, "dataChange": True, "stats": statistics}
        actions.append({"add": add | ({"deletionVector": vector} if vector else {})})
    commit_of(root, 0).parent.mkdir(parents=True)
    lines = [json.dumps(each, ensure_ascii=False) for each in actions]
    commit_of(root, 0).write_text("\n".join(lines) + "\n", encoding="utf-8")


def deletion_vector(*rows: int) -> dict[str, Any]:
    """Marks rows of a file as deleted, within the log itself."""
    bitmap = BitMap(rows).serialize()
    data = struct.pack("<iqi", 1681511377, 1, 0) + bitmap  # magic, bitmaps, the first one's key
    data += bytes(-len(data) % 4)
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = ""
    for at in range(0, len(data), 4):
        word = int.from_bytes(data[at : at + 4], "big")
        text += "".join(digits[word // 85**place % 85] for place in (4, 3, 2, 1, 0))
    told = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data)}
    return {**told, "cardinality": len(rows)}


def encoded(root: Path, file: LakeFile) -> str:
    """Path of a file that is there, as the library writes it into the log."""
    table = deltalake.DeltaTable.create(root.parent / "other", pa.schema([("x", pa.int64())]))
    path = unquote(file.path)
    assert (root / path).is_file()
    table.create_write_transaction(
        [AddAction(path, 1, {}, 1, True, "{}")], "append", table.schema()
    )
    found = pa.table(deltalake.DeltaTable(root.parent / "other").get_add_actions())
    return str(found["path"][0])


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
        with pytest.raises(VersionConflictError, match="Another writer has committed version 1 of"):
            two.commit(Change(after(NOTHING_YET, 2, range(12)), [write(two, range(12))]))
        assert newest(table).progress() == ours
        assert offsets_in(tmp_path / "table") == [*range(10)]

    def test_a_commit_of_another_writer_in_between_is_a_conflict(self, tmp_path: Path) -> None:
        table = make_table(tmp_path / "table")
        version = newest(table)
        deltalake.DeltaTable(tmp_path / "table").alter.set_table_properties(
            {"delta.appendOnly": "false"}
        )
        with pytest.raises(VersionConflictError):
            version.commit(Change(after(NOTHING_YET, 1, range(10)), [write(version, range(10))]))
        assert offsets_in(tmp_path / "table") == []

    def test_one_that_failed_after_it_was_made_is_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reply that is lost, or a checkpoint after the commit that cannot be written."""
        table = make_table(tmp_path / "table")
        version = newest(table)
        real = deltalake.DeltaTable.create_write_transaction

        def lose_the_reply(*args: Any, **kwargs: Any) -> None:
            real(*args, **kwargs)
            raise OSError("connection reset")

        monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", lose_the_reply)
        version.commit(Change(after(NOTHING_YET, 1, range(10)), [write(version, range(10))]))
        assert newest(table).progress() == after(NOTHING_YET, 1, range(10))

    def test_one_of_which_nothing_is_known_is_no_conflict(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = make_table(tmp_path / "table")
        version = newest(table)

        def time_out(*_: Any, **__: Any) -> None:
            raise OSError("timed out")

        monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", time_out)
        told = "Cannot commit to the Delta table .*: timed out"
        with pytest.raises(WarehouseError, match=told) as raised:
            version.commit(Change(after(NOTHING_YET, 1, range(10)), [write(version, range(10))]))
        assert not isinstance(raised.value, VersionConflictError)

    def test_a_fence_has_no_files_and_a_new_token(self, tmp_path: Path) -> None:
        table = make_table(tmp_path / "table")
        progress = load(table, range(10), token=1)
        newest(table).commit(Change(progress.fenced(2)))
        assert newest(table).progress() == progress.fenced(2)
        assert offsets_in(tmp_path / "table") == [*range(10)]

    def test_one_file_takes_the_place_of_others(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        load(table, range(10), token=1)
        progress = load(table, range(10, 20), token=2)
        version = newest(table)
        together = write(version, range(20), name="part-together.parquet")
        version.commit(Change(progress.fenced(3), [together], version.files(), data_change=False))
        assert [file.path for file in newest(table).files()] == [together.path]
        assert offsets_in(root) == [*range(20)]
        actions = [json.loads(line) for line in commit_of(root, 3).read_text().splitlines()]
        changes = [each[kind] for each in actions for kind in ("add", "remove") if kind in each]
        assert [each["dataChange"] for each in changes] == [False] * 3

    def test_a_file_that_another_has_replaced_is_a_conflict(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        load(table, range(10), token=1)
        progress = load(table, range(10, 20), token=2)
        files = newest(table).files()
        deltalake.DeltaTable(root).optimize.compact()
        with pytest.raises(VersionConflictError, match=r"has replaced .*part-.*parquet of"):
            newest(table).commit(Change(progress.fenced(3), (), files))
        assert newest(table).progress() == progress
        assert offsets_in(root) == [*range(20)]

    def test_a_table_that_gives_no_record_away_is_told(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        progress = load(table, range(10), token=1)
        deltalake.DeltaTable(root).alter.set_table_properties({"delta.appendOnly": "true"})
        version = newest(table)
        version.check_appendable()
        again = write(version, range(10), name="part-again.parquet")
        with pytest.raises(ConfigError, match=r"\(delta\.appendOnly\)"):
            version.commit(Change(progress.fenced(2), [again], version.files()))
        version.commit(Change(progress.fenced(2), [again], version.files(), data_change=False))
        assert offsets_in(root) == [*range(10)]

    def test_a_feed_of_changes_shows_what_a_replacement_changed(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        feed_on = {"delta.enableChangeDataFeed": "true"}
        deltalake.DeltaTable(root).alter.set_table_properties(feed_on)
        progress = load(table, range(3), token=1)
        version = newest(table)
        version.check_appendable()
        again = write(version, range(1, 4), name="part-again.parquet")
        version.commit(Change(progress.fenced(2), [again], version.files()))
        feed = pa.table(deltalake.DeltaTable(root).load_cdf(starting_version=3).read_all())
        rows = feed.select(["_change_type", "offset"]).to_pylist()
        changes = sorted((each["_change_type"], each["offset"]) for each in rows)
        assert changes == [("delete", each) for each in range(3)] + [
            ("insert", each) for each in range(1, 4)
        ]

    @pytest.mark.parametrize("name", ["c=\u00fc", "c={a", "c=a*b", "c=a%3Ab"])
    def test_a_file_that_would_not_be_removed_is_told(self, tmp_path: Path, name: str) -> None:
        """The library writes these paths in another way than the log has them, and then other
        readers find the file still there."""
        root = tmp_path / "table"
        foreign_table(root, COLUMNS, adds=[f"{name}/part-1.parquet"])
        table = DeltaLakeTable(DeltaTable(str(root)))
        version = newest(table)
        assert [file.removable for file in version.files()] == [False]
        with pytest.raises(ConfigError, match="would not be removed"):
            version.commit(Change(NOTHING_YET, (), version.files()))

    @pytest.mark.parametrize("name", ["c=a%20b", "c=a%2520b", "c=%C3%BC", "c=%7Ba", "c=it's(1)@+!"])
    def test_a_file_of_another_writer_is_removed(self, tmp_path: Path, name: str) -> None:
        root = tmp_path / "table"
        foreign_table(root, COLUMNS, adds=[f"{name}/part-1.parquet"])
        table = DeltaLakeTable(DeltaTable(str(root)))
        version = newest(table)
        found = [(file.path, file.removable) for file in version.files()]
        assert found == [(f"{name}/part-1.parquet", True)]
        version.commit(Change(NOTHING_YET, (), version.files()))
        assert newest(table).files() == []

    def test_ten_thousand_files(self, tmp_path: Path) -> None:
        table = make_table(tmp_path / "table")
        version = newest(table)
        one = write(version, range(10))
        many = [
            LakeFile(f"{each}.parquet", 1, 10, one.partition, detail=one.detail)
            for each in range(10_000)
        ]
        progress = after(NOTHING_YET, 1, range(10))
        version.commit(Change(progress, many))
        found = newest(table)
        assert (len(found.files()), found.progress()) == (10_000, progress)


class TestProgress:
    def test_each_commit_has_all_of_it(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        load(table, range(10), token=1)
        load(table, range(10, 20), token=2)
        assert numbers_of(root, 2) == {
            "logbus:version": 2,
            "logbus:id:load": 2,
            "logbus:id:token": 2,
            "logbus:id:0": 20,
            "logbus:id:0:spans": 1,
            "logbus:id:0:spans:0:start": 0,
            "logbus:id:0:spans:0:end": 20,
        }

    def test_partitions_and_spans_with_gaps(self, tmp_path: Path) -> None:
        table = make_table(tmp_path / "table")
        spans = {0: [(5, 10), (12, 20), (30, 2**62)], 2: [(0, 1)]}
        progress = Progress("id", 7, 0, {0: 2**62, 1: 0, 2: 1}, spans)
        newest(table).commit(Change(progress))
        assert newest(table).progress() == progress

    def test_a_log_that_was_written_anew_has_it_too(self, tmp_path: Path) -> None:
        """The commit that it names is of somebody else then."""
        root = tmp_path / "table"
        table = make_table(root)
        progress = load(table, range(10), token=1)
        numbers = numbers_of(root, 1)
        lines = [
            line
            for version in (0, 1)
            for line in commit_of(root, version).read_text().splitlines()
            if "commitInfo" not in line and "txn" not in line
        ]
        txns = [json.dumps({"txn": {"appId": n, "version": v}}) for n, v in numbers.items()]
        commit_of(root, 0).write_text("\n".join([*lines, *txns]) + "\n")
        commit_of(root, 1).write_text(json.dumps({"commitInfo": {"operation": "WRITE"}}) + "\n")
        assert newest(table).progress() == progress

    def test_it_outlives_checkpoints_and_cleared_logs(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        deltalake.DeltaTable(root).alter.set_table_properties(
            {"delta.checkpointInterval": "10", "delta.logRetentionDuration": "interval 0 seconds"}
        )
        progress = load(table, range(10), token=1)
        for token in range(2, 25):
            progress = progress.fenced(token)
            newest(table).commit(Change(progress))
        deltalake.DeltaTable(root).cleanup_metadata()
        assert not commit_of(root, 2).exists(), "the log of the first load is gone"
        assert list((root / "_delta_log").glob("*.checkpoint.parquet"))
        assert newest(table).progress() == progress
        for _ in range(12):  # of another writer
            deltalake.DeltaTable(root).alter.set_table_properties({"delta.appendOnly": "false"})
        assert newest(table).progress() == progress

    def test_a_table_that_was_made_again_has_none(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        load(table, range(10), token=1)
        root.rename(tmp_path / "old")
        make_table(root)
        assert newest(table).progress() is None

    def test_a_restore_beyond_the_last_load_is_told_with_both_offsets(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        first = load(table, range(10), token=1)
        load(table, range(10, 20), token=2)
        deltalake.DeltaTable(root).restore(1)
        with pytest.raises(RestoredError) as raised:
            newest(table).progress()
        assert "was set back to its version 1 after version 2" in str(raised.value)
        assert "load 2 had brought to the offsets 0: 20; what is there now goes up to 0: 10" in str(
            raised.value
        )
        taken = newest(table).progress(restored=True)
        assert taken == Progress("id", 2, 2, first.ends, first.spans)
        newest(table).commit(Change(taken.fenced(3)))
        assert newest(table).progress() == taken.fenced(3)

    def test_a_restore_to_a_time_is_found_by_its_files(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        first = load(table, range(10), token=1)
        between = datetime.now(UTC)
        load(table, range(10, 20), token=2)
        # The library goes by the times of the log's files.
        early = between - timedelta(hours=1)
        for version in (0, 1):
            os.utime(commit_of(root, version), (early.timestamp(),) * 2)
        deltalake.DeltaTable(root).restore(between - timedelta(minutes=1))
        with pytest.raises(RestoredError, match="to its version 1 after version 2"):
            newest(table).progress()
        taken = newest(table).progress(restored=True)
        assert taken is not None
        assert taken.ends == first.ends

    def test_a_restore_to_the_last_load_or_later_is_none(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        progress = load(table, range(10), token=1)
        deltalake.DeltaTable(root).alter.set_table_properties({"delta.appendOnly": "false"})
        deltalake.DeltaTable(root).restore(1)
        assert newest(table).progress() == progress

    def test_a_restore_that_was_taken_back_is_none(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        load(table, range(10), token=1)
        progress = load(table, range(10, 20), token=2)
        deltalake.DeltaTable(root).restore(1)
        deltalake.DeltaTable(root).restore(2)
        assert newest(table).progress() == progress
        deltalake.DeltaTable(root).restore(3)
        with pytest.raises(RestoredError, match="to its version 1 after version 2"):
            newest(table).progress()

    def test_a_restore_to_before_the_first_load_leaves_no_partition(self, tmp_path: Path) -> None:
        """Properties of a table that was there before go too."""
        root = tmp_path / "table"
        deltalake.DeltaTable.create(root, pa.schema([("partition", pa.int32())]))
        table = DeltaLakeTable(DeltaTable(str(root)))
        table.set_properties(properties_of("flights", "id", Layout(period=Period.NONE)))
        progress = Progress("id", 1, 1, {0: 10, 1: 20}, {0: [(0, 10)], 1: [(0, 20)]})
        newest(table).commit(Change(progress))
        deltalake.DeltaTable(root).restore(0)
        assert TOPIC_ID not in newest(table).properties, "else this test shows nothing"
        with pytest.raises(RestoredError, match="0: 10, 1: 20; what is there now goes up to none"):
            newest(table).progress()
        taken = newest(table).progress(restored=True)
        assert taken == Progress("id", 1, 1, {})
        table.set_properties(properties_of("flights", "id", Layout(period=Period.NONE)))
        newest(table).commit(Change(Progress("id", 2, 2, {0: 5}, {0: [(0, 5)]})))
        assert newest(table).progress() == Progress("id", 2, 2, {0: 5}, {0: [(0, 5)]})

    def test_a_table_that_was_replaced_by_an_empty_one_is_told(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        load(table, range(10), token=1)
        deltalake.DeltaTable.create(root, pa.schema([("offset", pa.int64())]), mode="overwrite")
        with pytest.raises(RestoredError, match="set back to an empty table after version 1"):
            newest(table).progress()
        assert newest(table).progress(restored=True) == Progress("id", 1, 1, {})

    def test_commits_that_tell_nothing_of_themselves_are_no_restore(self, tmp_path: Path) -> None:
        """The library counts such commits wrong in its history."""
        root = tmp_path / "table"
        table = make_table(root)
        load(table, range(10), token=1)
        deltalake.DeltaTable(root).restore(0)
        taken = newest(table).progress(restored=True)
        assert taken is not None
        newest(table).commit(Change(taken.fenced(2)))
        number = {"txn": {"appId": "another", "version": 1}}
        commit_of(root, 4).write_text(json.dumps(number) + "\n")
        assert newest(table).progress() == taken.fenced(2)


class TestForeignTables:
    def test_a_plain_one_is_taken(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        deltalake.write_deltalake(root, pa.table({"offset": pa.array([1], pa.int64())}))
        version = newest(DeltaLakeTable(DeltaTable(str(root))))
        version.check_appendable()
        assert version.progress() is None
        assert [file.records for file in version.files()] == [1]

    @pytest.mark.parametrize(
        "feature",
        [
            "rowTracking", "clustering", "inCommitTimestamp", "identityColumns", "fooBar",
            "allowColumnDefaults", "domainMetadata", "icebergCompatV2",
        ],
    )  # fmt: skip
    def test_features_that_loads_do_not_keep(self, tmp_path: Path, feature: str) -> None:
        foreign_table(tmp_path / "table", COLUMNS, writer_features=[feature])
        version = newest(DeltaLakeTable(DeltaTable(str(tmp_path / "table"))))
        with pytest.raises(ConfigError, match=f"has feature {feature}, which loads do not keep"):
            version.check_appendable()

    @pytest.mark.parametrize(
        ("properties", "told"),
        [
            ({"delta.constraints.positive": "offset > 0"}, r"constraint delta\.constraints\.pos"),
            ({"delta.columnMapping.mode": "name"}, "has column mapping"),
            ({"delta.enableRowTracking": "true"}, "has row tracking"),
            ({"delta.setTransactionRetentionDuration": "interval 7 days"}, "forgets offsets after"),
        ],
    )
    def test_settings_that_loads_do_not_keep(
        self, tmp_path: Path, properties: Mapping[str, str], told: str
    ) -> None:
        foreign_table(tmp_path / "table", COLUMNS, properties=properties)
        version = newest(DeltaLakeTable(DeltaTable(str(tmp_path / "table"))))
        with pytest.raises(ConfigError, match=told):
            version.check_appendable()

    @pytest.mark.parametrize(
        ("metadata", "told"),
        [
            ({"delta.generationExpression": "1"}, r"a generated column \(x\.y\)"),
            ({"delta.identity.start": 1}, r"an identity column \(x\.y\)"),
            ({"delta.invariants": "{}"}, r"a column with an invariant \(x\.y\)"),
            ({"CURRENT_DEFAULT": "1"}, r"a column with a default \(x\.y\)"),
        ],
    )
    def test_columns_whose_values_are_the_tables_affair(
        self, tmp_path: Path, metadata: dict[str, Any], told: str
    ) -> None:
        inner = StructType([StructField("y", LongType(), True, metadata)])
        foreign_table(tmp_path / "table", StructType([StructField("x", inner)]))
        version = newest(DeltaLakeTable(DeltaTable(str(tmp_path / "table"))))
        with pytest.raises(ConfigError, match=told):
            version.check_appendable()

    def test_features_with_which_files_cannot_be_read_alone(self, tmp_path: Path) -> None:
        features = ["columnMapping"]
        foreign_table(
            tmp_path / "table",
            StructType([StructField("offset", LongType())]),
            properties={"delta.columnMapping.mode": "name"},
            writer_features=features,
            reader_features=features,
            metadata={"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"},
        )
        version = newest(DeltaLakeTable(DeltaTable(str(tmp_path / "table"))))
        with pytest.raises(ConfigError, match="its files have other names than its columns"):
            version.reader()

    def test_rows_that_are_deleted_and_still_in_the_file(self, tmp_path: Path) -> None:
        root, features = tmp_path / "table", ["deletionVectors"]
        schema = StructType([StructField("offset", LongType())])
        foreign_table(
            root,
            schema,
            writer_features=features,
            reader_features=features,
            adds=["part-1.parquet"],
            vector=deletion_vector(1),
        )
        assert offsets_in_rust(root) == [0, 2]
        version = newest(DeltaLakeTable(DeltaTable(str(root))))
        version.check_appendable()
        with pytest.raises(ConfigError, match="has 1 file with deletion vectors"):
            version.reader()
        with pytest.raises(ConfigError, match="has 1 file with deletion vectors"):
            version.commit(Change(NOTHING_YET, (), version.files()))

    def test_the_feature_alone_is_no_hindrance(self, tmp_path: Path) -> None:
        root, features = tmp_path / "table", ["deletionVectors"]
        foreign_table(root, COLUMNS, writer_features=features, reader_features=features)
        table = DeltaLakeTable(DeltaTable(str(root)))
        version = newest(table)
        version.check_appendable()
        file = write(version, range(3), values=())
        version.commit(Change(NOTHING_YET, [file]))
        assert rows_of(newest(table), ["offset"]) == [{"offset": each} for each in range(3)]

    def test_files_without_statistics_are_counted(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        schema = StructType([StructField("offset", LongType())])
        paths = ["a%20b/part-1.parquet", "part-2.parquet"]
        foreign_table(root, schema, adds=paths, statistics=None)
        files = newest(DeltaLakeTable(DeltaTable(str(root)))).files()
        assert [(file.records, file.offsets) for file in files] == [(3, None)] * 2

    def test_a_column_of_another_kind_has_no_bounds(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        rows = pa.table({"offset": ["a"], "partition": ["b"], "x": [1]})
        deltalake.write_deltalake(root, rows, partition_by=["partition"])
        [file] = newest(DeltaLakeTable(DeltaTable(str(root)))).files()
        assert (file.partitions, file.offsets, file.partition) == (None, None, ("b",))

    def test_a_file_elsewhere_is_told(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        foreign_table(root, COLUMNS, adds=["file:///elsewhere/part-1.parquet"])
        version = newest(DeltaLakeTable(DeltaTable(str(root))))
        with pytest.raises(WarehouseError, match="outside of its table's directory"):
            [*version.reader().read(version.files()[0])]


class TestFiles:
    @pytest.mark.parametrize(
        "value",
        ["UA", "a b", "a%20b", "100%", "x/y", "../z", "k=v", "\u00fc\u00df", "it's \"it\"", "l\nm",
         "{}[]*?", ".", "__HIVE_DEFAULT_PARTITION__", "v" * 500, "\U0001f600", "null", "5"],
    )  # fmt: skip
    def test_any_text_is_a_partition(self, tmp_path: Path, value: str) -> None:
        root = tmp_path / "table"
        table = make_table(root, BY_CARRIER, CARRIERS)
        version = newest(table)
        file = write(version, range(3), (value,))
        assert encoded(root, file) == file.path, "the same in the log and in the storage"
        version.commit(Change(after(NOTHING_YET, 1, range(3)), [file]))
        found = newest(table)
        assert [each.partition for each in found.files()] == [(value,)]
        expected = [{"offset": each, "carrier": value} for each in range(3)]
        assert rows_of(found, ["offset", "carrier"]) == expected
        by_library = deltalake.DeltaTable(root).to_pyarrow_table(columns=["offset", "carrier"])
        assert by_library.sort_by("offset").to_pylist() == expected
        if len(value) < 100 and value != "__HIVE_DEFAULT_PARTITION__":
            by_polars = polars.read_delta(str(root), columns=["offset", "carrier"])
            assert by_polars.sort("offset").to_dicts() == expected, "it goes by directories"
        again = write(found, range(3), (value,), name="part-again.parquet")
        found.commit(Change(NOTHING_YET.fenced(2), [again], found.files(), data_change=False))
        assert [each.path for each in newest(table).files()] == [again.path]

    @pytest.mark.parametrize("value", ["", None])
    def test_an_empty_text_is_null_as_delta_has_it(self, tmp_path: Path, value: str | None) -> None:
        root = tmp_path / "table"
        table = make_table(root, BY_CARRIER, CARRIERS)
        version = newest(table)
        version.commit(Change(NOTHING_YET, [write(version, range(1), (value,))]))
        found = newest(table)
        assert [each.partition for each in found.files()] == [(None,)]
        assert rows_of(found, ["carrier"]) == [{"carrier": None}]
        assert deltalake.DeltaTable(root).to_pyarrow_table()["carrier"].to_pylist() == [None]

    def test_partitions_of_other_types_have_one_text(self, tmp_path: Path) -> None:
        added = [StructField("d", DateType()), StructField("b", BooleanType())]
        added += [StructField("n", LongType())]
        layout = Layout(period=Period.NONE, columns=("d", "b", "n"))
        table = make_table(tmp_path / "table", StructType([*COLUMNS.fields, *added]), layout)
        version = newest(table)
        values = (date(987, 1, 31), True, -5)
        file = write(version, range(1), values)
        version.commit(Change(NOTHING_YET, [file]))
        found = newest(table)
        assert [each.partition for each in found.files()] == [file.partition]
        row = dict(zip("dbn", values, strict=True))
        assert rows_of(found, ["d", "b", "n"]) == [row]
        assert deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table(
            columns=["d", "b", "n"]
        ).to_pylist() == [row]

    def test_a_table_partitioned_by_partition_has_its_bounds(self, tmp_path: Path) -> None:
        layout = Layout(period=Period.NONE, columns=("partition",))
        table = make_table(tmp_path / "table", COLUMNS, layout)
        version = newest(table)
        file = write(version, range(3, 5), (7,))
        version.commit(Change(NOTHING_YET, [file]))
        found = newest(table).files()[0]
        assert (file.partitions, file.offsets) == (found.partitions, found.offsets)
        assert (file.partitions, file.offsets) == ((7, 7), (3, 4))
        assert rows_of(newest(table), ["partition"]) == [{"partition": 7}] * 2

    def test_a_partition_that_may_not_be_null(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        columns = [pa.field("offset", pa.int64()), pa.field("date", pa.date32(), nullable=False)]
        deltalake.DeltaTable.create(root, pa.schema(columns), partition_by=["date"])
        writer = newest(DeltaLakeTable(DeltaTable(str(root)))).writer()
        with pytest.raises(WarehouseError, match="no value for the column date"):
            writer.path((None,), "part-1.parquet")

    def test_a_column_that_may_not_be_null_refuses_it(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        columns = [pa.field("offset", pa.int64(), nullable=False)]
        deltalake.DeltaTable.create(root, pa.schema(columns))
        writer = newest(DeltaLakeTable(DeltaTable(str(root)))).writer()
        rows = pa.RecordBatch.from_arrays([pa.array([None], pa.int64())], schema=writer.schema)
        with (
            pq.ParquetWriter(root / "part.parquet", writer.schema) as parquet,
            pytest.raises(pa.ArrowInvalid, match="'offset' is declared non-nullable"),
        ):
            parquet.write_batch(rows)

    def test_statistics_lie_around_the_values(self, tmp_path: Path) -> None:
        """A reader that passes files over by them finds each row."""
        root = tmp_path / "table"
        table = make_table(root, BY_DAY)
        version = newest(table)
        version.commit(Change(NOTHING_YET, [write(version, range(1, 4))]))
        added = pa.table(deltalake.DeltaTable(root).get_add_actions()).to_pylist()[0]
        assert (added["min"]["offset"], added["max"]["offset"]) == (1, 3)
        assert added["min"]["timestamp"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
        assert added["max"]["timestamp"] == datetime(1970, 1, 1, 0, 0, 3, 1000, tzinfo=UTC)
        assert "value" not in added["min"]
        assert added["null_count"]["value"] == 0
        rows = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(root))
        asked = "select offset from t where timestamp > timestamp '1970-01-01T00:00:03.000002Z'"
        assert pa.table(rows.execute(asked).read_all())["offset"].to_pylist() == [3]

    def test_times_beyond_all_calendars_have_no_statistics(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root, COLUMNS, Layout(period=Period.NONE))
        version = newest(table)
        writer, path = version.writer(), str(root / "part-1.parquet")
        ends = [-(2**62), 2**62]
        rows = {"partition": [0, 0], "offset": [0, 1], "timestamp": ends, "value": [b"", None]}
        pq.write_table(pa.table(rows, writer.schema), path)
        file = version.describe("part-1.parquet")
        told = json.loads(file.detail.statistics)  # type: ignore[attr-defined]
        assert "timestamp" not in told["minValues"] | told["maxValues"]
        version.commit(Change(NOTHING_YET, [file]))
        assert rows_of(newest(table), ["offset"]) == [{"offset": 0}, {"offset": 1}]
        assert offsets_in(root) == [0, 1]

    def test_a_described_file_is_as_its_task_described_it(self, tmp_path: Path) -> None:
        version = newest(make_table(tmp_path / "table", COLUMNS, Layout(period=Period.NONE)))
        file = write(version, range(10), ())
        again = version.describe(file.path)
        assert again == file
        assert again.detail.statistics == file.detail.statistics  # type: ignore[attr-defined]

    def test_files_of_other_writers(self, tmp_path: Path) -> None:
        """Timestamps as INT96, narrower and wider kinds of Arrow, other capitals, missing and
        further columns, in any order."""
        root = tmp_path / "table"
        inner = StructType([StructField("a", LongType()), StructField("b", TimestampType())])
        schema = StructType(
            [
                StructField("offset", LongType()),
                StructField("timestamp", TimestampType()),
                StructField("text", StringType()),
                StructField("many", ArrayType(inner)),
                StructField("map", MapType(StringType(), LongType())),
                StructField("price", DecimalType(12, 2)),
                StructField("later", DoubleType()),
                StructField("local", TimestampNTZType()),
            ]
        )
        table = make_table(root, schema, Layout(period=Period.NONE))
        many = pa.list_(pa.struct([("a", pa.int32())]))
        rows = pa.table(
            {
                "further": [1, 2],
                "Text": pa.array(["x", None]).dictionary_encode(),
                "offset": pa.array([1, 2], pa.int32()),
                "timestamp": pa.array([1_000, None], pa.timestamp("ns")),
                "many": pa.array([[{"a": 1}, None], None], many),
                "map": pa.array([[("k", 1)], []], pa.map_(pa.large_string(), pa.int16())),
                "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
                "local": pa.array([1_999, 0], pa.timestamp("ns")),
            }
        )
        pq.write_table(rows, root / "part-1.parquet", use_deprecated_int96_timestamps=True)
        version = newest(table)
        version.commit(Change(NOTHING_YET, [version.describe("part-1.parquet")]))
        moment = datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
        empty: dict[str, Any] = dict.fromkeys(schema.names)
        assert rows_of(newest(table)) == [
            empty
            | {"offset": 1, "timestamp": moment, "text": "x", "price": Decimal("1.50")}
            | {"many": [{"a": 1, "b": None}, None], "map": [("k", 1)]}
            | {"local": moment.replace(tzinfo=None)},
            empty | {"offset": 2, "map": [], "local": datetime(1970, 1, 1)},  # noqa: DTZ001
        ]
        assert rows_of(newest(table), ["later"]) == [{"later": None}] * 2

    def test_a_file_that_is_gone_is_told(self, tmp_path: Path) -> None:
        table = make_table(tmp_path / "table")
        load(table, range(3), token=1)
        version = newest(table)
        (tmp_path / "table" / version.files()[0].path).unlink()
        with pytest.raises(WarehouseError, match="Cannot read the file date=2020-01-01/part-0-3"):
            rows_of(version)

    def test_a_column_that_is_not_there_is_told(self, tmp_path: Path) -> None:
        version = newest(make_table(tmp_path / "table"))
        with pytest.raises(ConfigError, match="has no column ofset; it has partition, offset"):
            version.reader(["ofset"])


class TestMade:
    def test_columns_may_all_be_null(self, tmp_path: Path) -> None:
        inner = StructType([StructField("x", TimestampNTZType(), nullable=False)])
        wanted = StructType(
            [
                *COLUMNS.fields,
                StructField("inner", ArrayType(inner, containsNull=False), nullable=False),
            ]
        )
        version = newest(make_table(tmp_path / "table", wanted, Layout(period=Period.NONE)))
        optional = ArrayType(StructType([StructField("x", TimestampNTZType())]))
        assert version.schema["inner"] == StructField("inner", optional)
        assert all(each.nullable for each in version.schema)
        version.check_appendable()
        version.commit(Change(NOTHING_YET))

    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            (NullType(), "void"),
            (VariantType(), "variant"),
            (DayTimeIntervalType(), "interval day to second"),
            (ArrayType(NullType()), "void"),
        ],
    )
    def test_types_that_are_none_of_deltas(self, tmp_path: Path, kind: DataType, name: str) -> None:
        with pytest.raises(ConfigError, match=rf"Column x(\.element)? of .* is {name}, a type"):
            make_table(tmp_path / "table", StructType([StructField("x", kind)]))
        assert not (tmp_path / "table").exists()

    def test_another_may_make_it_at_the_same_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = tmp_path / "table"
        real = deltalake.DeltaTable.create

        def come_first(*args: Any, **kwargs: Any) -> deltalake.DeltaTable:
            real(*args, **kwargs)
            return real(*args, **kwargs)

        monkeypatch.setattr(deltalake.DeltaTable, "create", come_first)
        assert newest(make_table(root)).version == 0

    def test_a_directory_with_other_files_is_told(self, tmp_path: Path) -> None:
        for name in ("part-1.parquet", "flights/_logbus/loads", "_logbus/loads"):
            root = tmp_path / name.replace("/", "-")
            (root / name).mkdir(parents=True)
            with pytest.raises(ConfigError, match="is no Delta table and has files of something"):
                make_table(root)

    def test_the_marks_of_loads_are_no_other_files(self, tmp_path: Path) -> None:
        (tmp_path / "_logbus").mkdir()
        (tmp_path / "_logbus" / "000001-abc.json").write_text("{}")
        assert newest(make_table(tmp_path)).version == 0

    def test_a_broken_log_is_no_empty_directory(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        table = make_table(root)
        load(table, range(3), token=1)
        commit_of(root, 0).unlink()
        with pytest.raises(WarehouseError, match=r"Cannot (open|make) the Delta table"):
            make_table(root)
        assert not commit_of(root, 0).exists()

    def test_columns_are_added_within_others_too(self, tmp_path: Path) -> None:
        root = tmp_path / "table"
        old = StructType([StructField("a", LongType(), nullable=False, metadata={"comment": "c"})])
        many = StructField("many", ArrayType(StructType([StructField("a", LongType())])))
        first = deltalake.Schema.from_json(
            json.dumps(StructType([*old.fields, many, StructField("d", DateType())]).jsonValue())
        )
        deltalake.DeltaTable.create(root, first, partition_by=["d"])
        table = DeltaLakeTable(DeltaTable(str(root)))
        inner = StructType([StructField("a", LongType()), StructField("t", TimestampNTZType())])
        added = [
            StructField("many", ArrayType(inner)),
            StructField("d", DateType()),
            StructField("map", MapType(StringType(), inner)),
        ]
        table.evolve(StructType([*old.fields, *added]))
        version = newest(table)
        assert version.schema == StructType([*old.fields, *added])
        assert version.partition_names == ("d",)
        version.check_appendable()
        version.commit(Change(NOTHING_YET))


class TestLayout:
    def test_it_is_the_one_that_the_table_was_made_with(self, tmp_path: Path) -> None:
        own = Layout(period=Period.HOUR, prefix="event_", columns=("carrier",), event_time="at")
        added = [StructField("event_date", DateType()), StructField("event_hour", IntegerType())]
        version = newest(make_table(tmp_path, StructType([*BY_CARRIER.fields, *added]), own))
        assert version.layout(LayoutChoice()) == own
        assert version.layout(LayoutChoice(period=Period.HOUR)) == own
        with pytest.raises(LayoutChangedError, match="was begun with --partition-by hour"):
            version.layout(LayoutChoice(period=Period.DAY))

    def test_of_a_table_that_was_there_the_options_give_its_partitions(
        self, tmp_path: Path
    ) -> None:
        columns = [("offset", pa.int64()), ("carrier", pa.string()), ("date", pa.date32())]
        deltalake.DeltaTable.create(
            tmp_path / "t", pa.schema(columns), partition_by=["carrier", "date"]
        )
        version = newest(DeltaLakeTable(DeltaTable(str(tmp_path / "t"))))
        told = "is partitioned by carrier, date, and this load by date. Nothing .* Give "
        told += "--partition-by day --partition-columns carrier, or"
        with pytest.raises(LayoutChangedError, match=told):
            version.layout(LayoutChoice())
        layout = version.layout(LayoutChoice(columns=("carrier",)))
        assert layout == Layout(columns=("carrier",))

    def test_files_are_parquet(self, tmp_path: Path) -> None:
        table = DeltaLakeTable(DeltaTable(str(tmp_path)))
        with pytest.raises(ConfigError, match="files of Delta tables are Parquet"):
            table.layout_of_new(LayoutChoice(format=FileFormat.ORC))

    def test_a_property_that_no_load_has_written(self, tmp_path: Path) -> None:
        table = make_table(tmp_path)
        table.set_properties({LAYOUT: "{}"})
        with pytest.raises(WarehouseError, match=r"is '\{\}', which no load has written"):
            newest(table).layout(LayoutChoice())

    @pytest.mark.parametrize(
        ("columns", "options"),
        [
            (["date"], "--partition-by day"),
            (["date", "hour"], "--partition-by hour"),
            (["hour", "x", "date"], "--partition-by hour --partition-columns x"),
            (["month"], "--partition-by month"),
            (["carrier"], "--partition-by none --partition-columns carrier"),
            (["event_date"], "--partition-by day --partition-prefix event_"),
            (["hour"], "--partition-by none --partition-columns hour"),
            ([], "--partition-by none"),
        ],
    )
    def test_options_that_give_partitions(self, columns: list[str], options: str) -> None:
        assert options_for(columns) == options


class TestStorage:
    @pytest.mark.parametrize(
        ("uri", "name"),
        [
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b"),
            ("//a//b", "/a/b"),
            ("/a/c/../b", "/a/b"),
            ("file:///a/b", "/a/b"),
            ("file:/a/b/", "/a/b"),
            ("file://localhost/a/b", "/a/b"),
            ("file:///a/b%20c%23", "/a/b c#"),
            ("/a/b c?d", "/a/b c?d"),
            ("s3://lake/a/b/", "s3://lake/a/b"),
            ("s3a://lake//a/b", "s3://lake/a/b"),
            ("gs://lake/a", "gs://lake/a"),
            ("hdfs://name:8020/lake/a/", "hdfs://name:8020/lake/a"),
            (
                "abfss://c@account.dfs.core.windows.net/a",
                "abfss://c@account.dfs.core.windows.net/a",
            ),
        ],
    )
    def test_a_table_has_one_name(self, uri: str, name: str) -> None:
        assert DeltaLakeTable(DeltaTable(uri)).name == name

    def test_a_relative_path_is_from_where_the_load_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert DeltaLakeTable(DeltaTable("a/b")).name == f"{tmp_path}/a/b"

    @pytest.mark.parametrize(
        ("uri", "told"),
        [
            ("dbfs:/a", "are written to local paths and to s3://"),
            ("s3://lake/a?b", "are written to local paths and to s3://"),
            ("hdfs:///a", "are written to local paths and to s3://"),
            ("http://host/a", "are written to local paths and to s3://"),
            ("s3:///a", "are written to local paths and to s3://"),
            ("s3://lake", "expected a directory in it"),
            ("s3://lake/", "expected a directory in it"),
            ("file://host/a", "a file of the host 'host'"),
            ("/a/b%20c", "with a % in its path"),
            ("file:///a/b%2520c", "with a % in its path"),
        ],
    )
    def test_places_that_no_table_can_have(self, uri: str, told: str) -> None:
        with pytest.raises(ConfigError, match=told):
            DeltaLakeTable(DeltaTable(uri))

    @pytest.mark.parametrize("name", ["a b", "\u00fc", "a?b", "a#b", "a;b", "it's", "a=b"])
    def test_any_other_path_is_a_table(self, tmp_path: Path, name: str) -> None:
        root = tmp_path / name
        table = make_table(root)
        load(table, range(3), token=1)
        assert {each.name for each in tmp_path.iterdir()} == {name}
        assert len(rows_of(newest(table))) == 3
        storage, own = table.own_directory()
        assert own == f"{root}/_logbus"
        assert storage.type_name == "local"

    def test_on_s3_the_second_commit_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = {"aws_conditional_put": "etag"}
        assert DeltaStorage.of("s3://lake/a", {}).options == asked
        kept = {"conditional_put": "dynamo:locks"}
        assert DeltaStorage.of("s3://lake/a", kept).options == kept
        locked = {"AWS_S3_LOCKING_PROVIDER": "dynamodb"}
        assert DeltaStorage.of("s3://lake/a", locked).options == locked
        for unsafe in ({"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, {"conditional_put": "disabled"}):
            with pytest.raises(ConfigError, match="could commit one over the other"):
                DeltaStorage.of("s3://lake/a", unsafe)
        monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "TRUE")
        with pytest.raises(ConfigError, match="AWS_S3_ALLOW_UNSAFE_RENAME is set"):
            DeltaStorage.of("s3://lake/a", {})

    def test_errors_tell_no_secret(self) -> None:
        options = {"AWS_SECRET_ACCESS_KEY": "a b/c", "region": "eu"}
        storage = DeltaStorage.of("s3://lake/a", options)
        text = (
            "\x1b[31m\u21b3\x1b[0m GET https://x/y?sig=abc failed\n  for a b/c and a%20b%2Fc in eu"
        )
        shown = "GET https://x/y failed: for *** and *** in eu"
        assert storage.reason(OSError(text)) == shown
        assert "a b/c" not in repr(storage)

    def test_a_store_that_does_not_answer_is_told(self) -> None:
        options = {"aws_endpoint": "http://127.0.0.1:1", "aws_allow_http": "true"}
        options |= {"aws_access_key_id": "a-key", "aws_secret_access_key": "a-secret"}
        options |= {"aws_region": "us-east-1"}
        table = DeltaLakeTable(DeltaTable("s3://lake/a", options | {"max_retries": "0"}))
        told = "Cannot open the Delta table s3://lake/a: .*Connection refused"
        with pytest.raises(WarehouseError, match=told):
            table.newest()
