"""Targets of each kind that a topic is loaded into, read together with its log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_logbus.client import Producer
from spark_logbus.lake import HistoryAndStream, union_read, union_stream
from spark_logbus.load import (
    DeltaTable,
    IcebergTable,
    JdbcTable,
    LoadConfig,
    Loaded,
    ReprocessConfig,
    Reprocessed,
    run_load,
    run_reprocess,
)
from spark_logbus.load.chosen_columns import exact_column
from tests.servers.cluster import Logbus

Row = tuple[Any, ...]
Target: TypeAlias = str | JdbcTable | DeltaTable | IcebergTable


def kinds(*often: str) -> list[object]:
    """Returns kinds of targets for ``parametrize``: files in every run, those that are named in the
    long ones, and the others, which a test does not depend on, in slow ones."""
    others = [
        pytest.param(kind, marks=pytest.mark.long if kind in often else pytest.mark.slow)
        for kind in ("table", "delta", "iceberg")
    ]
    return ["files", *others]


class LoadedTarget:
    """A topic of two partitions with JSON values, and the target of its loads. ``decoding`` are the
    options of all loads and reads."""

    def __init__(self, spark: SparkSession, logbus: Logbus, target: Target) -> None:
        self.spark = spark
        self.logbus = logbus
        self.target = target
        self.topic = logbus.topic(partitions=2)
        self.decoding: dict[str, Any] = {}
        self.produced: dict[int, list[str]] = {0: [], 1: []}

    @property
    def in_files(self) -> bool:
        return isinstance(self.target, str)

    @property
    def has_files(self) -> bool:
        """Tells whether small files can be made fewer."""
        return not isinstance(self.target, JdbcTable)

    @property
    def counts(self) -> dict[int, int]:
        """The number of records that were produced to each partition."""
        return {partition: len(own) for partition, own in self.produced.items()}

    def counts_in_log(self) -> dict[int, int]:
        """The number of records that each partition's log has now."""
        return {each.partition: end for each, end in self.logbus.ends(self.topic).items()}

    def produce(self, *values: str | None, partition: int = 0, **more: Any) -> None:
        self.logbus.produce(self.topic, values, partition=partition, **more)

    def produce_bytes(self, values: Sequence[bytes | None]) -> None:
        with Producer(self.logbus.cluster) as producer:
            for value in values:
                producer.send(self.topic, value, partition=0)

    def produce_numbers(self, count: int) -> None:
        """Produces the next numbers to each partition."""
        for partition, own in self.produced.items():
            first = len(own)
            values = [json.dumps({"n": number}) for number in range(first, first + count)]
            own += values  # first: a reader may see them at once
            self.produce(*values, partition=partition)

    def load(self, **more: Any) -> Loaded:
        config = LoadConfig(
            self.topic, self.target, self.logbus.zookeeper, **{**self.decoding, **more}
        )
        return run_load(self.spark, config)

    def reprocess(self, start: dict[str, int], **more: Any) -> Reprocessed:
        config = ReprocessConfig(
            topic=self.topic,
            warehouse=self.target,
            zookeeper=self.logbus.zookeeper,
            start=json.dumps({self.topic: start}),
            **{**self.decoding, **more},
        )
        return run_reprocess(self.spark, config)

    def union(self, **more: Any) -> DataFrame:
        given = {"zookeeper": self.logbus.zookeeper, **self.decoding, **more}
        return union_read(self.spark, self.topic, self.target, **given)

    def stream(self, **more: Any) -> HistoryAndStream:
        given = {"zookeeper": self.logbus.zookeeper, **self.decoding, **more}
        return union_stream(self.spark, self.topic, self.target, **given)

    def table(self) -> DataFrame:
        """The target, read without logbus."""
        if isinstance(self.target, str):
            reader = self.spark.read.option("mergeSchema", "true")
            return reader.parquet(str(Path(self.target) / self.topic))
        if isinstance(self.target, DeltaTable):
            return self._of_arrow(deltalake.DeltaTable(self.target.uri).to_pyarrow_table())
        if isinstance(self.target, IcebergTable):
            # Its own scan has empty lists for those that are null; its plan names the files.
            catalog = load_catalog(self.target.catalog, **self.target.properties)
            planned = catalog.load_table(self.target.identifier).scan().plan_files()
            paths = [each.file.file_path.removeprefix("file://") for each in planned]
            return self._of_arrow(pa.concat_tables(map(pq.read_table, paths)))
        return (
            self.spark.read.format("jdbc")
            .options(
                url=self.target.url,
                dbtable=self.target.table,
                driver="org.postgresql.Driver",
                preferTimestampNTZ="true",
                **self.target.properties,
            )
            .load()
        )

    def _of_arrow(self, table: pa.Table) -> DataFrame:
        return self.spark.createDataFrame(table, from_arrow_schema(table.schema))

    def check_whole(self, frame: DataFrame, *, least: dict[int, int]) -> None:
        """Checks that ``frame`` has each record from the first of each partition on, once and
        unchanged, and ``least`` so many of each."""
        found: dict[int, list[Row]] = {0: [], 1: []}
        for partition, offset, value in rows(frame, "partition", "offset", "value"):
            found[partition].append((offset, value.decode()))
        for partition, own in found.items():
            assert own == [*enumerate(self.produced[partition][: len(own)])]
            assert len(own) >= least[partition], (partition, len(own), least)


def rows(frame: DataFrame, *names: str) -> list[Row]:
    """Rows in the order of their offsets."""
    columns = [exact_column(name) for name in names or frame.columns]
    return [tuple(row) for row in frame.orderBy("partition", "offset").select(*columns).collect()]


def columns_of(frame: DataFrame) -> list[tuple[str, str]]:
    """Names and types; a database tells of some columns that they are never null."""
    return [(each.name, each.dataType.simpleString()) for each in frame.schema.fields]


def assert_alike(found: DataFrame, expected: DataFrame) -> None:
    """Asserts that two frames have the same columns and the same rows."""
    for one, other in zip(columns_of(found), columns_of(expected), strict=True):
        assert one == other, (one, other)
    for one, other in zip(rows(found), rows(expected), strict=True):
        assert one == other, (one, other)


def is_of_a_file_that_is_gone(error: Exception) -> bool:
    """Tells whether a read has met a file that a load has rewritten since the read was planned."""
    return "FILE_NOT_EXIST" in str(error)
