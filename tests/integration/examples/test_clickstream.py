"""The job that counts views and clicks: killed and run again, and held against a plain count."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.clickstream import generate
from jobs import clickstream
from spark_logbus.client import Admin, Cluster, Consumer
from spark_logbus.errors import LogbusError, UnknownTopicError
from spark_logbus.local.cluster import EmbeddedCluster
from tests.helpers import wait_until
from tests.integration.examples import clickstream_model as model
from tests.servers.cluster import Logbus
from tests.servers.spark import PROJECT
from tests.servers.spark_processes import PLANNER, Driver, running

RUN_S = 240
ATTEMPTS = 3
TOO_SLOW = "Python worker failed to connect back"
"""Spark gives a process 10 seconds to start, which it needs where many others run."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Site:
    """A cluster with views and clicks of an hour and a half."""

    zookeeper: str
    cluster: Cluster

    def values(self, *topics: str) -> dict[model.Place, dict[str, Any]]:
        """All records; times are microseconds since 1970, in ``<field>_us``."""
        with Consumer(self.cluster) as consumer:
            consumer.assign_topics(*topics)
            found: dict[model.Place, dict[str, Any]] = {}
            ends = Admin(self.cluster).describe(topics, ends=True)
            there = sum(
                partition.ends.high_watermark
                for topic in ends.values()
                for partition in topic.partitions.values()
                if partition.ends is not None
            )
            deadline = time.monotonic() + 60
            while len(found) < there:
                assert time.monotonic() < deadline, f"{len(found)} of {there} records were read"
                for record in consumer.poll(2.0, max_records=10_000):
                    place = (record.topic, record.partition, record.offset)
                    found[place] = _with_numbers(record.value)
            return found


def _with_numbers(value: Any) -> dict[str, Any]:
    return {
        (f"{name}_us" if isinstance(each, datetime) else name): _number(each)
        for name, each in value.items()
    }


