"""``scripts/bench stream``: builds what is compared, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from bench.kit.baselines import Nothing
from bench.kit.harness import spark_session
from bench.kit.program import Opening, Program
from bench.kit.shapes import Shape
from bench.programs.stream.contenders import KafkaSource, LogbusSource
from bench.programs.stream.logbus_rows import ROWS as OF_LOGBUS
from bench.programs.stream.measuring import PARTITIONS, Bench
from bench.programs.stream.rows import COMPARED, ROWS, SHAPED
from bench.servers.at_hand import at_hand
from bench.servers.kafka import kafka
from bench.servers.logbus import logbus
from bench.servers.tuning import TUNED_SOURCE, shown


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what streams are measured with."""
    parser.add_argument("--kafka", action="store_true", help="in turn with Kafka, if at hand")
    parser.add_argument("--batches", type=int, default=40, help="micro-batches timed in a round")
    parser.add_argument("--records", type=int, default=4_000_000, help="of a large read")
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument(
        "--flushed",
        action="store_true",
        help="records are on the disk before they are acknowledged or read; without, both logs "
        "leave that to the operating system, as Kafka does by default",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=_option,
        metavar="NAME=VALUE",
        help="of logbus's streams, so that modes can be compared; repeatable",
    )
    parser.add_argument("--group", help="consumer group of logbus's streams")


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def open_bench(opening: Opening) -> Bench:
    """Starts both logs, Kafka's if it is at hand and asked for, and a Spark session."""
    args, _, stack, _ = opening
    peer = at_hand(stack, "Kafka", lambda: kafka(flushed=args.flushed)) if args.kafka else None
    policy = {"flush_policy": "logbus" if args.flushed else "os"}
    system = stack.enter_context(logbus(log=policy))
    spark = stack.enter_context(spark_session(jars=peer.connector if peer else ()))
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    spark.dataSource.register(Nothing)
    return Bench(
        spark=spark,
        logbus=LogbusSource(spark, system, args.flushed, dict(args.option), args.group),
        kafka=None if peer is None else KafkaSource(spark, peer, args.flushed),
        rounds=args.rounds,
        batches=args.batches,
        records=args.records,
        shape=Shape(args.value_bytes),
    )


def conditions(bench: Bench, args: argparse.Namespace) -> Iterator[str]:
    """Tells the numbers of records, and the settings of both logs."""
    yield (
        f"{PARTITIONS} partitions, values of {bench.shape.value_bytes} bytes, large reads of "
        f"{bench.records:,} records; {bench.rounds} rounds of {bench.batches} micro-batches after "
        "one that does not count."
    )
    yield f"Acknowledged is what the {'disk' if args.flushed else 'page cache'} has."
    if args.option or args.group:
        options = ", ".join(f"{name}={value}" for name, value in args.option)
        yield f"logbus's streams with {options or 'no options'}, group {args.group}."
    if bench.kafka is not None:
        server = bench.kafka.system
        jars = ", ".join(jar.stem for jar in server.connector)
        yield f"Kafka {server.version}; {jars}; tuned means {shown(TUNED_SOURCE)}."


PROGRAM: Final = Program(
    name="stream",
    description="Streams of Spark, measured in turn.",
    rows={**ROWS, **SHAPED, **OF_LOGBUS},
    by_default=ROWS,
    open_bench=open_bench,
    conditions=conditions,
    comparing=COMPARED,
    add_flags=add_flags,
    packages=("pyspark", "pyarrow", "confluent-kafka"),
)
