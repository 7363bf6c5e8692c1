"""Plain values that go into a record batch without a lock: none is lost, none is there twice."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_logbus.client import Cluster, Producer, ProducerConfig, RecordFuture
from spark_logbus.clock import SystemClock
from spark_logbus.errors import (
    BufferExhaustedError,
    InvalidRequestError,
    ProducerClosedError,
    UnknownTopicError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import Api
from spark_logbus.record.rows.arrow import decode
from tests.builders.arrow_batches import QUICK, T0, T1
from tests.fakes.broker import FakeCluster

LONG = ProducerConfig(linger_ms=60_000)


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class HookedClock(SystemClock):
    """Does something when it is asked for the time of a record, which is in the middle of a
    send."""

    def __init__(self) -> None:
        self.hook: Callable[[], object] | None = None
        self.now_ns = self._now_ns

    def _now_ns(self) -> int:
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return 1000 * self.now_us()


def stored(fake: FakeCluster, topic_partition: TopicPartition) -> list[bytes]:
    return [
        value
        for header, data in fake.partition(topic_partition).batches
        for value in decode(header, data).column("value").to_pylist()
    ]


def in_thread(job: Callable[[], object]) -> None:
    thread = threading.Thread(target=job)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_records_of_all_kinds_keep_their_order(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, LONG) as producer:

        def send(number: int) -> RecordFuture:
            value = b"%d" % number
            match number % 10:
                case 1 | 2 | 3:
                    return producer.send("t", value, partition=0)
                case 4:
                    return producer.send("t", value, key=b"k")
                case 7:
                    return producer.send("t", value, timestamp_us=number)
                case _:
                    return producer.send("t", value)

        futures = [send(number) for number in range(95)]
        in_thread(lambda: futures.append(send(95)))
        futures += [send(number) for number in range(96, 120)]
        producer.flush()
    assert stored(fake, T0) == [b"%d" % number for number in range(120)]
    assert [future.result(0).offset for future in futures] == list(range(120))
    ((header, data),) = fake.partition(T0).batches
    times = decode(header, data).column("timestamp").view("int64").to_pylist()
    assert [future.result(0).timestamp_us for future in futures] == times


def test_what_one_thread_sends_after_another_stands_behind_it(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    with Producer(cluster, LONG) as producer:

        def send(first: int) -> None:
            for number in range(first, first + 10):
                producer.send("t", b"%d" % number)

        send(0)
        for turn in range(1, 6):
            if turn % 2:
                in_thread(lambda turn=turn: send(10 * turn))  # type: ignore[misc]
            else:
                send(10 * turn)
    assert stored(fake, T0) == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize("partition", [None, 0])
@pytest.mark.parametrize("at", [2, 3, 9])  # the first two take the lock
def test_a_record_batch_that_is_sealed_in_the_middle_of_a_send(
    fake: FakeCluster, at: int, partition: int | None
) -> None:
    """The sending thread seals it, as when it has lingered; the record then goes into the next."""
    fake.create("t")
    clock = HookedClock()
    with Cluster.connect(fake.bootstrap, QUICK, clock=clock) as cluster:
        with Producer(cluster, LONG) as producer:
            futures = []
            for number in range(10):
                if number == at:
                    clock.hook = producer.flush
                futures.append(producer.send("t", b"%d" % number, partition=partition))
        assert [future.result(0).offset for future in futures] == list(range(10))
    assert stored(fake, T0) == [b"%d" % number for number in range(10)]
    assert [header.record_count for header, _ in fake.partition(T0).batches] == [at, 10 - at]


def test_what_came_before_an_appender_was_closed_is_told_from_what_came_after(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    with Producer(cluster, LONG) as producer:
        for _ in range(3):
            producer.send("t", b"v")
        appender = producer._accumulator.appenders["t"]
        appender.records += (b"before", 1)
        end = len(appender.records)
        producer.flush()
        appender.records += (b"after", 2)
        assert not appender.is_open
        assert producer._accumulator.has_taken(appender, end)
        assert not producer._accumulator.has_taken(appender, end + 2)
    assert stored(fake, T0) == [b"v", b"v", b"v", b"before"]


def test_another_thread_sends_in_the_middle_of_a_send(fake: FakeCluster) -> None:
    fake.create("t")
    clock = HookedClock()
    with Cluster.connect(fake.bootstrap, QUICK, clock=clock) as cluster:
        with Producer(cluster, LONG) as producer:
            futures = [producer.send("t", b"%d" % number) for number in range(5)]
            between: list[RecordFuture] = []
            clock.hook = lambda: in_thread(lambda: between.append(producer.send("t", b"between")))
            futures.append(producer.send("t", b"5"))
            futures.append(producer.send("t", b"6"))
        assert [future.result(0).offset for future in futures] == [0, 1, 2, 3, 4, 6, 7]
        assert between[0].result(0).offset == 5
    assert stored(fake, T0) == [b"0", b"1", b"2", b"3", b"4", b"between", b"5", b"6"]


def test_the_same_thread_sends_in_the_middle_of_a_send(fake: FakeCluster) -> None:
    """A signal's handler may do so."""
    fake.create("t")
    clock = HookedClock()
    with (
        Cluster.connect(fake.bootstrap, QUICK, clock=clock) as cluster,
        Producer(cluster, LONG) as producer,
    ):
        futures = [producer.send("t", b"%d" % number) for number in range(5)]
        clock.hook = lambda: futures.append(producer.send("t", b"within"))
        futures.append(producer.send("t", b"around"))
        producer.flush()
    assert [future.result(0).offset for future in futures] == list(range(7))
    assert stored(fake, T0)[5:] == [b"within", b"around"]


