"""``scripts/bench typed``: fills the topics, and runs the measures that are asked for."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.kit.baselines import ReadyMade, write_ready_made
from bench.kit.harness import console, spark_session
from bench.kit.program import Opening, Program
from bench.programs.typed.bench import Bench
from bench.programs.typed.flights import Flights, with_own_columns
from bench.programs.typed.measures import MEASURES
from bench.programs.typed.rows import COMPARED
from bench.programs.typed.topics import Topics
from bench.servers import POMS, ServerUnavailableError
from bench.servers.artifacts import jars_of
from bench.servers.at_hand import at_hand
from bench.servers.kafka import kafka
from bench.servers.logbus import logbus


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds of how many rows, and how logbus is reached."""
    parser.add_argument("--rows", type=int, default=4_000_000, help="of each topic")
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")


def open_bench(opening: Opening) -> Bench:
    """Starts logbus and a Spark session, and Kafka for the measure that needs it."""
    args, measures, stack, _ = opening
    jars = _spark_avro() if {"d", "k"} & set(measures) else []
    has_from_avro = bool(jars)
    peer = at_hand(stack, "Kafka", lambda: kafka(flushed=False)) if "k" in measures else None
    if peer is not None:
        jars += peer.connector
    system = stack.enter_context(logbus(tcp_only=args.tcp))
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logbus-bench-")))
    spark = stack.enter_context(spark_session(jars=jars))
    spark.dataSource.register(ReadyMade)
    flights = Flights(args.rows)
    ceiling = directory / "flights.arrow"
    write_ready_made(ceiling, with_own_columns(flights.batches()))
    return Bench(
        spark=spark,
        topics=Topics(system, flights),
        flights=flights,
        directory=directory,
        ceiling=ceiling,
        rounds=args.rounds,
        kafka=peer,
        has_from_avro=has_from_avro,
    )


def conditions(bench: Bench, _: argparse.Namespace) -> Iterator[str]:
    """Tells which flights are read, and Kafka's version."""
    flights = bench.flights
    yield (
        f"{flights.rows:,} rows, of them {flights.distinct.num_rows:,} different ones; "
        f"{flights.source}; {bench.rounds} rounds after one that does not count."
    )
    if bench.kafka is not None:
        yield f"Kafka {bench.kafka.version}."


def _spark_avro() -> list[Path]:
    try:
        return jars_of(POMS / "spark-avro.xml")
    except ServerUnavailableError as error:
        console.print(f"Spark's from_avro is not at hand: {error}", markup=False)
        return []


PROGRAM: Final = Program(
    name="typed",
    description="Reads of topics with a schema into Spark, of the flights' 19 columns.",
    rows=MEASURES,
    rows_flag="--measures",
    open_bench=open_bench,
    conditions=conditions,
    comparing=COMPARED,
    rounds=3,
    add_flags=add_flags,
    packages=("pyspark", "pyarrow", "fastavro"),
)
