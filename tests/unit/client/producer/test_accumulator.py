"""The producer's buffers, as tables of what goes in and what comes out."""

from __future__ import annotations

from spark_logbus.client.producer.accumulator import Accumulator
from spark_logbus.client.producer.acknowledgements import RecordFuture
from spark_logbus.client.producer.batches import PartitionQueue, QueuedBatch
from spark_logbus.client.producer.partitioner import RoundRobin
from spark_logbus.errors import NotLeaderError
from spark_logbus.model import Compression, TopicPartition
from tests.builders.arrow_batches import record_batch

LINGER = 1.0
TIMEOUT = 10.0


class Bench:
    def __init__(self, *, batch_limit: int = 100, partitions: int = 2) -> None:
        self.accumulator = Accumulator(linger_s=LINGER, delivery_timeout_s=TIMEOUT)
        self.keyless = RoundRobin(partitions, start=0)
        self.queues = [
            PartitionQueue(TopicPartition("t", number), self.keyless, batch_limit=batch_limit)
            for number in range(partitions)
        ]

    def add(self, number: int, value: bytes = b"v", *, size: int = 10, now: float = 0.0) -> bool:
        return self.future(number, value, size=size, now=now)[1]

    def future(
        self, number: int, value: bytes = b"v", *, size: int = 10, now: float = 0.0
    ) -> tuple[RecordFuture, bool]:
        return self.accumulator.add(
            self.queues[number],
            value=value,
            key=None,
            timestamp_us=1,
            headers=None,
            size=size,
            now=lambda: now,
        )

    def take(self, number: int, max_bytes: int = 1 << 30) -> list[QueuedBatch]:
        return self.accumulator.take(self.queues[number], max_bytes=max_bytes, at_least_one=True)

    def sendable(self) -> list[int]:
        return [queue.topic_partition.partition for queue in self.accumulator.sendable()]


def test_the_sender_hears_of_first_and_full_record_batches_only() -> None:
    bench = Bench(batch_limit=30)
    assert [bench.add(0) for _ in range(4)] == [True, False, True, True]


def test_a_record_batch_is_ready_when_full_or_lingered_or_flushed() -> None:
    bench = Bench(batch_limit=20)
    bench.add(0)
    assert bench.sendable() == []
    bench.add(0)
    assert bench.sendable() == [0]
    bench.add(1, now=5.0)
    bench.accumulator.seal_lingering(5.9)
    assert bench.sendable() == [0]
    bench.accumulator.seal_lingering(6.0)
    assert bench.sendable() == [0, 1]
    bench.add(1, now=6.0)
    bench.accumulator.seal_all()
    assert [batch.record_count for batch in bench.take(1)] == [1, 1]


def test_keyless_records_move_on_with_each_record_batch() -> None:
    bench = Bench(batch_limit=20, partitions=3)
    chosen = []
    for _ in range(6):
        chosen.append(bench.keyless.current)
        bench.add(bench.keyless.current)
    assert chosen == [0, 0, 1, 1, 2, 2]


def test_one_request_per_partition_takes_all_that_fits() -> None:
    bench = Bench(batch_limit=10)
    for _ in range(3):
        bench.add(0)
    taken = bench.take(0, max_bytes=2 * (10 + 2_048))
    assert len(taken) == 2
    assert bench.sendable() == []  # the third waits for the answer
    bench.accumulator.settle(bench.queues[0], taken)
    assert bench.sendable() == [0]


def test_what_is_put_back_comes_first_and_in_order() -> None:
    bench = Bench(batch_limit=10)
    for value in (b"1", b"2"):
        bench.add(0, value)
    taken = bench.take(0)
    bench.add(0, b"3")
    error = NotLeaderError("moved")
    bench.accumulator.put_back(bench.queues[0], taken, not_before=7.0, error=error)
    assert bench.queues[0].not_before == 7.0
    again = bench.take(0)
    assert again[:2] == taken
    assert len(again) == 3
    assert [batch.failures for batch in again] == [1, 1, 0]
    assert again[0].last_error is error


def test_a_record_batch_that_is_to_go_alone_goes_alone() -> None:
    bench = Bench(batch_limit=10)
    for _ in range(3):
        bench.add(0)
    taken = bench.take(0)
    taken[1].alone = True
    bench.accumulator.put_back(bench.queues[0], taken, not_before=0, error=None)
    sizes = []
    while taken := bench.take(0):
        sizes.append(len(taken))
        bench.accumulator.settle(bench.queues[0], taken)
    assert sizes == [1, 1, 1]


def test_memory_is_counted_until_settled() -> None:
    bench = Bench(batch_limit=20)
    for _ in range(4):
        bench.add(0)
    data = record_batch([b"x"])
    bench.accumulator.add_encoded(bench.queues[1], data, record_count=1, now=0.0)
    assert bench.accumulator.buffered_bytes == 40 + len(data)
    taken = bench.take(0)
    assert bench.accumulator.buffered_bytes == 40 + len(data)
    bench.accumulator.settle(bench.queues[0], taken)
    assert bench.accumulator.buffered_bytes == len(data)
    bench.accumulator.settle(bench.queues[1], bench.take(1))
    assert bench.accumulator.buffered_bytes == 0
    assert bench.accumulator.empty


def test_columns_line_up_behind_single_records() -> None:
    bench = Bench()
    bench.add(0, b"first")
    bench.accumulator.add_encoded(bench.queues[0], record_batch([b"x"]), record_count=1, now=0.0)
    assert [batch.builder is not None for batch in bench.take(0)] == [True, False]


def test_waiting_record_batches_expire_but_not_those_under_way() -> None:
    bench = Bench(batch_limit=10)
    bench.add(0, now=0.0)
    under_way = bench.take(0)
    bench.add(0, now=1.0)
    bench.add(1, now=5.0, size=5)
    assert bench.accumulator.expired(TIMEOUT + 0.5) == []
    late = bench.accumulator.expired(TIMEOUT + 1.0)
    assert [batch.topic_partition.partition for batch in late] == [0]
    bench.accumulator.put_back(bench.queues[0], under_way, not_before=0, error=None)
    assert bench.accumulator.expired(TIMEOUT + 1.0) == under_way
    assert bench.sendable() == []
    assert [
        batch.topic_partition.partition for batch in bench.accumulator.expired(TIMEOUT + 5)
    ] == [1]
    assert bench.accumulator.buffered_bytes == 0


def test_removing_a_topic_takes_what_waits_for_it() -> None:
    bench = Bench(batch_limit=10)
    bench.add(0)
    bench.add(1, size=5)
    assert len(bench.accumulator.remove_topic("other")) == 0
    assert len(bench.accumulator.remove_topic("t")) == 2
    assert bench.accumulator.empty


def test_events_tell_the_linger_the_timeout_and_the_pause() -> None:
    bench = Bench(batch_limit=20)
    bench.add(0, now=2.0)
    assert sorted(bench.accumulator.events()) == [2.0 + LINGER, 2.0 + TIMEOUT]
    bench.accumulator.seal_all()
    bench.accumulator.put_back(bench.queues[0], bench.take(0), not_before=4.0, error=None)
    assert sorted(bench.accumulator.events()) == [4.0, 2.0 + TIMEOUT]


def test_encoding_happens_once_and_keeps_the_count() -> None:
    bench = Bench()
    bench.add(0, b"a")
    bench.add(0, b"b")
    bench.accumulator.seal_all()
    (batch,) = bench.take(0)
    estimate = batch.size_bytes
    data = batch.encoded(Compression.NONE)
    assert batch.encoded(Compression.NONE) is data
    assert batch.record_count == 2
    assert len(data) <= estimate