def test_a_closed_producer_takes_nothing(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, LONG) as producer:
        for _ in range(5):
            producer.send("t", b"v")
    with pytest.raises(ProducerClosedError):
        producer.send("t", b"v")
    assert stored(fake, T0) == [b"v"] * 5


def test_what_is_reserved_and_not_used_is_there_for_others(
    fake: FakeCluster, cluster: Cluster
) -> None:
    for topic in ("t", "u"):
        fake.create(topic)
        cluster.topic(topic, cluster.retry_deadline())  # what must not block can wait for no answer
    for broker in fake.brokers:
        broker.fault(Api.APPEND, "hang")
    config = ProducerConfig(
        linger_ms=60_000, batch_bytes=30_000, buffer_bytes=30_000, max_block_ms=0
    )
    producer = Producer(cluster, config)
    for _ in range(10):
        producer.send("t", b"x" * 80)
    assert producer._accumulator.buffered_bytes == 1_000
    assert producer.has_room("t")
    producer.send("u", b"y" * 28_900)
    assert producer._accumulator.buffered_bytes == 29_920
    with pytest.raises(BufferExhaustedError, match="29920 of 30000"):
        producer.send("u", b"y" * 100)
    producer.send("u", b"z" * 60)
    producer._abandon()


def test_each_partition_that_is_named_has_an_appender(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, LONG, partitioner=lambda *_: 1) as producer:
        for number in range(40):
            producer.send("t", b"%d" % number, partition=number % 2)
        assert set(producer._accumulator.appenders) == {("t", 0), ("t", 1)}
        producer.send("t", b"40")  # where the partitioner says
    assert stored(fake, T0) == [b"%d" % number for number in range(0, 40, 2)]
    assert stored(fake, T1) == [b"%d" % number for number in range(1, 40, 2)] + [b"40"]


@pytest.mark.parametrize("partition", [-1, 2, True, "0", [0]])
def test_a_partition_that_does_not_exist_is_refused_as_ever(
    fake: FakeCluster, cluster: Cluster, partition: Any
) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, LONG) as producer:
        for number in (0, 0, 0, 1, 1, 1):
            producer.send("t", b"v", partition=number)
        with pytest.raises((UnknownTopicError, InvalidRequestError), match=r"partition"):
            producer.send("t", b"v", partition=partition)
    assert len(stored(fake, T0)) == len(stored(fake, T1)) == 3


