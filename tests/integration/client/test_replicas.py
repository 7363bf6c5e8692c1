"""Clients of partitions with three replicas: whom they read from, and what elections cost them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Consumer,
    Producer,
    ProducerConfig,
    RangeReader,
)
from spark_logbus.client.mapped_file import mapped
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.protocol import Api, Message
from spark_logbus.wire.connection import BrokerConnection, PendingResponse
from spark_logbus.wire.passed_file import PassedFile
from tests.helpers import frozen, wait_until
from tests.servers.broker import broker_process

# A minute for each request: what is waited for so long is not waited for in these tests.
CONFIG = ClientConfig(
    client_id="test", request_timeout_ms=60_000, retry_backoff_ms=10, retry_backoff_max_ms=500
)
T0 = TopicPartition("t", 0)


class Replicated:
    """Three brokers in racks r1 to r3, the first of which has no UNIX socket, and topic t."""

    def __init__(self, brokers: dict[int, BrokerProcess], zookeeper: str) -> None:
        self.brokers = brokers
        self.zookeeper = zookeeper
        with self.connect() as cluster:
            Admin(cluster).create_topic("t", partitions=3, replicas=3)
        self.wait_until_in_sync()

    def connect(self, **changes: Any) -> Cluster:
        return Cluster.from_zookeeper(self.zookeeper, replace(CONFIG, **changes))

    def wait_until_in_sync(self) -> None:
        def all_are() -> bool:
            parts = Admin(cluster).describe(["t"])["t"].partitions.values()
            return all(each.ends is not None and len(each.in_sync) == 3 for each in parts)

        with self.connect() as cluster:
            wait_until(all_are, message="all replicas to be in sync")

    def leader(self, topic_partition: TopicPartition = T0) -> int:
        with self.connect() as cluster:
            return cluster.leader(topic_partition, cluster.retry_deadline()).broker_id

    def led_by(self, broker_id: int) -> TopicPartition:
        return next(
            topic_partition
            for number in range(3)
            if self.leader(topic_partition := TopicPartition("t", number)) == broker_id
        )

    def produce(
        self, count: int, *, topic_partition: TopicPartition = T0, size_bytes: int = 10
    ) -> None:
        with self.connect() as cluster, Producer(cluster) as producer:
            for number in range(count):
                value = b"%d" % number
                producer.send("t", value.ljust(size_bytes), partition=topic_partition.partition)


@pytest.fixture
def replicated(chroot: str, tmp_path: Path) -> Iterator[Replicated]:
    with ExitStack() as stack:
        brokers = {
            number: stack.enter_context(
                broker_process(
                    tmp_path / f"broker-{number}",
                    chroot,
                    broker_id=number,
                    settings={
                        "broker": {"rack": f"r{number}"},
                        "network": {"local_socket": number > 1},
                    },
                )
            )
            for number in (1, 2, 3)
        }
        yield Replicated(brokers, chroot)


@pytest.fixture
def fetched_from(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The brokers to which fetches were sent."""
    brokers: set[int] = set()
    send = BrokerConnection.send

    def noted(
        connection: BrokerConnection, api: Api, message: Message, *rest: Any, **given: Any
    ) -> PendingResponse:
        if api is Api.FETCH:
            brokers.add(connection.address.broker_id)
        return send(connection, api, message, *rest, **given)

    monkeypatch.setattr(BrokerConnection, "send", noted)
    return brokers


def read(cluster: Cluster, topic_partition: TopicPartition, count: int) -> int:
    with RangeReader(cluster, OffsetRange(topic_partition, 0, count)) as reader:
        return sum(fetched.arrow_batch.num_rows for fetched in reader)


