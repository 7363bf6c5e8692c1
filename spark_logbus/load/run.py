"""One load of a topic's new records into its target: read, stage, check, commit, publish."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_logbus.audit.counts import Tallies
from spark_logbus.audit.report import Tier
from spark_logbus.audit.reporter import AuditConfig, prepare, report_commit
from spark_logbus.client import Cluster
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.topic_owners import GroupOwnership
from spark_logbus.coordination.locks import Lock
from spark_logbus.errors import ConfigError, LogbusError
from spark_logbus.load.commit import Commit
from spark_logbus.load.config import JdbcTable, LoadConfig
from spark_logbus.load.errors import translated
from spark_logbus.load.files.target import FileTarget
from spark_logbus.load.jdbc.target import TableTarget
from spark_logbus.load.plan.ranges import Source, look_up
from spark_logbus.load.read.input import LoadInput
from spark_logbus.load.read.reading import Decoding
from spark_logbus.load.read.values import AvroFields, json_fields
from spark_logbus.load.steps import StepTimer
from spark_logbus.load.target import Target
from spark_logbus.load.windows import tallies_of
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session

logger = logging.getLogger(__name__)

_AUDIT: Final = AuditConfig()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The outcome of one load; ``commit`` is None when there was none to make."""

    topic: str
    commit: Commit | None
    path: str
    seconds: float
    #: Of each step, in their order.
    steps: Mapping[str, float]
    #: Of the files that are new.
    size_bytes: int = 0
    #: Records whose event time is null.
    without_event_time: int = 0
    #: Small files that were rewritten, and those that have taken their place.
    files_replaced: int = 0
    files_rewritten: int = 0
    #: Where records are that did not decode.
    dead_letters_path: str = ""
    hive_table: str | None = None

    @property
    def nothing_new(self) -> bool:
        return self.commit is None or not self.commit.ranges

    def to_json(self) -> dict[str, Any]:
        """The report for programs; numbers are 0 and lists empty where nothing was new."""
        commit = self.commit
        return {
            "topic": self.topic,
            "warehouse": self.path,
            "hive_table": self.hive_table,
            "nothing_new": self.nothing_new,
            "load": None if commit is None else commit.number,
            "ranges": []
            if commit is None
            else [
                {"partition": r.topic_partition.partition, "start": r.start, "end": r.end}
                for r in commit.ranges
            ],
            "records": 0 if commit is None else commit.records,
            "dead_letters": 0 if commit is None else commit.dead_letters,
            "files": 0 if commit is None else len(commit.files),
            "bytes": self.size_bytes,
            "without_event_time": self.without_event_time,
            "files_replaced": self.files_replaced,
            "files_rewritten": self.files_rewritten,
            "seconds": round(self.seconds, 3),
            "steps": {step: round(seconds, 3) for step, seconds in self.steps.items()},
        }


