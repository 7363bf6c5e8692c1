"""Topics with three replicas, on three brokers and a real ZooKeeper; some of them are killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_logbus.broker import Broker
from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Producer,
    ProducerConfig,
)
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.log import PartitionLog
from spark_logbus.model import TopicPartition
from tests.fakes.log_directory import batches_from
from tests.helpers import wait_until
from tests.servers.broker import broker_here, broker_process

CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)
KILLED = 3


class Three:
    """Two brokers in this process, and one in a process of its own."""

    def __init__(self, directory: Path, zookeeper: str, stack: ExitStack) -> None:
        self.brokers: dict[int, Broker] = {
            number: stack.enter_context(
                broker_here(directory / str(number), zookeeper, broker_id=number)
            )
            for number in (1, 2)
        }
        self.process: BrokerProcess = stack.enter_context(
            broker_process(
                directory / str(KILLED),
                zookeeper,
                broker_id=KILLED,
                settings={"broker": {"zookeeper_session_ms": 1_000}},
            )
        )
        self.cluster = stack.enter_context(Cluster.from_zookeeper(zookeeper, CONFIG))
        self.admin = Admin(self.cluster)

    def leads(self, where: TopicPartition) -> Broker:
        (broker,) = [
            each for each in self.brokers.values() if each._replica_manager.find(where) is not None
        ]
        return broker

    def in_sync(self, where: TopicPartition) -> list[int]:
        led = self.leads(where)._replica_manager.leader_of(where)
        members = self.leads(where)._in_sync.members(led)
        return [] if members is None else sorted(members.in_sync)

    def log_of(self, where: TopicPartition) -> PartitionLog:
        return self.leads(where)._replica_manager.leader_of(where).log

    def wait_for(self, where: TopicPartition, *in_sync: int) -> None:
        wait_until(
            lambda: self.in_sync(where) == [*in_sync], message=f"{in_sync} in sync of {where}"
        )

    def create(self, name: str, *, config: dict[str, str] | None = None) -> TopicPartition:
        """Creates a topic; returns a partition that is led in this process."""
        self.admin.create_topic(name, partitions=3, replicas=3, config=config or {})
        wheres = [TopicPartition(name, number) for number in range(3)]

        def led_here() -> list[TopicPartition]:
            return [
                where
                for where in wheres
                if any(each._replica_manager.find(where) for each in self.brokers.values())
            ]

        where = wait_until(led_here, message=f"{name} to be led")[0]
        self.wait_for(where, 1, 2, 3)
        return where


@pytest.fixture
def three(tmp_path: Path, chroot: str) -> Iterator[Three]:
    with ExitStack() as stack:
        yield Three(tmp_path, chroot, stack)


def test_appends_go_on_while_a_replica_is_gone_and_it_comes_back_in_sync(three: Three) -> None:
    where = three.create("t")
    with Producer(three.cluster, ProducerConfig(acks="replicated", linger_ms=0)) as producer:

        def send(count: int) -> None:
            for number in range(count):
                producer.send("t", value=b"v%d" % number, partition=where.partition).result(60)

        send(50)
        log = three.log_of(where)
        assert log.ends().high_watermark >= 50
        three.process.kill()
        send(50)  # some of these wait until it is noted that the broker is gone
        three.wait_for(where, 1, 2)
        assert three.leads(where)._in_sync.under_replicated() >= 1
        send(50)
        assert log.ends().high_watermark == 150
        three.process.start()
        three.wait_for(where, 1, 2, 3)
        send(50)
    assert log.ends().high_watermark == 200
    (other,) = [each for each in three.brokers.values() if each is not three.leads(where)]
    copy = other._logs.get(where)
    assert copy is not None
    wait_until(lambda: copy.ends().high_watermark == 200)
    assert list(batches_from(copy, 0)) == list(batches_from(log, 0))
