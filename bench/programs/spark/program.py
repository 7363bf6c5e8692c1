"""``scripts/bench spark``: starts Spark and the two logs, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from bench.kit.harness import spark_session
from bench.kit.program import Opening, Program
from bench.kit.shapes import PARTITIONS
from bench.programs.spark.logs import KafkaLog, LogbusLog
from bench.programs.spark.rows import COMPARED, ROWS, Bench
from bench.servers.at_hand import at_hand
from bench.servers.kafka import kafka
from bench.servers.logbus import logbus
from bench.servers.tuning import TUNED_SINK, TUNED_SOURCE, shown

RECORDS: Final = 2_000_000
_SMALL: Final = 10  # the part of them that --small takes


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds of how many records, and whether Kafka is measured."""
    parser.add_argument("--records", type=int, default=RECORDS, help="of each topic")
    parser.add_argument("--small", action="store_true", help="a tenth of the records, to try it")
    parser.add_argument("--alone", action="store_true", help="logbus alone, as for a profile")


def open_bench(opening: Opening) -> Bench:
    """Starts both logs, Kafka's if it is at hand and asked for, and a Spark session."""
    args, _, stack, _ = opening
    peer = None if args.alone else at_hand(stack, "Kafka", lambda: kafka(flushed=False))
    return Bench(
        spark=stack.enter_context(spark_session(jars=peer.connector if peer else ())),
        logbus=LogbusLog(stack.enter_context(logbus())),
        kafka=None if peer is None else KafkaLog(peer),
        rounds=args.rounds,
        records=args.records // _SMALL if args.small else args.records,
    )


def conditions(bench: Bench, _: argparse.Namespace) -> Iterator[str]:
    """Tells the number of records, and Kafka's versions and settings."""
    yield (
        f"{bench.records:,} records in {PARTITIONS} partitions; {bench.rounds} rounds after one "
        "that does not count."
    )
    if bench.kafka is not None:
        server = bench.kafka.system
        yield f"Kafka {server.version}; {', '.join(jar.stem for jar in server.connector)}."
        yield (
            f"Tuned means to read with {shown(TUNED_SOURCE)}, and to write with "
            f"{shown(TUNED_SINK)}."
        )


PROGRAM: Final = Program(
    name="spark",
    description="Batch reads and writes of Spark, in turn with Spark's Kafka connector on a Kafka "
    "broker. `scripts/bench stream --kafka` measures streams beside it, `scripts/bench typed "
    "--measures k` topics with a schema.",
    rows=ROWS,
    open_bench=open_bench,
    conditions=conditions,
    comparing=COMPARED,
    add_flags=add_flags,
    packages=("pyspark", "pyarrow", "confluent-kafka"),
)
