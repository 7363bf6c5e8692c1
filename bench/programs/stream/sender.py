"""A process that sends records, to logbus or to Kafka: so many, or at a steady pace.

At a pace it sends a batch of records every 5 ms until its standard input ends, which also happens
when its parent dies. It writes a line once its producer stands, waits for a line, and writes
another as JSON when all is acknowledged, which holds what ``Sent`` does.

A process of its own, so that its work competes for the machine and not for the lock of the Python
interpreter in which a stream's driver runs.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import Self

import pyarrow as pa

from bench.kit.children import Child
from bench.kit.shapes import Shape
from bench.servers.kafka_producer import KafkaProducer
from spark_logbus.client import Cluster, Producer, ProducerConfig
from spark_logbus.model import Acks, Compression

INTERVAL_S = 0.005
LINGER_MS = 1
_FILL_PIECE = 50_000  # records that are handed over at once when there is no pace
_END_DEADLINE_S = 60.0

Send = Callable[[int, int], None]
"""Hands over so many records for one partition, with the time of now."""


@dataclass(frozen=True)
class Target:
    """Topic to send to, by which client, and the shape of records."""

    system: str
    address: str
    """ZooKeeper's connect string, or Kafka's bootstrap servers."""
    topic: str
    partitions: int
    flushed: bool
    value_bytes: int
    keyed: bool
    compression: str

    @classmethod
    def of(
        cls, system: str, address: str, topic: str, partitions: int, *, shape: Shape, flushed: bool
    ) -> Self:
        """Names the target; the pace decides the number of records a record batch."""
        kind = shape.value_bytes, shape.keyed, shape.compression.name
        return cls(system, address, topic, partitions, flushed, *kind)

    @property
    def shape(self) -> Shape:
        return Shape(self.value_bytes, self.keyed, Compression[self.compression])


@dataclass(frozen=True)
class Sent:
    records: int
    seconds: float
    late_ms: float
    """Delay behind the schedule that 99 of 100 batches of records stay within."""
    cpu_percent: float
    """Share of one processor taken by the sender and its client."""


@contextmanager
def input_to(target: Target, *, a_second: int) -> Iterator[Child]:
    """Starts a sender that stands, and begins when it is told to ``go``."""
    with _start(target, a_second=a_second) as sender:
        sender.line()
        yield sender


def stop(sender: Child) -> Sent:
    """Ends a sender, and returns what it has sent."""
    return Sent(**sender.answer(deadline_s=_END_DEADLINE_S))


def fill(target: Target, *, records: int) -> None:
    """Sends so many records, in even parts to all partitions, as fast as it goes."""
    with _start(target, records=records) as sender:
        sent = sender.answer()["records"]
    if sent != records:
        raise SystemExit(f"Expected {records} records to be sent, got {sent}.")


def _start(target: Target, *, a_second: int | None = None, records: int | None = None) -> Child:
    given = {"target": asdict(target), "a_second": a_second, "records": records}
    return Child("bench.programs.stream.sender", given)


# -- in the process -----------------------------------------------------------------------


@contextmanager
def _logbus(target: Target, *, linger_ms: int) -> Iterator[Send]:
    config = ProducerConfig(
        linger_ms=linger_ms,
        acks=Acks.FLUSHED if target.flushed else Acks.WRITTEN,
        compression=target.shape.compression,
    )
    with (
        Cluster.from_zookeeper(target.address) as client,
        Producer(client, config) as producer,
    ):
        records = cache(lambda count: target.shape.piece(0, count))

        def send(count: int, partition: int) -> None:
            # Whole milliseconds, as Kafka's timestamps are.
            now = pa.array([time.time_ns() // 1_000_000 * 1_000] * count, _TIMESTAMP)
            batch = records(count).append_column("timestamp", now)
            producer.send_arrow(target.topic, batch, partition=partition)

        yield send
        producer.flush()


_TIMESTAMP = pa.timestamp("us", tz="UTC")


@contextmanager
def _kafka(target: Target, *, linger_ms: int) -> Iterator[Send]:
    producer = KafkaProducer(
        target.address,
        acks="1",
        linger_ms=linger_ms,
        compression_type=target.compression.lower(),
    )
    records = cache(lambda count: target.shape.rows_of(target.shape.piece(0, count)))

    def send(count: int, partition: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        producer.send(target.topic, records(count), timestamp=now_ms, partition=partition)

    yield send
    producer.flush()


def _all(send: Send, *, records: int, partitions: int) -> None:
    for partition in range(partitions):
        left = records // partitions + (partition < records % partitions)
        while left > 0:
            count = min(left, _FILL_PIECE)
            send(count, partition)
            left -= count


def _at_pace(send: Send, *, a_second: int, partitions: int) -> tuple[int, float]:
    """Records sent until standard input ends, and the 99th percentile of the seconds late."""
    stopped = threading.Event()
    count = max(1, round(a_second * INTERVAL_S))
    for partition in range(partitions):  # connections and metadata, before the schedule begins
        send(count, partition)
    print("stands", flush=True)
    sys.stdin.readline()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stopped.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    late: list[float] = []
    due = time.perf_counter()
    while not stopped.wait(max(0.0, due - time.perf_counter())):
        send(count, len(late) % partitions)
        late.append(time.perf_counter() - due)
        due += INTERVAL_S
    return (partitions + len(late)) * count, sorted(late)[len(late) * 99 // 100]


def main() -> None:
    given = json.loads(sys.argv[1])
    target, a_second = Target(**given["target"]), given["a_second"]
    make = {"logbus": _logbus, "kafka": _kafka}[target.system]
    started, cpu_started = time.perf_counter(), time.process_time()
    with make(target, linger_ms=5 if a_second is None else LINGER_MS) as send:
        records, late = given["records"], 0.0
        if a_second is None:
            _all(send, records=records, partitions=target.partitions)
        else:
            records, late = _at_pace(send, a_second=a_second, partitions=target.partitions)
    seconds = time.perf_counter() - started
    cpu_percent = 100 * (time.process_time() - cpu_started) / seconds
    print(json.dumps(asdict(Sent(records, seconds, 1_000 * late, cpu_percent))))


if __name__ == "__main__":
    main()
