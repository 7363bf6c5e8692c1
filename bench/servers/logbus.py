"""logbus itself: a cluster on this machine, and a client of it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.kit.harness import cluster
from spark_logbus.client import Admin, Cluster
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import Latest, TopicPartition

_LEFT_TO_THE_SYSTEM: Final = {"flush.policy": "os"}


@dataclass(frozen=True)
class Logbus:
    """A running cluster. Thread-safe."""

    running: EmbeddedCluster
    client: Cluster
    batch_prefix: struct.Struct = struct.Struct("<qI")

    @property
    def address(self) -> str:
        return self.running.zookeeper

    @property
    def pids(self) -> list[int]:
        """Process ids of the brokers."""
        return [broker.pid for broker in self.running.brokers]

    @property
    def data(self) -> Path:
        """Folder where the only broker keeps its partitions."""
        (broker,) = self.running.brokers
        return broker.directory / "data"

    def create_topic(self, topic: str, *, partitions: int = 1, flushed: bool = False) -> None:
        config = {} if flushed else _LEFT_TO_THE_SYSTEM
        Admin(self.client).create_topic(topic, partitions=partitions, config=config)

    def delete_topic(self, topic: str) -> None:
        Admin(self.client).delete_topic(topic)

    def ends(self, topic: str, *, partitions: int) -> list[int]:
        """Returns up to where consumers see each partition."""
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        found = Admin(self.client).list_offsets(dict.fromkeys(wanted, Latest()))
        return [found[each] or 0 for each in wanted]


@contextmanager
def logbus(**settings: Any) -> Iterator[Logbus]:
    """Runs a fresh cluster, gone afterwards; ``settings`` are those of ``cluster``."""
    with cluster(**settings) as running, Cluster.from_zookeeper(running.zookeeper) as client:
        yield Logbus(running, client)
