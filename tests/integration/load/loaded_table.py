"""A table of PostgreSQL that loads go into, and the fixtures that make one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_logbus.load import (
    LoadConfig,
    Loaded,
    ReprocessConfig,
    Reprocessed,
    run_load,
    run_reprocess,
)
from tests.servers.cluster import Logbus
from tests.servers.postgresql import Postgresql, add_driver, postgresql

_numbers = itertools.count(1)


class LoadedTable:
    """Loads of one topic into one table, read back with PostgreSQL's own client."""

    def __init__(self, spark: SparkSession, logbus: Logbus, database: Postgresql) -> None:
        self.spark = spark
        self.logbus = logbus
        self.database = database
        self.name = f"table_{next(_numbers)}"
        self.table = database.table(f"public.{self.name}")
        self.topic = logbus.topic(partitions=2)

    def produce(self, *values: str | None, partition: int = 0, **more: Any) -> None:
        self.logbus.produce(self.topic, values, partition=partition, **more)

    def load(self, **more: Any) -> Loaded:
        config = LoadConfig(self.topic, self.table, self.logbus.zookeeper, **more)
        return run_load(self.spark, config)

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

    def query(self, sql: str) -> list[tuple[str, ...]]:
        """``{}`` stands for the table."""
        return self.database.query(sql.format(self.name))

    def values(self) -> list[str]:
        return [
            row[0] for row in self.query("SELECT convert_from(value, 'UTF8') FROM {} ORDER BY 1")
        ]

    def is_there(self) -> bool:
        return self.query("SELECT to_regclass('{}') IS NOT NULL") == [("t",)]

    def staged(self) -> list[tuple[str, ...]]:
        """Staging tables of all loads into all tables."""
        return self.query(
            "SELECT tablename FROM pg_tables WHERE starts_with(tablename, 'logbus_staging_')"
        )

    def loads(self) -> list[tuple[str, ...]]:
        return self.query(
            "SELECT load, ends, records, dead_letters FROM logbus_loads "
            "WHERE target = '{}' ORDER BY load"
        )

    def drop_staging(self) -> None:
        """Drops the staging tables that killed loads have left."""
        self.query(
            "DO $$ DECLARE t text; BEGIN FOR t IN SELECT tablename FROM pg_tables WHERE "
            "starts_with(tablename, 'logbus_staging_') LOOP EXECUTE 'DROP TABLE ' || t; END LOOP; "
            "END $$"
        )


@pytest.fixture(scope="session")
def database(spark: SparkSession) -> Iterator[Postgresql]:
    """One server for all tests."""
    with postgresql() as running:
        add_driver(spark, running.jars)
        yield running


@pytest.fixture
def loaded_table(
    spark: SparkSession, logbus: Logbus, database: Postgresql
) -> Iterator[LoadedTable]:
    made = LoadedTable(spark, logbus, database)
    yield made
    made.drop_staging()


class NoLock:
    """Stands for locks of two ZooKeepers, which do not keep two loads apart."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> NoLock:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check(self) -> None:
        pass
