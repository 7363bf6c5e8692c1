"""Load a topic into a new warehouse of Parquet files, against a Spark job that writes the same rows
from such files: the same columns, directories, compression, tasks and files."""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from rich.table import Table

from bench.harness import Contender, cluster, console, print_ratios, spark_session, timed_in_turn
from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.load import LoadConfig, Loaded, run_load

TOPIC = "bench"
TARGET = 0.8
_PIECE = 10_000  # records of a call
_ONE_FILE = str(1 << 40)  # more than any has, so that each task reads one, whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--small", action="store_true", help="1,000,000 records, to try it")
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    records = 1_000_000 if arguments.small else arguments.records
    with (
        cluster() as running,
        spark_session() as spark,
        tempfile.TemporaryDirectory(prefix="logbus-bench-") as name,
    ):
        directory, numbers, loads = Path(name), itertools.count(), list[Loaded]()
        with Cluster.from_zookeeper(running.zookeeper) as client:
            _fill(client, records, arguments.value_bytes, arguments.partitions)

        def load_into(target: Path) -> Loaded:
            loaded = run_load(spark, LoadConfig(TOPIC, str(target), running.zookeeper))
            assert loaded.commit is not None
            assert loaded.commit.records == records
            return loaded

        def load() -> None:
            target = directory / f"load-{next(numbers)}"
            loads.append(load_into(target))
            shutil.rmtree(target)

        rows = directory / "rows"
        first = load_into(rows).commit
        files = 0 if first is None else len(first.files)
        took = timed_in_turn(
            [
                Contender(
                    "Spark, from Parquet",
                    lambda: _copy(spark, rows / TOPIC, directory / "copy", files),
                ),
                Contender("run_load", load),
            ],
            rounds=arguments.rounds,
        )
    print_ratios(
        f"Write {records:,} records of {arguments.value_bytes} bytes in {files:,} Parquet files",
        took,
        baseline="Spark, from Parquet",
        records=records,
        target=TARGET,
    )
    _print_steps(loads[1:])


def _fill(client: Cluster, records: int, value_bytes: int, partitions: int) -> None:
    """Values of hexadecimal digits at random, which compress as texts do, by half."""
    Admin(client).create_topic(TOPIC, partitions=partitions)
    draw = np.random.default_rng(1)
    with Producer(client) as producer:
        for number in range(records // _PIECE):
            digits = draw.bytes(_PIECE * value_bytes // 2).hex().encode()
            values = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(value_bytes), _PIECE, [None, pa.py_buffer(digits)]
            )
            table = pa.table({"value": values.cast(pa.binary())})
            producer.send_arrow(TOPIC, table, partition=number % partitions)


def _copy(spark: SparkSession, rows: Path, target: Path, files: int) -> None:
    for key in ("maxPartitionBytes", "openCostInBytes"):
        spark.conf.set(f"spark.sql.files.{key}", _ONE_FILE)
    spark.read.parquet(str(rows)).write.partitionBy("date").parquet(str(target))
    assert len(list(target.rglob("*.parquet"))) == files
    shutil.rmtree(target)
    for key in ("maxPartitionBytes", "openCostInBytes"):
        spark.conf.unset(f"spark.sql.files.{key}")


def _print_steps(loads: list[Loaded]) -> None:
    table = Table("step of a load", "seconds: median", title="Where the time of run_load goes")
    table.columns[1].justify = "right"
    for step in loads[0].steps:
        table.add_row(step, f"{statistics.median(each.steps[step] for each in loads):.2f}")
    console.print(table)
