"""What confluent-kafka's clients, Python over librdkafka in C, do for each ``Work``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition, libversion, version

from bench.programs.clients.work import LIBRDKAFKA_READS, Done, Work, checked, tail
from bench.programs.clients.worker import timed
from bench.servers.kafka_producer import KafkaProducer

_REPORT_S = 120.0
SILENCE_S = 30.0
CONSUMED = 10_000  # messages that one call of consume may return


def versions() -> str:
    return f"confluent-kafka {version()}, librdkafka {libversion()[0]}"


def _tuned(work: Work) -> dict[str, Any]:
    """A producer's settings."""
    limits = {} if work.batch_records is None else {"batch.num.messages": work.batch_records}
    return {
        "acks": work.acks or "1",
        "linger.ms": work.linger_ms,
        "batch.size": work.batch_bytes,
        "queue.buffering.max.messages": 1_000_000,
        **limits,
    }


def send(work: Work) -> Done:
    return _send(work, _tuned(work))


def send_by_default(work: Work) -> Done:
    return _send(work, {})


def _send(work: Work, settings: Mapping[str, Any]) -> Done:
    """Sends with reports of failures only; the loop is as a user would write it."""
    sender = KafkaProducer(work.address, **settings)

    def all_acknowledged(count: int) -> None:
        produce, topic = sender.producer.produce, work.topic
        for value in work.values(count):
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:  # the queue is full: let some of it go
                    sender.producer.poll(0.01)
        sender.flush()

    all_acknowledged(work.warm_up)
    return Done(work.records, work.warm_up, *timed(lambda: all_acknowledged(work.records)))


def send_each(work: Work) -> Done:
    """One record, and wait for its report, which takes less time than ``flush``."""
    producer = Producer({**_tuned(work), "bootstrap.servers": work.address})
    reported: list[Any] = []
    waits: list[float] = []

    def report(error: Any, _: Any) -> None:
        reported.append(error)

    def wait_for_each(count: int) -> None:
        for value in work.values(count):
            started = time.perf_counter()
            producer.produce(work.topic, value, on_delivery=report)
            while not reported:
                producer.poll(_REPORT_S)
            error = reported.pop()
            waits.append(time.perf_counter() - started)
            if error is not None:
                raise SystemExit(f"Kafka did not take a record: {error}.")

    wait_for_each(work.warm_up)
    waits.clear()
    return Done(work.records, work.warm_up, *timed(lambda: wait_for_each(work.records)), waits)


def consume(work: Work) -> Done:
    return _consume(work, LIBRDKAFKA_READS)


def consume_by_default(work: Work) -> Done:
    return _consume(work, {})


def _consume(work: Work, settings: Mapping[str, Any]) -> Done:
    measure = tail if work.checksummed else len
    consumer = Consumer(
        {**settings, "bootstrap.servers": work.address, "group.id": "bench",
         "enable.auto.commit": False}
    )  # fmt: skip
    try:
        numbers = consumer.list_topics(work.topic, timeout=SILENCE_S).topics[work.topic].partitions
        consumer.assign([TopicPartition(work.topic, number, 0) for number in numbers])
        count = total = 0

        def take(limit: int) -> None:
            nonlocal count, total
            messages = consumer.consume(limit, timeout=SILENCE_S)
            if not messages:
                raise SystemExit(f"No more records within {SILENCE_S:.0f} s after {count:,}.")
            for message in messages:
                if message.error():
                    raise SystemExit(f"Kafka's consumer: {message.error()}.")
                total += measure(message.value())
                count += 1

        def read() -> None:
            while count < work.records:
                take(min(CONSUMED, work.records - count))  # it waits until it has so many

        take(1)
        took = timed(read)
    finally:
        consumer.close()
    return Done(count - 1, 1, *took, checksum=checked(work, total))
