"""Producer and consumer for asyncio, against real brokers and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import uuid

import pyarrow as pa
import pytest

from spark_logbus.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Cluster,
    Consumer,
    ConsumerConfig,
    ProducerConfig,
)
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.errors import InvalidRequestError, UnknownTopicError
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import TopicPartition
from tests.servers.zookeeper import session


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(name, partitions=2)
    return name


def test_records_there_and_back(brokers: EmbeddedCluster, cluster: Cluster, topic: str) -> None:
    group = ConsumerConfig(group=topic, zookeeper=brokers.zookeeper, auto_commit_ms=None)

    async def run() -> list[bytes | None]:
        async with AsyncProducer(cluster) as producer, AsyncConsumer(cluster, group) as consumer:
            await consumer.subscribe(topic)
            sending = [producer.send(topic, b"%d" % n, partition=0) for n in range(100)]
            metadata = await asyncio.gather(*sending)
            assert [one.offset for one in metadata] == list(range(100))
            [appended] = await producer.send_many(topic, [b"100", b"101"], partition=0)
            assert appended.base_offset == 100
            await producer.send_arrow(topic, pa.table({"value": [b"102"]}), partition=0)
            read: list[bytes | None] = []
            async for record in consumer:
                read.append(record.value)
                if len(read) == 50:
                    await consumer.commit()
                if len(read) == 103:
                    break
            assert consumer.assignment == [TopicPartition(topic, n) for n in (0, 1)]
            await consumer.seek(TopicPartition(topic, 0), "-3 records")
            assert (await anext(consumer)).value == b"100"
            return read

    assert asyncio.run(run()) == [b"%d" % n for n in range(103)]
    with session(brokers.zookeeper) as opened:
        committed = GroupOffsets(opened).committed(topic)
    assert committed[TopicPartition(topic, 0)].offset == 50, "what was handed out, not received"


def test_the_loop_runs_on_while_a_consumer_waits(cluster: Cluster, topic: str) -> None:
    async def run() -> None:
        async with AsyncConsumer(cluster) as consumer, AsyncProducer(cluster) as producer:
            await consumer.assign_topics(topic)
            first = asyncio.create_task(anext(consumer))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not first.done()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await producer.send(topic, b"x")
            # Whether or not the poll of the task that is gone had brought it.
            assert (await asyncio.wait_for(anext(consumer), 30)).value == b"x"

    asyncio.run(run())


def test_a_producer_whose_task_is_cancelled_sends_what_it_has(cluster: Cluster, topic: str) -> None:
    async def run() -> None:
        left = asyncio.Event()

        async def serve() -> None:
            config = ProducerConfig(linger_ms=600_000)
            async with AsyncProducer(cluster, config) as producer:
                sending = asyncio.create_task(producer.send(topic, b"x"))
                while not producer.metrics()["record_send_total"]:
                    await asyncio.sleep(0)
                left.set()
                await sending

        service = asyncio.create_task(serve())
        await left.wait()
        service.cancel()
        with pytest.raises(asyncio.CancelledError):
            await service
        async with AsyncConsumer(cluster) as consumer:
            await consumer.assign_topics(topic)
            await consumer.seek(TopicPartition(topic, 0), 0)
            await consumer.seek(TopicPartition(topic, 1), 0)
            assert (await asyncio.wait_for(anext(consumer), 60)).value == b"x"

    asyncio.run(run())


def test_an_async_consumer_does_what_a_consumer_does(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str
) -> None:
    for_the_loop = {"is_to_look", "keep_last", "next_at_hand", "records_at_hand", "take_back"}
    names = {name for name in dir(Consumer) if not name.startswith("_")} - for_the_loop
    assert names <= set(dir(AsyncConsumer))
    one, other = (TopicPartition(topic, number) for number in (0, 1))
    group = ConsumerConfig(group=topic, zookeeper=brokers.zookeeper)

    async def run() -> None:
        async with AsyncProducer(cluster) as producer, AsyncConsumer(cluster, group) as consumer:
            await producer.send_many(topic, [b"%d" % n for n in range(10)], partition=0)
            await producer.send_many(topic, [b"%d" % n for n in range(10)], partition=1)
            await consumer.assign([one, other])
            await consumer.pause([other])
            assert consumer.paused == [other]
            records = await consumer.poll(60, max_records=4)
            assert [record.value for record in records] == [b"0", b"1", b"2", b"3"]
            assert await consumer.position(one) == 4
            assert (await anext(consumer)).offset == 4
            assert await consumer.committed([one]) == {}
            await consumer.commit()
            assert await consumer.committed([one, other]) == {one: 5, other: 0}
            assert (await consumer.to_arrow()).column("offset").to_pylist() == [5, 6, 7, 8, 9]
            assert await consumer.poll(0) == []
            await consumer.resume([other])
            assert len(await consumer.to_pandas()) == 10
            await consumer.resume_from_committed()
            fetched, *_ = await consumer.poll_arrow(60)
            assert fetched.base_offset == {one: 5, other: 0}[fetched.topic_partition]
            assert await consumer.value_schema(topic) is None
            assert consumer.dropped_records == 0
            assert consumer.metrics()["commit_total"] == 1
            assert consumer.metrics()["assigned_partitions"] == 2
            assert repr(consumer) == (
                f"<AsyncConsumer at {brokers.zookeeper}, group {topic!r}, topics {topic}, "
                "2 partitions>"
            )
            await consumer.unsubscribe()

    asyncio.run(run())


def test_errors_are_the_clients_own(cluster: Cluster, topic: str) -> None:
    async def run() -> None:
        async with AsyncProducer(cluster) as producer, AsyncConsumer(cluster) as consumer:
            with pytest.raises(UnknownTopicError):
                await producer.send("nowhere", b"x")
            with pytest.raises(InvalidRequestError, match="must be bytes"):
                await producer.send(topic, "text")
            with pytest.raises(InvalidRequestError, match="No partition is assigned"):
                await anext(consumer)
            await consumer.assign_topics(topic)  # and goes on
            await producer.send(topic, b"x")
            assert (await anext(consumer)).value == b"x"

    asyncio.run(run())


def test_a_full_buffer_does_not_hold_up_the_loop(cluster: Cluster, topic: str) -> None:
    config = ProducerConfig(buffer_bytes=1 << 20, batch_bytes=1 << 19)

    async def run() -> None:
        async with AsyncProducer(cluster, config) as producer:
            await asyncio.gather(*[producer.send(topic, bytes(100_000)) for _ in range(50)])

    asyncio.run(run())
