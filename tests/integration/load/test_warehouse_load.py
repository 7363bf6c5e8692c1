"""Loads into a warehouse: incremental, and killed at each of their steps."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_logbus.coordination.groups.topic_owners import GroupOwnership
from spark_logbus.coordination.locks import Lock
from spark_logbus.errors import DataLossError, GroupHeldError, LockHeldError
from spark_logbus.load import LoadConfig, Warehouse, run_load
from spark_logbus.load.errors import WarehouseError
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session
from tests.servers.cluster import Logbus
from tests.servers.spark import PROJECT

DAY_US = 86_400_000_000


class Job:
    """Loads one topic into one directory, and reads that back."""

    def __init__(self, spark: SparkSession, logbus: Logbus, directory: Path) -> None:
        self.spark = spark
        self.logbus = logbus
        self.directory = directory
        self.topic = logbus.topic(partitions=2)

    def config(self, **more: object) -> LoadConfig:
        return LoadConfig(self.topic, str(self.directory), self.logbus.zookeeper, **more)  # type: ignore[arg-type]

    def produce(self, *values: str, partition: int = 0, day: int = 0) -> None:
        self.logbus.produce(self.topic, values, partition=partition, timestamp_us=day * DAY_US)

    def load(self, **more: object) -> int:
        commit = run_load(self.spark, self.config(**more)).commit
        return 0 if commit is None else commit.records

    def values(self) -> list[str]:
        frame = self.spark.read.parquet(str(self.directory / self.topic))
        return sorted(row[0] for row in frame.selectExpr("cast(value as string)").collect())

    def staging(self) -> list[Path]:
        return list((self.directory / self.topic / "_logbus" / "staging").glob("*"))


@pytest.fixture
def job(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> Job:
    return Job(spark, logbus, tmp_path)


@pytest.mark.long
def test_each_load_brings_what_is_new(job: Job) -> None:
    job.produce("a", "b", day=1)
    job.produce("c", partition=1, day=2)
    assert job.load(group="loads") == 3
    assert job.load() == 0
    job.produce("d", day=1)
    assert job.load(group="loads") == 1
    assert job.values() == ["a", "b", "c", "d"]
    dates = {path.name for path in (job.directory / job.topic).glob("date=*")}
    assert dates == {"date=1970-01-02", "date=1970-01-03"}
    assert job.staging() == []
    ends = {TopicPartition(job.topic, 0): 3, TopicPartition(job.topic, 1): 1}
    committed = job.logbus.committed("loads")
    assert {topic_partition: committed[topic_partition] for topic_partition in ends} == ends


@pytest.mark.long
def test_a_load_gives_way_to_a_query_that_holds_its_group(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_logbus.zookeeper.ephemeral._EXPIRY_MARGIN_MS", -9_900)
    group = f"loads-{job.topic}"
    job.produce("a")
    with Session(job.logbus.zookeeper, client_name="query") as session:
        GroupOwnership(session, group, pid=77, application="nightly").acquire([job.topic])
        with pytest.raises(GroupHeldError, match="application nightly, process 77"):
            job.load(group=group)
        assert job.staging() == []
    assert job.load(group=group) == 1
    assert job.logbus.committed(group) == {
        TopicPartition(job.topic, 0): 1,
        TopicPartition(job.topic, 1): 0,
    }


def test_json_fields_become_columns_and_bad_values_are_kept(job: Job) -> None:
    job.produce('{"carrier": "UA", "delay": 7}', "not json")
    assert job.load(json_schema="carrier string, delay int") == 2
    frame = job.spark.read.parquet(str(job.directory / job.topic)).orderBy("offset")
    rows = frame.select("carrier", "delay", "malformed_value").collect()
    assert [tuple(row) for row in rows] == [("UA", 7, None), (None, None, b"not json")]


def test_a_load_under_way_keeps_others_out(job: Job) -> None:
    job.produce("a")
    path = Warehouse(job.spark, str(job.directory), job.topic).path
    with (
        Session(job.logbus.zookeeper, client_name="test") as session,
        Lock(session, f"load {path}", holder="the first load"),
        pytest.raises(LockHeldError, match="the first load"),
    ):
        job.load()
    assert job.load() == 1


def test_a_topic_created_again_is_refused(job: Job) -> None:
    job.produce("a")
    job.load()
    job.logbus.admin.delete_topic(job.topic)
    job.logbus.topic(partitions=2, name=job.topic)
    with pytest.raises(DataLossError, match="created again"):
        job.load()


class KilledError(BaseException):
    """Stands for SIGKILL: nothing of the load runs after it."""


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "step",
    [
        "commit",
        pytest.param("half-way", marks=LONG),
        pytest.param("publish", marks=LONG),
        pytest.param("delete", marks=LONG),
    ],
)
def test_a_load_killed_at_a_step_is_made_good(
    job: Job, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next load leaves each record there once, whatever was done before the kill."""
    from spark_logbus.load.files.hadoop import HadoopDirectory

    job.produce("a", day=1)
    job.load()
    job.produce("b", "c", day=1)
    job.produce("d", day=2)
    job.produce("e", day=3)
    renames = 0
    rename = HadoopDirectory.rename

    def killed(*_: object) -> None:
        raise KilledError

    def rename_once(self: HadoopDirectory, source: str, target: str) -> None:
        nonlocal renames
        renames += 1
        if renames > 1:
            raise KilledError
        rename(self, source, target)

    with monkeypatch.context() as patch:
        if step == "commit":
            patch.setattr(Warehouse, "commit", killed)
        elif step == "publish":
            patch.setattr(Warehouse, "publish", killed)
        elif step == "half-way":
            patch.setattr(HadoopDirectory, "rename", rename_once)
        else:
            patch.setattr(HadoopDirectory, "delete", killed)
        with pytest.raises(KilledError):
            job.load()
    assert job.staging() != []
    job.produce("f", day=2)
    job.load()
    assert job.values() == ["a", "b", "c", "d", "e", "f"]
    assert job.staging() == []


