"""Broker processes that tests of replicas kill, stop and start, and what such tests do with them.

Starting a process takes long, so the tests of a module share them: before each all run again, and
nothing is left of the topics of the one before.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

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
from spark_logbus.coordination.payloads import PartitionState, TopicPayload, decode
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import Acks, TopicPartition
from spark_logbus.protocol import Api, MetadataRequest, MetadataResponse
from tests.helpers import wait_until
from tests.servers.broker import SESSION_MS, connect
from tests.servers.zookeeper import read

CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)
T0 = TopicPartition("t", 0)


class BrokerProcesses:
    """Brokers in processes of their own, by their ids."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        broker_ids: Collection[int],
        *,
        session_ms: int,
    ) -> None:
        self.zookeeper = zookeeper
        self.ids = frozenset(broker_ids)
        settings = {
            "broker": {"zookeeper_session_ms": session_ms},
            "moves": {"reserve_bytes": 0},
            "replication": {"lag_max_ms": 3_000},
        }
        self.processes = {
            each: BrokerProcess(each, directory / str(each), zookeeper=zookeeper, settings=settings)
            for each in broker_ids
        }

    # -- processes ------------------------------------------------------------------------

    def start(self, *brokers: int) -> None:
        for each in brokers:
            self.processes[each].launch()
        for each in brokers:
            self.processes[each].wait_until_ready()

    def end_all(self) -> None:
        for each, process in self.processes.items():
            if process.running:
                self.signal(each, signal.SIGCONT)
            process.kill()

    def restore(self) -> None:
        """Has all of them run, wherever a test has left them, and deletes its topics, and what
        they have logged."""
        stopped = [each for each, process in self.processes.items() if not process.running]
        for each in self.ids.difference(stopped):
            self.signal(each, signal.SIGCONT)
        self.start(*stopped)
        with self.connect() as cluster:
            admin = Admin(cluster)
            wait_until(lambda: self.registered(admin) == self.ids, message="all to be registered")
            for topic in admin.describe(None):
                admin.delete_topic(topic)
        wait_until(lambda: not any(map(self._logs, self.ids)), message="all logs to be deleted")
        for process in self.processes.values():
            os.truncate(process.log_file, 0)  # the broker appends to it

    def empty_disk(self, broker: int) -> None:
        """Kills a broker, whose disk is replaced by an empty one."""
        self.processes[broker].kill()
        shutil.rmtree(self.data(broker))

    def signal(self, broker: int, number: signal.Signals) -> None:
        os.kill(self.processes[broker].pid, number)

    def data(self, broker: int) -> Path:
        return self.processes[broker].directory / "data"

    def has_log(self, broker: int) -> bool:
        return f"{T0}" in self._logs(broker)

    def _logs(self, broker: int) -> list[str]:
        """Names of the directories of logs, without such as are set aside or deleted."""
        return [path.name for path in self.data(broker).glob("t-*") if not path.suffix]

    def connect(self) -> Cluster:
        return Cluster.from_zookeeper(self.zookeeper, CONFIG)

    # -- what they and ZooKeeper say ------------------------------------------------------

    @staticmethod
    def registered(admin: Admin) -> set[int]:
        found = admin.describe_cluster().brokers
        return {each.broker_id for each in found if each.registration is not None}

    def state(self, where: TopicPartition = T0) -> PartitionState:
        path = paths.partition_state(where)
        return decode(PartitionState, read(self.zookeeper, path), path=path)

    def topic(self) -> TopicPayload:
        path = paths.topic(T0.topic)
        return decode(TopicPayload, read(self.zookeeper, path), path=path)

    def serves(self, broker: int, where: TopicPartition = T0) -> bool:
        """Tells if the broker says that it leads the partition, with its ends."""
        with connect(self.processes[broker]) as wire:
            request = MetadataRequest([where.topic], ends=True)
            (topic,) = wire.call(Api.METADATA, request, MetadataResponse).topics
            (found,) = [each for each in topic.partitions if each.partition == where.partition]
            return found.leader == broker and found.ends is not None

    # -- waiting --------------------------------------------------------------------------

    def wait_until_in_sync(self, *brokers: int, where: TopicPartition = T0) -> PartitionState:
        """Waits until these are in sync, and no others."""

        def are_in_sync() -> PartitionState | None:
            state = self.state(where)
            return state if sorted(state.in_sync) == sorted(brokers) else None

        state = wait_until(are_in_sync, message=f"{brokers} in sync of {where}")
        assert state is not None
        return state

    def wait_until_led(
        self, *, not_by: int | None = None, by: int | None = None, where: TopicPartition = T0
    ) -> PartitionState:
        """Waits until a broker serves the partition, by the state that names it."""

        def is_led() -> PartitionState | None:
            state = self.state(where)
            is_that = state.leader != not_by and by in (None, state.leader)
            is_that = is_that and self.processes[state.leader].running
            return state if is_that and self.serves(state.leader, where) else None

        state = wait_until(is_led, message=f"{where} led by {by or f'another than {not_by}'}")
        assert state is not None
        return state

    def wait_until_at(self, *brokers: int) -> PartitionState:
        """Waits until the partition is assigned to these, no move stands, and all are in sync."""

        def is_at() -> PartitionState | None:
            topic, state = self.topic(), self.state()
            there = topic.partitions[0] == [*brokers] and not topic.moves
            return state if there and sorted(state.in_sync) == sorted(brokers) else None

        state = wait_until(is_at, message=f"{T0} at {brokers}")
        assert state is not None
        return state

    def wait_until_without_log(self, broker: int) -> None:
        wait_until(lambda: not self.has_log(broker), message=f"no log at broker {broker}")


