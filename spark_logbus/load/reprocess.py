"""A window of a loaded topic, read again from the log and put in the place of what loads had made
of it: with another schema, or with what is known better now.

It goes through the steps of every load: staged, counted, committed in one step with the offsets of
the last commit. Killed at any point, the next load or reprocessing finishes or discards it. In a
warehouse of files those are replaced as a whole that hold records of the window
(``window_files``, ``restaging``); in a table of a database, rows (``jdbc.window``).

The tally decides that nothing is lost. All that the target holds of the window must have been read
again: either each offset of it was, or exactly the records that are there. A topic whose compaction
has removed some since then is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from spark_logbus.coordination.locks import Lock
from spark_logbus.load.commit import Commit
from spark_logbus.load.config import JdbcTable, LoadConfig
from spark_logbus.load.errors import WarehouseError, translated
from spark_logbus.load.plan.ranges import first_start, last_end
from spark_logbus.load.plan.window import look_up_window
from spark_logbus.load.plan.window_rows import ExistingRows, check_moments
from spark_logbus.load.read.input import LoadInput
from spark_logbus.load.run import (
    announce,
    commit_and_publish,
    decoding_of,
    fields_of,
    holder_of,
    open_target,
)
from spark_logbus.load.steps import StepTimer
from spark_logbus.model import OffsetRange
from spark_logbus.zookeeper import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessConfig:
    """The window, and how its values are decoded this time. Raises ConfigError."""

    topic: str
    warehouse: str | JdbcTable  # the directory, or the table, that the loads were given
    zookeeper: str
    #: Where the window begins and ends: moments, or positions as in the source's options. What was
    #: not loaded is never part of it.
    start: str
    until: str | None = None
    #: As of a load.
    json_schema: str | None = None
    avro_schema: str | None = None
    drop_value: bool = False
    dead_letters: bool = False
    compression: str | None = None
    #: A table in the Hive metastore over the files, which is told.
    hive_table: str | None = None
    #: Plan alone.
    dry_run: bool = False

    def __post_init__(self) -> None:
        self.as_load()
        first_start(self.start)
        if self.until is not None:
            last_end(self.until)

    @property
    def option(self) -> str:
        """What a load names its target with."""
        return "--jdbc-table" if isinstance(self.warehouse, JdbcTable) else "--warehouse"

    def as_load(self) -> LoadConfig:
        """The load that would decode values so."""
        return LoadConfig(
            self.topic,
            self.warehouse,
            self.zookeeper,
            json_schema=self.json_schema,
            avro_schema=self.avro_schema,
            drop_value=self.drop_value,
            dead_letters=self.dead_letters,
            compression=self.compression,
            hive_table=self.hive_table,
        )


@dataclass(frozen=True, slots=True)
class Reprocessed:
    """The outcome; ``commit`` is None where there was nothing to do, or with ``dry_run``."""

    topic: str
    path: str
    dry_run: bool
    commit: Commit | None
    ranges: tuple[OffsetRange, ...]
    before: ExistingRows
    seconds: float
    steps: Mapping[str, float]
    #: Columns that the warehouse gets, and those that are null in the window from now on.
    columns_added: tuple[str, ...] = ()
    columns_left_out: tuple[str, ...] = ()
    #: Of the window, as they are now.
    records: int = 0
    dead_letters: int = 0
    without_event_time: int = 0
    #: Of the files that are new.
    size_bytes: int = 0
    hive_table: str | None = None
    #: Where records are that did not decode.
    dead_letters_path: str = ""

    def to_json(self) -> dict[str, Any]:
        """The report for programs."""
        commit, before = self.commit, self.before
        return {
            "topic": self.topic,
            "warehouse": self.path,
            "hive_table": self.hive_table,
            "dry_run": self.dry_run,
            "nothing_loaded": not self.ranges,
            "load": None if commit is None else commit.number,
            "ranges": [
                {"partition": r.topic_partition.partition, "start": r.start, "end": r.end}
                for r in self.ranges
            ],
            "records_before": before.records,
            "dead_letters_before": before.dead_letters,
            "records": self.records,
            "dead_letters": self.dead_letters,
            "without_event_time": self.without_event_time,
            "records_kept": before.kept,
            "replaces": list(before.names),
            "files": 0 if commit is None else len(commit.files),
            "bytes": self.size_bytes,
            "columns_added": list(self.columns_added),
            "columns_left_out": list(self.columns_left_out),
            "seconds": round(self.seconds, 3),
            "steps": {step: round(seconds, 3) for step, seconds in self.steps.items()},
        }


def run_reprocess(
    spark: SparkSession, config: ReprocessConfig, steps: StepTimer | None = None
) -> Reprocessed:
    """Finish what an earlier load left, then put the window in place anew.

    Raises NotInLogError, and what ``run_load`` does. Whatever it raises, running it again is right.
    """
    steps, load = steps or StepTimer(), config.as_load()
    json, avro = fields_of(load)
    target = open_target(spark, load)
    with (
        Session(config.zookeeper, client_name="reprocess", expects_cluster=True) as session,
        Lock(session, f"load {target.path}", holder=holder_of(load)) as lock,
    ):
        with steps.step("look up"):
            last = target.recover()
            if last is None:
                raise WarehouseError(
                    f"{target.path} is no warehouse of {config.topic}: no load has been "
                    f"committed there. Name what was given to load_warehouse.py as {config.option}."
                )
            window = look_up_window(
                load, last, target.loads(), start=config.start, until=config.until
            )  # fmt: skip
            if window.may_lack_moments:
                with translated(f"look for what is gone from the log in {target.path}"):
                    check_moments(config.topic, target.rows(), window)
        decoding = decoding_of(load, window.source, json=json, avro=avro)
        incoming = LoadInput(spark, load, decoding, window.source)
        done = Reprocessed(
            config.topic,
            target.path,
            config.dry_run,
            None,
            window.ranges,
            ExistingRows(),
            0.0,
            {},
            hive_table=config.hive_table,
            dead_letters_path=target.dead_letters,
        )
        if window.ranges:
            with steps.step("look for the window"):
                before = target.find(last, window.ranges)
            again = target.plan_replacement(incoming, last, window, before, steps)
            done = replace(
                done,
                before=before,
                columns_added=again.columns_added,
                columns_left_out=again.columns_left_out,
            )
            if not config.dry_run:
                restaged = again.stage()
                commit_and_publish(target, restaged.commit, lock, steps)
                last = restaged.commit
                done = replace(
                    done,
                    commit=restaged.commit,
                    records=restaged.records,
                    dead_letters=restaged.dead_letters,
                    without_event_time=restaged.without_event_time,
                    size_bytes=restaged.size_bytes,
                )
        if not config.dry_run:
            announce(target, last, steps)
    return replace(done, seconds=steps.total, steps=steps.seconds)
