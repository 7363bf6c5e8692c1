"""Records that were handed out and not dealt with are not committed, whatever ends the reading."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from spark_logbus.client import (
    Admin,
    AsyncConsumer,
    Cluster,
    Consumer,
    ConsumerConfig,
    ConsumerRecord,
    FetchedBatch,
    Producer,
)
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.errors import InvalidRequestError
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import Latest, TopicPartition
from tests.helpers import wait_until
from tests.servers.zookeeper import session

RECORDS = 100
FAILS_AT = 10  # the 11th


class HandlerError(Exception):
    """Raised by the programs here."""


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Name of a topic of a hundred records, in one partition."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(name, partitions=1)
    with Producer(cluster) as producer:
        producer.send_many(name, [b"%d" % number for number in range(RECORDS)])
    return name


@pytest.fixture
def config(brokers: EmbeddedCluster, topic: str) -> ConsumerConfig:
    return ConsumerConfig(group=topic, zookeeper=brokers.zookeeper, max_wait_ms=20)


@pytest.fixture
def committed(brokers: EmbeddedCluster, topic: str) -> Callable[[], int | None]:
    """The group's committed offset."""

    def look() -> int | None:
        with session(brokers.zookeeper) as opened:
            found = GroupOffsets(opened).committed(topic).get(TopicPartition(topic, 0))
        return None if found is None else found.offset

    return look


def handle(record: ConsumerRecord, *, fail: type[BaseException] = HandlerError) -> None:
    if record.offset == FAILS_AT:
        raise fail


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """A program that ends by its own exception."""
    with pytest.raises(HandlerError):
        yield


def assigned(consumer: Consumer) -> list[TopicPartition]:
    """Returns what the consumer reads, once that is known."""
    while not consumer.assignment:
        consumer.poll(0.1, max_records=1)
    return consumer.assignment


def in_a_loop(consumer: Consumer) -> None:
    for record in consumer:
        handle(record)


def by_next(consumer: Consumer) -> None:
    while True:
        handle(next(consumer))


def by_poll(consumer: Consumer) -> None:
    while True:
        for record in consumer.poll(max_records=7):
            handle(record)


def by_arrow(consumer: Consumer) -> None:
    while True:
        if consumer.poll_arrow():
            raise HandlerError


def as_a_table(consumer: Consumer) -> None:
    [only] = assigned(consumer)
    consumer.seek(only, 0)
    assert consumer.to_arrow().num_rows == RECORDS
    raise HandlerError


def by_poll_and_paused(consumer: Consumer) -> None:
    records: list[ConsumerRecord] = []
    while not records:
        records = consumer.poll(max_records=7)
    consumer.pause(consumer.assignment)
    raise HandlerError


def in_a_loop_and_paused(consumer: Consumer) -> None:
    for record in consumer:
        if record.offset == FAILS_AT:
            consumer.pause(consumer.assignment)
        handle(record)


def interrupted(consumer: Consumer) -> None:
    for record in consumer:
        handle(record, fail=KeyboardInterrupt)


def in_a_loop_that_goes_on(consumer: Consumer) -> None:
    """The exception is caught inside of the block."""
    with contextlib.suppress(HandlerError):
        in_a_loop(consumer)


def broken_off(consumer: Consumer) -> None:
    for record in consumer:
        if record.offset == FAILS_AT:
            break


READINGS: list[tuple[Callable[[Consumer], None], int]] = [
    (in_a_loop, FAILS_AT),
    (by_next, FAILS_AT),
    (by_poll, 7),
    (by_arrow, 0),
    (as_a_table, 0),
    (by_poll_and_paused, 0),
    (in_a_loop_and_paused, FAILS_AT),
    (interrupted, FAILS_AT),
    (in_a_loop_that_goes_on, FAILS_AT),
    (broken_off, FAILS_AT),
]


@pytest.mark.parametrize(("read", "dealt_with"), READINGS)
def test_what_was_not_dealt_with_comes_again(
    cluster: Cluster,
    topic: str,
    config: ConsumerConfig,
    committed: Callable[[], int | None],
    read: Callable[[Consumer], None],
    dealt_with: int,
) -> None:
    with (
        contextlib.suppress(HandlerError, KeyboardInterrupt),
        Consumer(cluster, config) as consumer,
    ):
        consumer.subscribe(topic)
        read(consumer)
    assert committed() == dealt_with
    with Consumer(cluster, config) as consumer:
        consumer.subscribe(topic)
        assert next(consumer).offset == dealt_with


