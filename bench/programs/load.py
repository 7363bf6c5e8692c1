"""Load a topic into a new warehouse of Parquet files, against a Spark job that writes the same rows
from such files: the same columns, directories, compression, tasks and files; and into tables of a
lake, against the load into files."""

from __future__ import annotations

import argparse
import itertools
import secrets
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq
from pyspark.sql import SparkSession

from bench.kit.comparing import Compared, Comparing
from bench.kit.harness import spark_session
from bench.kit.program import Opening, Program, Whole
from bench.kit.result import Metrics, Rounds
from bench.kit.rounds import SECONDS, Contender, in_turn, timed
from bench.servers.logbus import logbus
from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.load import (
    DeltaTable,
    IcebergTable,
    LayoutChoice,
    LoadConfig,
    Loaded,
    Period,
    run_load,
)
from spark_logbus.load.lake.opening import open_table
from spark_logbus.load.lake.table import Change, LakeVersion
from spark_logbus.load.tables import TableOfLake

TOPIC: Final = "bench"
LOAD, COPY = "run_load", "Spark, from Parquet"
FILES, DELTA, ICEBERG = "Parquet files", "Delta table", "Iceberg table"
EMPTY, FULL = "empty", "10,000 files"
_PIECE: Final = 10_000  # records of a call
_ONE_FILE: Final = str(1 << 40)  # more than any has, so that each task reads one, whole
_SMALL: Final = 1_000_000
_MANY_FILES: Final = 10_000
_FILES_OF_A_COMMIT: Final = 1_000


@dataclass(frozen=True)
class Bench:
    """Topic, session and directory of the load and of the copy."""

    spark: SparkSession
    client: Cluster
    zookeeper: str
    directory: Path
    records: int
    rounds: int

    def load_into(self, target: str | TableOfLake) -> Loaded:
        """Loads the whole topic into a new warehouse or table."""
        loaded = run_load(self.spark, LoadConfig(TOPIC, target, self.zookeeper))
        assert loaded.commit is not None
        assert loaded.commit.records == self.records
        return loaded


def load(bench: Bench) -> Rounds:
    """Loads the topic, and copies the files of a load, in turn; the load with its steps."""
    numbers = itertools.count()
    rows = bench.directory / "rows"
    first = bench.load_into(str(rows)).commit
    files = 0 if first is None else len(first.files)

    def load_once() -> Metrics:
        target, loads = bench.directory / f"load-{next(numbers)}", list[Loaded]()
        metrics = timed(lambda: loads.append(bench.load_into(str(target))), bench.records)
        shutil.rmtree(target)
        return {**metrics, **_steps(loads[0])}

    def copy() -> Metrics:
        target = bench.directory / "copy"
        metrics = timed(lambda: _copy(bench.spark, rows / TOPIC, target), bench.records)
        assert len(list(target.rglob("*.parquet"))) == files
        shutil.rmtree(target)
        return metrics

    contenders = [Contender(COPY, copy), Contender(LOAD, load_once)]
    return in_turn(contenders, lambda contender, _: contender.measure(), rounds=bench.rounds)


def _copy(spark: SparkSession, rows: Path, target: Path) -> None:
    for key in ("maxPartitionBytes", "openCostInBytes"):
        spark.conf.set(f"spark.sql.files.{key}", _ONE_FILE)
    spark.read.parquet(str(rows)).write.partitionBy("date").parquet(str(target))
    for key in ("maxPartitionBytes", "openCostInBytes"):
        spark.conf.unset(f"spark.sql.files.{key}")


def _steps(loaded: Loaded) -> Metrics:
    return {f"{step}, s": took for step, took in loaded.steps.items()}


def _table(form: str, directory: Path) -> TableOfLake:
    directory.mkdir(parents=True)
    if form == DELTA:
        return DeltaTable(str(directory / "table"))
    catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}
    return IcebergTable("bench", "lake.table", {**catalog, "warehouse": f"file://{directory}"})


def lake(bench: Bench) -> Rounds:
    """Loads the topic into files and into a table of each format, in turn, with the steps."""
    numbers = itertools.count()

    def load_into(contender: Contender) -> Metrics:
        directory, loads = bench.directory / f"lake-{next(numbers)}", list[Loaded]()
        into = str(directory) if contender.name == FILES else _table(contender.name, directory)
        metrics = timed(lambda: loads.append(bench.load_into(into)), bench.records)
        shutil.rmtree(directory)
        return {**metrics, **_steps(loads[0])}

    contenders = [Contender(name, dict) for name in (FILES, DELTA, ICEBERG)]
    return in_turn(contenders, lambda contender, _: load_into(contender), rounds=bench.rounds)


