"""A replica that was away gets in sync again while a producer never pauses."""

from __future__ import annotations

import threading
from collections import deque
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
    RecordFuture,
)
from spark_logbus.errors import LogbusError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import Acks, TopicPartition
from tests.fakes.log_directory import batches_from
from tests.helpers import wait_until
from tests.servers.broker import broker_here, broker_process

CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)
LEADER, FOLLOWER = 1, 2
_AT_A_TIME = 100


class Load:
    """A producer on a thread of its own, which has many records under way at any time."""

    def __init__(self, cluster: Cluster, where: TopicPartition, acks: Acks) -> None:
        self.acknowledged = 0
        self._cluster, self._where, self._acks = cluster, where, acks
        self._ends = threading.Event()
        self._failure: LogbusError | None = None
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def end(self) -> int:
        """Ends it; returns the number of records, all of which are acknowledged."""
        self.__exit__()
        if self._failure is not None:
            raise self._failure
        return self.acknowledged

    def _run(self) -> None:
        under_way: deque[RecordFuture] = deque()
        topic, partition = self._where.topic, self._where.partition
        try:
            with Producer(self._cluster, ProducerConfig(acks=self._acks, linger_ms=0)) as producer:
                while not self._ends.is_set() or under_way:
                    while len(under_way) < _AT_A_TIME and not self._ends.is_set():
                        value = bytes(1_000)
                        under_way.append(producer.send(topic, value=value, partition=partition))
                    under_way.popleft().result(120)
                    self.acknowledged += 1
        except LogbusError as error:
            self._failure = error

    def wait_for(self, count: int) -> None:
        """Waits until so many more are acknowledged."""
        end = self.acknowledged + count

        def has_come() -> bool:
            return self._failure is not None or self.acknowledged >= end

        wait_until(has_come, message=f"{count} more records")
        if self._failure is not None:
            raise self._failure


class Two:
    """The leader of a partition in this process, and its follower in one of its own."""

    def __init__(self, directory: Path, zookeeper: str, stack: ExitStack) -> None:
        self.broker: Broker = stack.enter_context(
            broker_here(directory / "leader", zookeeper, broker_id=LEADER)
        )
        self.process: BrokerProcess = stack.enter_context(
            broker_process(
                directory / "follower",
                zookeeper,
                broker_id=FOLLOWER,
                settings={"broker": {"zookeeper_session_ms": 1_000}},
            )
        )
        self.cluster = stack.enter_context(Cluster.from_zookeeper(zookeeper, CONFIG))
        self.admin = Admin(self.cluster)

    def create(self, config: dict[str, str]) -> TopicPartition:
        """Creates a topic; returns its partition that is led in this process."""
        self.admin.create_topic("t", partitions=2, replicas=2, config=config)
        wheres = [TopicPartition("t", number) for number in range(2)]
        find = self.broker._replica_manager.find
        where = wait_until(lambda: [each for each in wheres if find(each)], message="a lead")[0]
        self.wait_until_in_sync(where, LEADER, FOLLOWER)
        return where

    def wait_until_in_sync(self, where: TopicPartition, *brokers: int) -> None:
        led = self.broker._replica_manager.leader_of(where)

        def are_in_sync() -> bool:
            members = self.broker._in_sync.members(led)
            return members is not None and members.in_sync == [*brokers]

        wait_until(are_in_sync, message=f"{brokers} in sync of {where}")


@pytest.fixture
def two(tmp_path: Path, chroot: str) -> Iterator[Two]:
    with ExitStack() as stack:
        yield Two(tmp_path, chroot, stack)


@pytest.mark.parametrize(
    ("policy", "acks"),
    [("logbus", Acks.REPLICATED), ("os", Acks.REPLICATED), ("os", Acks.WRITTEN)],
)
def test_a_replica_comes_back_in_sync_while_a_producer_never_pauses(
    two: Two, policy: str, acks: Acks
) -> None:
    where = two.create({"flush.policy": policy})
    log = two.broker._replica_manager.leader_of(where).log
    with Load(two.cluster, where, acks) as load:
        load.wait_for(500)
        two.process.kill()
        two.wait_until_in_sync(where, LEADER)
        load.wait_for(500)
        two.process.start()
        two.wait_until_in_sync(where, LEADER, FOLLOWER)
        load.wait_for(500)
        count = load.end()
    wait_until(lambda: log.ends().high_watermark == count, message="all to be seen")
    two.process.stop()
    assert log.ends().log_end_offset == count
    assert sum(header.record_count for header, _ in batches_from(log, 0)) == count
