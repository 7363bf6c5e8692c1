"""A streaming query while what it depends on goes away and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.cluster import EmbeddedCluster
from tests.helpers import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_query_outlives_its_brokers_and_its_zookeeper(
    spark: SparkSession, tmp_path: Path
) -> None:
    with (
        EmbeddedCluster(tmp_path / "cluster", brokers=2) as embedded,
        Cluster.from_zookeeper(embedded.zookeeper) as cluster,
    ):
        Admin(cluster).create_topic("t", partitions=2)
        counts: list[int] = []
        produced = 0

        def collect(frame: DataFrame, batch_id: int) -> None:
            counts.append(frame.count())

        def produce() -> None:
            nonlocal produced
            with Producer(cluster) as producer:
                futures = [producer.send("t", b"v", partition=n % 2) for n in range(50)]
                producer.flush()
                for future in futures:
                    future.result(60)
            produced += 50

        def caught_up() -> bool:
            assert query.isActive, str(query.exception())
            return sum(counts) == produced

        source = spark.readStream.format("logbus").options(
            zookeeper=embedded.zookeeper, subscribe="t", startingOffsets="earliest", group="g"
        )
        produce()
        query = source.load().writeStream.foreachBatch(collect).start()
        try:
            wait_until(caught_up, deadline_s=60, message="the first records")

            embedded.brokers[0].kill()
            embedded.brokers[0].start()
            produce()
            wait_until(caught_up, deadline_s=60, message="records after one broker died")

            for broker in embedded.brokers:
                broker.kill()
            for broker in embedded.brokers:
                broker.start()
            produce()
            wait_until(caught_up, deadline_s=60, message="records after all brokers died")

            embedded.zookeeper_server.stop()
            embedded.zookeeper_server.start()
            produce()
            wait_until(caught_up, deadline_s=60, message="records after ZooKeeper restarted")
        finally:
            query.stop()