def small_loads(bench: Bench) -> Rounds:
    """Loads a record at a time into tables that are empty, and that have many files, in turn."""
    topics = Admin(bench.client)

    def load_one(topic: str, table: TableOfLake) -> Loaded:
        with Producer(bench.client) as producer:
            producer.send(topic, b"value").result()
        config = LoadConfig(topic, table, bench.zookeeper, layout=LayoutChoice(period=Period.NONE))
        return run_load(bench.spark, config)

    def contender(form: str, size: str) -> Contender:
        name = f"{form}, {size}"
        topic = "-".join(name.lower().replace(",", "").split())
        topics.create_topic(topic, partitions=1)
        table = _table(form, bench.directory / topic)
        load_one(topic, table)
        if size == FULL:
            _add_files(table, _MANY_FILES)

        def measure() -> Metrics:
            loads = list[Loaded]()
            metrics = timed(lambda: loads.append(load_one(topic, table)), 1)
            return {**metrics, **_steps(loads[0])}

        return Contender(name, measure)

    contenders = [contender(form, size) for form in (DELTA, ICEBERG) for size in (EMPTY, FULL)]
    return in_turn(contenders, lambda each, _: each.measure(), rounds=bench.rounds)


def _add_files(table: TableOfLake, count: int) -> None:
    """Commits so many copies of the table's one file, under names of their own."""
    opened = open_table(table)
    version = _version(opened.newest())
    (first,) = version.files()
    writer = version.writer()
    storage = writer.filesystem()
    name = writer.path((), first.path.rpartition("/")[2])
    with storage.open_input_file(name) as file:
        data = file.read()
    footer = pq.read_metadata(pa.BufferReader(data))
    for start in range(0, count, _FILES_OF_A_COMMIT):
        added = []
        for number in range(start, start + _FILES_OF_A_COMMIT):
            path = writer.path((), f"part-{number}.parquet")
            with storage.open_output_stream(path) as copy:
                copy.write(data)
            added.append(writer.describe(path, len(data), footer, ()))
        version = _version(opened.newest())
        progress = version.progress()
        assert progress is not None
        version.commit(Change(replace(progress, token=secrets.randbits(63)), added))


def _version(version: LakeVersion | None) -> LakeVersion:
    assert version is not None, "a load has made the table"
    return version


def _fill(client: Cluster, records: int, value_bytes: int, partitions: int) -> None:
    """Sends values of hexadecimal digits at random, which compress as texts do, by half."""
    draw = np.random.default_rng(1)
    with Producer(client) as producer:
        for number in range(records // _PIECE):
            digits = draw.bytes(_PIECE * value_bytes // 2).hex().encode()
            values = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(value_bytes), _PIECE, [None, pa.py_buffer(digits)]
            )
            table = pa.table({"value": values.cast(pa.binary())})
            producer.send_arrow(TOPIC, table, partition=number % partitions)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what the topic holds."""
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--small", action="store_true", help=f"{_SMALL:,} records, to try it")
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=4)


def open_bench(opening: Opening) -> Bench:
    """Starts logbus and a Spark session, and fills the topic."""
    args, _, stack, _ = opening
    records = _SMALL if args.small else args.records
    system = stack.enter_context(logbus())
    spark = stack.enter_context(spark_session())
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="logbus-bench-"))
    system.create_topic(TOPIC, partitions=args.partitions, flushed=True)
    _fill(system.client, records, args.value_bytes, args.partitions)
    return Bench(spark, system.client, system.address, Path(directory), records, args.rounds)


PROGRAM: Final = Program(
    name="load",
    description=__doc__,
    rows={
        "load": Whole("a topic into Parquet files", "s", load),
        "lake": Whole("a topic into tables of a lake", "s", lake),
        "record": Whole("a record into a table of a lake", "s", small_loads),
    },
    open_bench=open_bench,
    comparing=Comparing(
        {SECONDS: ""},
        own=f"{LOAD}|{DELTA}|{ICEBERG}",
        goals={
            Compared("load", "", LOAD, COPY): 0.8,
            Compared("lake", "", DELTA, FILES): 0.95,
            Compared("lake", "", ICEBERG, FILES): 0.95,
        },
    ),
    add_flags=add_flags,
    packages=("pyspark", "pyarrow", "deltalake", "pyiceberg"),
)