def test_the_finally_of_a_failure_is_no_end_of_work(
    cluster: Cluster, topic: str, config: ConsumerConfig, committed: Callable[[], int | None]
) -> None:
    def serve() -> None:
        consumer = Consumer(cluster, config)
        try:
            consumer.subscribe(topic)
            by_poll(consumer)
        finally:
            consumer.close()

    with pytest.raises(HandlerError):
        serve()
    assert committed() == 7


def test_a_signal_that_closes_the_consumer_counts_nothing_of_a_loop(
    cluster: Cluster, topic: str, config: ConsumerConfig, committed: Callable[[], int | None]
) -> None:
    with Consumer(cluster, config) as consumer:
        consumer.subscribe(topic)
        for record in consumer:
            if record.offset == FAILS_AT:
                consumer.close()
                break
    assert committed() == FAILS_AT


def test_a_callback_commits_what_was_dealt_with(
    cluster: Cluster, topic: str, config: ConsumerConfig, committed: Callable[[], int | None]
) -> None:
    by_hand = replace(config, auto_commit_ms=None)
    with failing(), Consumer(cluster, by_hand) as consumer:
        consumer.subscribe(topic, on_revoked=lambda _: consumer.commit())
        in_a_loop(consumer)
    assert committed() == FAILS_AT


def test_leaving_the_block_counts_what_was_polled(
    cluster: Cluster, topic: str, config: ConsumerConfig, committed: Callable[[], int | None]
) -> None:
    with Consumer(cluster, config) as consumer:
        consumer.subscribe(topic)
        records: list[ConsumerRecord] = []
        while not records:
            records = consumer.poll(max_records=7)
    assert committed() == 7


def test_what_was_committed_in_a_loop_stays_so(
    cluster: Cluster, topic: str, config: ConsumerConfig, committed: Callable[[], int | None]
) -> None:
    with failing(), Consumer(cluster, config) as consumer:
        consumer.subscribe(topic)
        for record in consumer:
            if record.offset == FAILS_AT:
                consumer.commit()
                raise HandlerError
    assert committed() == FAILS_AT + 1
    with failing(), Consumer(cluster, config) as consumer:
        consumer.subscribe(topic)
        records: list[ConsumerRecord] = []
        while not records:
            records = consumer.poll(max_records=20)
        consumer.commit({TopicPartition(topic, 0): records[3].offset + 1})
        raise HandlerError
    assert committed() == FAILS_AT + 5


def test_asking_for_more_counts_what_came_before(
    cluster: Cluster, topic: str, config: ConsumerConfig, committed: Callable[[], int | None]
) -> None:
    """Timed commits count it too, also after a loop that was broken off."""
    timed = ConsumerConfig(group=topic, zookeeper=config.zookeeper, auto_commit_ms=0)
    with failing(), Consumer(cluster, timed) as consumer:
        consumer.subscribe(topic)
        for record in consumer:
            if record.offset == 4:
                assert committed() == 4
                break
        assert [record.offset for record in consumer.poll(max_records=3)] == [5, 6, 7]
        assert committed() == 5
        assert next(consumer).offset == 8
        assert committed() == 8
        raise HandlerError
    assert committed() == 8


def test_a_seek_is_what_the_program_wants(
    cluster: Cluster, topic: str, config: ConsumerConfig, committed: Callable[[], int | None]
) -> None:
    with failing(), Consumer(cluster, config) as consumer:
        consumer.subscribe(topic)
        for record in consumer:
            if record.offset == FAILS_AT:
                consumer.seek(TopicPartition(topic, 0), 3)
                raise HandlerError
    assert committed() == 3


def test_the_start_is_kept_where_nothing_was_dealt_with(
    cluster: Cluster, topic: str, config: ConsumerConfig, committed: Callable[[], int | None]
) -> None:
    """The next consumer would begin behind the record that failed otherwise."""
    latest = ConsumerConfig(group=topic, zookeeper=config.zookeeper, start=Latest())
    with failing(), Consumer(cluster, latest) as consumer:
        consumer.subscribe(topic)
        wait_until(lambda: consumer.poll_arrow(0.01) or consumer.assignment)
        assert consumer.position(TopicPartition(topic, 0)) == RECORDS
        with Producer(cluster) as producer:
            producer.send(topic, b"new")
        for record in consumer:
            assert record.value == b"new"
            raise HandlerError
    assert committed() == RECORDS


