"""One load of a topic's new records into a warehouse: read, stage, check, commit, publish."""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_logbus.audit.counts import Tallies
from spark_logbus.audit.report import Tier
from spark_logbus.audit.reporter import AuditConfig, prepare, report_commit
from spark_logbus.client import Admin, Bootstrap, Cluster
from spark_logbus.coordination.group_offsets import GroupOffsets
from spark_logbus.coordination.group_owners import GroupOwnership
from spark_logbus.coordination.locks import Lock
from spark_logbus.errors import ConfigError, DataLossError, LogbusError
from spark_logbus.load.commits import Commit
from spark_logbus.load.hadoop import translated
from spark_logbus.load.reading import json_fields, parse_json, plan, read
from spark_logbus.load.schema import merged
from spark_logbus.load.tally import Observed, Tally, tally_of
from spark_logbus.load.warehouse import Warehouse, without_date
from spark_logbus.load.windows import tallies_of
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets.snapshot import Snapshot, take_snapshot
from spark_logbus.selection import Topics
from spark_logbus.topic_schemas import VALUE_ENCODING
from spark_logbus.zookeeper import Session

logger = logging.getLogger(__name__)

_AUDIT: Final = AuditConfig()


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """The topic to load, and its target."""

    topic: str
    warehouse: str  # a directory on any Hadoop filesystem
    zookeeper: str
    #: DDL of fields in JSON values that become columns, beside the values as they are.
    json_schema: str | None = None
    #: Go on after records that retention deleted before they were loaded, and over offsets
    #: without a record in a topic that is not compacted (any more).
    allow_gaps: bool = False
    #: Show the progress as this group's offsets in ZooKeeper.
    group: str | None = None
    #: Keep of JSON values only the fields of ``json_schema``, and values that do not parse.
    drop_value: bool = False
    #: Publish how many records the load has committed, by window of their time.
    audit: bool = False

    def __post_init__(self) -> None:
        if self.drop_value and self.json_schema is None:
            raise ConfigError(
                "--drop-value without --json-schema would keep nothing of the values; name the "
                "fields that are to become columns."
            )


@dataclass(frozen=True, slots=True)
class Loaded:
    """The outcome of one load; ``commit`` is None when nothing was new."""

    commit: Commit | None
    path: str
    seconds: float


def run_load(spark: SparkSession, config: LoadConfig) -> Loaded:
    """Finish what an earlier load left, then load what is new.

    Raises DataLossError, LockHeldError, GroupHeldError, ConfigError, WarehouseError, and what the
    client raises. Whatever it raises, running it again is right: what was committed stays and is
    made visible, everything else is discarded and read again.
    """
    started = time.monotonic()
    fields = None
    if config.json_schema is not None:
        fields = json_fields(config.json_schema, drop_value=config.drop_value)
    warehouse = Warehouse(spark, config.warehouse, config.topic)
    with (
        Session(config.zookeeper, client_name="load", expects_cluster=True) as session,
        Lock(session, f"load {warehouse.path}", holder=_holder(config)) as lock,
    ):
        ownership = _acquire_topic(session, config)
        last = warehouse.recover()
        began_us = time.time_ns() // 1_000
        source = _look_up(config)
        if source.has_schema and fields is not None:
            raise ConfigError(
                f"--json-schema is for values that are JSON, and those of {config.topic} have a "
                "schema, whose fields are loaded as columns; leave it out."
            )
        ranges = plan(source.snapshot, config.topic, last, allow_gaps=config.allow_gaps)
        commit = None
        tallies: Tallies = {}
        if any(r.count for r in ranges):
            commit = _Staging(spark, config, fields, warehouse, source).stage(ranges, last)
            if config.audit:
                tallies = _staged_windows(spark, warehouse, commit)
            warehouse.prepare(commit)
            lock.check()
            warehouse.commit(commit)
            warehouse.publish(commit)
            if config.audit:
                _report(config, warehouse, commit, tallies, complete_through_us=began_us)
        newest = commit or last
        if config.group is not None and newest is not None:
            _tell_group(session, config, newest, group=config.group, ownership=ownership)
    return Loaded(commit, warehouse.path, time.monotonic() - started)


def _holder(config: LoadConfig) -> str:
    return f"a load of {config.topic} on {platform.node()} (process {os.getpid()})"


@dataclass(frozen=True, slots=True)
class _Source:
    """The topic as it is when a load begins."""

    snapshot: Snapshot
    compacted: bool
    has_schema: bool


def _look_up(config: LoadConfig) -> _Source:
    with Cluster.connect(Bootstrap.from_zookeeper(config.zookeeper)) as cluster:
        admin = Admin(cluster)
        snapshot = take_snapshot(admin, Topics((config.topic,)), missing_ok=False)
        topic = admin.describe([config.topic], ends=False)[config.topic]
    return _Source(
        snapshot,
        "compact" in topic.config.get("cleanup.policy", ""),
        VALUE_ENCODING in topic.config,
    )


