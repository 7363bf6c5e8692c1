"""A driver that dies without a word, in the middle of a stream."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.helpers import wait_until
from tests.integration.spark_processes import WORKER, running
from tests.servers.spark import MODES, PROJECT, TASKS, Logbus, Streams, finish

pytestmark = pytest.mark.spark

TOTAL = 400


@pytest.fixture
def launched() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


@pytest.mark.parametrize("killed_mode", MODES)  # and each goes on in both
@pytest.mark.long
def test_a_killed_query_goes_on_without_losing_or_repeating(
    spark: SparkSession,
    logbus: Logbus,
    streams: Streams,
    tmp_path: Path,
    launched: list[subprocess.Popen[bytes]],
    killed_mode: str,
) -> None:
    """The file sink drops repeated micro-batches, so the output shows what the source replayed:
    had a replayed micro-batch other records, some would be missing and some be there twice."""
    topic = logbus.topic(partitions=2)
    expected = [f"{number:05d}" for number in range(TOTAL)]
    for number in range(0, TOTAL, 50):
        part = number // 50 % 2
        logbus.produce(topic, expected[number : number + 50], partition=part)
    command = [sys.executable, "-m", "tests.integration.spark_driver_program"]
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [*command, logbus.zookeeper, topic, str(tmp_path), killed_mode],
            cwd=PROJECT,
            stdout=log,
            stderr=log,
            start_new_session=True,  # its JVM and workers go with it
        )
    launched.append(driver)
    commits = tmp_path / "checkpoint" / "commits"
    wait_until(
        lambda: driver.poll() is not None or (commits / "2").exists(),
        deadline_s=120,
        message="some micro-batches",
    )
    assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
    # Prefetched micro-batches need no worker; those of tasks have left one that waits for more.
    assert bool(running(driver.pid, WORKER)) == (killed_mode == TASKS)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(30)

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
