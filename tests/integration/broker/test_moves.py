"""Partitions move between two brokers on a real ZooKeeper, while they are written and read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_logbus.broker import Broker, MovesConfig
from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
)
from spark_logbus.client.producer.acknowledgements import RecordFuture
from spark_logbus.log import LogConfig, PartitionLog
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import Api, MoveRequest, MoveResponse, PartitionMove
from tests.helpers import wait_until
from tests.servers.broker import broker_here, connect

CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)
NO_RESERVE = MovesConfig(reserve_bytes=0)


class Brokers:
    """Two brokers in this process, which the test stops and starts."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.directory = directory
        self.zookeeper = zookeeper
        self.log = LogConfig(segment_bytes=64 << 10, index_interval_bytes=1 << 10)
        self.moves = NO_RESERVE
        self._running: dict[int, ExitStack] = {}
        self.brokers: dict[int, Broker] = {}

    def start(self, broker_id: int) -> Broker:
        stack = ExitStack()
        self.brokers[broker_id] = stack.enter_context(
            broker_here(
                self.directory / str(broker_id),
                self.zookeeper,
                broker_id=broker_id,
                log=self.log,
                moves=self.moves,
            )
        )
        self._running[broker_id] = stack
        return self.brokers[broker_id]

    def stop(self, broker_id: int) -> None:
        del self.brokers[broker_id]
        self._running.pop(broker_id).close()

    def stop_all(self) -> None:
        for broker_id in [*self._running]:
            self.stop(broker_id)

    def move(self, where: TopicPartition, to: int | None, *, throttle: int = 0) -> None:
        broker = next(iter(self.brokers.values()))
        request = MoveRequest([PartitionMove(where.topic, where.partition, to)], throttle)
        with connect(broker) as wire:
            (result,) = wire.call(Api.MOVE, request, MoveResponse).results
        if result.error is not None:
            raise result.error.to_exception()

    def leads(self, where: TopicPartition, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and broker._replica_manager.find(where) is not None

    def log_of(self, where: TopicPartition, broker_id: int) -> PartitionLog:
        return self.brokers[broker_id]._replica_manager.leader_of(where).log

    def wait_until_at(self, where: TopicPartition, broker_id: int) -> None:
        wait_until(lambda: self.leads(where, broker_id), message=f"{where} at {broker_id}")

    def move_error(self, where: TopicPartition) -> str:
        """The error of a move, empty if it has none."""
        broker = next(iter(self.brokers.values()))
        record = broker._metadata_cache.topics[where.topic]
        move = record.moves.get(where.partition)
        return "" if move is None else move.error

    def directories(self, broker_id: int) -> set[str]:
        """Names of the directories of logs, and the suffixes of those that are none any more."""
        names = [each.name for each in (self.directory / str(broker_id)).iterdir() if each.is_dir()]
        return {name.rpartition(".")[1] + name.rpartition(".")[2] for name in names}


@pytest.fixture
def brokers(tmp_path: Path, chroot: str) -> Iterator[Brokers]:
    pair = Brokers(tmp_path, chroot)
    pair.start(1)
    pair.start(2)
    yield pair
    pair.stop_all()


@pytest.fixture
def cluster(brokers: Brokers) -> Iterator[Cluster]:
    with Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as cluster:
        yield cluster


def create(brokers: Brokers, cluster: Cluster, name: str = "t", **config: str) -> TopicPartition:
    """A topic with one partition, which the first broker leads."""
    Admin(cluster).create_topic(name, partitions=1, config=config)
    where = TopicPartition(name, 0)
    first = 1 if wait_until(lambda: [n for n in (1, 2) if brokers.leads(where, n)]) == [1] else 2
    if first != 1:
        brokers.move(where, 1)
        brokers.wait_until_at(where, 1)
    return where


def fill(cluster: Cluster, where: TopicPartition, count: int, *, start: int = 0) -> None:
    with Producer(cluster, ProducerConfig(batch_bytes=2_000)) as producer:
        for number in range(start, start + count):
            producer.send(where.topic, b"%08d" % number, partition=where.partition)


def numbers(cluster: Cluster, where: TopicPartition, count: int) -> list[tuple[int, int]]:
    """Offsets and numbers of so many records from the beginning on, as soon as they are there."""
    found: list[tuple[int, int]] = []
    with Consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign([where])
        consumer.seek(where, "earliest")

        def has_come() -> bool:
            found.extend((each.offset, int(each.value)) for each in consumer.poll(0.2))
            return len(found) >= count

        wait_until(has_come, message=f"{count} records")
    return found


def dense(count: int) -> list[tuple[int, int]]:
    return [(number, number) for number in range(count)]


def test_a_partition_moves_with_its_records(brokers: Brokers, cluster: Cluster) -> None:
    where = create(brokers, cluster)
    fill(cluster, where, 5_000)
    before = brokers.log_of(where, 1)
    ends, epochs = before.ends(), before.epochs.entries
    brokers.move(where, 2)
    brokers.wait_until_at(where, 2)
    log = brokers.log_of(where, 2)
    assert log.ends() == ends
    assert log.epochs.entries == epochs
    assert numbers(cluster, where, 5_000) == dense(5_000)
    assert not brokers.leads(where, 1)
    fill(cluster, where, 100, start=5_000)
    assert numbers(cluster, where, 5_100) == dense(5_100)
    wait_until(lambda: brokers.directories(1) == {".moved"})


def test_nothing_is_lost_or_twice_while_a_partition_goes_to_and_fro(
    brokers: Brokers, cluster: Cluster
) -> None:
    where = create(brokers, cluster)
    stopping = threading.Event()
    sent: list[RecordFuture] = []

    def write() -> None:
        config = ProducerConfig(linger_ms=1, delivery_timeout_ms=60_000)
        with Producer(cluster, config) as producer:
            while not stopping.wait(0.001):
                sent.append(producer.send("t", b"%08d" % len(sent), partition=0))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for to in (2, 1, 2, 1):
                so_far = len(sent)
                wait_until(lambda: len(sent) > so_far + 50)  # noqa: B023
                brokers.move(where, to)
                brokers.wait_until_at(where, to)
        finally:
            stopping.set()
        writing.result(60)
    assert [future.result(0).offset for future in sent] == [*range(len(sent))]
    assert numbers(cluster, where, len(sent)) == dense(len(sent))