@pytest.mark.long
def test_the_job_runs_by_itself(job: Job) -> None:
    """Runs it as spark-submit does: a program of its own, with a readable report or error."""
    job.produce("a", "b", day=1)
    program = str(PROJECT / "jobs" / "load_warehouse.py")
    arguments = ["--warehouse", str(job.directory), "--zookeeper", job.logbus.zookeeper]

    def run(topic: str) -> subprocess.CompletedProcess[str]:
        submit = Path(sys.executable).with_name("spark-submit")
        return subprocess.run(
            [str(submit), "--master", "local[1]", "--conf", "spark.ui.enabled=false", program,
             "--topic", topic, *arguments],
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip

    done = run(job.topic)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 records in 1 file" in done.stdout
    assert job.values() == ["a", "b"]
    missing = run("no-such-topic")
    assert missing.returncode == 1
    assert "has no topic no-such-topic" in missing.stdout
    assert "Traceback" not in missing.stdout + missing.stderr


@pytest.mark.long
def test_a_load_is_refused_where_commit_files_are_older_than_the_data(
    job: Job, tmp_path: Path
) -> None:
    topic = job.directory / job.topic
    loads = topic / "_logbus" / "loads"
    job.produce("a")
    job.load()
    shutil.copytree(topic, tmp_path / "older")
    job.produce("b")
    job.load()
    newest = max(loads.iterdir())
    there = newest.read_bytes()
    newest.unlink()
    with pytest.raises(WarehouseError, match=r"files of load 2 are in .* knows load 1 \("):
        job.load()
    shutil.move(loads, tmp_path / "elsewhere")
    with pytest.raises(WarehouseError, match="knows no load as the last one"):
        job.load()
    shutil.move(tmp_path / "elsewhere", loads)
    newest.write_bytes(there)
    assert job.load() == 0
    assert job.values() == ["a", "b"]
    # All of an older copy: what came since is loaded again.
    shutil.rmtree(topic)
    shutil.move(tmp_path / "older", topic)
    assert job.load() == 1
    assert job.values() == ["a", "b"]
