"""Loads into a warehouse on HDFS, one of whose DataNodes is killed meanwhile, and what was loaded
reprocessed there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_logbus.client import Producer
from spark_logbus.load import ReprocessConfig, run_reprocess
from tests.helpers import wait_until
from tests.servers.cluster import Logbus
from tests.servers.hdfs import Hdfs, hdfs
from tests.servers.spark_processes import Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DAY_US = 86_400_000_000
DAYS = 30
RECORDS = 500  # of each day and partition
RUN_S = 240


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Hdfs]:
    with hdfs(tmp_path / "hdfs") as running:
        yield running


def publish(logbus: Logbus, topic: str) -> None:
    with Producer(logbus.cluster) as producer:
        for day in range(DAYS):
            for partition in (0, 1):
                values = [f"{day}-{partition}-{number}".encode() for number in range(RECORDS)]
                times = [day * DAY_US] * RECORDS
                producer.send_many(topic, values, partition=partition, timestamps_us=times)


def rows(spark: SparkSession, warehouse: str, topic: str) -> list[tuple[int, int]]:
    """The place of each record in the warehouse."""
    frame = spark.read.parquet(f"{warehouse}/{topic}")
    return sorted((row["partition"], row["offset"]) for row in frame.collect())


def test_a_datanode_is_killed_during_a_load(
    spark: SparkSession, logbus: Logbus, storage: Hdfs, tmp_path: Path
) -> None:
    topic, warehouse = logbus.topic(partitions=2), f"{storage.url}/warehouse"
    publish(logbus, topic)
    options = ("--topic", topic, "--zookeeper", logbus.zookeeper, "--warehouse", warehouse)

    def load(number: int) -> Driver:
        return Driver("jobs.load_warehouse", *options, log=tmp_path / f"load-{number}.log")

    first = load(1)
    try:
        wait_until(lambda: first.alive() and storage.receives_files(1), deadline_s=RUN_S)
        storage.datanodes[1].kill()
        wait_until(partial(getattr, first, "ended"), deadline_s=RUN_S, message="the load to end")
    finally:
        first.kill()
    if first.process.returncode != 0:
        assert first.process.returncode == 1
        assert "The load failed:" in first.said()

    logbus.produce(topic, ["later"], partition=0, timestamp_us=DAY_US)
    second = load(2)
    try:
        wait_until(partial(getattr, second, "ended"), deadline_s=RUN_S, message="the load to end")
    finally:
        second.kill()
    assert second.process.returncode == 0, second.said()
    expected = [(p, offset) for p in (0, 1) for offset in range(DAYS * RECORDS)]
    assert rows(spark, warehouse, topic) == sorted([*expected, (0, DAYS * RECORDS)])

    config = ReprocessConfig(
        topic=topic, warehouse=warehouse, zookeeper=logbus.zookeeper,
        start=f'{{"{topic}": {{"0": {DAYS * RECORDS - 1}, "1": -1}}}}',
    )  # fmt: skip
    done = run_reprocess(spark, config)
    assert (done.before.records, done.records, done.before.kept) == (2, 2, 2 * RECORDS - 1)
    assert rows(spark, warehouse, topic) == sorted([*expected, (0, DAYS * RECORDS)])
