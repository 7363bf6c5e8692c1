"""Clients in a process that was forked from the one that made them."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Coroutine

import pyarrow as pa
import pytest

from spark_logbus.client import (
    Admin,
    AsyncProducer,
    Cluster,
    Consumer,
    Producer,
    ProducerConfig,
    RangeReader,
)
from spark_logbus.errors import ProcessForkedError
from spark_logbus.model import OffsetRange
from spark_logbus.protocol import Api
from tests.builders.arrow_batches import T0, record_batch
from tests.fakes.broker import FakeCluster

LONG = ProducerConfig(linger_ms=60_000)


def in_child(call: Callable[[], object]) -> object:
    """Returns what ``call`` returns or raises in a forked process, within 20 s."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            try:
                told: object = call()
            except BaseException as error:  # noqa: BLE001 - all of it is the parent's to judge
                told = error
            os.write(writing, pickle.dumps(told))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        told = stream.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "it hung"
    return pickle.loads(told)


def leave_by(producer: Producer, error: BaseException) -> str:
    with pytest.raises(type(error)) as left, producer:
        raise error
    return "as it was" if left.value is error and not hasattr(error, "__notes__") else "changed"


CALLS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send("t", b"v"),
    "send with a key": lambda producer: producer.send("t", b"v", key=b"k"),
    "send to a partition": lambda producer: producer.send("t", b"v", partition=0),
    "send to another topic": lambda producer: producer.send("other", b"v"),
    "send_many": lambda producer: producer.send_many("t", [b"v"]),
    "send_arrow": lambda producer: producer.send_arrow("t", pa.table({"value": [b"v"]})),
    "append_encoded": lambda producer: producer.append_encoded(
        "t", record_batch([b"v"]), partition=0
    ),
    "has_room": lambda producer: producer.has_room("t"),
    "flush": lambda producer: producer.flush(),
    "close": lambda producer: producer.close(),
    "leave": lambda producer: producer.__exit__(None, None, None),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_producer_says_at_once_that_it_is_the_parents(
    fake: FakeCluster, cluster: Cluster, call: Callable[[Producer], object]
) -> None:
    fake.create("t")
    fake.create("other")
    with Producer(cluster, LONG) as producer:
        for number in range(3):  # by a lane, which the child's thread would find as its own
            producer.send("t", b"%d" % number)
        told = in_child(lambda: call(producer))
        assert isinstance(told, ProcessForkedError), told
        assert f"belongs to process {os.getpid()}" in str(told)
        producer.send("t", b"3")
    assert sum(header.record_count for header, _ in fake.partition(T0).batches) == 4


@pytest.mark.parametrize("locked", ["nothing", "accumulator", "everything"])
def test_it_hangs_on_no_lock_that_another_thread_held(
    fake: FakeCluster, cluster: Cluster, locked: str
) -> None:
    fake.create("t")
    fake.partition(T0).leader = 77  # nobody
    locks = {
        "nothing": [],
        "accumulator": ["_accumulator"],
        "everything": ["_accumulator", "_topics", "_cluster", "_failures"],
    }[locked]
    with Producer(cluster, LONG) as producer:
        future = producer.send("t", b"v")
        many = producer.send_many("t", [b"v"])
        held, free = threading.Event(), threading.Event()

        def hold() -> None:
            held_here = [getattr(producer, name) for name in locks]
            for one in held_here:
                (getattr(one, "lock", None) or one._lock).acquire()
            held.set()
            free.wait(60)
            for one in held_here:
                (getattr(one, "lock", None) or one._lock).release()

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(60)
        try:
            for call in (
                lambda: producer.send("t", b"v"),
                producer.flush,
                producer.close,
                future.result,
                many[0].result,
            ):
                assert isinstance(in_child(call), ProcessForkedError)
        finally:
            free.set()
            thread.join()
            fake.partition(T0).leader = 1


