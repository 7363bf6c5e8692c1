"""The two logs as rows see them: topics that become usable, and a broker's costs and restarts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from bench.harness import cluster
from bench.peers.kafka import Kafka, kafka
from bench.recovery import memory_mib
from bench.scaling.results import KAFKA, LOGBUS
from spark_logbus.client import Admin, Cluster, Producer, ProducerConfig, RecordFuture
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import Acks, Latest, TopicPartition

_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.01
_PRODUCER = ProducerConfig(acks=Acks.WRITTEN, linger_ms=0)
# What is acknowledged is in the page cache, as Kafka has it.
_CONFIG = {"flush.policy": "os"}


Append = Callable[[str, int], None]
"""Appends a record to a partition of a topic, and waits until that is acknowledged."""


class System(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def pids(self) -> list[int]:
        """Of the brokers."""

    def create_topic(self, topic: str, partitions: int) -> None:
        """And wait until all leaders are known."""

    def delete_topic(self, topic: str) -> None: ...

    def record_count(self, topic: str, partitions: int) -> int:
        """What consumers see."""

    def appender(self) -> AbstractContextManager[Append]:
        """A connected producer."""

    def end(self, *, killed: bool) -> None:
        """Stop the broker, or end it by SIGKILL."""

    def start(self) -> None:
        """Start it again, and wait until it says that it serves."""


@dataclass(frozen=True)
class LogbusSystem:
    running: EmbeddedCluster
    client: Cluster
    name: str = LOGBUS

    @property
    def address(self) -> str:
        return self.running.zookeeper

    @property
    def pids(self) -> list[int]:
        return [broker.pid for broker in self.running.brokers]

    def create_topic(self, topic: str, partitions: int) -> None:
        Admin(self.client).create_topic(topic, partitions=partitions, config=_CONFIG)

    def delete_topic(self, topic: str) -> None:
        Admin(self.client).delete_topic(topic)

    def record_count(self, topic: str, partitions: int) -> int:
        wanted = {TopicPartition(topic, number): Latest() for number in range(partitions)}
        return sum(end or 0 for end in Admin(self.client).list_offsets(wanted).values())

    @contextmanager
    def appender(self) -> Iterator[Append]:
        with Producer(self.client, _PRODUCER) as producer:
            yield lambda topic, partition: _await(producer.send(topic, b"", partition=partition))

    def end(self, *, killed: bool) -> None:
        (broker,) = self.running.brokers
        if killed:
            broker.kill()
        else:
            broker.stop()

    def start(self) -> None:
        (broker,) = self.running.brokers
        broker.start()


def _await(future: RecordFuture) -> None:
    future.result(_DEADLINE_S)


@dataclass(frozen=True)
class KafkaSystem:
    server: Kafka
    name: str = KAFKA

    @property
    def address(self) -> str:
        return self.server.bootstrap

    @property
    def pids(self) -> list[int]:
        return [self.server.process.pid]

    def create_topic(self, topic: str, partitions: int) -> None:
        self.server.create_topic(topic, partitions=partitions)
        producer = self._producer()
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            found = producer.list_topics(topic, timeout=_DEADLINE_S).topics[topic].partitions
            if len(found) == partitions and all(each.leader >= 0 for each in found.values()):
                return
            time.sleep(_POLL_S)
        raise SystemExit(f"Kafka's topic {topic} has not {partitions} leaders.")

    def delete_topic(self, topic: str) -> None:
        self.server.delete_topic(topic)

    def record_count(self, topic: str, partitions: int) -> int:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + _DEADLINE_S
        while True:
            try:
                return self.server.record_count(topic, partitions=partitions)
            except KafkaException:  # a partition that it has not taken yet, after a start
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)

    @contextmanager
    def appender(self) -> Iterator[Append]:
        producer = self._producer()
        producer.list_topics(timeout=_DEADLINE_S)

        def append(topic: str, partition: int) -> None:
            reports: list[Any] = []
            producer.produce(
                topic, b"", partition=partition, on_delivery=lambda error, _: reports.append(error)
            )
            producer.flush(_DEADLINE_S)
            if reports != [None]:
                raise SystemExit(f"Kafka did not take a record: {reports}.")

        yield append

    def end(self, *, killed: bool) -> None:
        if killed:
            self.server.process.kill()
        else:
            self.server.process.stop()

    def start(self) -> None:
        self.server.process.start()

    def _producer(self) -> Any:
        from confluent_kafka import Producer

        return Producer({"bootstrap.servers": self.address, "acks": "1", "log_level": 0})


@contextmanager
def logbus_system(*, brokers: int = 1) -> Iterator[LogbusSystem]:
    with (
        cluster(brokers=brokers) as running,
        Cluster.from_zookeeper(running.zookeeper) as client,
    ):
        yield LogbusSystem(running, client)


@contextmanager
def kafka_system() -> Iterator[KafkaSystem]:
    """Raises PeerUnavailableError."""
    with kafka(flushed=False) as server:
        yield KafkaSystem(server)


def cpu_seconds(system: System) -> float:
    """Of its brokers' processes, since they began."""
    return sum(_cpu_seconds(pid) for pid in system.pids)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    user, kernel = int(fields[11]), int(fields[12])
    return (user + kernel) / os.sysconf("SC_CLK_TCK")


def memory_of(system: System) -> float:
    """MiB that its brokers have in memory now."""
    return sum(memory_mib(pid, "VmRSS") for pid in system.pids)


def descriptors_of(system: System) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in system.pids)