@pytest.fixture(scope="module")
def processes(
    tmp_path_factory: pytest.TempPathFactory,
    new_chroot: Callable[[], str],
    request: pytest.FixtureRequest,
) -> Iterator[BrokerProcesses]:
    """Brokers that a module's tests share: those of its ``BROKERS``. Their sessions last a second,
    or what a test says as the fixture's parameter. Until ``restore`` none of them runs."""
    brokers = BrokerProcesses(
        tmp_path_factory.mktemp("brokers"),
        new_chroot(),
        request.module.BROKERS,
        session_ms=getattr(request, "param", SESSION_MS),
    )
    try:
        yield brokers
    finally:
        brokers.end_all()


def create(brokers: BrokerProcesses, cluster: Cluster, *, partitions: int = 1) -> int:
    """Creates the topic with three replicas, which are in sync when this returns; the leader of its
    first partition."""
    Admin(cluster).create_topic("t", partitions=partitions, replicas=3)
    for each in range(partitions):
        brokers.wait_until_in_sync(*brokers.ids, where=TopicPartition("t", each))
    return brokers.wait_until_led().leader


def create_at(
    brokers: BrokerProcesses,
    cluster: Cluster,
    *replicas: int,
    config: Mapping[str, str] | None = None,
) -> None:
    """Creates the topic with one partition, and has it at these brokers in that order."""
    admin = Admin(cluster)
    admin.create_topic("t", partitions=1, replicas=len(replicas), config=dict(config or {}))
    brokers.wait_until_at(*brokers.topic().partitions[0])
    if brokers.topic().partitions[0] != [*replicas]:
        admin.move_partitions({T0: replicas}, 0)
        brokers.wait_until_at(*replicas)


def send(
    cluster: Cluster, wanted: range, *, acks: Acks = Acks.REPLICATED, padding: int = 0
) -> None:
    """Sends numbers, each with so many random bytes as its key, and waits for all."""
    config = ProducerConfig(acks=acks, batch_bytes=20 * padding or 2_000)
    with Producer(cluster, config) as producer:
        futures = []
        for number in wanted:
            key = secrets.token_bytes(padding) if padding else None
            futures.append(producer.send("t", b"%08d" % number, key=key, partition=0))
        for future in futures:
            future.result(60)


def numbers(cluster: Cluster, count: int, where: TopicPartition = T0) -> list[int]:
    """Numbers that consumers see from the beginning on, when there are so many."""
    found: list[int] = []
    with Consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign([where])
        consumer.seek(where, "earliest")

        def has_come() -> bool:
            found.extend(int(each.value) for each in consumer.poll(0.2))
            return len(found) >= count

        wait_until(has_come, message=f"{count} records")
    return found
