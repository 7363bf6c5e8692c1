"""A process with clients: it gets a job as JSON and answers what is done.

It connects, says so, and waits for the word, so that all processes of a measurement begin together.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice, repeat
from typing import Any, Final

from bench.kit.children import Child
from bench.kit.result import LOGBUS
from bench.programs.clients.work import LIBRDKAFKA_READS
from bench.programs.scaling.results import KAFKA
from bench.servers.kafka_producer import KafkaProducer

_SILENCE_S: Final = 60.0
_MANY: Final = 10_000  # values that one call of send_many gets
VALUE_BYTES: Final = 200


@dataclass(frozen=True)
class Job:
    what: str
    """``produce`` or ``consume``."""
    system: str
    address: str
    """ZooKeeper's connect string, or Kafka's bootstrap servers."""
    topic: str
    records: int
    """That each client sends, or that the topic holds."""
    clients: int = 1
    """Threads with a client each."""
    partitions: int = 0
    """Record n goes to partition n modulo this; 0: to where the client puts it."""
    numbers: Sequence[int] = ()
    """The partitions to read; none: all of the topic's."""
    value_bytes: int = VALUE_BYTES


@dataclass(frozen=True)
class Done:
    records: int
    value_bytes: int
    seconds: float


class Processes:
    """Jobs in processes of their own; to be used once, by one thread."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._children = [Child("bench.programs.scaling.worker", asdict(job)) for job in jobs]

    def run(self) -> Done:
        """Does all of the jobs at once, until the last is done.

        Raises SystemExit unless each client has read all that there is.
        """
        with ExitStack() as stack:
            for child in self._children:
                stack.enter_context(child)
            for child in self._children:
                child.line()  # it is ready
            started = time.perf_counter()
            for child in self._children:
                child.go()
            done = [json.loads(child.line()) for child in self._children]
            seconds = time.perf_counter() - started
        for job, one in zip(self._jobs, done, strict=True):
            expected = [job.clients * job.records, job.clients * job.records * job.value_bytes]
            if one != expected:
                raise SystemExit(f"Expected {expected} records and bytes, got {one} of {job}.")
        return Done(sum(one[0] for one in done), sum(one[1] for one in done), seconds)


def spread_over(job: Job, processes: int) -> list[Job]:
    """The job's clients in up to so many processes. Pure."""
    count = min(processes, job.clients)
    shares = [job.clients // count + (number < job.clients % count) for number in range(count)]
    return [replace(job, clients=share) for share in shares]


Client = Callable[[], tuple[int, int]]
"""Does a job once: records, and bytes of values."""


def _logbus_producer(job: Job, stack: ExitStack) -> Client:
    from spark_logbus.client import Cluster, Producer, ProducerConfig
    from spark_logbus.model import Acks

    cluster = stack.enter_context(Cluster.from_zookeeper(job.address))
    config = ProducerConfig(acks=Acks.WRITTEN, linger_ms=50, batch_bytes=1 << 20)
    producer = stack.enter_context(Producer(cluster, config))
    values = _values(job)

    def produce() -> tuple[int, int]:
        if job.partitions:
            for number, value in enumerate(islice(cycle(values), job.records)):
                producer.send(job.topic, value, partition=number % job.partitions)
        else:
            for done in range(0, job.records, _MANY):
                producer.send_many(job.topic, values[: job.records - done])
        producer.flush()
        return job.records, job.records * job.value_bytes

    return produce


def _librdkafka_producer(job: Job, _: ExitStack) -> Client:
    producer = KafkaProducer(
        job.address,
        acks="1",
        linger_ms=50,
        batch_size=1 << 20,
        queue_buffering_max_messages=1_000_000,
    )
    producer.producer.list_topics(job.topic, timeout=_SILENCE_S)
    values = _values(job)

    def produce() -> tuple[int, int]:
        # Without partitions, to where the client puts them.
        numbers = cycle(range(job.partitions) if job.partitions else [-1])
        producer.send(
            job.topic, zip(islice(cycle(values), job.records), repeat(None), numbers, strict=False)
        )
        producer.flush()
        return job.records, job.records * job.value_bytes

    return produce


def _logbus_consumer(job: Job, stack: ExitStack) -> Client:
    from bench.programs.clients.logbus_client import value_bytes_of
    from spark_logbus.client import Cluster, Consumer
    from spark_logbus.model import TopicPartition

    cluster = stack.enter_context(Cluster.from_zookeeper(job.address))
    consumer = stack.enter_context(Consumer(cluster))
    if job.numbers:
        consumer.assign(TopicPartition(job.topic, number) for number in job.numbers)
    else:
        consumer.assign_topics(job.topic)

    def consume() -> tuple[int, int]:
        count = size = 0
        while count < job.records:
            batches = consumer.poll_arrow(_SILENCE_S)
            if not batches:
                raise SystemExit(f"No more records within {_SILENCE_S:.0f} s after {count:,}.")
            for batch in batches:
                values = batch.arrow_batch.column("value")
                count += len(values)
                size += value_bytes_of(values)
        return count, size

    return consume


def _librdkafka_consumer(job: Job, stack: ExitStack) -> Client:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": job.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            **LIBRDKAFKA_READS,
        }
    )
    stack.callback(consumer.close)
    there = consumer.list_topics(job.topic, timeout=_SILENCE_S).topics[job.topic].partitions
    numbers = job.numbers or list(there)

    def consume() -> tuple[int, int]:
        consumer.assign([TopicPartition(job.topic, number, 0) for number in numbers])
        count = size = 0
        while count < job.records:
            messages = consumer.consume(min(_MANY, job.records - count), timeout=_SILENCE_S)
            if not messages:
                raise SystemExit(f"No more records within {_SILENCE_S:.0f} s after {count:,}.")
            for message in messages:
                if message.error():
                    raise SystemExit(f"Kafka's consumer: {message.error()}.")
                size += len(message.value())
            count += len(messages)
        return count, size

    return consume


_CLIENTS: dict[tuple[str, str], Callable[[Job, ExitStack], Client]] = {
    ("produce", LOGBUS): _logbus_producer,
    ("produce", KAFKA): _librdkafka_producer,
    ("consume", LOGBUS): _logbus_consumer,
    ("consume", KAFKA): _librdkafka_consumer,
}


def _values(job: Job) -> list[bytes]:
    return [b"%0*d" % (job.value_bytes, number) for number in range(_MANY)]


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    job = Job(**told)
    results: list[tuple[int, int]] = []
    with ExitStack() as stack:
        clients = [_CLIENTS[job.what, job.system](job, stack) for _ in range(job.clients)]
        threads = [
            threading.Thread(target=lambda client=client: results.append(client()))
            for client in clients
        ]
        print("ready", flush=True)
        sys.stdin.readline()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        together = [sum(one[0] for one in results), sum(one[1] for one in results)]
        print(json.dumps(together), flush=True)  # before the clients are closed


if __name__ == "__main__":
    main()
