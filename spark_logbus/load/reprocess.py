"""A window of a loaded topic, read again from the log and put in the place of what loads had made
of it: with another schema, or with what is known better now.

It goes through the steps of every load: staged, counted, committed in one step with the offsets of
the last commit. Killed at any point, the next load or reprocessing finishes or discards it. In a
warehouse of files those are replaced as a whole that hold records of the window
(``files.staging``); in a table of a database, rows (``jdbc.staging``).

The tally decides that nothing is lost. All that the target holds of the window must have been read
again: either each offset of it was, or exactly the records that are there. A topic whose compaction
has removed some since then is refused.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from spark_logbus.clock import Clock, SystemClock
from spark_logbus.coordination.locks import Lock
from spark_logbus.load.config import ReprocessConfig
from spark_logbus.load.errors import WarehouseError, translated
from spark_logbus.load.layout import LayoutChoice
from spark_logbus.load.plan.window import check_moments, look_up_window
from spark_logbus.load.read.input import LoadInput
from spark_logbus.load.read.reading import Decoding
from spark_logbus.load.report import Reprocessed
from spark_logbus.load.run import announce, commit_and_publish, holder_of, open_target
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tables import DeltaTable, IcebergTable, JdbcTable, TableOfLake
from spark_logbus.zookeeper import Session


def run_reprocess(
    spark: SparkSession,
    config: ReprocessConfig,
    steps: StepTimer | None = None,
    *,
    clock: Clock | None = None,
) -> Reprocessed:
    """Finishes what an earlier load left, then puts the window in place anew.

    Raises NotInLogError, and what ``run_load`` does. Whatever it raises, running it again is right.
    """
    clock = clock or SystemClock()
    steps = steps or StepTimer(clock=clock)
    decoding = Decoding.of(config)
    target = open_target(spark, config, LayoutChoice())
    with (
        Session(config.zookeeper, client_name="reprocess", expects_cluster=True) as session,
        Lock(session, f"load {target.path}", holder=holder_of(config)) as lock,
    ):
        with steps.step("look up"):
            last = target.recover()
            if last is None:
                option = _option_of(config.warehouse)
                raise WarehouseError(
                    f"{target.path} is no warehouse of {config.topic}: no load has been "
                    "committed there. Name what was given to load_warehouse.py as "
                    f"{option}."
                )
            window = look_up_window(config, last, target.loads(), now_us=clock.now_us())
            if window.may_lack_moments:
                with translated(f"look for what is gone from the log in {target.path}"):
                    check_moments(config.topic, target.rows(), window)
        decoding = decoding.for_topic(config.topic, has_schema=window.source.has_schema)
        load_input = LoadInput(spark, config, decoding, window.source)
        report = Reprocessed(
            topic=config.topic,
            path=target.path,
            hive_table=config.hive_table,
            dead_letters_path=target.dead_letters,
            dry_run=config.dry_run,
            ranges=window.ranges,
        )
        if window.ranges:
            with steps.step("look for the window"):
                before = target.find(last, window.ranges)
            planned = target.plan_replacement(load_input, last, window, before, steps)
            report = replace(
                report,
                before=before,
                columns_added=planned.columns_added,
                columns_left_out=planned.columns_left_out,
            )
            if not config.dry_run:
                staged = planned.stage()
                commit_and_publish(target, staged.commit, lock, steps)
                last = staged.commit
                report = report.with_staged(staged)
        if not config.dry_run:
            announce(target, last, steps)
    return replace(report, seconds=steps.total, steps=steps.seconds)


def _option_of(warehouse: str | JdbcTable | TableOfLake) -> str:
    """The option that names a target of that kind."""
    match warehouse:
        case JdbcTable():
            return "--jdbc-table"
        case DeltaTable():
            return "--delta"
        case IcebergTable():
            return "--iceberg"
    return "--warehouse"
