"""``scripts/bench stream``: builds what is compared, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from bench.baselines import Nothing
from bench.harness import cluster, console, spark_session
from bench.peers import PeerUnavailableError
from bench.peers.kafka import Kafka, kafka
from bench.stream.contenders import KafkaSource, LogbusSource
from bench.stream.logbus_rows import ROWS as OF_LOGBUS
from bench.stream.measuring import Bench
from bench.stream.results import Csv
from bench.stream.rows import ROWS as COMPARED
from spark_logbus.client import Cluster

ROWS = {**COMPARED, **OF_LOGBUS}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Streams of Spark, measured in turn.")
    parser.add_argument("--kafka", action="store_true", help="in turn with Kafka, if at hand")
    parser.add_argument(
        "--rows",
        default=",".join(COMPARED),
        help=f"of {', '.join(ROWS)}; default: all but {', '.join(OF_LOGBUS)}",
    )
    parser.add_argument("--rounds", type=int, default=5)
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
    parser.add_argument("--csv", type=Path, help="a file for the result of each round")
    return parser


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def main() -> None:
    args = parser().parse_args()
    rows = args.rows.split(",")
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise SystemExit(f"No row is called {', '.join(unknown)}; use {', '.join(ROWS)}.")
    with ExitStack() as stack, Csv(args.csv) as raw:
        peer: Kafka | None = None
        if args.kafka:
            try:
                peer = stack.enter_context(kafka(flushed=args.flushed))
            except PeerUnavailableError as error:
                console.print(f"Kafka is left out, as it is not at hand: {error}", markup=False)
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
            value_bytes=args.value_bytes,
        )
        for row in rows:
            result = ROWS[row](bench, row)
            raw.add(result)
            result.show()
