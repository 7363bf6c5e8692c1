"""The jobs under spark-submit, on a standalone cluster with two workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from examples.clickstream import generate
from spark_logbus.client import Cluster
from spark_logbus.local.cluster import EmbeddedCluster
from tests.servers.cluster import Logbus
from tests.servers.spark import PROJECT
from tests.servers.spark_processes import Spark, environment, standalone, submit

pytestmark = pytest.mark.timeout(600)

JOBS = PROJECT / "jobs"
VALUES = [f"{number:04d}" for number in range(400)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with standalone(tmp_path_factory.mktemp("standalone"), environment()) as made:
        yield made


def busy_workers(cluster: Spark) -> set[str]:
    """The folders of workers that have run executors."""
    [folder] = {server.log.parent for server in cluster.servers}
    return {path.parts[-4] for path in folder.glob("work-*/app-*/*/stderr")}


def read_parquet(directory: Path) -> list[dict[str, Any]]:
    return [row for path in directory.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]


@pytest.mark.long
@pytest.mark.parametrize("loads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_loads_on_two_workers_load_each_record_once(
    cluster: Spark, logbus: Logbus, tmp_path: Path, loads: int
) -> None:
    topic = logbus.topic(partitions=4)

    def load() -> str:
        return submit(
            cluster, JOBS / "load_warehouse.py", "--topic", topic,
            "--zookeeper", logbus.zookeeper, "--warehouse", tmp_path / "warehouse",
            directory=tmp_path, env=environment(),
        )  # fmt: skip

    for partition in range(4):
        logbus.produce(topic, VALUES[partition::4], partition=partition)
    assert "Load 1 of" in load()
    later = ["later"] * (loads - 1)
    if later:
        logbus.produce(topic, later, partition=3)
        assert "1 record in 1 file" in load()
    rows = read_parquet(tmp_path / "warehouse" / topic)
    assert sorted(row["value"].decode() for row in rows) == [*VALUES, *later]
    assert busy_workers(cluster) == {"work-0", "work-1"}


@pytest.mark.slow
def test_windows_are_counted_on_two_workers(cluster: Spark, tmp_path: Path) -> None:
    """All events come in time, in one micro-batch: what is counted does not depend on Spark."""
    with EmbeddedCluster(tmp_path / "site") as site:
        events = generate.make_events(2_000)
        with Cluster.from_zookeeper(site.zookeeper) as client:
            generate.create_topics(client, partitions=2)
            generate.publish(client, events)
        said = submit(
            cluster, JOBS / "clickstream.py", "--zookeeper", site.zookeeper,
            "--checkpoint", tmp_path / "checkpoint", "--parquet", tmp_path / "results",
            "--watermark", "1 minute", "--click-within", "1 minute", "--once",
            directory=tmp_path, env=environment(),
        )  # fmt: skip
    views = {e.value["view_id"]: e.value for e in events if e.topic == "views"}
    clicks = {e.value["view_id"]: e.value["at"] for e in events if e.topic == "clicks"}

    expected: Counter[tuple[str, datetime]] = Counter()
    clicked: Counter[tuple[str, datetime]] = Counter()
    for view, value in views.items():
        window = (value["page"], value["at"].replace(second=0, microsecond=0))
        expected[window] += 1
        at = clicks.get(view)
        clicked[window] += at is not None and (at - value["at"]).total_seconds() <= 60
    rows = read_parquet(tmp_path / "results" / "counts")
    counts = {(row["page"], row["window_start"]): row["views"] for row in rows}
    assert len(counts) == len(rows) > 30
    assert counts == {window: expected[window] for window in counts}
    rows = read_parquet(tmp_path / "results" / "click-through")
    found = {(row["page"], row["window_start"]): (row["views"], row["clicks"]) for row in rows}
    assert len(found) == len(rows) > 20
    assert found == {window: (expected[window], clicked[window]) for window in found}
    assert "Page views from 2026-03-02 09:00" in said
