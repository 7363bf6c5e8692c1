"""A cluster for all tests that harm no server and no coordination: one for the whole run.

A test takes ``brokers`` where it needs the processes, ``cluster`` for a client's connections of its
own, and ``logbus`` for a cluster's everyday use in a line each. It makes its own topics.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Producer,
    ProducerConfig,
    RangeReader,
    TopicDescription,
)
from spark_logbus.coordination.groups.offsets import CommittedOffset, GroupOffsets
from spark_logbus.coordination.groups.rewinds import GroupRewinds
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import Latest, OffsetRange, TopicPartition
from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.zookeeper import Session

CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)
_WHOLE = ProducerConfig(linger_ms=600_000)  # until the flush, however slow the machine
_numbers = itertools.count(1)

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Logbus:
    """A running cluster and what tests do with it."""

    zookeeper: str
    cluster: Cluster

    @property
    def admin(self) -> Admin:
        return Admin(self.cluster)

    def topic_name(self) -> str:
        """Returns a name that no other test has."""
        return f"topic-{next(_numbers)}"

    def register(self, subject: str, schema: str) -> int:
        """The schema's id."""
        with Session(self.zookeeper, client_name="tests", expects_cluster=True) as session:
            return SchemaRegistry(session).register(subject, schema).schema_id

    def topic(self, *, partitions: int = 1, name: str | None = None, **config: str) -> str:
        name = name or self.topic_name()
        # Retention goes by the records' timestamps, and some tests write old ones.
        dotted = {"retention.ms": "-1"}
        dotted |= {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topic(name, partitions=partitions, config=dotted)
        return name

    def produce(
        self,
        topic: str,
        values: Iterable[str | None],
        *,
        partition: int | None = 0,
        key: str | None = None,
        headers: Sequence[Header] | None = None,
        timestamp_us: int | None = None,
    ) -> None:
        """One append; one record batch, unless there is more than fits."""
        with Producer(self.cluster, _WHOLE) as producer:
            futures = [
                producer.send(
                    topic,
                    None if value is None else value.encode(),
                    key=None if key is None else key.encode(),
                    partition=partition,
                    headers=headers,
                    timestamp_us=timestamp_us,
                )
                for value in values
            ]
            producer.flush()
            for future in futures:
                future.result(60)

    def ends(self, topic: str) -> dict[TopicPartition, int]:
        return {topic_partition: ends[1] for topic_partition, ends in self.spans(topic).items()}

    def spans(self, topic: str) -> dict[TopicPartition, tuple[int, int]]:
        described: TopicDescription = self.admin.describe([topic], ends=True)[topic]
        found = {}
        for number, partition in described.partitions.items():
            assert partition.ends is not None
            ends = (partition.ends.log_start_offset, partition.ends.high_watermark)
            found[TopicPartition(topic, number)] = ends
        return found

    def values(self, topic: str) -> list[list[str]]:
        """Returns what consumers see of each partition, in order; waits for leaders to be back."""
        partitions = self.admin.describe([topic], ends=False)[topic].partitions
        ends = self.admin.list_offsets(
            {TopicPartition(topic, number): Latest() for number in sorted(partitions)}
        )
        return [
            [
                value.decode()
                for batch in RangeReader(self.cluster, OffsetRange(topic_partition, 0, end or 0))
                for value in batch.arrow_batch.column("value").to_pylist()
            ]
            for topic_partition, end in ends.items()
        ]

    def size_bytes(self, topic_partition: TopicPartition) -> int:
        ends = (
            self.admin.describe([topic_partition.topic], ends=True)[topic_partition.topic]
            .partitions[topic_partition.partition]
            .ends
        )
        assert ends is not None
        return ends.size_bytes

    def committed(self, group: str) -> dict[TopicPartition, int]:
        with Session(self.zookeeper, client_name="test") as session:
            entries: Mapping[TopicPartition, CommittedOffset] = GroupOffsets(session).committed(
                group
            )
            return {topic_partition: entry.offset for topic_partition, entry in entries.items()}

    def rewind(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        with Session(self.zookeeper, client_name="test") as session:
            GroupRewinds(session).record(group, positions, reason="test", actor="test")


@pytest.fixture(scope="session")
def cluster_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the files of all servers of ``brokers``."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="session")
def brokers(cluster_directory: Path) -> Iterator[EmbeddedCluster]:
    """Two brokers, shared by all tests: none of them stops one."""
    with EmbeddedCluster(cluster_directory, brokers=2) as embedded:
        yield embedded


@pytest.fixture
def cluster(brokers: EmbeddedCluster) -> Iterator[Cluster]:
    """Connections of one test to the brokers."""
    with Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as connected:
        yield connected


@pytest.fixture(scope="session")
def logbus(brokers: EmbeddedCluster) -> Iterator[Logbus]:
    """The brokers, with connections that all tests share."""
    with Cluster.from_zookeeper(brokers.zookeeper) as cluster:
        yield Logbus(brokers.zookeeper, cluster)


@pytest.fixture
def group() -> str:
    """Name of a group that no other test has."""
    return f"group-{next(_numbers)}"