@dataclass(frozen=True, slots=True)
class _Staging:
    """Writes what is new where nobody sees it, and makes sure of it."""

    spark: SparkSession
    config: LoadConfig
    fields: StructType | None
    warehouse: Warehouse
    source: _Source

    def stage(self, ranges: list[OffsetRange], last: Commit | None) -> Commit:
        """The commit that would publish ``ranges``, which hold an offset at least."""
        config, has_schema = self.config, self.source.has_schema
        observed = Observed(
            read(self.spark, ranges, config.zookeeper, config.topic, has_schema=has_schema)
        )
        frame = observed.frame
        if self.fields is not None:
            frame = parse_json(frame, self.fields, drop_value=self.config.drop_value)
        before = self.warehouse.schema(last) or StructType()
        schema = merged(before, without_date(frame.schema), where=self.warehouse.path)
        number = last.number + 1 if last else 1
        staging = Commit.staging_name(number, uuid.uuid4().hex)
        path = self.warehouse.staging(staging)
        with translated(f"stage load {number} in {path}"):
            _write(frame, path)
        with translated(f"count what was staged in {path}"):
            staged, files = _look(self.spark, path)
        self._check(ranges, observed.tally(), staged)
        return Commit(
            number,
            staging,
            self.source.snapshot.topic_ids[self.config.topic],
            tuple(r for r in ranges if r.count),
            {r.topic_partition.partition: r.end for r in ranges},
            staged.records,
            files,
            schema,
        )

    def _check(self, ranges: list[OffsetRange], handed_over: Tally, staged: Tally) -> None:
        """DataLossError unless exactly what was read is staged, and all that had to be was read."""
        where = ", ".join(map(str, ranges))
        if staged != handed_over:
            raise DataLossError(
                f"Expected {handed_over.records:,} records, which were read of {where}, staged "
                f"{staged.records:,}{'' if staged.records != handed_over.records else ' others'}; "
                "nothing was committed. Run the load again, and if it persists, check the topic "
                "with `logbus dump`."
            )
        offsets = sum(r.count for r in ranges)
        with_gaps = self.source.compacted or self.config.allow_gaps
        if staged.records > offsets or (staged.records < offsets and not with_gaps):
            raise DataLossError(
                f"Expected {offsets:,} records in {where}, found {staged.records:,}; nothing was "
                f"committed. Topic {self.config.topic} is not compacted, so that each offset has "
                "its record. If it was compacted at one time, use --allow-gaps; if not, check it "
                "with `logbus verify`."
            )


def _write(frame: DataFrame, path: str) -> None:
    # A date goes to one task and so to one file, unless it is so large that Spark splits it.
    frame.hint("rebalance", "date").write.partitionBy("date").parquet(path)


def _look(spark: SparkSession, path: str) -> tuple[Tally, tuple[str, ...]]:
    """The records that are really there, and their files."""
    staged = spark.read.schema("partition int, offset bigint, date date").parquet(path)
    # Spark gives whole URLs; the last two parts are date=... and the file's name.
    files = ("/".join(url.rsplit("/", 2)[-2:]) for url in staged.inputFiles())
    return tally_of(staged), tuple(sorted(files))


def _staged_windows(spark: SparkSession, warehouse: Warehouse, commit: Commit) -> Tallies:
    """How many records are in the staged files, by window."""
    path = warehouse.staging(commit.staging)
    with translated(f"count what was staged in {path} by window"):
        staged = spark.read.schema("timestamp timestamp").parquet(path)
        return tallies_of(staged, window_us=_AUDIT.window_ms * 1_000)


def _report(
    config: LoadConfig,
    warehouse: Warehouse,
    commit: Commit,
    tallies: Tallies,
    *,
    complete_through_us: int,
) -> None:
    """Tell the audit what was committed. What fails is a warning: the load is done."""
    try:
        with Cluster.from_zookeeper(config.zookeeper) as cluster:
            report_commit(
                cluster,
                _AUDIT,
                prepare(cluster, _AUDIT),
                tier=Tier.LOAD,
                counter=warehouse.path,
                run=commit.staging,
                tallies={config.topic: tallies},
                complete_through_us=complete_through_us,
            )
    except LogbusError as error:
        logger.warning("Load %d is committed, and could not be reported: %s", commit.number, error)


def _acquire_topic(session: Session, config: LoadConfig) -> GroupOwnership | None:
    """Hold the group's topic while the load runs, as a query does: GroupHeldError, with the
    holder's name, when one reads it for that group."""
    if config.group is None:
        return None
    ownership = GroupOwnership(session, config.group, pid=os.getpid(), application="load")
    ownership.acquire([config.topic])
    return ownership


def _tell_group(
    session: Session,
    config: LoadConfig,
    commit: Commit,
    *,
    group: str,
    ownership: GroupOwnership | None,
) -> None:
    """Copy the warehouse's progress to the group, for lag and rewinds.

    The warehouse's own commit decides where the next load starts.
    """
    GroupOffsets(session).commit(
        group,
        {TopicPartition(config.topic, p): end for p, end in commit.ends.items()},
        actor=f"load into {config.warehouse}",
        topic_ids={config.topic: commit.topic_id},
        ownership=ownership,
    )
