"""Copy a topic to another cluster with a mirror, exactly once, against a consumer and a producer,
at least once."""

from __future__ import annotations

import argparse
import itertools
import os

import pyarrow as pa

from bench.harness import Contender, cluster, print_ratios, timed_in_turn
from spark_logbus.client import Admin, Cluster, Consumer, Producer, ProducerConfig
from spark_logbus.mirror import Listener, MirrorConfig, Renaming, open_mirror, run_mirror
from spark_logbus.selection import Topics

TOPIC = "bench"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--batch-records", type=int, default=500, help="of a record batch")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")
    arguments = parser.parse_args()
    with (
        cluster(tcp_only=arguments.tcp) as source,
        cluster(tcp_only=arguments.tcp) as target,
        Cluster.from_zookeeper(source.zookeeper) as from_,
        Cluster.from_zookeeper(target.zookeeper) as to,
    ):
        _fill(from_, arguments)
        numbers = itertools.count()

        def mirror() -> None:
            name = f"mirror-{next(numbers)}"
            config = MirrorConfig(
                name=name, topics=Topics((TOPIC,)), renaming=Renaming(name + ".{topic}")
            )
            with open_mirror(config, target=target.zookeeper, zookeeper=source.zookeeper) as opened:
                copied = run_mirror(opened, once=True, listener=Listener())
            assert copied == arguments.records
            Admin(to).delete_topic(f"{name}.{TOPIC}")

        def copy() -> None:
            name = f"copy-{next(numbers)}"
            Admin(to).create_topic(name, partitions=arguments.partitions)
            _copy(from_, to, name, arguments.records)
            Admin(to).delete_topic(name)

        took = timed_in_turn(
            [Contender("consumer, producer", copy), Contender("mirror", mirror)],
            rounds=arguments.rounds,
        )
    print_ratios(
        f"Copy {arguments.records:,} records of {arguments.value_bytes} bytes, "
        f"{arguments.batch_records:,} a record batch, flushed",
        took,
        baseline="consumer, producer",
        records=arguments.records,
    )


def _fill(cluster: Cluster, arguments: argparse.Namespace) -> None:
    Admin(cluster).create_topic(TOPIC, partitions=arguments.partitions)
    values = pa.array([os.urandom(arguments.value_bytes)] * arguments.batch_records)
    table = pa.table({"value": values, "key": pa.array([b"key"] * arguments.batch_records)})
    with Producer(cluster) as producer:
        for number in range(arguments.records // arguments.batch_records):
            producer.send_arrow(TOPIC, table, partition=number % arguments.partitions)


def _copy(source: Cluster, target: Cluster, name: str, records: int) -> None:
    """As a program would that reads and writes columns, and keeps partitions."""
    config = ProducerConfig(linger_ms=0)
    with Consumer(source) as consumer, Producer(target, config) as producer:
        consumer.assign_topics(TOPIC)
        while records:
            for fetched in consumer.poll_arrow(5.0):
                producer.send_arrow(
                    name, fetched.arrow_batch, partition=fetched.topic_partition.partition
                )
                records -= fetched.arrow_batch.num_rows