def test_futures_of_the_parent_end_in_the_child_and_go_on_in_the_parent(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    with Producer(cluster, LONG) as producer:
        done = producer.send("t", b"0")
        producer.flush()
        hang = fake.brokers[0].fault(Api.APPEND, "hang")
        future = producer.send("t", b"1")
        many = producer.send_many("t", [b"2"])[0]
        assert hang.met.wait(60)
        called: list[str] = []
        many.add_done_callback(lambda _: called.append("many"))

        def child() -> list[str]:
            found = [type(one.exception()).__name__ for one in (future, many)]
            return [*found, str(done.result().offset), *called]

        assert in_child(child) == ["ProcessForkedError", "ProcessForkedError", "0"]
        hang.release.set()
    assert (future.result(0).offset, many.result(0).base_offset) == (1, 2)
    assert called == ["many"]


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("mine"), SystemExit(3), KeyboardInterrupt()], ids=repr
)
def test_what_ends_a_block_in_the_child_is_not_hidden(
    fake: FakeCluster, cluster: Cluster, error: BaseException
) -> None:
    fake.create("t")
    with Producer(cluster, LONG) as producer:
        producer.send("t", b"v")
        assert in_child(lambda: leave_by(producer, error)) == "as it was"
    assert len(fake.partition(T0).batches) == 1


def test_an_async_producer_says_so_too(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")

    async def use() -> AsyncProducer:
        producer = AsyncProducer(cluster)
        await producer.send("t", b"v")
        return producer

    producer = asyncio.run(use())
    calls: list[Callable[[], Coroutine[None, None, object]]] = [
        lambda: producer.send("t", b"v"),
        lambda: producer.send_many("t", [b"v"]),
        producer.flush,
        producer.close,
    ]

    def told(call: Callable[[], Coroutine[None, None, object]]) -> object:
        return in_child(lambda: asyncio.run(call()))

    for call in calls:
        assert isinstance(told(call), ProcessForkedError)
    asyncio.run(producer.close())


def test_a_cluster_goes_on_in_both(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster) as producer:
        producer.send_many("t", [b"0", b"1", b"2"])
    admin = Admin(cluster)

    def use() -> list[object]:
        with Producer(cluster) as own:
            offset = own.send("t", b"of the child").result(60).offset
        with RangeReader(cluster, OffsetRange(T0, 0, 3)) as reader:
            read = sum(fetched.arrow_batch.num_rows for fetched in reader)
        return [sorted(admin.describe()), offset, read]

    assert admin.describe(["t"])
    with cluster.pool.lease(cluster.brokers[0], cluster.retry_deadline()) as leased:
        assert in_child(use) == [["t"], 3, 3]
        assert leased.idle

    def ask_anew() -> list[str]:
        cluster.invalidate("t")
        return sorted(admin.describe())

    cluster._lock.acquire()
    cluster._asking.acquire()
    try:
        assert in_child(ask_anew) == ["t"]
    finally:
        cluster._lock.release()
        cluster._asking.release()
    assert admin.describe(["t"])


def test_a_consumer_of_chosen_partitions_reads_in_both(fake: FakeCluster, cluster: Cluster) -> None:
    """Each has its own positions from there on, and none takes answers from the other."""
    fake.create("t", partitions=2)
    with Producer(cluster) as producer, Consumer(cluster) as consumer:
        consumer.assign_topics("t")
        for number in range(4):
            producer.send("t", b"%d" % number, partition=number % 2)
        producer.flush()
        read: list[bytes | None] = []
        while len(read) < 4:
            read += [record.value for record in consumer.poll(60)]
        # A fetch that waits for more is under way by now.

        def child() -> list[bytes | None]:
            with Producer(cluster) as own:
                own.send("t", b"4", partition=0).result(60)
            found: list[bytes | None] = []
            until = time.monotonic() + 60
            while not found and time.monotonic() < until:
                found += [record.value for record in consumer.poll(1)]
            consumer.close()
            return found

        assert in_child(child) == [b"4"]
        while len(read) < 5:
            read += [record.value for record in consumer.poll(60)]
        producer.send("t", b"5", partition=1)
        while len(read) < 6:
            read += [record.value for record in consumer.poll(60)]
        assert set(read) == {b"%d" % number for number in range(6)}
        assert len(read) == 6
