"""Counts the requests in an access log per path and status, together with others of its group.

Positions are committed by the consumer itself: every few seconds, before partitions change hands,
and at the end. After a crash some requests may be counted again, none is passed over.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections import Counter

from spark_logbus.client import Cluster, Consumer, ConsumerConfig, ConsumerRecord
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import add_cluster_options

Counts = Counter[tuple[str, int]]  # of requests, by path and status


def count(records: list[ConsumerRecord], counts: Counts) -> None:
    for record in records:
        try:
            request = json.loads(record.value or b"")
            counts[request["path"], request["status"]] += 1
        except (ValueError, TypeError, KeyError):  # one bad record must not stop the others
            where = f"{record.topic}-{record.partition} at offset {record.offset}"
            print(f"Passed over a record that is no request: {where}.", flush=True)


def print_table(counts: Counts) -> None:
    print(f"{'REQUESTS':>10} {'STATUS':>6} PATH")
    for (path, status), requests in sorted(counts.items()):
        print(f"{requests:>10} {status:>6} {path}")
    print(flush=True)


def tell(what: str, partitions: list[TopicPartition]) -> None:
    print(f"{what}: {', '.join(str(each.partition) for each in partitions)}.", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topic")
    add_cluster_options(parser, default=None)
    parser.add_argument("--group", default="access-counts")
    parser.add_argument("--every-s", type=float, default=10.0, help="between two tables")
    options = parser.parse_args()

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())

    counts: Counts = Counter()
    with (
        Cluster.from_zookeeper(options.zookeeper) as cluster,
        Consumer(cluster, ConsumerConfig(group=options.group)) as consumer,
    ):
        consumer.subscribe(
            options.topic,
            on_assigned=lambda partitions: tell("Reading partitions", partitions),
            on_revoked=lambda partitions: tell("Giving up partitions", partitions),
            on_lost=lambda partitions: tell("Lost partitions", partitions),
        )
        due = time.monotonic() + options.every_s
        while not ended.is_set():
            count(consumer.poll(0.5), counts)
            if time.monotonic() >= due:
                print_table(counts)
                due = time.monotonic() + options.every_s
    print_table(counts)  # by now all of it is committed


if __name__ == "__main__":
    main()
