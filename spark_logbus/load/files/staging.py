"""Files of a load while nobody sees them: written in a warehouse's layout, then counted and listed.

A load stages what is new. A window is staged anew: its records as they are decoded now, and beside
them the others of the files that it stands in, as they are. The commit of a window has the offsets
of the last one, and names the files that it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_logbus.load.commit import DEAD_LETTERS, Commit
from spark_logbus.load.errors import translated
from spark_logbus.load.files.hadoop import local_path
from spark_logbus.load.files.local_tally import tally_of_files
from spark_logbus.load.files.warehouse import Warehouse
from spark_logbus.load.layout import FileFormat, Layout
from spark_logbus.load.plan.window import ExistingRows, Window, check_all_read, inside
from spark_logbus.load.read.input import DecodedRead, LoadInput
from spark_logbus.load.read.reading import partitioned
from spark_logbus.load.schema import IncompatibleColumnsError, merged
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tally import (
    NONE,
    TALLIED,
    ConditionCount,
    ObservedTally,
    RecordTally,
    tally_of,
)
from spark_logbus.load.target import PlannedReplacement, StagedLoad

SchemaCheck: TypeAlias = Callable[[StructType], None]
"""Raises where readers could not have the columns that the warehouse is to have."""


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """Records that are to be read of the log, as they are to be divided."""

    decoded: DecodedRead
    schema: StructType  # of their columns, without those of the period
    frame: DataFrame
    timeless: ConditionCount


@dataclass(frozen=True, slots=True)
class StagedCounts:
    """Tallies of staged files, and their names from the load's directory on."""

    records: RecordTally
    letters: RecordTally
    files: tuple[str, ...]

    @property
    def all(self) -> RecordTally:
        return self.records.with_others(self.letters)


@dataclass(frozen=True, slots=True)
class Staging:
    """Stages one load, or one window, of a warehouse."""

    load_input: LoadInput
    layout: Layout
    warehouse: Warehouse
    steps: StepTimer

    def stage(self, last: Commit | None, check: SchemaCheck) -> StagedLoad:
        """Stages what is new after ``last``; writes nothing where ``check`` raises."""
        source = self.load_input.source
        number = last.number + 1 if last else 1
        name = Commit.new_staging_name(number)
        planned = self._plan()
        before = self.warehouse.schema(last) or StructType()
        schema = merged(before, planned.schema, where=self.warehouse.path)
        check(schema)
        dead = self._write(planned, name)
        staged = self.count(name, with_letters=dead > 0)
        planned.decoded.check(staged.all)
        records, dead_letters = staged.records.records, staged.letters.records
        commit = Commit(
            number,
            name,
            source.topic_id,
            source.filled_ranges,
            source.ends,
            records,
            staged.files,
            schema,
            self.layout,
            dead_letters,
        )
        return self._staged(commit, planned, records, dead_letters)

    def _staged(
        self, commit: Commit, planned: PlannedWrite, records: int, dead_letters: int
    ) -> StagedLoad:
        size_bytes = self.warehouse.size_bytes(commit.staging)
        return StagedLoad(commit, records, dead_letters, size_bytes, planned.timeless.count())

    def _plan(self) -> PlannedWrite:
        """Plans the read, and the columns that it becomes; nothing is read yet.

        Raises ConfigError where the columns do not fit the layout.
        """
        with self.steps.step("plan the read"), translated("plan the read"):
            decoded = self.load_input.read()
            good = partitioned(decoded.frame, self.layout)
            timeless = ConditionCount(good, _without_event_time(self.layout))
            schema = self.layout.stored_schema(good.schema)
        return PlannedWrite(decoded, schema, timeless.frame, timeless)

    def _write(self, planned: PlannedWrite, name: str) -> int:
        """Stages the records, and apart from them those that do not decode, which it counts."""
        path, letters = self.warehouse.staging(name), self._letters(name)
        divide = partial(partitioned, layout=self.layout)
        gather = planned.decoded.gathers(self.layout.partition_columns, divide, self.steps)
        with self.steps.step("write"), translated(f"stage records in {path}"):
            write(planned.frame, path, self.layout, self._compression, gather=gather)
        dead = planned.decoded.dead()
        if dead:
            with self.steps.step("dead letters"), translated(f"stage dead letters in {letters}"):
                frame = planned.decoded.letters()
                write(frame, letters, self.layout.undivided, self._compression)
        return dead

    @property
    def _compression(self) -> str | None:
        return self.load_input.config.compression

    def _letters(self, name: str) -> str:
        """Absolute path of a load's dead letters while they are staged."""
        return f"{self.warehouse.staging(name)}/{DEAD_LETTERS}"

    def count(self, name: str, *, with_letters: bool) -> StagedCounts:
        """Counts and lists what is really staged."""
        spark, path, letters = self.load_input.spark, self.warehouse.staging(name), NONE
        more: tuple[str, ...] = ()
        with self.steps.step("check"), translated(f"count what was staged in {path}"):
            records, files = list_and_count(spark, path, self.layout, name)
            if with_letters:
                undivided = self.layout.undivided
                letters, more = list_and_count(spark, self._letters(name), undivided, name)
        return StagedCounts(records, letters, (*files, *more))

    # -- a window ---------------------------------------------------------------------------

    def plan_replacement(
        self, last: Commit, window: Window, before: ExistingRows, check: SchemaCheck
    ) -> PlannedReplacement:
        """Plans to put the window in the place of what is there ``before``.

        Raises ConfigError, IncompatibleColumnsError where a column has another type than in a file
        that stays, and what ``check`` raises.
        """
        planned = self._plan()
        kept = self.warehouse.schema(last) or StructType()
        try:
            schema = merged(kept, planned.schema, where=self.warehouse.path)
        except IncompatibleColumnsError as error:
            if before.kept_records or set(self.warehouse.file_sizes()) - {*before.files}:
                raise IncompatibleColumnsError(
                    f"{error.message} Or reprocess all that is in the warehouse at once: where no "
                    "file of before is left, a column may change its type."
                ) from error
            schema = planned.schema
        check(schema)
        read = planned.schema.names
        return PlannedReplacement(
            columns_added=tuple(name for name in read if name not in kept.names),
            columns_left_out=tuple(name for name in schema.names if name not in read),
            stage=partial(self._stage_replacement, planned, last, window, before, schema),
        )

    def _stage_replacement(
        self,
        planned: PlannedWrite,
        last: Commit,
        window: Window,
        before: ExistingRows,
        schema: StructType,
    ) -> StagedLoad:
        name = Commit.new_staging_name(last.number + 1)
        dead = self._write(planned, name)
        kept = self._keep_others(name, last, window, before)
        read = planned.decoded.tally()
        staged = self.count(name, with_letters=dead > 0 or before.kept_letters > 0)
        planned.decoded.check_staged(staged.all, kept=kept)
        commit = last.rewritten(name, staged.files, replaces=before.names, schema=schema)
        if not window.all_read(read, before.tally):
            columns = "partition int, offset bigint"
            with translated(f"compare what is staged with {self.warehouse.path}"):
                held = self.warehouse.rows(columns=columns)
                again = self.warehouse.rows(commit, columns=columns)
                check_all_read(self.warehouse.topic, held, again, window)
        return self._staged(commit, planned, read.records - dead, dead)

    def _keep_others(
        self, name: str, last: Commit, window: Window, before: ExistingRows
    ) -> RecordTally:
        """Stages the records of replaced files that are not of the window; returns their tally."""
        others, kept = ~inside(window.ranges), NONE
        if not before.kept:
            return kept
        with self.steps.step("keep the others"), translated(f"stage what stays in {name}"):
            if before.kept_records:
                frame = self.warehouse.records_of(last, before.files).where(others)
                kept = self._copy(frame, self.warehouse.staging(name), last.layout)
            if before.kept_letters:
                frame = self.warehouse.letters_of(last, before.letter_files).where(others)
                copied = self._copy(frame, self._letters(name), last.layout.undivided)
                kept = kept.with_others(copied)
        return kept

    def _copy(self, frame: DataFrame, path: str, layout: Layout) -> RecordTally:
        observed = ObservedTally(frame)
        write(observed.frame, path, layout, self._compression)
        return observed.tally()


