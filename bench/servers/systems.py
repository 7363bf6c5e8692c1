"""The two logs, each with topics that are written to and read from by clients in turn."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.servers.kafka import Kafka
from spark_logbus.client import Admin, Cluster
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import Latest, TopicPartition

_numbers = itertools.count(1)


class Stored(NamedTuple):
    """What a topic's segment files hold."""

    record_batches: int
    size_bytes: int


class System(Protocol):
    @property
    def address(self) -> str: ...

    def create_topic(self, topic: str, *, flushed: bool) -> None:
        """With ``flushed``, what is acknowledged is on the disk; without, both logs leave flushes
        to the operating system."""

    def delete_topic(self, topic: str) -> None: ...

    def record_count(self, topic: str) -> int:
        """What consumers see."""

    def stored(self, topic: str) -> Stored: ...


@dataclass(frozen=True)
class LogbusSystem:
    running: EmbeddedCluster
    client: Cluster
    partitions: int

    @property
    def address(self) -> str:
        return self.running.zookeeper

    def create_topic(self, topic: str, *, flushed: bool) -> None:
        config = {} if flushed else {"flush.policy": "os"}
        Admin(self.client).create_topic(topic, partitions=self.partitions, config=config)

    def delete_topic(self, topic: str) -> None:
        Admin(self.client).delete_topic(topic)

    def record_count(self, topic: str) -> int:
        partitions = [TopicPartition(topic, number) for number in range(self.partitions)]
        ends = Admin(self.client).list_offsets({each: Latest() for each in partitions})
        return sum(end or 0 for end in ends.values())

    def stored(self, topic: str) -> Stored:
        data = self.running.brokers[0].directory / "data"
        return stored_in(data, topic, partitions=self.partitions, prefix=struct.Struct("<qI"))


@dataclass(frozen=True)
class KafkaSystem:
    server: Kafka
    partitions: int

    @property
    def address(self) -> str:
        return self.server.bootstrap

    def create_topic(self, topic: str, *, flushed: bool) -> None:
        config = {"flush.messages": "1"} if flushed else {}
        self.server.create_topic(topic, partitions=self.partitions, config=config)

    def delete_topic(self, topic: str) -> None:
        self.server.delete_topic(topic)

    def record_count(self, topic: str) -> int:
        return self.server.record_count(topic, partitions=self.partitions)

    def stored(self, topic: str) -> Stored:
        return stored_in(
            self.server.data, topic, partitions=self.partitions, prefix=struct.Struct(">qi")
        )


@contextmanager
def fresh_topic(system: System, *, flushed: bool = False) -> Iterator[str]:
    name = f"clients-{next(_numbers)}"
    system.create_topic(name, flushed=flushed)
    try:
        yield name
    finally:
        system.delete_topic(name)


def stored_in(data: Path, topic: str, *, partitions: int, prefix: struct.Struct) -> Stored:
    """Both formats begin with an offset and with the count of bytes that follow."""
    record_batches = size_bytes = 0
    for number in range(partitions):
        for segment in (data / f"{topic}-{number}").glob("*.log"):
            size = segment.stat().st_size
            size_bytes += size
            with segment.open("rb") as file:
                position = 0
                while position < size:
                    file.seek(position)
                    _, length = prefix.unpack(file.read(prefix.size))
                    position += prefix.size + length
                    record_batches += 1
    return Stored(record_batches, size_bytes)
