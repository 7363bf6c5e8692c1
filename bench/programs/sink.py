"""Micro-batches written from one topic to another: the time that exactly once adds to each."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.kit.comparing import Comparing
from bench.kit.harness import spark_session
from bench.kit.program import Opening, Program, Whole
from bench.kit.result import Metrics, Rounds
from bench.kit.rounds import Contender, in_turn
from bench.programs.stream.queries import WHOLE, phases_of
from bench.servers.logbus import logbus
from spark_logbus.client import Producer

ONCE: Final = "exactly-once"
WAYS: Final = ("at-least-once", ONCE)
_WARM_UP: Final = 10  # Spark's own first micro-batches take longer
_PHASES: Final = (WHOLE, "addBatch", "walCommit", "commitOffsets")


@dataclass(frozen=True)
class Bench:
    """Session and address that all writes share; the input is filled."""

    spark: SparkSession
    zookeeper: str
    args: argparse.Namespace


def write(bench: Bench) -> Rounds:
    """Writes the same micro-batches in both ways in turn."""
    contenders = [Contender(way, lambda way=way: _write(bench, way)) for way in WAYS]  # type: ignore[misc]
    return in_turn(contenders, lambda each, _: each.measure(), rounds=bench.args.rounds)


def _write(bench: Bench, way: str) -> Metrics:
    """Runs one query over the whole input, and returns percentiles of its phases."""
    source = bench.spark.readStream.format("logbus").option("zookeeper", bench.zookeeper)
    source = source.option("maxOffsetsPerTrigger", str(bench.args.records))
    rows = source.option("startingOffsets", "earliest").load("input").select("value")
    sink = rows.writeStream.format("logbus").option("zookeeper", bench.zookeeper)
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as checkpoint:
        sink = sink.option("topic", "output").option("checkpointLocation", checkpoint)
        query = sink.option("delivery", way).trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [one for one in query.recentProgress if one["numInputRows"]]
    phases = phases_of(progress[_WARM_UP:])
    return {
        f"{phase} p{percent}, ms": statistics.quantiles(phases[phase], n=100, method="inclusive")[
            percent - 1
        ]
        for phase in _PHASES
        for percent in (50, 99)
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the number and the size of micro-batches."""
    parser.add_argument("--records", type=int, default=5_000, help="of each micro-batch")
    parser.add_argument("--micro-batches", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=2)


def open_bench(opening: Opening) -> Bench:
    """Starts logbus and a Spark session, and fills the input."""
    args, _, stack, _ = opening
    system = stack.enter_context(logbus())
    spark = stack.enter_context(spark_session())
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    for topic in ("input", "output"):
        system.create_topic(topic, partitions=args.partitions, flushed=True)
    with Producer(system.client) as producer:
        for start in range(0, args.records * (args.micro_batches + _WARM_UP), 5_000):
            values = [b"%0200d" % number for number in range(start, start + 5_000)]
            producer.send_arrow("input", pa.table({"value": pa.array(values, pa.binary())}))
    return Bench(spark, system.address, args)


PROGRAM: Final = Program(
    name="sink",
    description=__doc__,
    rows={"write": Whole("micro-batches of 200-byte records", "ms", write)},
    open_bench=open_bench,
    comparing=Comparing({f"{WHOLE} p{each}, ms": f"p{each}" for each in (50, 99)}, own=ONCE),
    rounds=3,
    add_flags=add_flags,
    packages=("pyspark", "pyarrow"),
)