def _without_event_time(layout: Layout) -> str | None:
    """Returns the condition that holds for records whose event time is null, if any can be so."""
    return f"`{layout.period_columns[0]}` is null" if layout.period_columns else None


# -- files ------------------------------------------------------------------------------------


def write(
    frame: DataFrame, path: str, layout: Layout, compression: str | None, *, gather: bool = True
) -> None:
    """Adds files to those in ``path``, which is made if it is not there.

    To ``gather`` is to have a directory's records in one task and so in one file, unless it is so
    large that Spark splits it; else each task writes files of what it reads.
    """
    columns = layout.partition_columns
    if gather:
        frame = frame.hint("rebalance", *columns)
    writer = frame.write.format(layout.format.value).partitionBy(*columns).mode("append")
    if compression is not None:
        zlib = layout.format is FileFormat.ORC and compression == "gzip"
        writer = writer.option("compression", "zlib" if zlib else compression)
    # Tasks move their files out of Spark's own temporary directory themselves, once: nobody reads
    # this directory before its records are counted, and a second move by the driver, one by one,
    # would make it no safer.
    writer.option("mapreduce.fileoutputcommitter.algorithm.version", "2").save(path)


def list_and_count(
    spark: SparkSession, path: str, layout: Layout, staging: str
) -> tuple[RecordTally, tuple[str, ...]]:
    """Counts the records that are really there, and lists their files from the load's directory
    on."""
    local = local_path(path)
    if local is not None and not {*TALLIED} & {*layout.partition_columns}:
        found = sorted(_visible(local))
        root = next(each for each in (local, *local.parents) if each.name == staging)
        names = tuple(str(each.relative_to(root)) for each in found)
        return tally_of_files(found, layout.format), names
    read = spark.read.format(layout.format.value).schema(tallied(layout.partition_columns))
    staged = read.load(path)
    # Spark gives whole URLs, in which a directory's name is escaped once more.
    files = (unquote(url).partition(f"/{staging}/")[2] for url in staged.inputFiles())
    return tally_of(staged), tuple(sorted(files))


def _visible(directory: Path) -> Iterator[Path]:
    """Yields the files that readers see: they pass over names that begin with ``_`` or ``.``."""
    for each in directory.iterdir():
        if each.name.startswith(("_", ".")):
            continue
        if each.is_dir():
            yield from _visible(each)
        else:
            yield each


def tallied(partition_columns: Sequence[str]) -> str:
    """DDL of the columns that a tally reads. Names of directories stay texts: read as numbers or
    dates they might not all be some."""
    names = (f", `{name}` string" for name in partition_columns if name not in TALLIED)
    return "partition int, offset bigint" + "".join(names)
