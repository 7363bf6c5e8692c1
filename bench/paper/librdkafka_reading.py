"""What confluent-kafka's consumer does for each ``Work``, with a checksum of the values."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition

from bench.clients.librdkafka import CONSUMED, CONSUMER_TUNED, SILENCE_S
from bench.clients.work import CHECKSUMS, Done, Work, tail
from bench.clients.worker import timed


def tuned(work: Work) -> Done:
    return _consume(work, CONSUMER_TUNED)


def defaults(work: Work) -> Done:
    return _consume(work, {})


def _consume(work: Work, settings: Mapping[str, object]) -> Done:
    consumer = Consumer(
        {**settings, "bootstrap.servers": work.address, "group.id": "bench",
         "enable.auto.commit": False}
    )  # fmt: skip
    try:
        consumer.assign([TopicPartition(work.topic, 0, 0)])
        count = checksum = 0

        def take(limit: int) -> None:
            nonlocal count, checksum
            messages = consumer.consume(limit, timeout=SILENCE_S)
            if not messages:
                raise SystemExit(f"No more records within {SILENCE_S:.0f} s after {count:,}.")
            for message in messages:
                if message.error():
                    raise SystemExit(f"Kafka's consumer: {message.error()}.")
                checksum += tail(message.value())
                count += 1

        def read() -> None:
            while count < work.records:
                take(min(CONSUMED, work.records - count))  # it waits until it has so many

        take(1)
        took = timed(read)
    finally:
        consumer.close()
    return Done(count - 1, 1, *took, checksum=checksum % CHECKSUMS)
