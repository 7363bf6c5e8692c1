"""A streaming query while what it depends on goes away and comes back, or does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.zookeeper import Session, SessionState
from tests.helpers import frozen, wait_until
from tests.servers.broker import restart_elsewhere
from tests.servers.spark import MODES
from tests.servers.zookeeper import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Endured:
    """A cluster of its own, to be broken, and queries that read topic ``t`` all the while."""

    def __init__(
        self, spark: SparkSession, embedded: EmbeddedCluster, cluster: Cluster, *, mode: str
    ) -> None:
        self._spark = spark
        self._mode = mode
        self.embedded = embedded
        self.cluster = cluster
        self.produced = 0
        self.counts: list[int] = []
        self.queries: list[StreamingQuery] = []

    def start(self, topic: str = "t", **options: str) -> StreamingQuery:
        source = self._spark.readStream.format("logbus").options(
            zookeeper=self.embedded.zookeeper, subscribe=topic, startingOffsets="earliest"
        )
        frame = source.options(**MODES[self._mode], **options).load()
        query = frame.writeStream.foreachBatch(self._collect).start()
        self.queries.append(query)
        return query

    def _collect(self, frame: DataFrame, batch_id: int) -> None:
        self.counts.append(frame.count())

    def produce(self) -> None:
        with Producer(self.cluster) as producer:
            futures = [producer.send("t", b"v", partition=n % 2) for n in range(50)]
            producer.flush()
            for future in futures:
                future.result(60)
        self.produced += 50

    def catch_up(self, after: str) -> None:
        def caught_up() -> bool:
            [query] = self.queries
            assert query.isActive, str(query.exception())
            return sum(self.counts) == self.produced

        wait_until(caught_up, deadline_s=120, message=f"records after {after}")


@pytest.fixture(params=MODES)
def endured(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Endured]:
    with (
        EmbeddedCluster(tmp_path / "cluster", brokers=2) as embedded,
        Cluster.from_zookeeper(embedded.zookeeper) as cluster,
    ):
        Admin(cluster).create_topic("t", partitions=2)
        made = Endured(spark, embedded, cluster, mode=request.param)
        yield made
        for query in made.queries:
            query.stop()


def test_a_query_outlives_its_brokers_and_its_zookeeper(endured: Endured) -> None:
    embedded = endured.embedded
    endured.produce()
    endured.start(group="g")
    endured.catch_up("its start")

    embedded.brokers[0].kill()
    embedded.brokers[0].start()
    endured.produce()
    endured.catch_up("one broker died")

    for broker in embedded.brokers:
        broker.kill()
    for broker in embedded.brokers:
        broker.start()
    endured.produce()
    endured.catch_up("all brokers died")

    embedded.zookeeper_server.stop()
    embedded.zookeeper_server.start()
    endured.produce()
    endured.catch_up("ZooKeeper restarted")


def test_a_query_outlives_a_zookeeper_that_hangs(endured: Endured) -> None:
    """Longer than clients wait for a sign of life: sessions are suspended, some expire."""
    endured.produce()
    endured.start(group="g")
    endured.catch_up("its start")
    with (
        Session(endured.embedded.zookeeper, client_name="test") as session,
        frozen(endured.embedded.zookeeper_server.pid),
    ):
        wait_until(
            lambda: session.state is not SessionState.CONNECTED, message="a suspended session"
        )
    endured.produce()
    endured.catch_up("ZooKeeper hung")


def test_a_query_outlives_a_broker_that_stands_still(endured: Endured) -> None:
    """Stops a broker that keeps its connections and answers nobody, until others give it up."""
    endured.produce()
    endured.start(group="g")
    endured.catch_up("its start")
    with Session(endured.embedded.zookeeper, client_name="test") as session:
        brokers = BrokerRegistry(session)
        for broker in endured.embedded.brokers:
            endured.produce()  # a micro-batch is under way when the broker stops
            with frozen(broker.pid):
                wait_until(lambda: len(brokers.live()) == 1, message="the broker's registration")
            wait_until(lambda: len(brokers.live()) == 2, message="the broker to be back")
            endured.produce()
            endured.catch_up("a broker stood still")


def test_a_running_query_without_a_group_needs_no_zookeeper(endured: Endured) -> None:
    endured.produce()
    endured.start()
    endured.catch_up("its start")
    with frozen(endured.embedded.zookeeper_server.pid):
        for _ in range(3):
            endured.produce()
            endured.catch_up("ZooKeeper hung")


def test_a_query_finds_a_broker_that_comes_back_elsewhere(endured: Endured) -> None:
    endured.produce()
    endured.start()
    endured.catch_up("its start")
    for broker in endured.embedded.brokers:
        restart_elsewhere(broker)
        endured.produce()
        endured.catch_up(f"broker {broker.broker_id} moved")


def test_what_does_not_come_back_ends_a_query_with_the_reason(endured: Endured) -> None:
    """Two queries at once, because each is patient: one loses a broker, one its ZooKeeper."""
    endured.produce()
    with Proxy(endured.embedded.zookeeper_server.address) as proxy:
        without_broker = endured.start()
        behind_proxy = proxy.connect_string(endured.embedded.zookeeper)
        Admin(endured.cluster).create_topic("single", partitions=1)
        without_zookeeper = endured.start("single", zookeeper=behind_proxy, group="g")
        queries = (without_broker, without_zookeeper)
        wait_until(
            lambda: all(query.lastProgress for query in queries),
            deadline_s=60, message="a micro-batch of both",
        )  # fmt: skip
        leader = Admin(endured.cluster).describe(["single"])["single"].partitions[0].leader
        assert leader is not None
        [other] = [b for b in endured.embedded.brokers if b.broker_id != leader.broker_id]
        dead = f"broker {other.broker_id} at {other.address}"
        other.kill()
        proxy.refuse.set()
        proxy.cut()
        wait_until(
            lambda: not any(query.isActive for query in queries),
            deadline_s=240, message="the end of both",
        )  # fmt: skip
    for query, said in (
        (without_broker, f"{dead}, is not running; start it again"),
        (without_zookeeper, "Check that ZooKeeper runs and that this machine reaches it"),
    ):
        reason = str(query.exception())
        assert "Planning the next micro-batch has failed for" in reason
        assert said in reason
