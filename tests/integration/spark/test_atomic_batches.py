"""Batch writes into topics: all or nothing, and once, whatever becomes of their jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_logbus.client import Cluster
from spark_logbus.local.cluster import EmbeddedCluster
from tests.helpers import wait_until
from tests.integration.spark.batch_write_program import ROWS, TASKS
from tests.servers.cluster import Logbus
from tests.servers.kill_points import KillPoints
from tests.servers.spark import finish
from tests.servers.spark_processes import Driver, environment, standalone
from tests.servers.staged_files import staged_bytes

PROGRAM = "tests.integration.spark.batch_write_program"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster"), brokers=2) as started:
        yield started


@pytest.fixture(scope="module")
def logbus(embedded: EmbeddedCluster) -> Iterator[Logbus]:
    with Cluster.from_zookeeper(embedded.zookeeper) as cluster:
        yield Logbus(embedded.zookeeper, cluster)


def write(frame: DataFrame, logbus: Logbus, topic: str, **options: str) -> None:
    writer = frame.write.format("logbus").options(zookeeper=logbus.zookeeper, topic=topic)
    writer.options(**options).mode("append").save()


def values(logbus: Logbus, topic: str) -> list[str]:
    return sorted(value for partition in logbus.values(topic) for value in partition)


EXPECTED = [f"{number:0200d}" for number in range(ROWS)]


def test_a_job_that_fails_leaves_nothing(
    spark: SparkSession, embedded: EmbeddedCluster, logbus: Logbus
) -> None:
    topic = logbus.topic(partitions=2)
    # The last row of the last task, which runs alone: the others have staged all of theirs.
    bad = f"if(id = {ROWS - 1}, raise_error('a bad row'), lpad(cast(id as string), 200, '0'))"
    frame = spark.range(0, ROWS, 1, TASKS).selectExpr(f"{bad} AS value")
    with pytest.raises(PySparkException, match="a bad row"):
        write(frame, logbus, topic)
    assert values(logbus, topic) == []
    wait_until(lambda: not staged_bytes(embedded, topic), message="what was staged to be dropped")


@pytest.mark.long
def test_a_transaction_happens_once(spark: SparkSession, logbus: Logbus) -> None:
    topic, other = logbus.topic(partitions=2), logbus.topic()
    for version, value in [(1, "a"), (1, "again"), (2, "b"), (1, "again"), (2, "again")]:
        frame = spark.createDataFrame([(value,)], "value string")
        write(frame, logbus, topic, txnAppId="nightly", txnVersion=str(version))
    write(frame, logbus, topic, txnAppId="other", txnVersion="1")
    write(frame, logbus, other, txnAppId="nightly", txnVersion="1")
    write(frame, logbus, topic)
    assert values(logbus, topic) == ["a", "again", "again", "b"]
    assert values(logbus, other) == ["again"]


@pytest.mark.long
def test_a_micro_batch_that_is_done_again_is_written_once(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    source, target = logbus.topic(), logbus.topic(partitions=2)
    logbus.produce(source, [f"{number:03d}" for number in range(100)])
    failures = [1, 0]

    def copy(frame: DataFrame, batch: int) -> None:
        write(frame.select("value"), logbus, target, txnAppId="copy", txnVersion=str(batch))
        if batch in failures:
            failures.remove(batch)
            raise ValueError("after the write")

    def run() -> None:
        source_frame = spark.readStream.format("logbus").options(
            zookeeper=logbus.zookeeper, subscribe=source, startingOffsets="earliest",
            maxOffsetsPerTrigger="40",
        )  # fmt: skip
        writer = source_frame.load().writeStream.foreachBatch(copy).trigger(availableNow=True)
        finish(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start())

    for _ in range(2):
        with pytest.raises(PySparkException, match="after the write"):
            run()
    run()
    assert values(logbus, target) == [f"{number:03d}" for number in range(100)]


@pytest.mark.long
def test_a_killed_job_is_seen_whole_or_not_at_all(
    embedded: EmbeddedCluster, logbus: Logbus, tmp_path: Path
) -> None:
    """Two jobs, of which one has decided when their driver is killed."""
    undecided, decided = logbus.topic(partitions=2), logbus.topic(partitions=2)
    points = KillPoints(tmp_path / "points")
    points.arm("prepared", undecided)
    points.arm("decided", decided)
    driver = Driver(
        PROGRAM, "two", "local[2]", logbus.zookeeper, str(tmp_path), undecided, decided,
        log=tmp_path / "driver.log", env=points.environment,
    )  # fmt: skip
    try:
        points.wait_for("prepared", undecided, driver)
        points.wait_for("decided", decided, driver)
    finally:
        driver.kill()
    wait_until(lambda: not staged_bytes(embedded, decided), message="brokers to publish it")
    assert values(logbus, decided) == EXPECTED
    assert values(logbus, undecided) == []
    assert staged_bytes(embedded, undecided)
    logbus.admin.alter_topic(undecided, put={"staging.retention.ms": 1000})
    wait_until(
        lambda: not staged_bytes(embedded, undecided), deadline_s=60, message="the rest to expire"
    )


@pytest.mark.slow
def test_rows_of_tasks_done_twice_are_there_once(
    embedded: EmbeddedCluster, logbus: Logbus, tmp_path: Path
) -> None:
    """One task fails when it has staged, another is done twice at the same time."""
    topic = logbus.topic(partitions=2)
    # Spark gives no task twice to one host.
    with standalone(tmp_path, environment(), hosts=("127.0.0.1", "127.0.0.2")) as spark:
        driver = Driver(
            PROGRAM, "attempts", spark.url, logbus.zookeeper, str(tmp_path), topic,
            log=tmp_path / "driver.log",
        )  # fmt: skip
        try:
            assert driver.process.wait(180) == 0, driver.said()[-5000:]
        finally:
            driver.kill()
    assert (tmp_path / "overtaken").exists()
    assert "the first attempt fails" in driver.said()
    assert values(logbus, topic) == EXPECTED
    wait_until(lambda: not staged_bytes(embedded, topic), message="other attempts' to be dropped")
