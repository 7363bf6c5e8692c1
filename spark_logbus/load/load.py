"""One load of a topic's new records into a warehouse: read, stage, count, commit, publish."""

from __future__ import annotations

import os
import platform
import time
import uuid
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_logbus.client import Admin, Bootstrap, Cluster
from spark_logbus.coordination import GroupOffsets, Lock, Session
from spark_logbus.errors import DataLossError
from spark_logbus.load.commits import Commit
from spark_logbus.load.hadoop import translated
from spark_logbus.load.reading import json_fields, parse_json, plan, read
from spark_logbus.load.warehouse import Warehouse
from spark_logbus.model import OffsetRange, TopicPartition
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

    Raises DataLossError, LockHeldError, ConfigError, WarehouseError, and what the client raises.
    Whatever it raises, running it again is right: what was committed stays and is made visible,
    everything else is discarded and read again.
    """
    started = time.monotonic()
    fields = json_fields(config.json_schema) if config.json_schema is not None else None
    warehouse = Warehouse(spark, config.warehouse, config.topic)
    with (
        Session(config.zookeeper, client_name="load") as session,
        Lock(session, f"load {warehouse.path}", holder=_holder(config)) as lock,
    ):
        last = warehouse.recover()
        with Cluster.connect(Bootstrap.from_zookeeper(config.zookeeper)) as cluster:
            snapshot = take_snapshot(Admin(cluster), Topics((config.topic,)), missing_ok=False)
        commit = _stage(spark, config, fields, warehouse, snapshot, last)
        if commit is not None:
            lock.check()
            warehouse.commit(commit)
            warehouse.publish(commit)
        newest = commit or last
        if config.group is not None and newest is not None:
            _tell_group(session, config, newest, group=config.group)
    return Loaded(commit, warehouse.path, time.monotonic() - started)


def _holder(config: LoadConfig) -> str:
    return f"a load of {config.topic} on {platform.node()} (process {os.getpid()})"


def _stage(
    spark: SparkSession,
    config: LoadConfig,
    fields: StructType | None,
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
    path = warehouse.staging(staging)
    with translated(f"stage load {number} in {path}"):
        _write(spark, config, fields, ranges, path)
    with translated(f"count what was staged in {path}"):
        records, files = _look(spark, path)
    if records != expected:
        raise DataLossError(
            f"Expected {expected:,} records in {', '.join(map(str, ranges))}, staged "
            f"{records:,}; nothing was committed. Run the load again, and if it persists, check "
            "the topic with `logbus dump`."
        )
    return Commit(
        number,
        staging,
        snapshot.topic_ids[config.topic],
        tuple(r for r in ranges if r.count),
        {r.topic_partition.partition: r.end for r in ranges},
        records,
        files,
    )


def _write(
    spark: SparkSession,
    config: LoadConfig,
    fields: StructType | None,
    ranges: list[OffsetRange],
    path: str,
) -> None:
    frame = read(spark, ranges, config.zookeeper, config.topic)
    if fields is not None:
        frame = parse_json(frame, fields)
    # A date goes to one task and so to one file, unless it is so large that Spark splits it.
    frame.hint("rebalance", "date").write.partitionBy("date").parquet(path)


def _look(spark: SparkSession, path: str) -> tuple[int, tuple[str, ...]]:
    """How many records are really there, and in which files."""
    staged = spark.read.schema("offset bigint, date date").parquet(path)
    # Spark gives whole URLs; the last two parts are date=... and the file's name.
    files = ("/".join(url.rsplit("/", 2)[-2:]) for url in staged.inputFiles())
    return staged.count(), tuple(sorted(files))


def _tell_group(session: Session, config: LoadConfig, commit: Commit, *, group: str) -> None:
    """Copy the warehouse's progress to the group, for lag and rewinds.

    The warehouse's own commit decides where the next load starts.
    """
    GroupOffsets(session).commit(
        group,
        {TopicPartition(config.topic, p): end for p, end in commit.ends.items()},
        by=f"load into {config.warehouse}",
        topic_ids={config.topic: commit.topic_id},
    )
