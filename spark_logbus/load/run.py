"""One load of a topic's new records into its target: read, stage, check, commit, publish."""

from __future__ import annotations

import logging
import os
import platform
from dataclasses import replace
from typing import Final

from pyspark.sql import SparkSession

from spark_logbus.audit.counts import Tallies
from spark_logbus.audit.report import Tier
from spark_logbus.audit.reporter import AuditConfig, prepare, report_commit
from spark_logbus.client import Cluster
from spark_logbus.clock import Clock, SystemClock
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.topic_owners import GroupOwnership
from spark_logbus.coordination.locks import Lock
from spark_logbus.errors import LogbusError
from spark_logbus.load.audit_windows import tallies_of
from spark_logbus.load.commit import Commit
from spark_logbus.load.config import LoadConfig, TargetConfig
from spark_logbus.load.errors import translated
from spark_logbus.load.files.target import FileTarget
from spark_logbus.load.jdbc.target import TableTarget
from spark_logbus.load.lake.opening import open_table
from spark_logbus.load.lake.target import LakeTarget
from spark_logbus.load.layout import LayoutChoice
from spark_logbus.load.plan.ranges import look_up
from spark_logbus.load.read.input import LoadInput
from spark_logbus.load.read.reading import Decoding
from spark_logbus.load.report import Loaded
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tables import DeltaTable, IcebergTable, JdbcTable
from spark_logbus.load.target import Target
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session

logger = logging.getLogger(__name__)

_AUDIT: Final = AuditConfig()


def run_load(
    spark: SparkSession,
    config: LoadConfig,
    steps: StepTimer | None = None,
    *,
    clock: Clock | None = None,
) -> Loaded:
    """Finishes what an earlier load left, then loads what is new.

    Raises DataLossError, LockHeldError, GroupHeldError, ConfigError, WarehouseError, and what the
    client raises. Whatever it raises, running it again is right: what was committed stays and is
    made visible, everything else is discarded and read again.
    """
    clock = clock or SystemClock()
    steps = steps or StepTimer(clock=clock)
    decoding = Decoding.of(config)
    target = open_target(spark, config, config.layout)
    report = Loaded(
        topic=config.topic,
        path=target.path,
        hive_table=config.hive_table,
        dead_letters_path=target.dead_letters,
    )
    with (
        Session(config.zookeeper, client_name="load", expects_cluster=True) as session,
        Lock(session, f"load {target.path}", holder=holder_of(config)) as lock,
    ):
        with steps.step("look up"):
            ownership = _acquire_topic(session, config)
            newest = target.recover()
            now_us = clock.now_us()
            source = look_up(config, newest, now_us=now_us)
            decoding = decoding.for_topic(config.topic, has_schema=source.has_schema)
            target.check_names(decoding.names)

        # A first load keeps where it was told to begin, also when nothing has come since.
        if source.filled_ranges or (newest is None and config.start is not None):
            load_input = LoadInput(spark, config, decoding, source, config.allow_gaps)
            staged = target.stage(load_input, newest, steps)
            newest = staged.commit
            tallies: Tallies = {}
            if config.audit:
                with steps.step("audit"):
                    tallies = _staged_windows(target, newest)
            commit_and_publish(target, newest, lock, steps)
            report = report.with_staged(staged)
            if config.audit:
                with steps.step("audit"):
                    _report_to_audit(config, target, newest, tallies, complete_through_us=now_us)
        if config.group is not None and newest is not None:
            _copy_progress_to_group(session, config, config.group, newest, ownership)
        announce(target, newest, steps)
        if config.compact is not None and newest is not None:
            with steps.step("compact"):
                rewritten = target.rewrite(newest, least=config.compact)
            if rewritten is not None:
                commit_and_publish(target, rewritten, lock, steps)
                announce(target, rewritten, steps)
                report = replace(
                    report,
                    files_replaced=len(rewritten.replaces),
                    files_rewritten=len(rewritten.files),
                )
    return replace(report, seconds=steps.total, steps=steps.seconds)


def announce(target: Target, commit: Commit | None, steps: StepTimer) -> None:
    """Tells others of all loads up to ``commit``, if there is one."""
    if commit is not None:
        with steps.step("publish"):
            target.announce(commit)


def open_target(spark: SparkSession, config: TargetConfig, choice: LayoutChoice) -> Target:
    """Opens the target that ``config`` names; a new one of files gets the layout of ``choice``."""
    match config.warehouse:
        case JdbcTable() as table:
            return TableTarget(spark, table, config.topic, holder=holder_of(config))
        case DeltaTable() | IcebergTable() as lake:
            opened = (open_table(lake), open_table(lake.dead_letters))
            return LakeTarget(spark, *opened, config, choice)
        case str() as root:
            return FileTarget(spark, root, config, choice)


def commit_and_publish(target: Target, commit: Commit, lock: Lock, steps: StepTimer) -> None:
    """Commits what is staged, and makes it visible."""
    with steps.step("commit"):
        target.prepare(commit)
        lock.check()
        target.commit(commit)
    with steps.step("publish"):
        target.publish(commit)


def holder_of(config: TargetConfig) -> str:
    """Names this process, as the holder of a target's lock."""
    return f"a load of {config.topic} on {platform.node()} (process {os.getpid()})"


def _staged_windows(target: Target, commit: Commit) -> Tallies:
    """Counts the records that are staged, by window."""
    with translated(f"count what was staged for {target.path} by window"):
        return tallies_of(target.rows(commit), window_us=_AUDIT.window_ms * 1_000)


def _report_to_audit(
    config: LoadConfig,
    target: Target,
    commit: Commit,
    tallies: Tallies,
    *,
    complete_through_us: int,
) -> None:
    """Tells the audit what was committed. What fails is a warning: the load is done."""
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
    """Holds the group's topic while the load runs, as a query does. Raises GroupHeldError, with
    the holder's name, when a query reads it for that group."""
    if config.group is None:
        return None
    ownership = GroupOwnership(session, config.group, pid=os.getpid(), application="load")
    ownership.acquire([config.topic])
    return ownership


def _copy_progress_to_group(
    session: Session,
    config: LoadConfig,
    group: str,
    commit: Commit,
    ownership: GroupOwnership | None,
) -> None:
    """Copies the target's progress to the group, for lag and rewinds.

    The target's own commit decides where the next load starts.
    """
    GroupOffsets(session).commit(
        group,
        {TopicPartition(config.topic, p): end for p, end in commit.ends.items()},
        actor=f"load into {config.warehouse}",
        topic_ids={config.topic: commit.topic_id},
        ownership=ownership,
    )
