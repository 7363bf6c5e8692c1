"""A consumer that subscribes, and writes down what becomes of it: a process for tests to kill.

Each line of its journal is JSON: the event, the partition, and the time by the clock that all
processes of the machine share.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterable

from spark_logbus.client import Cluster, Consumer, ConsumerConfig
from spark_logbus.model import TopicPartition


def main(zookeeper: str, topic: str, journal: str, assignor: str, session_ms: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    config = ConsumerConfig(
        group="g",
        zookeeper=zookeeper,
        assignor="sticky" if assignor == "sticky" else "range",
        session_timeout_ms=int(session_ms),
        auto_commit_ms=100,
    )
    with (  # the journal is closed last: what is revoked at the end stands in it, too
        open(journal, "a", buffering=1) as lines,
        Cluster.from_zookeeper(zookeeper) as cluster,
        Consumer(cluster, config) as consumer,
    ):

        def note(event: str, **more: object) -> None:
            lines.write(json.dumps({"event": event, "at": time.monotonic(), **more}) + "\n")

        def each(event: str, partitions: Iterable[TopicPartition]) -> None:
            for at in partitions:
                note(event, partition=at.partition)

        consumer.subscribe(
            topic,
            on_assigned=lambda some: each("assigned", some),
            on_revoked=lambda some: each("revoked", some),
            on_lost=lambda some: each("lost", some),
        )
        note("joined")
        while not ended.is_set():
            asked = time.monotonic()
            for batch in consumer.poll_arrow(0.2):
                values = [int(value) for value in batch.arrow_batch.column("value").to_pylist()]
                partition = batch.topic_partition.partition
                note("records", partition=partition, values=values, asked=asked)


if __name__ == "__main__":
    main(*sys.argv[1:])