def test_what_is_revoked_while_a_table_is_read_was_not_dealt_with(
    brokers: EmbeddedCluster, cluster: Cluster, config: ConsumerConfig
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(topic, partitions=2)
    group = ConsumerConfig(group=topic, zookeeper=brokers.zookeeper, fetch_bytes=1, max_wait_ms=20)
    with Consumer(cluster, group) as consumer, Consumer(cluster, group) as other:
        revoked: list[TopicPartition] = []
        consumer.subscribe(topic, on_revoked=revoked.extend)
        partitions = assigned(consumer)
        with Producer(cluster) as producer:
            for each in partitions:
                producer.send(topic, b"x", partition=each.partition)
        ask = consumer._take_arrow

        def take_and_share(timeout_ms: float) -> list[FetchedBatch]:
            found = ask(timeout_ms)
            if found and not other.assignment and not revoked:
                other.subscribe(topic)
                wait_until(lambda: consumer._needs_rebalance())
            return found

        consumer._take_arrow = take_and_share  # type: ignore[method-assign]
        consumer.to_arrow()
        assert revoked or assigned(other)
        with session(brokers.zookeeper) as opened:
            found = GroupOffsets(opened).committed(topic)
        assert {found[each].offset for each in revoked} <= {0}


async def each_record(consumer: AsyncConsumer) -> None:
    async for record in consumer:
        handle(record)


async def each_next(consumer: AsyncConsumer) -> None:
    while True:
        handle(await anext(consumer))


async def each_poll(consumer: AsyncConsumer) -> None:
    while True:
        for record in await consumer.poll(max_records=7):
            handle(record)


async def each_caught(consumer: AsyncConsumer) -> None:
    with contextlib.suppress(HandlerError):
        await each_record(consumer)


async def each_cancelled(consumer: AsyncConsumer) -> None:
    async for record in consumer:
        if record.offset == FAILS_AT:
            raise asyncio.CancelledError


async def polled_and_cancelled(consumer: AsyncConsumer) -> None:
    """The poll has brought records that nobody received."""
    while not consumer.assignment:
        await consumer.poll(0.01, max_records=1)
    polling = asyncio.create_task(consumer.poll_arrow(60))
    await asyncio.sleep(0)
    polling.cancel()
    raise HandlerError


ASYNC_READINGS: list[tuple[Callable[[AsyncConsumer], Awaitable[None]], set[int]]] = [
    (each_record, {FAILS_AT}),
    (each_next, {FAILS_AT}),
    (each_poll, {7}),
    (each_caught, {FAILS_AT}),
    (each_cancelled, {FAILS_AT}),
    (polled_and_cancelled, {0, 1}),
]


@pytest.mark.parametrize(("read", "dealt_with"), ASYNC_READINGS)
def test_a_task_that_fails_has_not_dealt_with_its_record(
    cluster: Cluster,
    topic: str,
    config: ConsumerConfig,
    committed: Callable[[], int | None],
    read: Callable[[AsyncConsumer], Awaitable[None]],
    dealt_with: set[int],
) -> None:
    async def run() -> None:
        async with AsyncConsumer(cluster, config) as consumer:
            await consumer.subscribe(topic)
            await read(consumer)

    with contextlib.suppress(HandlerError, asyncio.CancelledError):
        asyncio.run(run())
    assert committed() in dealt_with


def test_what_a_cancelled_task_has_asked_for_comes_to_the_next(
    cluster: Cluster, topic: str, config: ConsumerConfig
) -> None:
    async def run() -> None:
        async with AsyncConsumer(cluster, config) as consumer:
            await consumer.assign_topics(topic)
            asked = [consumer.poll(60), consumer.poll_arrow(60), consumer.to_arrow()]
            for each in asked:
                asking = asyncio.ensure_future(each)
                await asyncio.sleep(0)  # it is under way
                asking.cancel()
                # Whether or not the task that is gone has been told so.
                assert (await anext(consumer)).offset == 0
                await consumer.seek(TopicPartition(topic, 0), 0)
            assert (await consumer.poll())[0].offset == 0

    asyncio.run(run())


def test_tasks_that_ask_for_other_things_get_no_record_handed_out_twice(
    cluster: Cluster, topic: str, config: ConsumerConfig
) -> None:
    async def run() -> list[int]:
        seen: list[int] = []
        async with AsyncConsumer(cluster, config) as consumer:
            await consumer.subscribe(topic)

            async def commit() -> None:
                while len(set(seen)) < RECORDS:
                    await consumer.commit()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(commit())
                while len(set(seen)) < RECORDS:
                    seen += [record.offset for record in await consumer.poll(60, max_records=5)]
        return seen

    assert asyncio.run(run()) == [*range(RECORDS)]


def test_a_consumer_that_is_closed_says_so(cluster: Cluster, config: ConsumerConfig) -> None:
    async def run() -> None:
        async with AsyncConsumer(cluster, config) as consumer:
            await consumer.close()
            with pytest.raises(InvalidRequestError, match="closed"):
                await anext(consumer)
            await consumer.close()

    asyncio.run(run())
