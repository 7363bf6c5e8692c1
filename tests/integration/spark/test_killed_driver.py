"""A driver that dies without a word, in the middle of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.helpers import wait_until
from tests.servers.cluster import Logbus
from tests.servers.spark import PREFETCHED, TASKS, Streams, finish
from tests.servers.spark_processes import WORKER, Driver

TOTAL = 400


@pytest.fixture
def launched() -> Iterator[list[Driver]]:
    drivers: list[Driver] = []
    yield drivers
    for driver in drivers:
        driver.kill()


@pytest.mark.parametrize(  # and each goes on in both
    "killed_mode", [pytest.param(PREFETCHED, marks=pytest.mark.slow), TASKS]
)
@pytest.mark.long
def test_a_killed_query_goes_on_without_losing_or_repeating(
    spark: SparkSession,
    logbus: Logbus,
    streams: Streams,
    tmp_path: Path,
    launched: list[Driver],
    killed_mode: str,
) -> None:
    """The file sink drops repeated micro-batches, so the output shows what the source replayed:
    had a replayed micro-batch other records, some would be missing and some be there twice."""
    topic = logbus.topic(partitions=2)
    expected = [f"{number:05d}" for number in range(TOTAL)]
    for number in range(0, TOTAL, 50):
        part = number // 50 % 2
        logbus.produce(topic, expected[number : number + 50], partition=part)
    driver = Driver(
        "tests.integration.spark.driver_program",
        logbus.zookeeper, topic, str(tmp_path), killed_mode, "local[1]",
        log=tmp_path / "driver.log",
    )  # fmt: skip
    launched.append(driver)
    commits = tmp_path / "checkpoint" / "commits"
    wait_until(
        lambda: driver.alive() and (commits / "2").exists(),
        deadline_s=120,
        message="some micro-batches",
    )
    # Prefetched micro-batches need no worker; those of tasks have left one that waits for more.
    assert bool(driver.below(WORKER)) == (killed_mode == TASKS)
    driver.kill()

    source = streams.source(
        subscribe=topic,
        group=f"killed-{topic}",
        startingOffsets="earliest",
        maxOffsetsPerTrigger="100",
    )
    query = (
        source.selectExpr("cast(value as string) AS value")
        .writeStream.format("text")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    finish(query)
    written = sorted(row.value for row in spark.read.text(str(tmp_path / "out")).collect())
    assert written == expected
    assert logbus.committed(f"killed-{topic}") == logbus.ends(topic)
