"""A process that sends records, to logbus or to Kafka: so many, or at a steady pace.

At a pace it sends a batch of records every 5 ms until its standard input ends, which also happens
when its parent dies. It writes a line once its producer stands, waits for a line, and writes
another as JSON when all is acknowledged, which holds what ``Sent`` does.

A process of its own, so that its work competes for the machine and not for the lock of the Python
interpreter in which a stream's driver runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import Self

import pyarrow as pa

from bench.kit.harness import ROOT
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
    """Where to send, by whose client, and what."""

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
    """What 99 of 100 batches of records were behind their schedule at most."""
    cpu_percent: float
    """Of one processor, by the sender and its client."""


class Input:
    """The steady pace of a running sender; ``stop`` ends it and answers what it has sent."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def check(self) -> None:
        """Raises SystemExit if the sender has ended by itself."""
        if self._process.poll() is not None:
            raise SystemExit(f"The sender ended with code {self._process.returncode}.")

    def stop(self) -> Sent:
        output, _ = self._process.communicate(timeout=_END_DEADLINE_S)
        if self._process.returncode != 0:
            raise SystemExit(f"The sender ended with code {self._process.returncode}.")
        return Sent(**json.loads(output))


@contextmanager
def input_to(target: Target, *, a_second: int) -> Iterator[Input]:
    """A sender that stands, and begins when it is told to ``go``."""
    process = _start(target, a_second=a_second)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("The sender ended before it stood.")
        yield Input(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def fill(target: Target, *, records: int) -> None:
    """Send so many records, in even parts to all partitions, as fast as it goes."""
    process = _start(target, records=records)
    output, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"The sender ended with code {process.returncode}.")
    sent = json.loads(output)["records"]
    if sent != records:
        raise SystemExit(f"Expected {records} records to be sent, got {sent}.")


def _start(
    target: Target, *, a_second: int | None = None, records: int | None = None
) -> subprocess.Popen[str]:
    given = {"target": asdict(target), "a_second": a_second, "records": records}
    return subprocess.Popen(
        [sys.executable, "-m", "bench.programs.stream.sender", json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


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