def _number(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with (
        EmbeddedCluster(tmp_path_factory.mktemp("site"), brokers=2) as embedded,
        Cluster.from_zookeeper(embedded.zookeeper) as cluster,
    ):
        generate.create_topics(cluster, partitions=2)
        generate.publish(cluster, generate.make_events(3_000, views_per_s=0.5))
        yield Site(embedded.zookeeper, cluster)


class Job:
    """The job as a program, with one checkpoint."""

    def __init__(self, site: Site, directory: Path, *target: str) -> None:
        self._directory = directory
        self.checkpoint = directory / "checkpoint"
        self._arguments = (
            "--zookeeper", site.zookeeper, "--checkpoint", str(self.checkpoint), *target,
            "--max-offsets-per-trigger", "400", "--state-partitions", "1", "--group", "site",
        )  # fmt: skip
        self._runs = 0
        self.starts: dict[str, set[int]] = {"counts": set(), "click-through": set()}
        """Of each query, the micro-batches with which it was started."""

    def start(self, *more: str) -> Driver:
        self._runs += 1
        for query, starts in self.starts.items():
            starts.add(model.next_micro_batch(self.checkpoint / query))
        log = self._directory / f"run-{self._runs}.log"
        env = {"SPARK_CONF_DIR": str(PROJECT / "conf" / "spark")}
        return Driver("jobs.clickstream", *self._arguments, *more, log=log, env=env)

    def kill_when(self, *made: str) -> None:
        """SIGKILL to all of its processes when a file is there in its checkpoint."""
        driver = self.start("--once")
        try:
            file = self.checkpoint.joinpath(*made)
            wait_until(lambda: driver.alive() and file.exists(), deadline_s=RUN_S)
        finally:
            driver.kill()
        assert driver.process.returncode == -signal.SIGKILL, driver.said()

    def run(self) -> str:
        """Runs the job to its end; returns what it prints."""
        for _ in range(ATTEMPTS):
            code, said = self._run_once()
            if TOO_SLOW not in said:
                break
        assert code == 0, said
        return said

    def _run_once(self) -> tuple[int | None, str]:
        driver = self.start("--once")
        try:
            wait_until(lambda: driver.ended, deadline_s=RUN_S, message="the job to end")
            return driver.process.returncode, driver.said()
        finally:
            driver.kill()


def windows(rows: list[dict[str, Any]]) -> list[tuple[model.Window, Any]]:
    """Each result by its window, as it was written: twice if it was written twice."""
    return sorted(
        (
            (row["page"], row["window_start_us"] // 1_000),
            (row["views"], row["clicks"]) if "clicks" in row else row["views"],
        )
        for row in rows
    )


@pytest.mark.timeout(900)  # some runs, one after the other
@pytest.mark.parametrize(
    ("target", "kills", "hours_later"),
    [
        pytest.param("topics", 1, 3, marks=pytest.mark.long),
        pytest.param("topics", 2, 4, marks=pytest.mark.slow),
        pytest.param("parquet", 2, 6, marks=pytest.mark.slow),
    ],
)
def test_killed_it_writes_what_a_plain_count_says(
    site: Site, tmp_path: Path, target: str, kills: int, hours_later: int
) -> None:
    results = tmp_path / "results"
    where = {
        "topics": ("--counts-topic", "page-counts", "--click-through-topic", "click-through"),
        "parquet": ("--parquet", str(results)),
    }
    for topic in ("page-counts", "click-through"):
        Admin(site.cluster).delete_topic(topic)
    generate.create_topics(site.cluster, partitions=2)
    job = Job(site, tmp_path, *where[target])
    job.kill_when("counts", "offsets", "2")  # before, while or after it is written
    if kills == 2:
        job.kill_when("click-through", "commits", "4")
    later = generate.START + timedelta(hours=hours_later)
    generate.publish(site.cluster, generate.make_events(100, seed=later.hour, start=later))
    said = job.run()

    events = site.values("views", "clicks")
    if target == "topics":
        written = [[*site.values(topic).values()] for topic in ("page-counts", "click-through")]
    else:
        written = [read_parquet(results / name) for name in ("counts", "click-through")]
    counted, joined = (
        model.accept(
            events,
            model.micro_batches(job.checkpoint / query),
            topics,
            restarts=job.starts[query],
        )
        for query, topics in (("counts", ["views"]), ("click-through", ["views", "clicks"]))
    )
    assert windows(written[0]) == sorted(model.counts(counted).items())
    assert windows(written[1]) == sorted(model.click_through(joined).items())

    assert min(len(each) for each in written) > 300
    assert min(counted.late, counted.repeated, joined.late, joined.repeated) > 0
    assert len(counted.views) + counted.late + counted.repeated == sum(
        place[0] == "views" for place in events
    )
    assert "/offers" in said
    last = re.findall(r"counts: micro-batch (\d+), 0 events, 0 too late", said)
    assert last != [], said


def says(driver: Driver, text: str) -> bool:
    return driver.alive() and text in driver.said()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_without_once_it_goes_on_until_it_is_told_to_end(site: Site, tmp_path: Path) -> None:
    job = Job(site, tmp_path, "--parquet", str(tmp_path / "results"))
    driver = job.start()
    try:
        for said in ("counts: micro-batch 1,", "click-through: micro-batch 1,"):
            wait_until(partial(says, driver, said), deadline_s=RUN_S, message=said)
        later = generate.START + timedelta(hours=9)
        generate.publish(site.cluster, generate.make_events(100, seed=2, start=later))
        said = "watermark 2026-03-02T17:5"  # ten minutes before what came while it ran
        wait_until(partial(says, driver, said), deadline_s=RUN_S, message=said)
        driver.process.terminate()
        wait_until(lambda: driver.ended, deadline_s=60, message="it to end")
        assert driver.process.returncode == 0, driver.said()
    finally:
        driver.kill()
    assert "Page views from 2026-03-02 09:0" in driver.said()


def read_parquet(directory: Path) -> list[dict[str, Any]]:
    """Reads the files that Spark's log of the directory names, as its readers do."""
    listed: set[Path] = set()
    for entry in (directory / "_spark_metadata").iterdir():
        if not entry.name.startswith("."):
            found = re.findall(r'"path":"file://([^"]+)"', entry.read_text())
            listed |= {Path(path) for path in found}
    return [
        _with_numbers(row) for path in sorted(listed) for row in pq.read_table(path).to_pylist()
    ]


# -- what is refused ------------------------------------------------------------------------

GOOD = ("--checkpoint", "/nowhere", "--parquet", "/nowhere/else")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--parquet", "x"), "--checkpoint is needed"),
        (("--checkpoint", "x"), "Say where the results go"),
        (("--checkpoint", "x", "--counts-topic", "a"), "--counts-topic with --click-through-topic"),
        ((*GOOD, "--counts-topic", "a", "--click-through-topic", "b"), "and not both"),
        ((*GOOD, "--window", "soon"), "--window cannot be used: expected a number and a unit"),
        ((*GOOD, "--watermark", "0s"), "--watermark cannot be used: a duration above zero"),
        ((*GOOD, "--max-offsets-per-trigger", "0"), "--max-offsets-per-trigger must be 1 or more"),
        ((*GOOD, "--views", "a/b"), "'a/b' cannot name a topic"),
        ((*GOOD, "--config", "/no/such.toml"), "/no/such.toml cannot be read"),
    ],
)
def test_options_that_cannot_be_used_are_named(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(LogbusError, match=re.escape(said)):
        clickstream.parse_arguments(list(arguments))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('checkpont = "x"', "unknown key checkpont; did you mean checkpoint?"),
        ("window = 60", "window in .* takes a value of type str, got 60"),
        ("window = ", "cannot be read"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(line + "\n")
    with pytest.raises(LogbusError, match=said):
        clickstream.parse_arguments([*GOOD, "--config", str(path)])


def test_the_command_line_wins_over_the_sample_configuration() -> None:
    sample = str(PROJECT / "conf" / "clickstream.toml")
    config = clickstream.parse_arguments(["--config", sample, "--counts-topic", "mine"])
    assert config.counts_topic == "mine"
    assert config.click_through_topic == "click-through"
    assert config.window == "1 minute"


def test_a_topic_that_is_missing_or_untyped_is_told_with_the_remedy(
    logbus: Logbus, tmp_path: Path
) -> None:
    plain = logbus.topic()
    clicks = f"{plain}-clicks"
    given = ["--zookeeper", logbus.zookeeper, *GOOD, "--clicks", clicks, "--views", plain]
    config = clickstream.parse_arguments(given)
    with pytest.raises(UnknownTopicError, match=rf"topics create {clicks} --value-schema .*\.avsc"):
        clickstream.check_topics(config)
    logbus.topic(name=clicks)
    with pytest.raises(LogbusError, match=f"The topic {plain} has no schema"):
        clickstream.check_topics(config)


def test_a_query_is_awaited_until_it_has_its_source_or_has_ended(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    reader = spark.readStream.format("logbus").option("zookeeper", logbus.zookeeper)
    events = reader.load(logbus.topic()).select("value").writeStream.format("noop")
    before = set(running(os.getpid(), PLANNER))  # of queries that may be ending
    going_on = threading.Event()
    queries: list[StreamingQuery] = []
    try:
        for number in (1, 2):
            checkpoint = str(tmp_path / str(number))
            queries.append(events.option("checkpointLocation", checkpoint).start())
            clickstream.await_sources(queries[-1], going_on)
            assert len(set(running(os.getpid(), PLANNER)) - before) == number
    finally:
        for query in queries:
            query.stop()
    assert not queries[0].isActive
    clickstream.await_sources(queries[0], going_on)


def test_results_of_another_checkpoint_are_not_gone_on_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    results, checkpoint = tmp_path / "results", tmp_path / "checkpoint"
    given = ["--parquet", str(results), "--checkpoint", str(checkpoint)]
    config = clickstream.parse_arguments(given)
    clickstream.check_parquet(spark, config)
    (results / "click-through" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(LogbusError, match=r"click-through has results .* another checkpoint"):
        clickstream.check_parquet(spark, config)
    (checkpoint / "click-through").mkdir(parents=True)
    (checkpoint / "click-through" / "metadata").touch()
    clickstream.check_parquet(spark, config)
