"""Targets of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.lake.loaded_target import LoadedTarget
from tests.integration.load.loaded_table import LoadedTable
from tests.servers.cluster import Logbus


@pytest.fixture(params=["files", pytest.param("table", marks=pytest.mark.long)])
def job(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, request: pytest.FixtureRequest
) -> LoadedTarget:
    if request.param == "files":
        return LoadedTarget(spark, logbus, str(tmp_path))
    loaded: LoadedTable = request.getfixturevalue("loaded_table")
    return LoadedTarget(spark, logbus, loaded.table)


@pytest.fixture
def files(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> LoadedTarget:
    return LoadedTarget(spark, logbus, str(tmp_path))
