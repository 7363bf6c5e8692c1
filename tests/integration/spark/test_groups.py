"""A group and the queries that use it: one at a time, and offsets that are never ahead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_logbus.coordination import paths
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.owners import GroupOwner
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.nodes import Nodes
from tests.helpers import process_is_stopped, wait_until
from tests.servers.cluster import Logbus
from tests.servers.spark import PROJECT, Streams, finish, in_both_modes_at_length

Launch = Callable[..., subprocess.Popen[bytes]]


def holders(logbus: Logbus, group: str) -> dict[str, GroupOwner]:
    with Session(logbus.zookeeper, client_name="test") as session:
        return GroupOffsets(session).owners(group)


def owning_session(logbus: Logbus, group: str, topic: str) -> str:
    """The session of the owner, as ZooKeeper's log names it."""
    with Session(logbus.zookeeper, client_name="test") as session:
        node = Nodes(session).get(paths.topic_owner(group, topic))
    assert node is not None
    return f"0x{node.owner:x}"


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts a streaming driver of its own, JVM and workers included."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(zookeeper: str, topic: str, mode: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "driver.log").open("wb") as log:
            program = "tests.integration.spark.driver_program"
            process = subprocess.Popen(
                [sys.executable, "-m", program, zookeeper, topic, str(tmp_path), mode],
                cwd=PROJECT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@pytest.mark.long
def test_a_second_query_is_refused_and_told_who_holds_the_group(
    spark: SparkSession, logbus: Logbus, cluster_directory: Path, streams: Streams,
    tmp_path: Path, group: str,
) -> None:  # fmt: skip
    topic = logbus.topic()
    logbus.produce(topic, ["a"])
    source = streams.source(subscribe=topic, startingOffsets="earliest", group=group)
    query = streams.start(source, available_now=False)
    wait_until(lambda: streams.rows, deadline_s=60, message="the first record")
    second = Streams(spark, logbus, tmp_path / "second", mode=streams.mode)
    with pytest.raises(StreamingQueryException) as refused:
        second.run(subscribe=topic, startingOffsets="earliest", group=group)
    holder = holders(logbus, group)[topic]
    said = str(refused.value)
    assert f"Group '{group}' is in use for topic {topic} by another query" in said
    assert f"process {holder.pid} on {holder.host}, since 2" in said
    assert "application logbus-tests" in said
    assert second.values() == []
    # Neither another group, nor a batch read of what is committed, is in anybody's way.
    assert second.run(subscribe=topic, startingOffsets="earliest", group=f"{group}-2") == ["a"]
    batch = spark.read.format("logbus").options(
        zookeeper=logbus.zookeeper, subscribe=topic, group=group, startingOffsets="committed"
    )
    wait_until(lambda: logbus.committed(group) == logbus.ends(topic), message="the commit")
    assert batch.load().count() == 0
    assert query.isActive
    logbus.produce(topic, ["b"])
    wait_until(lambda: streams.values() == ["a", "b"], deadline_s=60, message="the next record")
    # A query that is stopped lets go by itself, and not when its session expires.
    owner = owning_session(logbus, group, topic)
    query.stop()
    wait_until(lambda: not holders(logbus, group), message="the release")
    zookeeper_log = (cluster_directory / "zookeeper" / "zookeeper.log").read_text()
    assert f"Expiring session {owner}," not in zookeeper_log


@pytest.mark.long
def test_topics_that_join_a_pattern_are_claimed(
    spark: SparkSession, logbus: Logbus, streams: Streams, tmp_path: Path
) -> None:
    prefix = f"joining-{streams.mode}"
    logbus.topic(name=f"{prefix}-1")
    options = {"startingOffsets": "earliest", "group": prefix}
    source = streams.source(subscribePattern=f"{prefix}-.*", **options)
    streams.start(source, available_now=False)
    wait_until(lambda: holders(logbus, prefix), deadline_s=60, message="the first claim")
    logbus.topic(name=f"{prefix}-2")
    wait_until(lambda: len(holders(logbus, prefix)) == 2, message="the second claim")
    second = Streams(spark, logbus, tmp_path / "second", mode=streams.mode)
    with pytest.raises(StreamingQueryException, match=f"in use for topic {prefix}-2"):
        second.run(subscribe=f"{prefix}-2", **options)


@pytest.mark.slow
def test_a_driver_that_stood_still_while_another_took_over(
    spark: SparkSession, logbus: Logbus, streams: Streams, tmp_path: Path, launch: Launch
) -> None:
    topic = logbus.topic()
    group = f"killed-{topic}"  # the program's
    logbus.produce(topic, ["a"] * 100)
    zombie = launch(logbus.zookeeper, topic, streams.mode)

    def running(reached: Callable[[], bool]) -> bool:
        assert zombie.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
        return reached()

    wait_until(
        lambda: running(lambda: logbus.committed(group) == logbus.ends(topic)),
        deadline_s=120,
        message="the first driver's commit",
    )
    os.killpg(zombie.pid, signal.SIGSTOP)
    wait_until(lambda: process_is_stopped(zombie.pid))
    logbus.produce(topic, ["b"] * 100)
    assert len(streams.run(subscribe=topic, group=group, startingOffsets="committed")) == 100
    taken_over = logbus.committed(group)
    assert taken_over == logbus.ends(topic)
    os.killpg(zombie.pid, signal.SIGCONT)
    assert zombie.wait(90) != 0
    assert f"no longer holds group '{group}'" in (tmp_path / "driver.log").read_text()
    assert logbus.committed(group) == taken_over


@pytest.mark.long
@in_both_modes_at_length
def test_a_group_is_never_ahead_of_what_is_processed(
    spark: SparkSession, logbus: Logbus, streams: Streams, group: str
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, ["a"] * 30)
    seen: list[tuple[int, int]] = []

    def look(frame: DataFrame, batch_id: int) -> None:
        seen.append((sum(logbus.committed(group).values()), frame.count()))
        if batch_id == 2:
            raise RuntimeError("a failed micro-batch")

    def query(**trigger: bool) -> None:
        source = streams.source(
            subscribe=topic, startingOffsets="earliest", group=group, maxOffsetsPerTrigger="10"
        )
        writer = source.writeStream.foreachBatch(look).option(
            "checkpointLocation", str(streams.checkpoint)
        )
        started = writer.trigger(**trigger).start()
        streams.queries.append(started)
        finish(started)

    with pytest.raises(StreamingQueryException, match="a failed micro-batch"):
        query(availableNow=True)
    assert seen == [(0, 10), (10, 10), (20, 10)]
    assert sum(logbus.committed(group).values()) == 20
    with pytest.raises(StreamingQueryException, match="a failed micro-batch"):
        query(availableNow=True)
    assert seen[3:] == [(20, 10)]  # the same again, and still nothing is committed of it
    assert sum(logbus.committed(group).values()) == 20


@pytest.mark.long
def test_once_commits_its_micro_batch_with_the_next_run(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    """Spark tells the source nothing after the only micro-batch of ``once``."""
    topic = logbus.topic()
    logbus.produce(topic, ["a"] * 5)
    options = {"subscribe": topic, "startingOffsets": "earliest", "group": group}

    def once() -> int:
        frame = streams.source(**options)
        writer = frame.writeStream.format("noop").trigger(once=True)
        finish(writer.option("checkpointLocation", str(streams.checkpoint)).start())
        return sum(logbus.committed(group).values())

    assert once() == 0
    assert once() == 5
    assert streams.run(**options) == []
    assert logbus.committed(group) == logbus.ends(topic)


@pytest.mark.long
def test_reads_of_one_query_that_share_a_source_share_its_claim(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, ["a", "b"])
    source = streams.source(subscribe=topic, startingOffsets="earliest", group=group)
    finish(streams.start(source.union(source)))
    assert streams.values() == ["a", "a", "b", "b"]
    assert logbus.committed(group) == logbus.ends(topic)


@pytest.mark.long
def test_a_self_join_needs_a_group_for_each_of_its_reads(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, ["a", "b"])
    source = streams.source(subscribe=topic, startingOffsets="earliest", group=group)
    keys = source.select("value", "timestamp")
    query = streams.start(keys.alias("l").join(keys.alias("r"), "value"))
    with pytest.raises(StreamingQueryException, match=f"Group '{group}' is in use"):
        finish(query)
