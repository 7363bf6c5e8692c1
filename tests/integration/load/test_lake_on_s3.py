"""Whole loads into tables of a lake that are not on a local disk: in S3, and on HDFS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from spark_logbus.load import DeltaTable, IcebergTable, LayoutChoice, LoadConfig, Period, run_load
from spark_logbus.load.lake.opening import open_table
from spark_logbus.load.lake.target import LakeTarget
from spark_logbus.load.tables import TableOfLake
from tests.integration.load.loaded_directory import KilledError
from tests.integration.load.loaded_lake import FORMATS
from tests.servers.cluster import Logbus
from tests.servers.hdfs import hdfs
from tests.servers.s3 import S3, s3

KINDS = ["plain", "a b/c", "50%", "\u00fc:\u20ac", None]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def rows(table: TableOfLake) -> list[dict[str, Any]]:
    """All rows, as the format's own library reads them."""
    match table:
        case DeltaTable():
            options = dict(table.options)
            read = deltalake.DeltaTable(table.uri, storage_options=options).to_pyarrow_table()
        case IcebergTable():
            catalog = load_catalog(table.catalog, **table.properties)
            read = catalog.load_table(table.identifier).scan().to_arrow()
    return pa.table(read).sort_by("offset").to_pylist()  # type: ignore[no-any-return]


def check_loads(
    spark: SparkSession, logbus: Logbus, table: TableOfLake, patch: pytest.MonkeyPatch
) -> None:
    """Loads three times, where the second load dies before its dead letters are in place."""
    topic, sent = logbus.topic(), list[str]()
    layout = LayoutChoice(period=Period.DAY, columns=("kind",))

    def send() -> None:
        start = len(sent)
        new = [json.dumps({"kind": kind, "n": start + at}) for at, kind in enumerate(KINDS)]
        new.append(f"broken {start}")
        logbus.produce(topic, new, timestamp_us=-1)
        sent.extend(new)

    def load(**more: Any) -> int:
        config = LoadConfig(
            topic, table, logbus.zookeeper, json_schema="kind string, n int", dead_letters=True,
            layout=layout, **more,
        )  # fmt: skip
        return run_load(spark, config).files_replaced

    def check() -> None:
        good = [at for at in range(len(sent)) if not sent[at].startswith("broken")]
        parsed = {at: json.loads(sent[at]) for at in good}
        found = [(row["offset"], row["kind"], row["n"], row["value"]) for row in rows(table)]
        assert found == [
            (at, parsed[at]["kind"], parsed[at]["n"], sent[at].encode()) for at in good
        ]
        letters = [(row["offset"], row["value"]) for row in rows(table.dead_letters)]
        bad = [at for at in range(len(sent)) if at not in parsed]
        assert letters == [(at, sent[at].encode()) for at in bad]

    send()
    load()
    check()
    send()
    with patch.context() as killed:
        killed.setattr(LakeTarget, "publish", lambda *_: kill())
        with pytest.raises(KilledError):
            load()
    send()
    assert load(compact=2) > 0
    check()
    version = open_table(table).newest()
    assert version is not None
    progress = version.progress()
    assert progress is not None
    assert progress.ends == {0: len(sent)}
    storage, directory = open_table(table).own_directory()
    selector = pa.fs.FileSelector(directory, allow_not_found=True)
    assert [info.base_name for info in storage.get_file_info(selector)] == []


def kill() -> None:
    raise KilledError


@pytest.mark.parametrize("form", FORMATS)
def test_whole_loads_in_s3(
    spark: SparkSession,
    logbus: Logbus,
    store: S3,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": store.uri("iceberg"),
        **store.iceberg_properties,
    }
    table: TableOfLake = IcebergTable("test", "lake.kinds", properties)
    if form == "delta":
        table = DeltaTable(store.uri("delta/kinds"), store.delta_options)
    check_loads(spark, logbus, table, monkeypatch)


@pytest.mark.slow
def test_whole_loads_on_hdfs(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hdfs(tmp_path / "hdfs", datanodes=1) as storage:
        table = DeltaTable(f"{storage.url}/lake/kinds")
        check_loads(spark, logbus, table, monkeypatch)
