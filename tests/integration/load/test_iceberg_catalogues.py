"""Iceberg tables behind a catalogue's REST protocol, with files on disk and in S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs as pafs
from pyarrow import parquet as pq
from pyspark.sql import types as sp

from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.iceberg import IcebergLakeTable
from spark_logbus.load.lake.iceberg.version import IcebergVersion
from spark_logbus.load.lake.table import Change, LakeFile, Progress, VersionConflictError
from spark_logbus.load.layout import Layout, LayoutChoice
from spark_logbus.load.tables import IcebergTable
from tests.servers.iceberg_rest import TOKEN, IcebergRest, iceberg_rest
from tests.servers.s3 import S3, s3

RECORDS = (
    sp.StructType()
    .add("partition", sp.IntegerType())
    .add("offset", sp.LongType())
    .add("timestamp", sp.TimestampType())
)


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[IcebergRest]:
    with iceberg_rest(tmp_path, f"file://{tmp_path}/warehouse") as server:
        yield server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def table_of(properties: dict[str, str]) -> IcebergLakeTable:
    return IcebergLakeTable(IcebergTable("rest", "lake.dep.flights", properties))


def opened(table: IcebergLakeTable) -> IcebergVersion:
    version = table.newest()
    assert version is not None
    return version


def written(version: IcebergVersion, name: str, *offsets: int) -> LakeFile:
    writer = version.writer()
    filesystem, path = writer.filesystem(), writer.path((0,), f"{name}.parquet")
    if isinstance(filesystem, pafs.LocalFileSystem):
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
    rows = [{"partition": 0, "offset": each, "timestamp": 0} for each in offsets]
    table = writer.schema.empty_table().from_pylist(rows, writer.schema)
    with filesystem.open_output_stream(path) as stream:
        pq.write_table(table, stream)
        size_bytes = stream.tell()
    footer = pq.read_metadata(path, filesystem=filesystem)
    return writer.describe(path, size_bytes, footer, (0,))


def offsets(table: IcebergLakeTable) -> list[int]:
    version = opened(table)
    reader = version.reader(["offset"])
    batches = [batch for file in version.files() for batch in reader.read(file)]
    return sorted(each for batch in batches for each in batch.column(0).to_pylist())


def progress(end: int, token: int) -> Progress:
    return Progress("id", token, token, {0: end})


def check_loads(table: IcebergLakeTable, other: IcebergLakeTable) -> None:
    """Loads twice, with a zombie between that both its own lock and the library would let in."""
    assert table.newest() is None
    table.create(RECORDS, Layout(), {"logbus.topic": "flights"})
    other.create(RECORDS, Layout(), {})
    zombie = opened(other)
    assert zombie.layout(LayoutChoice()) == Layout()
    first = opened(table)
    first.commit(Change(progress(2, 1), [written(first, "a", 0, 1)]))
    with pytest.raises(VersionConflictError):
        zombie.commit(Change(progress(2, 9), [written(zombie, "z", 0, 1)]))
    table.evolve(sp.StructType().add("carrier", sp.StringType()))
    table.set_properties({"logbus.topic-id": "id"})
    second = opened(other)
    assert second.schema.names == [*RECORDS.names, "carrier"]
    assert second.properties["logbus.topic-id"] == "id"
    replaced = second.files()
    second.commit(Change(progress(3, 2), [written(second, "b", 0, 1, 2)], replaced))
    assert offsets(table) == [0, 1, 2]
    assert opened(table).progress() == progress(3, 2)


def test_a_rest_catalogue_lets_one_load_in(rest: IcebergRest) -> None:
    check_loads(table_of(rest.properties), table_of(rest.properties))


def test_columns_that_change_before_the_commit_are_a_conflict(rest: IcebergRest) -> None:
    table = table_of(rest.properties)
    table.create(RECORDS, Layout(), {})
    version = opened(table)
    file = written(version, "a", 0)
    table.evolve(sp.StructType().add("carrier", sp.StringType()))
    with pytest.raises(VersionConflictError):
        version.commit(Change(progress(1, 1), [file]))
    assert offsets(table) == []


def test_a_rest_catalogue_whose_answer_is_lost_has_the_commit(rest: IcebergRest) -> None:
    table = table_of(rest.properties)
    table.create(RECORDS, Layout(), {})
    version = opened(table)
    rest.after_commit = lambda: 504
    with pytest.raises(WarehouseError, match="The answer went astray") as told:
        version.commit(Change(progress(1, 1), [written(version, "a", 0)]))
    assert not isinstance(told.value, VersionConflictError)
    assert opened(table).progress() == progress(1, 1)
    # A proxy that sends it again is told of a conflict, though the first of the two went in.
    version = opened(table)
    rest.after_commit = lambda: 409
    with pytest.raises(VersionConflictError):
        version.commit(Change(progress(2, 2), [written(version, "b", 1)]))
    assert opened(table).progress() == progress(2, 2)
    assert offsets(table) == [0, 1]


def test_a_rest_catalogue_that_refuses_the_token_is_told_without_it(rest: IcebergRest) -> None:
    table = table_of({**rest.properties, "token": "wrong but secret"})
    with pytest.raises(WarehouseError, match="The token is not known") as told:
        table.newest()
    assert TOKEN not in told.value.message
    assert "wrong but secret" not in told.value.message


def test_tables_in_s3_are_read_and_written_by_pyarrow(store: S3, tmp_path: Path) -> None:
    storage = store.iceberg_properties
    with iceberg_rest(tmp_path, store.uri("warehouse"), storage) as rest:
        properties = {**rest.properties, **storage}
        table = table_of(properties)
        check_loads(table, table_of(properties))
        [file] = opened(table).files()
        assert file.path.startswith(store.uri("warehouse/"))
        filesystem, directory = table.own_directory()
        assert isinstance(filesystem, pafs.S3FileSystem)
        assert directory.startswith("lake/warehouse/")
        assert directory.endswith("/flights/_logbus")
        with filesystem.open_output_stream(f"{directory}/1-a.json") as stream:
            stream.write(b"{}")
        [found] = filesystem.get_file_info(pafs.FileSelector(directory))
        assert found.base_name == "1-a.json"
