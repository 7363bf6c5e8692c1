"""``scripts/bench spark``: starts Spark and the two logs, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from bench.clients.systems import KafkaSystem, LogbusSystem
from bench.harness import cluster, console, spark_session
from bench.machine import described
from bench.peers.kafka import Kafka, kafka
from bench.peers.tuning import TUNED_SINK, TUNED_SOURCE, shown
from bench.program import at_hand, chosen, draw_charts, parsed, parser_of, raw_results
from bench.shapes import PARTITIONS
from bench.spark.logs import KafkaLog, LogbusLog
from bench.spark.report import charts_of
from bench.spark.results import Line, lines_of, show, told, what_of
from bench.spark.rows import ROWS, Bench
from spark_logbus.client import Cluster

RECORDS: Final = 2_000_000
_SMALL: Final = 10  # the part of them that --small takes


def parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "Batch reads and writes of Spark, in turn with Spark's Kafka connector on a Kafka broker. "
        "`scripts/bench stream --kafka` measures streams beside it, `scripts/bench typed "
        "--measures k` topics with a schema.",
        rows=list(ROWS),
        rounds=5,
        charts=True,
    )
    parser.add_argument("--records", type=int, default=RECORDS, help="of each topic")
    parser.add_argument("--small", action="store_true", help="a tenth of the records, to try it")
    parser.add_argument("--alone", action="store_true", help="logbus alone, as for a profile")
    return parser


def main() -> None:
    args = parsed(parser())
    rows = chosen(args.rows, ROWS)
    records = args.records // _SMALL if args.small else args.records
    lines: list[Line] = []
    raw = raw_results(args)
    with ExitStack() as stack:
        peer = None if args.alone else at_hand(stack, "Kafka", lambda: kafka(flushed=False))
        running = stack.enter_context(cluster())
        client = stack.enter_context(Cluster.from_zookeeper(running.zookeeper))
        spark = stack.enter_context(spark_session(jars=peer.connector if peer else ()))
        raw.tell(*conditions(peer, records=records, rounds=args.rounds))
        bench = Bench(
            spark=spark,
            logbus=LogbusLog(LogbusSystem(running, client, PARTITIONS)),
            kafka=None if peer is None else KafkaLog(KafkaSystem(peer, PARTITIONS)),
            rounds=args.rounds,
            records=records,
        )
        for row in rows:
            for result in ROWS[row](bench, row):
                raw.add(replace(result, row=f"{row}, {what_of(result)}"))
                console.print(told(result), highlight=False)
                lines += lines_of(row, what_of(result), result.rounds)
        if lines:
            show(lines)
        draw_charts(args, charts_of(raw.rows))


def conditions(peer: Kafka | None, *, records: int, rounds: int) -> list[str]:
    """The machine, the versions and the settings."""
    lines = [
        *described("pyspark", "pyarrow", "confluent-kafka"),
        f"{records:,} records in {PARTITIONS} partitions; {rounds} rounds after one that does not "
        "count.",
    ]
    if peer is not None:
        jars = ", ".join(jar.stem for jar in peer.connector)
        lines += [
            f"Kafka {peer.version}; {jars}.",
            f"Tuned means to read with {shown(TUNED_SOURCE)}, and to write with "
            f"{shown(TUNED_SINK)}.",
        ]
    return lines
