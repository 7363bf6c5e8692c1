"""A window of a loaded topic, read again from the log and put in the place of what loads had made
of it: with another schema, or with what is known better now.

The records of the window are in files of the warehouse, beside others. Those files are replaced as
a whole: staged are the records of the window, read and decoded anew, and the others of the files as
they are. It is a commit with the same offsets as the last one, which names the files that it
replaces, and goes through the steps of every load: staged, counted, committed by one rename, then
published. Killed at any point, the next load or reprocessing finishes or discards it.

The tally decides that nothing is lost. All that the files hold of the window must have been read
again: either each offset of it was, or exactly the records that the files hold. A topic whose
compaction has removed some since then is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_logbus.audit.warehouse import Loads
from spark_logbus.coordination.locks import Lock
from spark_logbus.load.commits import DEAD_LETTERS, Commit
from spark_logbus.load.config import LoadConfig
from spark_logbus.load.hadoop import WarehouseError, local_path, translated
from spark_logbus.load.incoming import Incoming
from spark_logbus.load.layout import Layout
from spark_logbus.load.load import decoding_of, fields_of, holder_of, put_in_place
from spark_logbus.load.loaded_window import Window, gone_since, look_up_window, not_in_log
from spark_logbus.load.planning import first_start, last_end
from spark_logbus.load.schema import IncompatibleSchemaError, merged
from spark_logbus.load.small_files import records_of
from spark_logbus.load.staged_files import tallied, write
from spark_logbus.load.staging import Planned, Staging
from spark_logbus.load.steps import Steps
from spark_logbus.load.tally import NONE, Observed, Tally, aggregates, tally_from
from spark_logbus.load.warehouse import Warehouse
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.zookeeper import Session

_ROWS = "partition int, offset bigint, timestamp timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessConfig:
    """The window, and how its values are decoded this time. Raises ConfigError."""

    topic: str
    warehouse: str  # the directory that the loads were given
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
    #: Plan alone.
    dry_run: bool = False

    def __post_init__(self) -> None:
        self.as_load()
        first_start(self.start)
        if self.until is not None:
            last_end(self.until)

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
        )


@dataclass(frozen=True, slots=True)
class Replaced:
    """What the warehouse holds of the window, and the files that it stands in."""

    records: int = 0
    dead_letters: int = 0
    tally: Tally = NONE  # of both
    files: tuple[str, ...] = ()  # with records, by name from the warehouse's directory on
    letter_files: tuple[str, ...] = ()
    #: Records of those files that are not of the window, and stay as they are.
    kept_records: int = 0
    kept_letters: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.files, *self.letter_files)

    @property
    def kept(self) -> int:
        return self.kept_records + self.kept_letters


@dataclass(frozen=True, slots=True)
class Reprocessed:
    """The outcome; ``commit`` is None where there was nothing to do, or with ``dry_run``."""

    topic: str
    path: str
    dry_run: bool
    commit: Commit | None
    ranges: tuple[OffsetRange, ...]
    before: Replaced
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

    def to_json(self) -> dict[str, Any]:
        """The report for programs."""
        commit, before = self.commit, self.before
        return {
            "topic": self.topic,
            "warehouse": self.path,
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
    spark: SparkSession, config: ReprocessConfig, steps: Steps | None = None
) -> Reprocessed:
    """Finish what an earlier load left, then put the window in place anew.

    Raises NotInLogError, and what ``run_load`` does. Whatever it raises, running it again is right.
    """
    steps, load = steps or Steps(), config.as_load()
    json, avro = fields_of(load)
    warehouse = Warehouse(spark, config.warehouse, config.topic)
    with (
        Session(config.zookeeper, client_name="reprocess", expects_cluster=True) as session,
        Lock(session, f"load {warehouse.path}", holder=holder_of(load)) as lock,
    ):
        with steps.step("look up"):
            last = warehouse.recover()
            if last is None:
                raise WarehouseError(
                    f"{warehouse.path} is no warehouse of {config.topic}: no load has been "
                    "committed there. Name the directory that was given to load_warehouse.py as "
                    "--warehouse."
                )
            loads = Loads.from_commits(warehouse.commit_texts())
            window = look_up_window(
                config.topic, config.zookeeper, last, loads,
                start=config.start, until=config.until,
            )  # fmt: skip
            _check_moments(config.topic, warehouse, window)
        ranges = tuple(window.source.ranges)
        decoding = decoding_of(load, window.source, json=json, avro=avro)
        staging = Staging(
            Incoming(spark, load, decoding, window.source), last.layout, warehouse, steps
        )
        done = Reprocessed(
            config.topic, warehouse.path, config.dry_run, None, ranges, Replaced(), 0.0, {}
        )
        if ranges:
            with steps.step("look for the window"):
                before = find(spark, warehouse, last, ranges)
            again = _Again(staging, last, window, before)
            planned = staging.plan()
            schema = again.schema(planned)
            known = set((warehouse.schema(last) or StructType()).names)
            done = replace(
                done,
                before=before,
                columns_added=tuple(n for n in planned.schema.names if n not in known),
                columns_left_out=tuple(n for n in schema.names if n not in planned.schema.names),
            )
            if not config.dry_run:
                done = again.stage(planned, schema, done)
                assert done.commit is not None
                put_in_place(warehouse, done.commit, lock, steps)
    return replace(done, seconds=steps.total, steps=steps.seconds)


def inside(ranges: tuple[OffsetRange, ...]) -> Column:
    """The condition that a record is one of ``ranges``."""
    partition, offset = F.col("partition"), F.col("offset")
    condition = F.lit(False)
    for each in ranges:
        own = partition == each.topic_partition.partition
        condition |= own & (offset >= each.start) & (offset < each.end)
    return condition


def find(
    spark: SparkSession, warehouse: Warehouse, last: Commit, ranges: tuple[OffsetRange, ...]
) -> Replaced:
    """The files that hold records of ``ranges``, and how many they hold, of them and of others."""
    condition = inside(ranges)
    layout, letters = last.layout, {}
    with translated(f"look for records in the files of {warehouse.path}"):
        records = _tallies_by_file(spark, warehouse.path, "", layout, condition)
        if warehouse.has_dead_letters():
            undivided = layout.undivided
            letters = _tallies_by_file(spark, warehouse.path, DEAD_LETTERS, undivided, condition)
        tally = NONE
        for each in (*records.values(), *letters.values()):
            tally = tally.with_others(each)
        found = Replaced(
            sum(each.records for each in records.values()),
            sum(each.records for each in letters.values()),
            tally,
            tuple(sorted(records)),
            tuple(sorted(letters)),
        )
        kept_records = kept_letters = 0
        if records:
            kept_records = records_of(spark, warehouse, last, found.files).count() - found.records
        if letters:
            kept_letters = _letters(spark, warehouse, last, found).count() - found.dead_letters
    return replace(found, kept_records=kept_records, kept_letters=kept_letters)


def _tallies_by_file(
    spark: SparkSession, root: str, under: str, layout: Layout, condition: Column
) -> dict[str, Tally]:
    """Of the records that meet the condition, by the name of their file from ``root`` on."""
    reader = spark.read.format(layout.format.value).schema(tallied(layout.partition_columns))
    rows = (
        reader.load(f"{root}/{under}" if under else root)
        .where(condition)
        .groupBy(F.col("_metadata.file_path").alias("file"))
        .agg(*aggregates())
        .collect()
    )
    # Spark gives whole URLs, in which a directory's name is escaped once more.
    path = f"{local_path(root) or root}/"
    return {unquote(row["file"]).partition(path)[2]: tally_from(row.asDict()) for row in rows}


def _letters(spark: SparkSession, warehouse: Warehouse, last: Commit, found: Replaced) -> DataFrame:
    reader = spark.read.format(last.layout.format.value).option("mergeSchema", "true")
    return reader.load([f"{warehouse.path}/{name}" for name in found.letter_files])


def _check_moments(topic: str, warehouse: Warehouse, window: Window) -> None:
    """NotInLogError where records of the moments of the window are gone from the log: it looks
    moments up in what it still has. The warehouse knows when they were."""
    since_us, until_us = window.asked.since_us, window.asked.until_us
    if since_us is None or not window.cut_at:
        return
    at, offset = F.unix_micros("timestamp"), F.col("offset")
    gone = inside(tuple(OffsetRange(each, 0, cut) for each, cut in window.cut_at.items()))
    with translated(f"look for what is gone from the log in {warehouse.path}"):
        rows = (
            warehouse.rows(_ROWS)
            .where(gone & (at >= since_us))
            .groupBy("partition")
            .agg(
                F.min(offset).alias("first"),
                F.min(F.when(at >= F.lit(until_us), offset)).alias("after"),
            )
            .collect()
        )
    found = {TopicPartition(topic, row["partition"]): (row["first"], row["after"]) for row in rows}
    gone_since(topic, window, found)


@dataclass(frozen=True, slots=True)
class _Again:
    """The window of one warehouse, staged anew."""

    staging: Staging
    last: Commit
    window: Window
    before: Replaced

    def schema(self, planned: Planned) -> StructType:
        """All columns of the warehouse when the window is in place.

        IncompatibleSchemaError where one has another type than in a file that stays.
        """
        warehouse = self.staging.warehouse
        kept = warehouse.schema(self.last) or StructType()
        try:
            return merged(kept, planned.schema, where=warehouse.path)
        except IncompatibleSchemaError as error:
            if self.before.kept_records or set(warehouse.file_sizes()) - {*self.before.files}:
                raise IncompatibleSchemaError(
                    f"{error.message} Or reprocess all that is in the warehouse at once: where no "
                    "file of before is left, a column may change its type."
                ) from error
            return planned.schema

    def stage(self, planned: Planned, schema: StructType, so_far: Reprocessed) -> Reprocessed:
        """With the commit that would put the window in place.

        Raises NotInLogError and DataLossError.
        """
        staging, before, last = self.staging, self.before, self.last
        number = last.number + 1
        name = Commit.staging_name(number, uuid.uuid4().hex)
        dead = staging.write(planned, name)
        kept = self._keep(name)
        read = planned.arriving.tally()
        staged = staging.count(name, with_letters=dead > 0 or before.kept_letters > 0)
        planned.arriving.check_staged(staged.all, kept=kept)
        commit = replace(
            last,
            number=number,
            staging=name,
            ranges=(),
            records=0,
            files=staged.files,
            schema=schema,
            dead_letters=0,
            replaces=before.names,
        )
        offsets = sum(each.count for each in self.window.source.ranges)
        if read != before.tally and read.records != offsets:
            self._check_nothing_is_missing(commit)
        return replace(
            so_far,
            commit=commit,
            records=read.records - dead,
            dead_letters=dead,
            without_event_time=planned.timeless.count(),
            size_bytes=staging.warehouse.size_bytes(name),
        )

    def _keep(self, name: str) -> Tally:
        """Stage the records of replaced files that are not of the window; what they are."""
        staging, before, last = self.staging, self.before, self.last
        spark, warehouse = staging.incoming.spark, staging.warehouse
        others = ~inside(tuple(self.window.source.ranges))
        kept = NONE
        if not before.kept:
            return kept
        with staging.steps.step("keep the others"), translated(f"stage what stays in {name}"):
            if before.kept_records:
                frame = records_of(spark, warehouse, last, before.files).where(others)
                kept = self._copy(frame, warehouse.staging(name), last.layout)
            if before.kept_letters:
                frame = _letters(spark, warehouse, last, before).where(others)
                copied = self._copy(frame, staging.letters(name), last.layout.undivided)
                kept = kept.with_others(copied)
        return kept

    def _copy(self, frame: DataFrame, path: str, layout: Layout) -> Tally:
        observed = Observed(frame)
        write(observed.frame, path, layout, self.staging.incoming.config.compression)
        return observed.tally()

    def _check_nothing_is_missing(self, commit: Commit) -> None:
        """NotInLogError if the warehouse holds records of the window that were not read again."""
        warehouse, columns = self.staging.warehouse, "partition int, offset bigint"
        with translated(f"compare what is staged with {warehouse.path}"):
            held = warehouse.rows(columns).where(inside(tuple(self.window.source.ranges)))
            rows = (
                held.join(warehouse.rows(columns, staged=commit), ["partition", "offset"], "anti")
                .groupBy("partition")
                .agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
                .orderBy("partition")
                .collect()
            )
        topic = self.staging.incoming.config.topic
        gone = [
            OffsetRange(TopicPartition(topic, row["partition"]), row["first"], row["last"] + 1)
            for row in rows
        ]
        if gone:
            possible = {each.topic_partition: each.end for each in gone}
            raise not_in_log(gone, possible, self.window.asked, topic)
