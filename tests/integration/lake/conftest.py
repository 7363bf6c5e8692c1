"""Targets of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_logbus.load import DeltaTable, IcebergTable
from tests.integration.lake.loaded_target import LoadedTarget, Target, kinds
from tests.integration.load.loaded_table import LoadedTable
from tests.servers.cluster import Logbus


@pytest.fixture(params=kinds("table", "delta", "iceberg"))
def job(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, request: pytest.FixtureRequest
) -> LoadedTarget:
    match request.param:
        case "files":
            target: Target = str(tmp_path)
        case "delta":
            target = DeltaTable(str(tmp_path / "table"))
        case "iceberg":
            target = iceberg_table(tmp_path)
        case _:
            loaded: LoadedTable = request.getfixturevalue("loaded_table")
            target = loaded.table
    return LoadedTarget(spark, logbus, target)


def iceberg_table(directory: Path) -> IcebergTable:
    """A table in a catalogue of its own."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalogue.db",
        "warehouse": f"file://{directory}/warehouse",
    }
    return IcebergTable("test", "lake.flights", properties)


@pytest.fixture
def files(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> LoadedTarget:
    return LoadedTarget(spark, logbus, str(tmp_path))
