"""Copy a topic to another cluster with a mirror, exactly once, against a consumer and a producer,
at least once."""

from __future__ import annotations

import argparse
import itertools
import os
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from bench.kit.comparing import Comparing
from bench.kit.program import Opening, Program, Whole
from bench.kit.result import Rounds
from bench.kit.rounds import SECONDS, works_in_turn
from bench.servers.logbus import Logbus, logbus
from spark_logbus.client import Cluster, Consumer, Producer, ProducerConfig
from spark_logbus.mirror import Listener, MirrorConfig, Renaming, open_mirror, run_mirror
from spark_logbus.selection import Topics

TOPIC: Final = "bench"
MIRROR: Final = "mirror"


@dataclass(frozen=True)
class Bench:
    """Both clusters; the source's topic is filled."""

    source: Logbus
    target: Logbus
    args: argparse.Namespace


def copies(bench: Bench) -> Rounds:
    """Copies the topic in both ways in turn, and deletes the copies."""
    numbers, records = itertools.count(), bench.args.records

    def mirror() -> None:
        name = f"mirror-{next(numbers)}"
        config = MirrorConfig(
            name=name, topics=Topics((TOPIC,)), renaming=Renaming(name + ".{topic}")
        )
        target, source = bench.target.address, bench.source.address
        with open_mirror(config, target=target, zookeeper=source) as opened:
            assert run_mirror(opened, once=True, listener=Listener()) == records
        bench.target.delete_topic(f"{name}.{TOPIC}")

    def copy() -> None:
        name = f"copy-{next(numbers)}"
        bench.target.create_topic(name, partitions=bench.args.partitions, flushed=True)
        _copy(bench.source.client, bench.target.client, name, records)
        bench.target.delete_topic(name)

    works = {"consumer, producer": copy, MIRROR: mirror}
    return works_in_turn(works, records=records, rounds=bench.args.rounds)


def _copy(source: Cluster, target: Cluster, name: str, records: int) -> None:
    """Copies as a program would that reads and writes columns, and keeps partitions."""
    config = ProducerConfig(linger_ms=0)
    with Consumer(source) as consumer, Producer(target, config) as producer:
        consumer.assign_topics(TOPIC)
        while records:
            for fetched in consumer.poll_arrow(5.0):
                producer.send_arrow(
                    name, fetched.arrow_batch, partition=fetched.topic_partition.partition
                )
                records -= fetched.arrow_batch.num_rows


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what the topic holds, and how the clusters are reached."""
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--batch-records", type=int, default=500, help="of a record batch")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")


def open_bench(opening: Opening) -> Bench:
    """Starts both clusters, and fills the source's topic."""
    args, _, stack, _ = opening
    source, target = (stack.enter_context(logbus(tcp_only=args.tcp)) for _ in range(2))
    source.create_topic(TOPIC, partitions=args.partitions, flushed=True)
    values = pa.array([os.urandom(args.value_bytes)] * args.batch_records)
    table = pa.table({"value": values, "key": pa.array([b"key"] * args.batch_records)})
    with Producer(source.client) as producer:
        for number in range(args.records // args.batch_records):
            producer.send_arrow(TOPIC, table, partition=number % args.partitions)
    return Bench(source, target, args)


PROGRAM: Final = Program(
    name="mirror",
    description=__doc__,
    rows={"copy": Whole("a topic to another cluster", "s", copies)},
    open_bench=open_bench,
    comparing=Comparing({SECONDS: ""}, own=MIRROR),
    add_flags=add_flags,
)
