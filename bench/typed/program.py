"""``scripts/bench typed``: fills the topics, and runs the measures that are asked for."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench import peers
from bench.harness import cluster, console, spark_session
from bench.peers import PeerUnavailableError
from bench.peers.artifacts import jars_of
from bench.peers.kafka import Kafka, kafka
from bench.stream.results import Csv
from bench.typed.ceiling import ReadyMadeFlights, write_ready_made
from bench.typed.comparing import Bench
from bench.typed.flights import Flights
from bench.typed.measures import MEASURES
from bench.typed.topics import Topics
from spark_logbus.client import Cluster

_SPARK_AVRO = Path(peers.__file__).with_name("spark-avro.xml")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Reads of topics with a schema into Spark, of the flights' 19 columns.",
    )
    parser.add_argument(
        "--measures",
        default=",".join(MEASURES),
        help="; ".join(f"{letter}: {title}" for letter, (title, _) in MEASURES.items()),
    )
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="after one that does not count")
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")
    parser.add_argument("--csv", type=Path, help="a file for the result of each round")
    return parser


def main() -> None:
    args = parser().parse_args()
    measures = args.measures.split(",")
    unknown = [letter for letter in measures if letter not in MEASURES]
    if unknown:
        raise SystemExit(f"No measure is called {', '.join(unknown)}; use {', '.join(MEASURES)}.")
    with ExitStack() as stack, Csv(args.csv) as raw:
        jars = _spark_avro() if "d" in measures else []
        has_from_avro = bool(jars)
        peer = _kafka(stack) if "k" in measures else None
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
        console.print(
            f"{args.rows:,} rows, of them {flights.distinct.num_rows:,} different ones; "
            f"{flights.source}."
        )
        bench = Bench(
            spark=spark,
            topics=Topics(running, client, flights),
            flights=flights,
            directory=directory,
            ceiling=ceiling,
            rounds=args.rounds,
            csv=raw,
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


def _kafka(stack: ExitStack) -> Kafka | None:
    try:
        return stack.enter_context(kafka(flushed=False))
    except PeerUnavailableError as error:
        console.print(f"Kafka is not at hand: {error}", markup=False)
        return None
