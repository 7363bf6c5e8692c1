"""One load of a topic's new records into a warehouse: read, stage, count, commit, publish."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from pyspark.sql import SparkSession

from spark_logbus.client import Admin, Bootstrap, Cluster
from spark_logbus.coordination import GroupOffsets, Lock, Session
from spark_logbus.errors import DataLossError
from spark_logbus.load.reading import parse_json, plan, read
from spark_logbus.load.warehouse import Commit, Warehouse
from spark_logbus.model import TopicPartition
from spark_logbus.offsets import Snapshot, take_snapshot
from spark_logbus.offsets.selection import Topics


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """What to load, and where to."""

    topic: str
    warehouse: str  # a directory on any Hadoop filesystem
    zookeeper: str
    #: DDL of fields in JSON values that become columns; None keeps values as they are.
    json_schema: str | None = None
    #: Go on after records that retention deleted before they were loaded.
    allow_gaps: bool = False
    #: Show the progress as this group's offsets in ZooKeeper.
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one load brought in; ``commit`` is None when nothing was new."""

    commit: Commit | None
    path: str
    seconds: float


def run_load(spark: SparkSession, config: LoadConfig) -> Loaded:
    """Finish what an earlier load left, then load what is new.

    Raises DataLossError, LockHeldError, WarehouseError, and what the client raises; in each case
    nothing of this load is visible.
    """
    started = time.monotonic()
    warehouse = Warehouse(spark, config.warehouse, config.topic)
    with (
        Session(config.zookeeper, client_name="load") as session,
        Lock(session, f"load {warehouse.path}", holder=f"a load of {config.topic}") as lock,
    ):
        last = warehouse.recover()
        with Cluster.connect(Bootstrap.from_zookeeper(config.zookeeper)) as cluster:
            snapshot = take_snapshot(Admin(cluster), Topics((config.topic,)), missing_ok=False)
        commit = _stage(spark, config, warehouse, snapshot, last)
        if commit is not None:
            lock.check()
            warehouse.commit(commit)
            warehouse.publish(commit)
        if config.group is not None and (commit or last) is not None:
            _tell_group(session, config, commit or last)
    return Loaded(commit, warehouse.path, time.monotonic() - started)


def _stage(
    spark: SparkSession,
    config: LoadConfig,
    warehouse: Warehouse,
    snapshot: Snapshot,
    last: Commit | None,
) -> Commit | None:
    """Write what is new where nobody sees it; the commit that would publish it."""
    ranges = plan(snapshot, config.topic, last, allow_gaps=config.allow_gaps)
    expected = sum(r.count for r in ranges)
    if expected == 0:
        return None
    number = last.number + 1 if last else 1
    staging = Commit.staging_name(number, uuid.uuid4().hex)
    frame = read(spark, ranges, config.zookeeper, config.topic)
    if config.json_schema is not None:
        frame = parse_json(frame, config.json_schema)
    # One task for each date, so that a load writes one file a day and not one a day and task.
    frame.repartition("date").write.partitionBy("date").parquet(warehouse.staging(staging))
    records = spark.read.parquet(warehouse.staging(staging)).count()  # what is really there
    if records != expected:
        raise DataLossError(
            f"Expected {expected} records in {', '.join(map(str, ranges))}, staged {records}; "
            "nothing was committed. Run the load again, and if it persists, check the topic with "
            "`logbus dump`."
        )
    return Commit(
        number,
        staging,
        snapshot.topic_ids[config.topic],
        tuple(r for r in ranges if r.count),
        {r.topic_partition.partition: r.end for r in ranges},
        records,
        tuple(warehouse.data_files(staging)),
    )


def _tell_group(session: Session, config: LoadConfig, commit: Commit | None) -> None:
    """Copy the warehouse's progress to the group, for lag and rewinds.

    The warehouse's own commit decides where the next load starts.
    """
    assert commit is not None
    assert config.group is not None
    GroupOffsets(session).commit(
        config.group,
        {TopicPartition(config.topic, p): end for p, end in commit.ends.items()},
        by=f"load into {config.warehouse}",
        topic_ids={config.topic: commit.topic_id},
    )
