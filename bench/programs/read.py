"""Batch read of a topic into Spark, against a source that yields ready-made Arrow batches."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.kit.baselines import ALL_COLUMNS, ReadyMade, ready_made, write_ready_made
from bench.kit.comparing import Compared, Comparing
from bench.kit.harness import console, drain, spark_session
from bench.kit.program import Opening, Program, Whole
from bench.kit.result import LOGBUS, Rounds
from bench.kit.rounds import SECONDS, works_in_turn
from bench.servers.logbus import Logbus, logbus
from spark_logbus.client import Producer

READY_MADE: Final = "ready-made Arrow"
PIECE: Final = 50_000

# Ready-made arrow batches of 50 MB are read at little more than half the speed of those of 16 MB.
CEILING_BYTES: Final = 10_000_000

# What share of the records each partition of each topic holds, by name of the layout.
LAYOUTS: Final[dict[str, list[list[float]]]] = {
    "even": [[0.5, 0.5]],
    "hot": [[0.9, *[0.1 / 9] * 9]],
    "small": [[1 / 64]] * 64,
}
TITLES: Final = {
    "even": "two partitions",
    "hot": "90 % in one of ten partitions",
    "small": "64 topics",
}


@dataclass(frozen=True)
class Bench:
    """Topics and session that both reads share."""

    spark: SparkSession
    zookeeper: str
    ceiling: Path
    """File of ready-made arrow batches."""
    records: int
    rounds: int


def read(bench: Bench, *, schema: str | None) -> Rounds:
    """Reads the columns of a schema, or all, from both sources in turn."""

    def from_memory() -> None:
        drain(
            bench.spark.read.format("ready_made")
            .schema(schema or ALL_COLUMNS)
            .option("rows", bench.records)
            .load(str(bench.ceiling))
        )

    def logbus() -> None:
        reader = bench.spark.read.format("logbus").option("zookeeper", bench.zookeeper)
        reader = reader.option("subscribePattern", "bench-.*")
        drain((reader.schema(schema) if schema else reader).load())

    works = {READY_MADE: from_memory, LOGBUS: logbus}
    return works_in_turn(works, records=bench.records, rounds=bench.rounds)


def fill(system: Logbus, *, layout: str, records: int, value_bytes: int, piece: int) -> int:
    """Fills topics with about ``records`` values, and returns the number that it came to.

    ``piece`` of them are one arrow batch that the producer is given, and cuts into record batches
    of at most 4 MiB.
    """
    written = 0
    with Producer(system.client) as producer:
        for number, shares in enumerate(LAYOUTS[layout]):
            topic = f"bench-{number}"
            system.create_topic(topic, partitions=len(shares), flushed=True)
            for partition, part in enumerate(shares):
                left = round(records * part)
                written += left
                while left > 0:
                    count = min(left, piece)
                    values = pa.array([b"v" * value_bytes] * count, pa.binary())
                    arrow_batch = pa.RecordBatch.from_arrays([values], names=["value"])
                    producer.send_arrow(topic, arrow_batch, partition=partition)
                    left -= count
        producer.flush()
    return written


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what the topics hold, and how logbus is reached."""
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="even")
    parser.add_argument(
        "--piece", type=int, default=PIECE, help="records of an arrow batch given to the producer"
    )
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")


def open_bench(opening: Opening) -> Bench:
    """Starts logbus and a Spark session, and fills the topics."""
    args, _, stack, _ = opening
    system = stack.enter_context(logbus(tcp_only=args.tcp))
    spark = stack.enter_context(spark_session())
    spark.dataSource.register(ReadyMade)
    with console.status("Filling the topics ..."):
        records = fill(
            system,
            layout=args.layout,
            records=args.records,
            value_bytes=args.value_bytes,
            piece=args.piece,
        )
    reader = spark.read.format("logbus").option("zookeeper", system.address)
    count = reader.option("subscribePattern", "bench-.*").load().count()
    if count != records:
        raise SystemExit(f"Expected {records} records in the topics, got {count}.")
    ceiling = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ready-made.arrow"
    rows = min(PIECE, max(1, CEILING_BYTES // args.value_bytes))
    write_ready_made(ceiling, [ready_made(rows, args.value_bytes)])
    return Bench(spark, system.address, ceiling, records, args.rounds)


PROGRAM: Final = Program(
    name="read",
    description=__doc__,
    rows={
        "all": Whole("all columns", "s", partial(read, schema=None)),
        "value": Whole("value only", "s", partial(read, schema="value binary")),
    },
    open_bench=open_bench,
    comparing=Comparing(
        {SECONDS: ""},
        goals={Compared(row, "", LOGBUS, READY_MADE): 0.85 for row in ("all", "value")},
    ),
    add_flags=add_flags,
    packages=("pyspark", "pyarrow"),
)
