"""A load whose driver is killed with SIGKILL, and the same load run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_logbus.errors import LockHeldError
from spark_logbus.load import LoadConfig, Loaded, run_load
from tests.helpers import wait_until
from tests.integration import load_driver_program
from tests.integration.spark_fixtures import PROJECT, Logbus

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DAY_US = 86_400_000_000


@pytest.mark.parametrize("step", ["before the commit", "before publishing", "while publishing"])
def test_nothing_is_lost_and_nothing_is_there_twice(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, step: str
) -> None:
    topic = logbus.topic(partitions=2)
    for day in range(5):
        for partition in (0, 1):
            values = [f"{day}-{partition}-{number}" for number in range(50)]
            logbus.produce(topic, values, partition=partition, timestamp_us=day * DAY_US)

    killed = subprocess.run(
        [sys.executable, load_driver_program.__file__, logbus.zookeeper, topic, tmp_path, step],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert list((tmp_path / topic / "_logbus" / "staging").iterdir()) != []
    logbus.produce(topic, ["late"], timestamp_us=DAY_US)

    config = LoadConfig(topic, str(tmp_path), logbus.zookeeper)
    again = wait_until(lambda: _unless_locked(spark, config), message="the dead load's lock to go")
    assert again is not None
    assert again.commit is not None
    assert again.commit.number == (1 if step == "before the commit" else 2)

    table = spark.read.parquet(str(tmp_path / topic))
    read = [row[0] for row in table.selectExpr("cast(value as string)").collect()]
    expected = [f"{d}-{p}-{n}" for d in range(5) for p in (0, 1) for n in range(50)]
    assert sorted(read) == sorted([*expected, "late"])
    assert list((tmp_path / topic / "_logbus" / "staging").iterdir()) == []


def _unless_locked(spark: SparkSession, config: LoadConfig) -> Loaded | None:
    """None while the session of the killed load still holds its lock."""
    try:
        return run_load(spark, config)
    except LockHeldError:
        return None