def run_load(spark: SparkSession, config: LoadConfig, steps: StepTimer | None = None) -> Loaded:
    """Finish what an earlier load left, then load what is new.

    Raises DataLossError, LockHeldError, GroupHeldError, ConfigError, WarehouseError, and what the
    client raises. Whatever it raises, running it again is right: what was committed stays and is
    made visible, everything else is discarded and read again.
    """
    steps = steps or StepTimer()
    json, avro = fields_of(config)
    target = open_target(spark, config)
    with (
        Session(config.zookeeper, client_name="load", expects_cluster=True) as session,
        Lock(session, f"load {target.path}", holder=holder_of(config)) as lock,
    ):
        with steps.step("look up"):
            ownership = _acquire_topic(session, config)
            last = target.recover()
            began_us = time.time_ns() // 1_000
            source = look_up(config, last)
            decoding = decoding_of(config, source, json=json, avro=avro)
            for fields in (json, None if avro is None else avro.fields):
                target.check_names([] if fields is None else fields.names)

        staged = None
        # A first load keeps where it was told to begin, also when nothing has come since.
        if any(r.count for r in source.ranges) or (last is None and config.start is not None):
            staged = target.stage(LoadInput(spark, config, decoding, source), last, steps)
            tallies: Tallies = {}
            if config.audit:
                with steps.step("audit"):
                    tallies = _staged_windows(target, staged.commit)
            commit_and_publish(target, staged.commit, lock, steps)
            if config.audit:
                with steps.step("audit"):
                    _report(config, target, staged.commit, tallies, complete_through_us=began_us)
        newest = last if staged is None else staged.commit
        if config.group is not None and newest is not None:
            _copy_progress_to_group(
                session, config, newest, group=config.group, ownership=ownership
            )
        announce(target, newest, steps)
        rewritten = None
        if config.compact is not None and newest is not None:
            with steps.step("compact"):
                rewritten = target.rewrite(newest)
            if rewritten is not None:
                commit_and_publish(target, rewritten, lock, steps)
            announce(target, rewritten, steps)
    return Loaded(
        config.topic,
        None if staged is None else staged.commit,
        target.path,
        steps.total,
        steps.seconds,
        0 if staged is None else staged.size_bytes,
        0 if staged is None else staged.without_event_time,
        0 if rewritten is None else len(rewritten.replaces),
        0 if rewritten is None else len(rewritten.files),
        target.dead_letters,
        config.hive_table,
    )


def announce(target: Target, commit: Commit | None, steps: StepTimer) -> None:
    """Tell others of all loads up to ``commit``, if there is one."""
    if commit is not None:
        with steps.step("publish"):
            target.announce(commit)


def open_target(spark: SparkSession, config: LoadConfig) -> Target:
    """What ``config`` names to load into; ``spark`` reaches it."""
    match config.warehouse:
        case JdbcTable() as table:
            return TableTarget(spark, table, config.topic, holder=holder_of(config))
        case str() as root:
            return FileTarget(spark, root, config)


def commit_and_publish(target: Target, commit: Commit, lock: Lock, steps: StepTimer) -> None:
    """Commit what is staged, and make it visible."""
    with steps.step("commit"):
        target.prepare(commit)
        lock.check()
        target.commit(commit)
    with steps.step("publish"):
        target.publish(commit)


def fields_of(config: LoadConfig) -> tuple[StructType | None, AvroFields | None]:
    """Those that values are to have, by their format; ConfigError says what is wrong with them."""
    json = avro = None
    if config.json_schema is not None:
        json = json_fields(config.json_schema, drop_value=config.drop_value)
    if config.avro_schema is not None:
        avro = AvroFields(
            config.avro_schema, dead_letters=config.dead_letters, drop_value=config.drop_value
        )
    return json, avro


def decoding_of(
    config: LoadConfig, source: Source, *, json: StructType | None, avro: AvroFields | None
) -> Decoding:
    """How values become columns; ConfigError where the options are not for those of the topic."""
    given = "--json-schema" if json is not None else "--avro-schema" if avro is not None else None
    if source.has_schema and given is not None:
        raise ConfigError(
            f"{given} is for values of topics without a schema, and those of {config.topic} have "
            "one, whose fields are loaded as columns; leave it out."
        )
    if config.dead_letters and not source.has_schema and given is None:
        raise ConfigError(
            f"--dead-letters is for values that are decoded, and those of {config.topic} are "
            "loaded as they are; give --json-schema or --avro-schema, or leave it out."
        )
    return Decoding(source.has_schema, json, avro, config.drop_value, config.dead_letters)


def holder_of(config: LoadConfig) -> str:
    """Who holds the lock of a warehouse's topic."""
    return f"a load of {config.topic} on {platform.node()} (process {os.getpid()})"


def _staged_windows(target: Target, commit: Commit) -> Tallies:
    """How many records are staged, by window."""
    with translated(f"count what was staged for {target.path} by window"):
        return tallies_of(target.rows(commit), window_us=_AUDIT.window_ms * 1_000)


def _report(
    config: LoadConfig,
    target: Target,
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
                counter=target.path,
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


def _copy_progress_to_group(
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
