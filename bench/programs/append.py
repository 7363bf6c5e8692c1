"""Write to a topic from Spark, exactly once and at least once, against an Arrow writer that
discards and, with --kafka, Spark's Kafka sink."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from bench.kit.baselines import Discard
from bench.kit.comparing import Compared, Comparing
from bench.kit.harness import spark_session
from bench.kit.program import Opening, Program, Whole
from bench.kit.result import Rounds
from bench.kit.rounds import SECONDS, works_in_turn
from bench.servers import ServerUnavailableError
from bench.servers.kafka import Kafka, kafka
from bench.servers.logbus import logbus
from bench.servers.tuning import TUNED_SINK

DISCARDS: Final = "discards"
GOALS: Final = {"exactly once": 0.70, "at least once": 0.80}
TOPIC: Final = "bench"


@dataclass(frozen=True)
class Bench:
    """Servers and session that all writes share."""

    spark: SparkSession
    zookeeper: str
    kafka: Kafka | None
    args: argparse.Namespace


def append(bench: Bench) -> Rounds:
    """Writes the same rows in each way in turn, and counts what is stored."""
    args = bench.args
    value = f"cast(rpad(cast(id as string), {args.value_bytes}, 'x') as binary) as value"
    rows = bench.spark.range(0, args.records, 1, 2).selectExpr(value)
    own = {"zookeeper": bench.zookeeper, "topic": TOPIC}
    works: dict[str, Callable[[], object]] = {DISCARDS: _write(rows, "discard")}
    for name in GOALS:
        works[name] = _write(rows, "logbus", **own, delivery=name.replace(" ", "-"))
    if bench.kafka is not None:
        server = {"kafka.bootstrap.servers": bench.kafka.bootstrap}
        works["Kafka, tuned"] = _write(rows, "kafka", topic=TOPIC, **server, **TUNED_SINK)
    took = works_in_turn(works, records=args.records, rounds=args.rounds)
    each = args.records * (args.rounds + 1)
    stored = {"zookeeper": bench.zookeeper, "subscribe": TOPIC}
    _check(bench.spark, each * len(GOALS), "logbus", **stored)
    if bench.kafka is not None:
        _check(bench.spark, each, "kafka", subscribe=TOPIC, **server)
    return took


def _write(rows: DataFrame, source: str, **options: str) -> Callable[[], None]:
    return lambda: rows.write.format(source).mode("append").options(**options).save()


def _check(spark: SparkSession, stored: int, source: str, **options: str) -> None:
    count = spark.read.format(source).options(**options).load().count()
    if count != stored:
        raise SystemExit(f"Expected {stored} records in the topic of {source}, got {count}.")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what is written, and to whom."""
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")
    parser.add_argument(
        "--kafka",
        action="store_true",
        help="also Spark's Kafka sink, tuned, each append flushed",
    )


def open_bench(opening: Opening) -> Bench:
    """Starts logbus, Kafka if it is asked for, and a Spark session; makes the topics."""
    args, _, stack, _ = opening
    system = stack.enter_context(logbus(tcp_only=args.tcp))
    system.create_topic(TOPIC, partitions=args.partitions, flushed=True)
    peer: Kafka | None = None
    if args.kafka:
        try:
            peer = stack.enter_context(kafka(flushed=True))
        except ServerUnavailableError as error:
            raise SystemExit(str(error)) from error
        peer.create_topic(TOPIC, partitions=args.partitions)
    spark = stack.enter_context(spark_session(jars=peer.connector if peer else ()))
    spark.dataSource.register(Discard)
    return Bench(spark, system.address, peer, args)


PROGRAM: Final = Program(
    name="append",
    description=__doc__,
    rows={"append": Whole("write to a topic", "s", append)},
    open_bench=open_bench,
    comparing=Comparing(
        {SECONDS: ""},
        own="|".join(GOALS),
        goals={Compared("append", "", own, DISCARDS): goal for own, goal in GOALS.items()},
    ),
    add_flags=add_flags,
    packages=("pyspark", "pyarrow"),
)
