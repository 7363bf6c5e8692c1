"""Load a topic into a new warehouse of Parquet files, against a Spark job that writes the same rows
from such files: the same columns, directories, compression, tasks and files."""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.kit.comparing import Compared, Comparing
from bench.kit.harness import spark_session
from bench.kit.program import Opening, Program, Whole
from bench.kit.result import Metrics, Rounds
from bench.kit.rounds import SECONDS, Contender, in_turn, timed
from bench.servers.logbus import logbus
from spark_logbus.client import Cluster, Producer
from spark_logbus.load import LoadConfig, Loaded, run_load

TOPIC: Final = "bench"
LOAD, COPY = "run_load", "Spark, from Parquet"
_PIECE: Final = 10_000  # records of a call
_ONE_FILE: Final = str(1 << 40)  # more than any has, so that each task reads one, whole
_SMALL: Final = 1_000_000


@dataclass(frozen=True)
class Bench:
    """Topic, session and directory of the load and of the copy."""

    spark: SparkSession
    zookeeper: str
    directory: Path
    records: int
    rounds: int

    def load_into(self, target: Path) -> Loaded:
        """Loads the whole topic into a new warehouse."""
        loaded = run_load(self.spark, LoadConfig(TOPIC, str(target), self.zookeeper))
        assert loaded.commit is not None
        assert loaded.commit.records == self.records
        return loaded


def load(bench: Bench) -> Rounds:
    """Loads the topic, and copies the files of a load, in turn; the load with its steps."""
    numbers = itertools.count()
    rows = bench.directory / "rows"
    first = bench.load_into(rows).commit
    files = 0 if first is None else len(first.files)

    def load_once() -> Metrics:
        target, loads = bench.directory / f"load-{next(numbers)}", list[Loaded]()
        metrics = timed(lambda: loads.append(bench.load_into(target)), bench.records)
        shutil.rmtree(target)
        return {**metrics, **{f"{step}, s": took for step, took in loads[0].steps.items()}}

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
    return Bench(spark, system.address, Path(directory), records, args.rounds)


PROGRAM: Final = Program(
    name="load",
    description=__doc__,
    rows={"load": Whole("a topic into Parquet files", "s", load)},
    open_bench=open_bench,
    comparing=Comparing({SECONDS: ""}, own=LOAD, goals={Compared("load", "", LOAD, COPY): 0.8}),
    add_flags=add_flags,
    packages=("pyspark", "pyarrow"),
)
