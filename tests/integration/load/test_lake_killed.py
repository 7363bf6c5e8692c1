"""Drivers that are killed while they load into tables of a lake, and what is there after each."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_logbus.load import run as load_run
from tests.integration.load import lake_kill_driver_program
from tests.integration.load.loaded_lake import FORMATS, LoadedLake, table_named
from tests.integration.load.loaded_table import NoLock
from tests.servers.cluster import Logbus
from tests.servers.spark import PROJECT

pytestmark = pytest.mark.slow

DAY_US = 86_400_000_000
#: Drivers that have started and wait for their turn.
_READY = 2


class _Producing:
    """Records that come to a topic all the time; each fourth of them does not decode."""

    def __init__(self, logbus: Logbus, topic: str) -> None:
        self._logbus = logbus
        self._topic = topic
        #: What was sent to each partition, in the order of offsets.
        self.numbers: dict[int, list[int | None]] = {0: [], 1: []}

    def send(self, number: int) -> None:
        partition = number % 2
        new = [None if each % 4 == 3 else each for each in range(number * 6, number * 6 + 6)]
        self.numbers[partition].extend(new)
        values = ["{" if each is None else f'{{"n": {each}}}' for each in new]
        self._logbus.produce(
            self._topic, values, partition=partition, timestamp_us=number % 3 * DAY_US
        )

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        stop = threading.Event()

        def produce() -> None:
            for number in itertools.count(2):
                if stop.wait(0.5):
                    return
                self.send(number)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _check(lake: LoadedLake, produced: _Producing) -> int:
    """Compares all rows with the topic, up to the offsets that the table has."""
    version = lake.opened.newest()
    assert version is not None
    progress = version.progress()
    assert progress is not None
    rows, letters = [], []
    for partition, end in sorted(progress.ends.items()):
        for offset, number in enumerate(produced.numbers[partition][:end]):
            if number is None:
                letters.append((partition, offset))
            else:
                rows.append((partition, offset, number))
    assert lake.rows("partition", "offset", "n") == rows
    assert lake.rows("partition", "offset", letters=True) == letters
    assert lake.marks() == []
    return len(rows) + len(letters)


@pytest.mark.timeout(3_600)  # a session of Spark's for each kill
@pytest.mark.parametrize("kills", [3, 50])
def test_drivers_killed_at_random_times_leave_each_record_once(
    spark: SparkSession,
    logbus: Logbus,
    tmp_path: Path,
    kills: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kills loads, compactions and reprocessings, and checks both tables after each."""
    monkeypatch.setattr(load_run, "Lock", NoLock)
    lakes = [LoadedLake(spark, logbus, form, tmp_path / "lake") for form in FORMATS]
    topic, name = lakes[0].topic, lakes[0].name
    for lake in lakes:
        lake.directory /= lake.form  # so that marks are its own
        lake.topic, lake.table = topic, table_named(lake.form, lake.directory, name)
    dice = random.Random(kills)
    produced = _Producing(logbus, topic)
    produced.send(0)
    produced.send(1)
    for lake in lakes:
        lake.load(json_schema="n int", dead_letters=True)  # a window needs one
    ready: list[subprocess.Popen[str]] = []

    def start(number: int) -> None:
        program = lake_kill_driver_program.__file__
        given = [logbus.zookeeper, topic, str(tmp_path / "lake"), name, str(number)]
        with (tmp_path / f"log-{number}").open("w") as log:
            ready.append(
                subprocess.Popen(
                    [sys.executable, program, *given],
                    env={**os.environ, "PYTHONPATH": str(PROJECT)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            )

    marked = checked = 0
    try:
        with produced.going_on():
            for number in range(kills):
                while len(ready) < min(_READY, kills - number):
                    start(number + len(ready))
                driver = ready[0]
                assert driver.stdin is not None
                assert driver.stdout is not None
                driver.stdin.write("Begin.\n")
                driver.stdin.flush()
                assert driver.stdout.readline() == "It begins.\n"
                with contextlib.suppress(subprocess.TimeoutExpired):
                    driver.wait(dice.uniform(0.5, 12.0))
                log = (tmp_path / f"log-{number}").read_text()
                assert driver.poll() is None, log
                driver.kill()
                driver.communicate()
                ready.pop(0)
                for lake in lakes:
                    marked += len(lake.marks())
                    lake.load(json_schema="n int", dead_letters=True)
                    checked += _check(lake, produced)
                told = f"{number + 1} kills, {marked} in a load, {checked} records checked"
                sys.stdout.write(f"{told}\n")
    finally:
        for driver in ready:
            driver.kill()
            driver.communicate()
    assert kills < 10 or marked > kills // 4
