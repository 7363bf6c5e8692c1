"""Queries whose checkpoint lies before what a topic has after a log of it was given up."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_logbus.client import Cluster
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.errors import DataLossError
from spark_logbus.load.commit import Commit
from spark_logbus.load.plan.ranges import plan
from spark_logbus.model import TopicPartition
from spark_logbus.offsets.snapshot import take_snapshot
from spark_logbus.selection import Topics
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, is_led
from tests.servers.cluster import Logbus
from tests.servers.spark import PREFETCHED, TASKS, Streams, finish

GONE_ON = 5_000


@pytest.mark.parametrize("mode", [PREFETCHED, pytest.param(TASKS, marks=pytest.mark.slow)])
@pytest.mark.long
def test_a_stream_and_a_load_are_told_of_a_log_that_was_given_up(
    spark: SparkSession, tmp_path: Path, chroot: str, mode: str
) -> None:
    lost = TopicPartition("t", 0)
    with broker_process(tmp_path / "broker", chroot) as broker:
        with Cluster.from_zookeeper(chroot) as cluster:
            logbus = Logbus(chroot, cluster)
            logbus.topic(name="t", partitions=2)
            logbus.produce("t", ["a", "b", "c"], partition=0)
            logbus.produce("t", ["d"], partition=1)
            streams = Streams(spark, logbus, tmp_path, mode=mode)
            assert streams.run(subscribe="t", startingOffsets="earliest") == list("abcd")
            logbus.produce("t", ["lost"], partition=0)
        broker.stop()
        shutil.rmtree(broker.directory / "data" / "t-0")
        broker.start()
        with Session(chroot, client_name="test") as session:
            states = PartitionStates(session)
            wait_until(lambda: states.states("t")[0].refused)
            topic_id = TopicRegistry(session).all()["t"].topic_id
            states.give_up(lost, topic_id=topic_id, go_on_at=GONE_ON)
        with connect(broker) as wire:
            wait_until(lambda: is_led(wire, "t"))
        with Cluster.from_zookeeper(chroot) as cluster:
            logbus = Logbus(chroot, cluster)
            streams = Streams(spark, logbus, tmp_path, mode=mode)
            # More records than the checkpoint has: offsets from 0 on would be taken for new ones.
            logbus.produce("t", list("uvwxyz"), partition=0)
            failing = streams.start(streams.source(subscribe="t"))
            with pytest.raises(StreamingQueryException, match="Records may have been lost") as told:
                finish(failing)
            assert f"t-0: offset 3 was to be read next, but the log now starts at {GONE_ON}" in str(
                told.value
            )
            going_on = streams.run(subscribe="t", failOnDataLoss="false")
            assert going_on == list("uvwxyz")

            snapshot = take_snapshot(logbus.admin, Topics(("t",)), missing_ok=False)
            last = Commit(1, "s", topic_id, (), {0: 3, 1: 1}, 4, ())
            with pytest.raises(DataLossError, match=f"the log now starts at {GONE_ON:,}"):
                plan(snapshot, "t", last, allow_gaps=False, another_target="another table")


@pytest.mark.long
def test_a_stream_and_a_batch_read_are_told_of_a_part_that_was_given_up(
    spark: SparkSession, tmp_path: Path, chroot: str
) -> None:
    """Restores a backup: what it has is read, and nobody passes over what is lost unawares."""
    with broker_process(tmp_path / "broker", chroot) as broker:
        data = broker.directory / "data"
        with Cluster.from_zookeeper(chroot) as cluster:
            logbus = Logbus(chroot, cluster)
            logbus.topic(name="t", partitions=1)
            logbus.produce("t", list("abc"), partition=0)
            streams = Streams(spark, logbus, tmp_path, mode=PREFETCHED)
            assert streams.run(subscribe="t", startingOffsets="earliest") == list("abc")
            broker.stop()
            shutil.copytree(data, tmp_path / "backup")
            broker.start()
            logbus.produce("t", ["lost"], partition=0)
        broker.stop()
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "backup", data)
        broker.start()
        with Session(chroot, client_name="test") as session:
            wait_until(lambda: PartitionStates(session).states("t")[0].refused)
        with Cluster.from_zookeeper(chroot) as cluster:
            logbus = Logbus(chroot, cluster)
            [row] = logbus.admin.give_up("t", execute=True).rows
            assert (row.kept_end, row.go_on_at) == (3, 2 * 10**12)
            with connect(broker) as wire:
                wait_until(lambda: is_led(wire, "t"))
            logbus.produce("t", list("xy"), partition=0)
            streams = Streams(spark, logbus, tmp_path, mode=PREFETCHED)
            failing = streams.start(streams.source(subscribe="t"))
            with pytest.raises(StreamingQueryException, match="t-0: offset 3 was to be read next"):
                finish(failing)
            assert streams.run(subscribe="t", failOnDataLoss="false") == list("xy")

            def read(**options: str) -> list[str]:
                reader = spark.read.format("logbus").options(zookeeper=chroot, subscribe="t")
                rows = reader.options(**options).load().selectExpr("cast(value as string) value")
                return sorted(row.value for row in rows.collect())

            with pytest.raises(Exception, match="Records may have been lost"):
                read()
            assert read(failOnDataLoss="false") == list("abcxy")
            assert read(startingOffsets="-3", failOnDataLoss="false") == list("cxy")
            assert read(endingOffsets='{"t": {"0": 3}}') == list("abc")
