"""A load whose driver is killed or stopped, and the same load run again."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_logbus.errors import LockHeldError
from spark_logbus.load import LoadConfig, Loaded, Warehouse, run_load
from tests.helpers import process_is_stopped, wait_until
from tests.integration.load import load_driver_program
from tests.servers.cluster import Logbus
from tests.servers.spark import PROJECT

pytestmark = pytest.mark.slow

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
        timeout=240,
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


@pytest.mark.parametrize(
    "step", ["before the commit", "before publishing", "while deleting", "while publishing"]
)
def test_reprocessing_that_is_killed_loses_nothing_and_leaves_nothing_twice(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, step: str
) -> None:
    """The load that comes next makes it good: the window is as it was, or as it was to be."""
    topic = logbus.topic()
    config = LoadConfig(topic, str(tmp_path), logbus.zookeeper)
    for load in range(2):
        for day in range(5):
            values = [f'{{"n": {10 * day + 5 * load + number}}}' for number in range(5)]
            logbus.produce(topic, values, timestamp_us=day * DAY_US)
        run_load(spark, config)

    start = f'{{"{topic}": {{"0": 2}}}}'
    killed = subprocess.run(
        [
            sys.executable, load_driver_program.__file__,
            logbus.zookeeper, topic, tmp_path, step, start,
        ],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        timeout=240,
        check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    logbus.produce(topic, ['{"n": 50}'], timestamp_us=DAY_US)
    wait_until(lambda: _unless_locked(spark, config), message="the dead job's lock to go")

    table = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / topic))
    read = [row[0] for row in table.selectExpr("cast(value as string)").collect()]
    assert sorted(read) == sorted(f'{{"n": {number}}}' for number in range(51))
    if step == "before the commit":
        assert "n" not in table.columns
    else:
        again = table.where("n is not null").orderBy("n").select("n").collect()
        assert [row["n"] for row in again] == list(range(2, 50))
    assert list((tmp_path / topic / "_logbus" / "staging").iterdir()) == []


@pytest.mark.timeout(600)  # two drivers, one after the other
@pytest.mark.parametrize("step", ["write", "claim"])
def test_a_load_that_was_stopped_in_its_commit_is_overtaken(
    spark: SparkSession,
    logbus: Logbus,
    tmp_path: Path,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lets it go on in the middle of the load that has taken its lock: it harms neither that one
    nor the next."""
    topic = logbus.topic()
    logbus.produce(topic, ["a", "b"])
    config = LoadConfig(topic, str(tmp_path), logbus.zookeeper)
    program = load_driver_program.__file__
    command = [sys.executable, program, logbus.zookeeper, topic, str(tmp_path), step]
    commit = Warehouse.commit
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as stopped:

        def let_go_on(*given: Any) -> None:
            stopped.send_signal(signal.SIGCONT)
            said.append(stopped.communicate(timeout=120)[1])
            commit(*given)

        said: list[str] = []
        try:
            wait_until(partial(process_is_stopped, stopped.pid), deadline_s=240)
            with monkeypatch.context() as patch:
                patch.setattr(Warehouse, "commit", let_go_on)
                wait_until(lambda: _unless_locked(spark, config), message="the lock to go")
        finally:
            stopped.kill()

    expected = {"write": "was lost with its ZooKeeper session", "claim": "Nothing of it was commit"}
    assert expected[step] in said[0] or "is locked by a load of" in said[0]
    logbus.produce(topic, ["c"])
    again = run_load(spark, config).commit
    assert again is not None
    assert (again.number, again.records) == (2, 1)
    table = spark.read.parquet(str(tmp_path / topic))
    read = [row[0] for row in table.selectExpr("cast(value as string)").collect()]
    assert sorted(read) == ["a", "b", "c"]
    assert list((tmp_path / topic / "_logbus" / "staging").iterdir()) == []


@contextlib.contextmanager
def _producing(logbus: Logbus, topic: str) -> Iterator[list[str]]:
    """Records of three days come to the topic all the time; their values, as far as they are
    known to be there."""
    values: list[str] = []
    stop = threading.Event()

    def produce() -> None:
        for number in itertools.count():
            if stop.wait(0.05):
                return
            new = [f"{number}-{each}" for each in range(20)]
            logbus.produce(topic, new, partition=number % 3, timestamp_us=number % 3 * DAY_US)
            values.extend(new)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield values
    finally:
        stop.set()
        thread.join()


@pytest.mark.timeout(3_600)  # a session of Spark's for each kill
@pytest.mark.parametrize("kills", [3, 50])
def test_a_load_killed_at_random_times_loads_each_record_once(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, kills: int
) -> None:
    topic = logbus.topic(partitions=3)
    dice = random.Random(kills)
    command = [
        sys.executable, load_driver_program.__file__, logbus.zookeeper, topic, str(tmp_path),
        load_driver_program.AGAIN,
    ]  # fmt: skip
    pause = threading.Event()
    commits = tmp_path / topic / "_logbus" / "loads"
    with _producing(logbus, topic) as produced:
        for number in range(kills):
            with (
                (tmp_path / f"log-{number}").open("w+") as log,
                subprocess.Popen(
                    command,
                    env={**os.environ, "PYTHONPATH": str(PROJECT)},
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                ) as driver,
            ):
                try:
                    assert driver.stdout is not None
                    assert driver.stdout.readline() == "It begins.\n"
                    before = len(list(commits.glob("*.json")))
                    if number % 3:  # these get through their first load, and its long start
                        wait_until(
                            lambda: len(list(commits.glob("*.json"))) > before,  # noqa: B023
                            deadline_s=240,
                            message="a load",
                        )
                    pause.wait(dice.uniform(0.0, 3.0))
                    log.seek(0)
                    assert driver.poll() is None, log.read()
                finally:
                    driver.kill()

    config = LoadConfig(topic, str(tmp_path), logbus.zookeeper)
    last = wait_until(lambda: _unless_locked(spark, config), message="the dead load's lock to go")
    assert last is not None
    assert last.commit is not None
    assert last.commit.number > kills // 2
    table = spark.read.parquet(str(tmp_path / topic))
    rows = table.selectExpr("cast(value as string)", "partition", "offset").collect()
    assert sorted(row[0] for row in rows) == sorted(produced)
    assert len({(row[1], row[2]) for row in rows}) == len(rows)
    assert list((tmp_path / topic / "_logbus" / "staging").iterdir()) == []


def _unless_locked(spark: SparkSession, config: LoadConfig) -> Loaded | None:
    """Loads; returns None while the session of the killed load still holds its lock."""
    try:
        return run_load(spark, config)
    except LockHeldError:
        return None
