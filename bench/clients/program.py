"""``scripts/bench clients``: starts the two logs, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
from contextlib import ExitStack, nullcontext

from bench.clients.report import charts_of
from bench.clients.results import Lines, line
from bench.clients.rows import JAVA_TUNED, ROWS, Bench
from bench.clients.systems import KafkaSystem, LogbusSystem
from bench.clients.work import LIBRDKAFKA_READS
from bench.harness import cluster, console
from bench.machine import described
from bench.peers.kafka import kafka
from bench.peers.kafka_tools import kafka_tools
from bench.program import at_hand, chosen, draw_charts, parsed, parser_of, raw_results
from spark_logbus.client import Cluster


def parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "Producers and consumers in turn with librdkafka's (confluent-kafka) and with Kafka's own "
        "in Java, each measurement in a fresh process.",
        rows={name: row.title for name, row in ROWS.items()},
        rounds=5,
        charts=True,
    )
    parser.add_argument(
        "--records", type=int, help="of each measurement; the default is each row's own number"
    )
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="logbus alone, as for a profile")
    return parser


def main() -> None:
    args = parsed(parser())
    rows = chosen(args.rows, ROWS)
    raw = raw_results(args)
    with ExitStack() as stack:
        peer = None if args.alone else at_hand(stack, "Kafka", lambda: kafka(flushed=False))
        tools = None
        if peer is not None:
            tools = at_hand(stack, "Kafka's Java consumer", lambda: nullcontext(kafka_tools()))
        running = stack.enter_context(cluster())
        client = stack.enter_context(Cluster.from_zookeeper(running.zookeeper))
        bench = Bench(
            logbus=LogbusSystem(running, client, args.partitions),
            kafka=None if peer is None else KafkaSystem(peer, args.partitions),
            tools=tools,
            rounds=args.rounds,
            records=args.records,
            value_bytes=args.value_bytes,
        )
        raw.tell(*conditions(bench))
        lines = Lines()
        for row in rows:
            result = ROWS[row].measured(bench, row)
            raw.add(result)
            console.print(line(result), highlight=False)
            lines.add(result, ROWS[row].targets)
        lines.show()
        draw_charts(args, charts_of(raw.rows))


def conditions(bench: Bench) -> list[str]:
    """The machine, who is measured, and with which settings."""
    lines = [
        *described("pyarrow", "confluent-kafka"),
        f"Values of {bench.value_bytes} bytes, {bench.logbus.partitions} partition(s); medians of "
        f"{bench.rounds} rounds after one that does not count. Ratios are logbus's rate to the "
        "other's.",
        "Acknowledged is what the page cache has: logbus acks=written, flush.policy=os; Kafka "
        "acks=1. In the row one-flushed, what the disk has: acks=flushed; acks=1, "
        "flush.messages=1.",
        "Producers: linger 50 ms, record batches of 1 MiB or 50 records; one-*: no linger. logbus "
        "numbers record batches (its default), librdkafka does not (its default).",
        "logbus's consumer with its defaults.",
    ]
    if bench.kafka is not None:
        # Imported here: an extra, which is there when Kafka runs.
        from bench.clients.librdkafka import versions

        lines += [
            f"Kafka {bench.kafka.server.version}, its broker with its defaults.",
            f"{versions()}: its consumer with {dict(LIBRDKAFKA_READS)}.",
        ]
    if bench.tools is not None:
        lines.append(f"ConsumerPerformance, of Kafka's tools in Java, with {dict(JAVA_TUNED)}.")
    return lines
