"""Partitions with several replicas move between brokers, which are killed and stopped meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
)
from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import PartitionState, TopicPayload
from spark_logbus.errors import BrokerUnavailableError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import Acks, TopicPartition
from tests.helpers import wait_until
from tests.servers.broker import SESSION_MS
from tests.servers.zookeeper import read

CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)
T0 = TopicPartition("t", 0)
ALL = (1, 2, 3, 4)


class Brokers:
    """Four broker processes, which the test ends and starts."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.directory = directory
        self.zookeeper = zookeeper
        settings = {
            "broker": {"zookeeper_session_ms": SESSION_MS},
            "moves": {"reserve_bytes": 0},
            "replication": {"lag_max_ms": 3_000},
        }
        self.processes = {
            each: BrokerProcess(each, directory / str(each), zookeeper=zookeeper, settings=settings)
            for each in ALL
        }

    def start(self, *brokers: int) -> None:
        for each in brokers:
            self.processes[each].launch()
        for each in brokers:
            self.processes[each].wait_until_ready()

    def stop(self) -> None:
        for process in self.processes.values():
            if process.running:
                os.kill(process.pid, signal.SIGCONT)
            process.kill()

    def state(self) -> PartitionState:
        return msgspec.json.decode(
            read(self.zookeeper, paths.partition_state(T0)), type=PartitionState
        )

    def topic(self) -> TopicPayload:
        return msgspec.json.decode(read(self.zookeeper, paths.topic("t")), type=TopicPayload)

    def wait_until_at(self, *brokers: int) -> PartitionState:
        """Wait until the partition is assigned to these, no move stands, and all are in sync."""

        def is_at() -> PartitionState | None:
            topic, state = self.topic(), self.state()
            there = topic.partitions[0] == [*brokers] and not topic.moves
            return state if there and sorted(state.in_sync) == sorted(brokers) else None

        state = wait_until(is_at, message=f"t-0 at {brokers}")
        assert state is not None
        return state

    def wait_until_in_sync(self, *brokers: int) -> None:
        wait_until(lambda: {*brokers} <= {*self.state().in_sync}, message=f"{brokers} in sync")

    def wait_until_led(self) -> int:
        """Wait until a broker leads that runs; returns it."""

        def leader() -> int | None:
            found = self.state().leader
            return found if self.processes[found].running else None

        found = wait_until(leader, message="a leader that runs")
        assert found is not None
        return found

    def wait_until_without_log(self, broker: int) -> None:
        wait_until(lambda: not self.has_log(broker), message=f"no log at broker {broker}")

    def has_log(self, broker: int) -> bool:
        return (self.directory / str(broker) / "data" / "t-0").exists()


@pytest.fixture
def brokers(tmp_path: Path, chroot: str) -> Iterator[Brokers]:
    four = Brokers(tmp_path, chroot)
    try:
        four.start(*ALL)
        yield four
    finally:
        four.stop()


@pytest.fixture
def cluster(brokers: Brokers) -> Iterator[Cluster]:
    with Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as cluster:
        yield cluster


def create(brokers: Brokers, cluster: Cluster, *replicas: int, count: int = 500) -> int:
    """A topic whose partition is at these brokers and has numbers; returns who leads it."""
    Admin(cluster).create_topic("t", partitions=1, replicas=len(replicas))
    brokers.wait_until_at(*brokers.topic().partitions[0])
    if brokers.topic().partitions[0] != [*replicas]:
        move(cluster, *replicas)
        brokers.wait_until_at(*replicas)
    send(cluster, range(count))
    return brokers.state().leader


def move(cluster: Cluster, *to: int, throttle: int = 0) -> None:
    Admin(cluster).move_partitions({T0: to}, throttle)


def send(cluster: Cluster, wanted: range) -> None:
    with Producer(cluster, ProducerConfig(acks=Acks.REPLICATED, batch_bytes=2_000)) as producer:
        futures = [producer.send("t", b"%08d" % each, partition=0) for each in wanted]
        for future in futures:
            future.result(60)


def numbers(cluster: Cluster, count: int) -> list[int]:
    found: list[int] = []
    with Consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, "earliest")

        def has_come() -> bool:
            found.extend(int(each.value) for each in consumer.poll(0.2))
            return len(found) >= count

        wait_until(has_come, message=f"{count} records")
    return found


