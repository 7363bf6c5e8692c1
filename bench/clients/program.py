"""``scripts/bench clients``: starts the two logs, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
import platform
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from bench.clients.results import Lines, line
from bench.clients.rows import JAVA_TUNED, ROWS, Bench
from bench.clients.systems import KafkaSystem, LogbusSystem
from bench.harness import cluster, console
from bench.peers import PeerUnavailableError
from bench.peers.kafka import kafka
from bench.peers.kafka_tools import KafkaTools, kafka_tools
from bench.stream.results import Csv
from spark_logbus.client import Cluster


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Producers and consumers in turn with librdkafka's (confluent-kafka) and "
        "with Kafka's own in Java, each measurement in a fresh process."
    )
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=5, help="after one that does not count")
    parser.add_argument(
        "--records", type=int, help="of each measurement; the default is each row's own number"
    )
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="logbus alone, as for a profile")
    parser.add_argument("--csv", type=Path, help="a file for the result of each round")
    return parser


def main() -> None:
    args = parser().parse_args()
    rows = args.rows.split(",")
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise SystemExit(f"No row is called {', '.join(unknown)}; use {', '.join(ROWS)}.")
    with ExitStack() as stack, Csv(args.csv) as raw:
        peer: KafkaSystem | None = None
        tools: KafkaTools | None = None
        if not args.alone:
            try:
                peer = KafkaSystem(stack.enter_context(kafka(flushed=False)), args.partitions)
                tools = kafka_tools()
            except PeerUnavailableError as error:
                console.print(f"A peer is left out, as it is not at hand: {error}", markup=False)
        running = stack.enter_context(cluster())
        client = stack.enter_context(Cluster.from_zookeeper(running.zookeeper))
        bench = Bench(
            logbus=LogbusSystem(running, client, args.partitions),
            kafka=peer,
            tools=tools,
            rounds=args.rounds,
            records=args.records,
            value_bytes=args.value_bytes,
        )
        _describe(bench)
        lines = Lines()
        for row in rows:
            result = ROWS[row].measured(bench, row)
            raw.add(result)
            console.print(line(result), highlight=False)
            lines.add(result, ROWS[row].targets)
        lines.show()


def _describe(bench: Bench) -> None:
    """Who is measured, and with which settings."""
    logbus = version("logbus")
    lines = [
        f"Values of {bench.value_bytes} bytes, {bench.logbus.partitions} partition(s); medians of "
        f"{bench.rounds} rounds after one that does not count. Ratios are logbus's rate to the "
        "other's.",
        "Acknowledged is what the page cache has: logbus acks=written, flush.policy=os; Kafka "
        "acks=1. In the row one-flushed, what the disk has: acks=flushed; acks=1, "
        "flush.messages=1.",
        "Producers: linger 50 ms, record batches of 1 MiB or 50 records; one-*: no linger. logbus "
        "numbers record batches (its default), librdkafka does not (its default).",
        f"logbus {logbus}, Python {platform.python_version()}: its consumer with its defaults.",
    ]
    if bench.kafka is not None:
        # Imported here: an extra, which is there when Kafka runs.
        from bench.clients.librdkafka import CONSUMER_TUNED, versions

        lines += [
            f"Kafka {bench.kafka.server.version}, its broker with its defaults.",
            f"{versions()}: its consumer with {dict(CONSUMER_TUNED)}.",
        ]
    if bench.tools is not None:
        lines.append(f"ConsumerPerformance, of Kafka's tools in Java, with {dict(JAVA_TUNED)}.")
    for each in lines:
        console.print(each, markup=False, highlight=False)