def test_appenders_of_many_partitions_leave_half_of_the_buffer(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t", partitions=50)
    config = ProducerConfig(linger_ms=60_000, batch_bytes=20_000, buffer_bytes=200_000)
    with Producer(cluster, config) as producer:
        for number in range(100):
            producer.send("t", b"v", partition=number // 2)
        accumulator = producer._accumulator
        assert len(accumulator.appenders) == 5
        assert accumulator.buffered_bytes < 3_000
        assert accumulator._reserved_bytes <= 120_000


@pytest.mark.usefixtures("eager_switches")
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("threads", [1, 4])
def test_threads_that_send_at_once(
    fake: FakeCluster, cluster: Cluster, threads: int, named: bool
) -> None:
    fake.create("t", partitions=2)
    futures: dict[bytes, RecordFuture] = {}
    with Producer(cluster, ProducerConfig(linger_ms=0, batch_bytes=8_000)) as producer:

        def work(mine: int) -> None:
            for number in range(5_000):
                value = b"%d:%d" % (mine, number)
                futures[value] = producer.send("t", value, partition=number % 2 if named else None)

        running = [threading.Thread(target=work, args=(mine,)) for mine in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        producer.flush()
    there = {each: stored(fake, each) for each in (T0, T1)}
    assert sum(map(len, there.values())) == 5_000 * threads == len(futures)
    for value, future in futures.items():
        told = future.result(0)
        assert told.offset is not None
        assert there[TopicPartition("t", told.partition)][told.offset] == value
    for values in there.values():
        for mine in range(threads):
            own = [int(value.split(b":")[1]) for value in values if value.startswith(b"%d:" % mine)]
            assert own == sorted(own)


@pytest.mark.usefixtures("eager_switches")
def test_closing_while_threads_send(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    futures: dict[bytes, RecordFuture] = {}
    producer = Producer(cluster, ProducerConfig(linger_ms=1))
    many = threading.Event()

    def work(mine: int) -> None:
        number = 0
        while True:
            value = b"%d:%d" % (mine, number)
            try:
                futures[value] = producer.send("t", value)
            except ProducerClosedError:
                return
            number += 1
            if number == 1_000:
                many.set()

    running = [threading.Thread(target=work, args=(mine,)) for mine in range(2)]
    for thread in running:
        thread.start()
    assert many.wait(60)
    producer.close()
    for thread in running:
        thread.join(60)
    assert all(future.done() for future in futures.values())
    values = stored(fake, T0)
    assert sorted(values) == sorted(futures)
    assert all(values[future.result(0).offset or 0] == key for key, future in futures.items())


@pytest.mark.usefixtures("eager_switches")
def test_record_batches_that_fail_take_no_others_with_them(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    futures: list[RecordFuture] = []
    with Producer(cluster, ProducerConfig(linger_ms=0, batch_bytes=8_000)) as producer:
        for number in range(5_000):
            if number % 1_000 == 500:
                fake.brokers[0].fault(Api.APPEND, "partition_error", InvalidRequestError("no"))
            futures.append(producer.send("t", b"%d" % number))
        futures[-1].exception(60)
        # Those that are refused together are sent again, each by itself; this one is alone.
        fake.brokers[0].fault(Api.APPEND, "partition_error", InvalidRequestError("no"))
        futures.append(producer.send("t", b"5000"))
        refused = [number for number, each in enumerate(futures) if each.exception(60) is not None]
    values = stored(fake, T0)
    taken = {number: each for number, each in enumerate(futures) if each.exception(0) is None}
    assert refused[-1:] == [5_000]
    assert len(values) == len(taken)
    assert all(isinstance(futures[number].exception(0), InvalidRequestError) for number in refused)
    assert all(values[each.result(0).offset or 0] == b"%d" % n for n, each in taken.items())