@contextmanager
def writing(cluster: Cluster, start: int) -> Iterator[Callable[[], int]]:
    """Sends one number after the other; the callable ends that and returns how many there are."""
    ended, count = threading.Event(), start

    def write() -> None:
        nonlocal count
        with Producer(cluster, ProducerConfig(acks=Acks.REPLICATED)) as producer:
            while not ended.is_set():
                producer.send("t", b"%08d" % count, partition=0).result(60)
                count += 1

    with ThreadPoolExecutor(1) as executor:
        written = executor.submit(write)

        def end() -> int:
            ended.set()
            written.result(60)
            return count

        try:
            yield end
        finally:
            ended.set()


@pytest.mark.parametrize(
    ("replicas", "to"),
    [
        ((1, 2, 3), (1, 2, 4)),  # another follower
        ((1, 2, 3), (2, 4, 3)),  # without the leader
        ((1, 2), (3, 4)),  # all are new
        ((1,), (1, 2, 3)),  # more replicas
        ((1, 2, 3), (2,)),  # fewer
        ((1, 2), (2, 1)),  # another preferred leader
    ],
)
def test_a_partition_moves_while_it_is_written(
    brokers: Brokers, cluster: Cluster, replicas: tuple[int, ...], to: tuple[int, ...]
) -> None:
    """Each record that was acknowledged is there once, and who lost its replica has no log more."""
    create(brokers, cluster, *replicas)
    with writing(cluster, 500) as end:
        move(cluster, *to)
        state = brokers.wait_until_at(*to)
        assert state.leader in to
        count = end()
    send(cluster, range(count, count + 100))
    assert numbers(cluster, count + 100) == [*range(count + 100)]
    for each in {*replicas} - {*to}:
        brokers.wait_until_without_log(each)
    if len(to) > 1:  # what the new ones have is good for an election
        brokers.processes[brokers.state().leader].kill()
        assert brokers.wait_until_led() in to
        assert numbers(cluster, count + 100) == [*range(count + 100)]


def test_a_move_that_is_cancelled_leaves_nothing_behind(brokers: Brokers, cluster: Cluster) -> None:
    """A new replica is in sync by then. It is not any more, and its copy goes."""
    create(brokers, cluster, 1, 2)
    admin = Admin(cluster)

    def is_begun_without_it() -> bool:
        os.kill(brokers.processes[4].pid, signal.SIGSTOP)
        try:
            move(cluster, 1, 3, 4)
        except BrokerUnavailableError:  # it was not registered just then
            os.kill(brokers.processes[4].pid, signal.SIGCONT)
            return False
        return True

    wait_until(is_begun_without_it, message="a move to broker 4, which stands still")
    brokers.wait_until_in_sync(3)
    assert admin.cancel_moves([T0]) == {T0}
    brokers.wait_until_at(1, 2)
    brokers.wait_until_without_log(3)
    os.kill(brokers.processes[4].pid, signal.SIGCONT)
    send(cluster, range(500, 600))

    def is_registered() -> bool:
        found = admin.describe_cluster().brokers
        return any(each.broker_id == 4 and each.registration is not None for each in found)

    wait_until(is_registered, message="broker 4 is registered")
    # What was in sync in the move before does not end another one.
    move(cluster, 1, 3, 4)
    brokers.wait_until_at(1, 3, 4)
    assert numbers(cluster, 600) == [*range(600)]


@pytest.mark.parametrize("who", ["leader", "new", "leaving"])
def test_a_broker_is_killed_in_a_move(brokers: Brokers, cluster: Cluster, who: str) -> None:
    """The move goes on when a broker leads, and ends when all to whom it goes are there."""
    leader = create(brokers, cluster, 1, 2, 3, count=2_000)
    (stays, leaves) = [each for each in (1, 2, 3) if each != leader]
    killed = {"leader": leader, "new": 4, "leaving": leaves}[who]
    with writing(cluster, 2_000) as end:
        move(cluster, stays, leader, 4, throttle=20_000)
        if who == "new":
            wait_until(lambda: brokers.has_log(4), message="a copy")
        brokers.processes[killed].kill()
        if who == "leader":
            assert brokers.wait_until_led() != leader
        Admin(cluster).move_partitions({T0: (stays, leader, 4)}, 0)  # no throttle from now on
        if who != "leaving":
            brokers.start(killed)
        brokers.wait_until_at(stays, leader, 4)
        count = end()
    if who == "leaving":
        brokers.start(killed)
        brokers.wait_until_without_log(killed)
    assert numbers(cluster, count) == [*range(count)]
