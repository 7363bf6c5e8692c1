"""Streams and batch reads of a topic with three replicas, whose leaders die and hang.

``failOnDataLoss`` is true, as it is by default: an end that goes back would fail the query.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.local.cluster import BrokerProcess, EmbeddedCluster
from spark_logbus.model import TopicPartition
from tests.helpers import frozen, wait_until
from tests.servers.spark import MODES

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


class Replicated:
    """Three brokers, a topic of two partitions on all of them, and a query that reads it."""

    def __init__(self, spark: SparkSession, embedded: EmbeddedCluster, cluster: Cluster) -> None:
        self._spark = spark
        self._embedded = embedded
        self._cluster = cluster
        self.produced: list[str] = []
        self.read: list[str] = []
        self.queries: list[StreamingQuery] = []

    def start(self, mode: str) -> None:
        frame = self._spark.readStream.format("logbus").options(
            zookeeper=self._embedded.zookeeper, subscribe="t", startingOffsets="earliest"
        )
        writer = frame.options(**MODES[mode]).load().writeStream
        self.queries.append(writer.foreachBatch(self._collect).start())

    def _collect(self, frame: DataFrame, _: int) -> None:
        self.read += [row.value.decode() for row in frame.select("value").collect()]

    def produce(self) -> None:
        with Producer(self._cluster) as producer:
            for number in range(50):
                self.produced.append(f"{len(self.produced)}")
                producer.send("t", self.produced[-1].encode(), partition=number % 2)

    def catch_up(self, after: str) -> None:
        def caught_up() -> bool:
            [query] = self.queries
            assert query.isActive, str(query.exception())
            return len(self.read) >= len(self.produced)

        wait_until(caught_up, deadline_s=120, message=f"records after {after}")
        assert sorted(self.read) == sorted(self.produced)

    def batch(self) -> list[str]:
        frame = (
            self._spark.read.format("logbus")
            .options(zookeeper=self._embedded.zookeeper, subscribe="t")
            .load()
        )
        return [row.value.decode() for row in frame.select("value").collect()]

    def wait_until_in_sync(self) -> None:
        def all_are() -> bool:
            parts = Admin(self._cluster).describe(["t"])["t"].partitions.values()
            return all(each.ends is not None and len(each.in_sync) == 3 for each in parts)

        wait_until(all_are, message="all replicas to be in sync")

    def leader(self) -> BrokerProcess:
        address = self._cluster.leader(TopicPartition("t", 0), self._cluster.retry_deadline())
        return self._embedded.brokers[address.broker_id - 1]


@pytest.fixture
def replicated(spark: SparkSession, tmp_path: Path) -> Iterator[Replicated]:
    with (
        EmbeddedCluster(tmp_path / "cluster", brokers=3) as embedded,
        Cluster.from_zookeeper(embedded.zookeeper) as cluster,
    ):
        Admin(cluster).create_topic("t", partitions=2, replicas=3)
        made = Replicated(spark, embedded, cluster)
        made.wait_until_in_sync()
        yield made
        for query in made.queries:
            query.stop()


@pytest.mark.parametrize("mode", MODES)
def test_a_query_outlives_elections(replicated: Replicated, mode: str) -> None:
    replicated.produce()
    replicated.start(mode)
    replicated.catch_up("its start")
    killed = replicated.leader()
    killed.kill()
    replicated.produce()
    replicated.catch_up("an election")
    killed.start()
    replicated.wait_until_in_sync()
    with frozen(replicated.leader().pid):
        replicated.produce()
        replicated.catch_up("a leader that hangs was replaced")
        assert sorted(replicated.batch()) == sorted(replicated.produced)
    replicated.produce()
    replicated.catch_up("it went on")