def wait_for_followers(
    replicated: Replicated, topic_partition: TopicPartition, count: int, **changes: Any
) -> None:
    """Returns when the follower that such a client reads from has heard that all is safe."""

    def reads_there() -> bool:
        with replicated.connect(**changes) as cluster:
            address = cluster.replica_to_read(topic_partition, cluster.retry_deadline())
            assert read(cluster, topic_partition, count) == count
            return cluster.replica_to_read(topic_partition, cluster.retry_deadline()) == address

    wait_until(reads_there, message="the follower to have heard that all is safe")


def test_ranges_are_read_from_the_replica_in_the_rack(
    replicated: Replicated, fetched_from: set[int]
) -> None:
    replicated.produce(1_000)
    leader = replicated.leader()
    other = next(number for number in (1, 2, 3) if number != leader)
    there: dict[str, Any] = {"rack": f"r{other}", "local_sockets": False}
    wait_for_followers(replicated, T0, 1_000, **there)
    with replicated.connect(**there) as cluster:
        cluster.leader(T0, cluster.retry_deadline())
        fetched_from.clear()
        with frozen(replicated.brokers[leader].pid):
            assert read(cluster, T0, 1_000) == 1_000
        with Consumer(cluster) as consumer:
            consumer.assign([T0])
            seen = 0
            while seen < 1_000:
                seen += len(consumer.poll(5))
    assert fetched_from == {other}


def test_files_of_a_follower_on_this_machine_are_mapped(
    replicated: Replicated, fetched_from: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    far = replicated.led_by(1)
    replicated.produce(300, topic_partition=far, size_bytes=10_000)
    wait_for_followers(replicated, far, 300)
    mapped_bytes: list[int] = []

    def noted(file: PassedFile, position: int, length: int) -> memoryview:
        mapped_bytes.append(length)
        return mapped(file, position, length)

    monkeypatch.setattr("spark_logbus.client.fetch.range_reader.mapped", noted)
    with replicated.connect() as cluster:
        fetched_from.clear()
        assert read(cluster, far, 300) == 300
    assert fetched_from
    assert 1 not in fetched_from
    assert sum(mapped_bytes) >= 3_000_000


def test_a_consumer_reads_each_record_once_across_elections(replicated: Replicated) -> None:
    acknowledged: list[int] = []
    stop = threading.Event()

    def send() -> None:
        with (
            replicated.connect() as cluster,
            Producer(cluster, ProducerConfig(linger_ms=0)) as producer,
        ):
            while not stop.is_set():
                future = producer.send("t", b"%d" % len(acknowledged), partition=0)
                acknowledged.append(future.result(60).offset or 0)
                stop.wait(0.005)

    sending = threading.Thread(target=send)
    with replicated.connect() as cluster, Consumer(cluster) as consumer:
        consumer.assign([T0])
        values: list[int] = []
        offsets: list[int] = []

        def read_on(count: int) -> None:
            wanted = len(values) + count
            while len(values) < wanted:
                for record in consumer.poll(5):
                    values.append(int(record.value or b"-1"))
                    offsets.append(record.offset)

        sending.start()
        try:
            read_on(100)
            killed = replicated.brokers[replicated.leader()]
            killed.kill()
            read_on(100)
            killed.start()
            replicated.wait_until_in_sync()
            stopped = replicated.brokers[replicated.leader()]
            with frozen(stopped.pid):
                read_on(100)  # while the one that led says nothing
        finally:
            stop.set()
            sending.join(60)
        read_on(len(acknowledged) - len(values))
    assert values == list(range(len(acknowledged)))
    assert offsets == sorted({*offsets})


def test_a_range_is_read_on_when_its_leader_hangs(replicated: Replicated) -> None:
    replicated.produce(1_000)
    with replicated.connect() as cluster:
        leader = cluster.leader(T0, cluster.retry_deadline())
        with RangeReader(cluster, OffsetRange(T0, 0, 1_000), fetch_bytes=1, in_flight=1) as reader:
            seen = next(reader).arrow_batch.num_rows
            with frozen(replicated.brokers[leader.broker_id].pid):
                seen += sum(fetched.arrow_batch.num_rows for fetched in reader)
    assert seen == 1_000
