"""What logbus's clients do for each ``Work``, as their users would write it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice

import numpy as np
import pyarrow as pa

from bench.programs.clients.work import SUMMED_BYTES, Done, Work, checked, tail
from bench.programs.clients.worker import timed
from spark_logbus.client import Cluster, Consumer, Producer, ProducerConfig
from spark_logbus.model import Acks

RECORD_OVERHEAD_BYTES = 20  # what a producer counts for a record beside its value
_MANY = 10_000  # values that one call of send_many gets
SILENCE_S = 30.0


@contextmanager
def _producer(work: Work) -> Iterator[Producer]:
    batch_bytes = work.batch_bytes
    if work.batch_records is not None:
        batch_bytes = work.batch_records * (work.value_bytes + RECORD_OVERHEAD_BYTES)
    config = ProducerConfig(
        acks=Acks(work.acks) if work.acks else Acks.FLUSHED if work.flushed else Acks.WRITTEN,
        linger_ms=work.linger_ms,
        batch_bytes=batch_bytes,
    )
    with Cluster.from_zookeeper(work.address) as cluster, Producer(cluster, config) as producer:
        yield producer


def _produce(work: Work, producer: Producer, hand_over: Callable[[int], None]) -> Done:
    """``hand_over`` so many records, and time it until all are acknowledged."""

    def all_acknowledged(count: int) -> None:
        hand_over(count)
        producer.flush()

    all_acknowledged(work.warm_up)
    return Done(work.records, work.warm_up, *timed(lambda: all_acknowledged(work.records)))


def send(work: Work) -> Done:
    with _producer(work) as producer:

        def hand_over(count: int) -> None:
            send, topic = producer.send, work.topic
            for value in work.values(count):
                send(topic, value)

        return _produce(work, producer, hand_over)


def send_many(work: Work) -> Done:
    with _producer(work) as producer:
        values = list(work.values(_MANY))

        def hand_over(count: int) -> None:
            for done in range(0, count, _MANY):
                left = count - done
                producer.send_many(work.topic, values if left >= _MANY else values[:left])

        return _produce(work, producer, hand_over)


def send_arrow(work: Work) -> Done:
    """Sends pieces of ``batch_records``, each of which becomes a record batch."""
    size = work.batch_records
    assert size is not None
    with _producer(work) as producer:
        values = list(work.values(size * max(1, _MANY // size)))
        pieces = [
            pa.RecordBatch.from_arrays([pa.array(values[n : n + size], pa.binary())], ["value"])
            for n in range(0, len(values), size)
        ]

        def hand_over(count: int) -> None:
            send_arrow, topic = producer.send_arrow, work.topic
            for piece in islice(cycle(pieces), count // size):
                send_arrow(topic, piece)
            if count % size:
                send_arrow(topic, pieces[0].slice(0, count % size))

        return _produce(work, producer, hand_over)


def send_each(work: Work) -> Done:
    """One record, and wait until it is acknowledged; then the next."""
    with _producer(work) as producer:
        waits: list[float] = []

        def wait_for_each(count: int) -> None:
            for value in work.values(count):
                started = time.perf_counter()
                producer.send(work.topic, value).result()
                waits.append(time.perf_counter() - started)

        wait_for_each(work.warm_up)
        waits.clear()
        return Done(work.records, work.warm_up, *timed(lambda: wait_for_each(work.records)), waits)


@contextmanager
def consumer_of(work: Work) -> Iterator[Consumer]:
    """Opens a consumer with its defaults, of all that the topic holds."""
    with Cluster.from_zookeeper(work.address) as cluster, Consumer(cluster) as consumer:
        consumer.assign_topics(work.topic)
        yield consumer


def iterate(work: Work) -> Done:
    measure = tail if work.checksummed else len
    with consumer_of(work) as consumer:
        total = measure(next(iter(consumer)).value or b"")
        left = work.records - 1

        def read() -> None:
            nonlocal total
            for record in islice(consumer, left):
                total += measure(record.value or b"")

        took = timed(read)
        return Done(left, 1, *took, checksum=checked(work, total))


def poll_arrow(work: Work) -> Done:
    measure = tails if work.checksummed else value_bytes_of
    with consumer_of(work) as consumer:
        count = total = 0

        def poll() -> None:
            nonlocal count, total
            batches = consumer.poll_arrow(SILENCE_S)
            if not batches:
                raise SystemExit(f"No more records within {SILENCE_S:.0f} s after {count:,}.")
            for batch in batches:
                values = batch.arrow_batch.column("value")
                count += len(values)
                total += measure(values)

        def read() -> None:
            while count < work.records:
                poll()

        poll()  # it may bring all of a small topic: begin again
        count = total = 0
        for topic_partition in consumer.assignment:
            consumer.seek(topic_partition, 0)
        took = timed(read)
        return Done(count, 0, *took, checksum=checked(work, total))


def value_bytes_of(values: pa.Array) -> int:
    """Takes the first and the last offset: no work for each value."""
    offsets = memoryview(values.buffers()[1]).cast("i")
    return int(offsets[values.offset + len(values)]) - int(offsets[values.offset])


def tails(values: pa.Array) -> int:
    """The sum of ``tail`` over a column of values that are all as long, without a loop."""
    if not len(values):
        return 0
    start = memoryview(values.buffers()[1]).cast("i")[values.offset]
    size = value_bytes_of(values)
    data = np.frombuffer(values.buffers()[2], np.uint8, size, start)
    last = np.ascontiguousarray(data.reshape(len(values), -1)[:, -SUMMED_BYTES:])
    return int(last.view(">u8").sum(dtype=np.uint64))
