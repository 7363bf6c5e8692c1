"""Delta tables on disk, in S3 and on HDFS: commits that one alone can make, any partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyarrow import fs as pafs
from pyarrow import parquet as pq
from pyspark.sql import types as sp

from spark_logbus.errors import ConfigError
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.delta import DeltaLakeTable
from spark_logbus.load.lake.delta.version import DeltaLakeVersion
from spark_logbus.load.lake.marks import Mark, OwnDirectory
from spark_logbus.load.lake.table import (
    Change,
    LakeFile,
    Progress,
    VersionConflictError,
    properties_of,
)
from spark_logbus.load.layout import Layout, Period
from spark_logbus.load.tables import DeltaTable
from tests.servers.hdfs import hdfs
from tests.servers.s3 import S3, s3

RECORDS = (
    sp.StructType()
    .add("partition", sp.IntegerType())
    .add("offset", sp.LongType())
    .add("carrier", sp.StringType())
)
BY_CARRIER = Layout(period=Period.NONE, columns=("carrier",))
CARRIERS = ["UA", "a b", "a%20b", "x/y", "k=v", "\u00fc", "l\nm", "{}[]*?", "\U0001f600", None]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def opened(table: DeltaLakeTable) -> DeltaLakeVersion:
    version = table.newest()
    assert version is not None
    return version


def written(version: DeltaLakeVersion, name: str, offset: int, carrier: str | None) -> LakeFile:
    writer = version.writer()
    storage, path = writer.filesystem(), writer.path((carrier,), f"{name}.parquet")
    if isinstance(storage, pafs.LocalFileSystem):
        storage.create_dir(path.rpartition("/")[0], recursive=True)
    rows = pa.table({"partition": [0], "offset": [offset]}, writer.schema)
    with storage.open_output_stream(path) as stream:
        pq.write_table(rows, stream)
        size_bytes = stream.tell()
    footer = pq.read_metadata(path, filesystem=storage)
    return writer.describe(path, size_bytes, footer, (carrier,))


def check_loads(uri: str, options: Mapping[str, str]) -> None:
    """Makes a table and loads into it, beside others who do the same."""
    table = DeltaLakeTable(DeltaTable(uri, options))
    assert table.newest() is None
    properties = properties_of("flights", "id", BY_CARRIER)
    table.create(RECORDS, BY_CARRIER, properties)
    table.create(RECORDS, BY_CARRIER, properties)
    version, zombie = opened(table), opened(table)
    files = [written(version, f"part-{at}", at, each) for at, each in enumerate(CARRIERS)]
    progress = Progress("id", 1, 1, {0: len(CARRIERS)}, {0: [(0, len(CARRIERS))]})
    version.commit(Change(progress, files))
    with pytest.raises(VersionConflictError, match="Another writer has committed version 1"):
        zombie.commit(Change(progress.fenced(2), files))
    version = opened(table)
    assert version.progress() == progress
    reader = version.reader(["offset", "carrier"])
    batches = [batch for file in version.files() for batch in reader.read(file)]
    rows = pa.Table.from_batches(batches).sort_by("offset").to_pylist()
    expected = [{"offset": at, "carrier": each} for at, each in enumerate(CARRIERS)]
    assert rows == expected
    by_library = deltalake.DeltaTable(table.name, storage_options=dict(options))
    found = by_library.to_pyarrow_table(columns=["offset", "carrier"])
    assert found.sort_by("offset").to_pylist() == expected
    check_one_of_many(table, progress)
    check_own_directory(table)
    table.evolve(sp.StructType([*RECORDS.fields, sp.StructField("later", sp.TimestampNTZType())]))
    assert opened(table).schema.names == ["partition", "offset", "carrier", "later"]


def check_one_of_many(table: DeltaLakeTable, progress: Progress) -> None:
    """Lets four fence each other at one moment, several times."""
    for number in range(5):
        versions = [opened(table) for _ in range(4)]

        def fence(token: int, versions: list[DeltaLakeVersion] = versions) -> int | None:
            try:
                versions[token % 10].commit(Change(progress.fenced(token)))
            except VersionConflictError:
                return None
            return token

        with ThreadPoolExecutor(4) as pool:
            tokens = [*pool.map(fence, range(10 * (number + 1), 10 * (number + 1) + 4))]
        made = [each for each in tokens if each is not None]
        now = opened(table)
        assert (len(made), now.version) == (1, versions[0].version + 1)
        assert now.progress() == progress.fenced(made[0])


def check_own_directory(table: DeltaLakeTable) -> None:
    """Leaves a mark, and clears away what its load has left."""
    own, mark = OwnDirectory(*table.own_directory(), "flights"), Mark("000002-abcdef", 2)
    own.write(mark)
    assert own.marks() == [mark]
    file = written(opened(table), f"{mark.prefix}1", 0, "left behind/")
    storage, path = table.own_directory()
    own.delete_files(mark)
    own.delete(mark)
    assert own.marks() == []
    everything = pafs.FileSelector(path.rpartition("/")[0], recursive=True)
    names = [info.base_name for info in storage.get_file_info(everything)]
    assert file.path.rpartition("/")[2] not in names
    assert len([name for name in names if name.startswith("part-")]) == len(CARRIERS)


def test_on_disk(tmp_path: Path) -> None:
    check_loads(f"file://{tmp_path}/some flights", {})


def test_in_s3(store: S3) -> None:
    check_loads(store.uri("warehouse/some flights/"), store.delta_options)


@pytest.mark.slow
def test_on_hdfs(tmp_path: Path) -> None:
    with hdfs(tmp_path, datanodes=1) as server:
        check_loads(f"{server.url}/warehouse/flights", {})


def test_what_s3_refuses_is_told(store: S3) -> None:
    options = store.delta_options
    missing = DeltaLakeTable(DeltaTable("s3://no-bucket/flights", options))
    with pytest.raises(WarehouseError, match="NoSuchBucket"):
        missing.newest()
    storage, _ = DeltaLakeTable(DeltaTable(store.uri("other"), options)).own_directory()
    with storage.open_output_stream("data.csv") as stream:
        stream.write(b"1,2")
    with pytest.raises(ConfigError, match=r"has files of something else \(data.csv\)"):
        DeltaLakeTable(DeltaTable(store.uri("other"), options)).create(RECORDS, BY_CARRIER, {})
