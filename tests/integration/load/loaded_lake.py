"""A table of a lake that loads go into, read back with the own library of its format."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from spark_logbus.load import (
    DeltaTable,
    IcebergTable,
    LoadConfig,
    Loaded,
    ReprocessConfig,
    Reprocessed,
    run_load,
    run_reprocess,
)
from spark_logbus.load.lake.opening import open_table
from spark_logbus.load.lake.table import LakeTable
from spark_logbus.load.tables import TableOfLake
from tests.servers.cluster import Logbus

_numbers = itertools.count(1)
FORMATS = ("delta", "iceberg")


def catalog_at(directory: Path) -> dict[str, str]:
    """Properties of a catalogue in a file of SQLite, made where it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    return {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/tables",
    }


def table_named(form: str, directory: Path, name: str) -> TableOfLake:
    """Returns the name of a table of the format ``form`` under the directory."""
    if form == "delta":
        return DeltaTable(str(directory / name))
    return IcebergTable("test", f"lake.{name}", catalog_at(directory))


class LoadedLake:
    """Loads of one topic into one table."""

    def __init__(self, spark: SparkSession, logbus: Logbus, form: str, directory: Path) -> None:
        self.spark = spark
        self.logbus = logbus
        self.form = form
        self.directory = directory
        self.name = f"table_{next(_numbers)}"
        self.table = table_named(form, directory, self.name)
        self.topic = logbus.topic(partitions=2)

    def produce(self, *values: str | None, partition: int = 0, **more: Any) -> None:
        self.logbus.produce(self.topic, values, partition=partition, **more)

    def config(self, **more: Any) -> LoadConfig:
        return LoadConfig(self.topic, self.table, self.logbus.zookeeper, **more)

    def load(self, **more: Any) -> Loaded:
        return run_load(self.spark, self.config(**more))

    def reprocess(self, start: str | dict[str, int], **more: Any) -> Reprocessed:
        place = json.dumps({self.topic: start}) if isinstance(start, dict) else start
        config = ReprocessConfig(
            topic=self.topic,
            warehouse=self.table,
            zookeeper=self.logbus.zookeeper,
            start=place,
            **more,
        )
        return run_reprocess(self.spark, config)

    @property
    def opened(self) -> LakeTable:
        return open_table(self.table)

    def arrow(self, *, letters: bool = False) -> pa.Table:
        """All rows, as the format's own library reads them."""
        name = self.table.dead_letters if letters else self.table
        match name:
            case DeltaTable(uri):
                return deltalake.DeltaTable(uri).to_pyarrow_table()
            case IcebergTable():
                catalog = load_catalog(name.catalog, **name.properties)
                return catalog.load_table(name.identifier).scan().to_arrow()

    def rows(self, *columns: str, letters: bool = False) -> list[tuple[Any, ...]]:
        """Columns of all rows, by partition and offset."""
        table = self.arrow(letters=letters)
        found = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
        named = found.select(list(columns)).to_pylist()
        return [tuple(row[column] for column in columns) for row in named]

    def values(self) -> list[str]:
        return sorted(value.decode() for (value,) in self.rows("value"))

    def files(self) -> list[str]:
        """Names of the files that the newest version has."""
        version = self.opened.newest()
        return [] if version is None else sorted(each.path for each in version.files())

    def data_files(self) -> list[Path]:
        """Parquet files that are there, whether the table knows them or not."""
        return sorted(self.directory.rglob("part-*.parquet"))

    def marks(self) -> list[Path]:
        return sorted(self.directory.rglob("_logbus/*"))


def offsets_of(rows: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    """Offsets by partition."""
    found: dict[int, list[int]] = {}
    for partition, offset in rows:
        found.setdefault(partition, []).append(offset)
    return found


@pytest.fixture(params=FORMATS)
def lake(
    request: pytest.FixtureRequest, spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> LoadedLake:
    return LoadedLake(spark, logbus, request.param, tmp_path)
