"""``scripts/bench clients``: starts the two logs, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Final

from bench.kit.program import Opening, Program
from bench.programs.clients.rows import COMPARED, JAVA_TUNED, ROWS, Bench
from bench.programs.clients.work import LIBRDKAFKA_READS
from bench.servers.at_hand import at_hand
from bench.servers.kafka import kafka
from bench.servers.kafka_tools import kafka_tools
from bench.servers.logbus import logbus


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what is measured with, and of how many records."""
    parser.add_argument(
        "--records", type=int, help="of each measurement; the default is each row's own number"
    )
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="logbus alone, as for a profile")


def open_bench(opening: Opening) -> Bench:
    """Starts both logs, Kafka's if it is at hand and asked for."""
    args, _, stack, _ = opening
    peer = None if args.alone else at_hand(stack, "Kafka", lambda: kafka(flushed=False))
    tools = None
    if peer is not None:
        tools = at_hand(stack, "Kafka's Java consumer", lambda: nullcontext(kafka_tools()))
    return Bench(
        logbus=stack.enter_context(logbus()),
        kafka=peer,
        tools=tools,
        rounds=args.rounds,
        records=args.records,
        value_bytes=args.value_bytes,
        partitions=args.partitions,
    )


def conditions(bench: Bench, _: argparse.Namespace) -> Iterator[str]:
    """Tells who is measured, and with which settings."""
    yield (
        f"Values of {bench.value_bytes} bytes, {bench.partitions} partition(s); medians of "
        f"{bench.rounds} rounds after one that does not count. Ratios are logbus's rate to the "
        "other's."
    )
    yield (
        "Acknowledged is what the page cache has: logbus acks=written, flush.policy=os; Kafka "
        "acks=1. In the row one-flushed, what the disk has: acks=flushed; acks=1, "
        "flush.messages=1."
    )
    yield (
        "Producers: linger 50 ms, record batches of 1 MiB or 50 records; one-*: no linger. logbus "
        "numbers record batches (its default), librdkafka does not (its default)."
    )
    yield "logbus's consumer with its defaults."
    if bench.kafka is not None:
        # Imported here: an extra, which is there when Kafka runs.
        from bench.programs.clients.librdkafka import versions

        yield f"Kafka {bench.kafka.version}, its broker with its defaults."
        yield f"{versions()}: its consumer with {dict(LIBRDKAFKA_READS)}."
    if bench.tools is not None:
        yield f"ConsumerPerformance, of Kafka's tools in Java, with {dict(JAVA_TUNED)}."


PROGRAM: Final = Program(
    name="clients",
    description="Producers and consumers in turn with librdkafka's (confluent-kafka) and with "
    "Kafka's own in Java, each measurement in a fresh process.",
    rows=ROWS,
    open_bench=open_bench,
    conditions=conditions,
    comparing=COMPARED,
    add_flags=add_flags,
    packages=("pyarrow", "confluent-kafka"),
)
