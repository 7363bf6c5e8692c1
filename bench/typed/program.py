"""``scripts/bench typed``: fills the topics, and runs the measures that are asked for."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench import peers
from bench.harness import cluster, console, spark_session
from bench.machine import described
from bench.peers import PeerUnavailableError
from bench.peers.artifacts import jars_of
from bench.peers.kafka import kafka
from bench.program import at_hand, chosen, parser_of, raw_results
from bench.typed.ceiling import ReadyMadeFlights, write_ready_made
from bench.typed.comparing import Bench
from bench.typed.flights import Flights
from bench.typed.measures import MEASURES
from bench.typed.topics import Topics
from spark_logbus.client import Cluster

_SPARK_AVRO = Path(peers.__file__).with_name("spark-avro.xml")


def parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "Reads of topics with a schema into Spark, of the flights' 19 columns.",
        rows={letter: title for letter, (title, _) in MEASURES.items()},
        rounds=3,
        flag="--measures",
    )
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")
    return parser


def main() -> None:
    args = parser().parse_args()
    measures = chosen(args.measures, MEASURES, "measure")
    raw = raw_results(args)
    with ExitStack() as stack:
        jars = _spark_avro() if {"d", "k"} & set(measures) else []
        has_from_avro = bool(jars)
        peer = at_hand(stack, "Kafka", lambda: kafka(flushed=False)) if "k" in measures else None
        if peer is not None:
            jars += peer.connector
        running = stack.enter_context(cluster(tcp_only=args.tcp))
        client = stack.enter_context(Cluster.from_zookeeper(running.zookeeper))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logbus-bench-")))
        spark = stack.enter_context(spark_session(jars=jars))
        spark.dataSource.register(ReadyMadeFlights)
        flights = Flights(args.rows)
        ceiling = directory / "flights.arrow"
        write_ready_made(ceiling, flights.batches())
        raw.tell(
            *described("pyspark", "pyarrow", "fastavro"),
            f"{args.rows:,} rows, of them {flights.distinct.num_rows:,} different ones; "
            f"{flights.source}; {args.rounds} rounds after one that does not count.",
            *([] if peer is None else [f"Kafka {peer.version}."]),
        )
        bench = Bench(
            spark=spark,
            topics=Topics(running, client, flights),
            flights=flights,
            directory=directory,
            ceiling=ceiling,
            rounds=args.rounds,
            raw=raw,
            kafka=peer,
            has_from_avro=has_from_avro,
        )
        for letter in measures:
            _, measure = MEASURES[letter]
            measure(bench, letter)


def _spark_avro() -> list[Path]:
    try:
        return jars_of(_SPARK_AVRO)
    except PeerUnavailableError as error:
        console.print(f"Spark's from_avro is not at hand: {error}", markup=False)
        return []
