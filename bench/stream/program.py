"""``scripts/bench stream``: builds what is compared, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from bench.baselines import Nothing
from bench.harness import cluster, spark_session
from bench.machine import described
from bench.peers.kafka import kafka
from bench.peers.tuning import TUNED_SOURCE, shown
from bench.program import at_hand, chosen, draw_charts, parsed, parser_of, raw_results
from bench.shapes import Shape
from bench.stream.contenders import KafkaSource, LogbusSource
from bench.stream.logbus_rows import ROWS as OF_LOGBUS
from bench.stream.measuring import PARTITIONS, Bench
from bench.stream.report import charts_of
from bench.stream.rows import ROWS as COMPARED
from bench.stream.rows import SHAPED
from spark_logbus.client import Cluster

ROWS = {**COMPARED, **SHAPED, **OF_LOGBUS}


def parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "Streams of Spark, measured in turn.",
        rows=list(ROWS),
        by_default=COMPARED,
        rounds=5,
        charts=True,
    )
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
    return parser


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def main() -> None:
    args = parsed(parser())
    rows = chosen(args.rows, ROWS)
    raw = raw_results(args)
    with ExitStack() as stack:
        peer = at_hand(stack, "Kafka", lambda: kafka(flushed=args.flushed)) if args.kafka else None
        running = stack.enter_context(
            cluster(log={"flush_policy": "logbus" if args.flushed else "os"})
        )
        client = stack.enter_context(Cluster.from_zookeeper(running.zookeeper))
        spark = stack.enter_context(spark_session(jars=peer.connector if peer else ()))
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
        spark.dataSource.register(Nothing)
        bench = Bench(
            spark=spark,
            logbus=LogbusSource(
                spark, running.zookeeper, client, args.flushed, dict(args.option), args.group
            ),
            kafka=None if peer is None else KafkaSource(spark, peer, args.flushed),
            rounds=args.rounds,
            batches=args.batches,
            records=args.records,
            shape=Shape(args.value_bytes),
        )
        raw.tell(*conditions(bench, args))
        for row in rows:
            result = ROWS[row](bench, row)
            raw.add(result)
            result.show()
        draw_charts(args, charts_of(raw.rows))


def conditions(bench: Bench, args: argparse.Namespace) -> list[str]:
    """The machine, the versions and the settings."""
    lines = [
        *described("pyspark", "pyarrow", "confluent-kafka"),
        f"{PARTITIONS} partitions, values of {bench.shape.value_bytes} bytes, large reads of "
        f"{bench.records:,} records; {bench.rounds} rounds of {bench.batches} micro-batches after "
        "one that does not count.",
        f"Acknowledged is what the {'disk' if args.flushed else 'page cache'} has.",
    ]
    if args.option or args.group:
        options = ", ".join(f"{name}={value}" for name, value in args.option)
        lines.append(f"logbus's streams with {options or 'no options'}, group {args.group}.")
    if bench.kafka is not None:
        server = bench.kafka.server
        jars = ", ".join(jar.stem for jar in server.connector)
        lines.append(f"Kafka {server.version}; {jars}; tuned means {shown(TUNED_SOURCE)}.")
    return lines
