"""Tables of a lake that a Spark of an earlier release, with the format's own jar, reads and changes
between loads: appends, rewrites of files, clean-ups, and a way back to an older version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_logbus.load import DeltaTable, IcebergTable, LoadConfig, run_load
from spark_logbus.load.lake.table import RestoredError
from spark_logbus.load.tables import TableOfLake
from tests.integration.load.loaded_lake import catalog_at
from tests.servers.cluster import Logbus
from tests.servers.other_spark import OtherSpark, other_spark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]

DAY_US = 86_400_000_000
Place = tuple[int, int, str | None, int | None, str]


def delta_spark() -> OtherSpark:
    return other_spark(
        "4.2.0",
        "delta-spark.xml",
        {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "1",
            # The test waits for no file to be a week old.
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        },
    )


def iceberg_spark(directory: Path) -> OtherSpark:
    catalog = catalog_at(directory)
    own = "spark.sql.catalog.test"
    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    return other_spark(
        "4.1.4",
        "iceberg-spark.xml",
        {
            "spark.sql.extensions": extensions,
            own: "org.apache.iceberg.spark.SparkCatalog",
            f"{own}.type": "jdbc",
            f"{own}.uri": f"jdbc:sqlite:{directory}/catalog.db",
            f"{own}.warehouse": catalog["warehouse"],
            f"{own}.jdbc.schema-version": "V1",
        },
    )


class Job:
    """Loads of a topic into a table, and what is to be in it."""

    def __init__(self, spark: SparkSession, logbus: Logbus, table: TableOfLake) -> None:
        self._spark = spark
        self._logbus = logbus
        self._table = table
        self._topic = logbus.topic(partitions=2)
        self.expected: list[Place] = []

    def produce(self) -> None:
        """Sends two records of two days to each partition, one of which is null."""
        start = len(self.expected) // 2
        for partition in (0, 1):
            for at in (start, start + 1):
                value = None if at % 2 else json.dumps({"n": at, "who": "\u00fc"})
                time = -1 if at % 2 else DAY_US * at
                self._logbus.produce(self._topic, [value], partition=partition, timestamp_us=time)
                day = "1969-12-31" if at % 2 else f"1970-01-{at + 1:02}"
                self.expected.append((partition, at, value, None if at % 2 else at, day))

    def load(self, **more: Any) -> int:
        config = LoadConfig(
            self._topic, self._table, self._logbus.zookeeper, json_schema="n int, who string",
            **more,
        )  # fmt: skip
        commit = run_load(self._spark, config).commit
        return 0 if commit is None else commit.records

    def check(self, rows: list[list[Any]]) -> None:
        found = sorted(((*row,) for row in rows), key=lambda row: row[:2])
        assert found == sorted(self.expected, key=lambda row: row[:2])


def select(table: str) -> str:
    """Asks for the rows that loads have brought."""
    return (
        "SELECT partition, offset, cast(value AS string), n, "
        "cast(cast(timestamp AS date) AS string) "
        f"FROM {table} WHERE offset IS NOT NULL"
    )


def check_changed_by_others(
    job: Job,
    other: OtherSpark,
    table: str,
    changes: list[str],
    version: str,
    restore: Callable[[Any], str],
) -> None:
    """Loads, has the other Spark change the table, and loads on, until it sets the table back."""
    for _ in range(2):
        job.produce()
        assert job.load() == 4
    found = other.run(select(table), *changes, select(table), f"SELECT count(*) FROM {table}")
    job.check(found[0])
    job.check(found[-2])
    assert found[-1] == [[len(job.expected) + 1]]  # and the other's own row
    job.produce()
    assert job.load() == 4
    rows, versions = other.run(select(table), version)
    job.check(rows)
    job.produce()
    assert job.load() == 4
    other.run(restore(versions[0][0]))
    with pytest.raises(RestoredError):
        job.load()
    assert job.load(accept_restore=True) == 4
    rows, count = other.run(select(table), f"SELECT count(*) FROM {table}")
    job.check(rows)
    assert count == [[len(job.expected) + 1]]


def test_delta(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> None:
    path = tmp_path / "flights"
    table = f"delta.`{path}`"
    check_changed_by_others(
        Job(spark, logbus, DeltaTable(str(path))),
        delta_spark(),
        table,
        [
            f"INSERT INTO {table} (value, date) VALUES (X'00', DATE'2020-01-01')",
            f"OPTIMIZE {table}",
            f"VACUUM {table} RETAIN 0 HOURS",
        ],
        f"DESCRIBE HISTORY {table} LIMIT 1",
        lambda version: f"RESTORE {table} TO VERSION AS OF {version}",
    )


def test_iceberg(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> None:
    name = IcebergTable("test", "lake.flights", catalog_at(tmp_path))
    check_changed_by_others(
        Job(spark, logbus, name),
        iceberg_spark(tmp_path),
        "test.lake.flights",
        [
            "INSERT INTO test.lake.flights (value, timestamp) "
            "VALUES (X'00', TIMESTAMP'2020-01-01 00:00:00')",
            "CALL test.system.rewrite_data_files("
            "table => 'lake.flights', options => map('rewrite-all', 'true'))",
            "CALL test.system.expire_snapshots("
            "table => 'lake.flights', older_than => TIMESTAMP'2100-01-01 00:00:00', "
            "retain_last => 1)",
            "CALL test.system.remove_orphan_files(table => 'lake.flights', dry_run => true)",
        ],
        "SELECT snapshot_id FROM test.lake.flights.snapshots ORDER BY committed_at DESC LIMIT 1",
        lambda snapshot: f"CALL test.system.rollback_to_snapshot('lake.flights', {snapshot})",
    )
