"""What a load brings, written as files where nobody sees them and checked there, before it is
committed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from spark_logbus.load.commit import DEAD_LETTERS, Commit
from spark_logbus.load.errors import translated
from spark_logbus.load.files.staged_files import list_and_count, write
from spark_logbus.load.files.warehouse import Warehouse
from spark_logbus.load.layout import Layout
from spark_logbus.load.read.input import DecodedRead, LoadInput
from spark_logbus.load.read.reading import partitioned
from spark_logbus.load.read.shuffle import most_directories
from spark_logbus.load.schema import merged
from spark_logbus.load.steps import StepTimer
from spark_logbus.load.tally import NONE, ConditionCount, Tally
from spark_logbus.load.target import StagedLoad


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """Records that are to be read of the log, as they are to be divided."""

    arriving: DecodedRead
    schema: StructType  # of their columns, without those of the period
    frame: DataFrame
    timeless: ConditionCount


@dataclass(frozen=True, slots=True)
class StagedCounts:
    """What was counted in staged files; their names from the load's directory on."""

    records: Tally
    letters: Tally
    files: tuple[str, ...]

    @property
    def all(self) -> Tally:
        return self.records.with_others(self.letters)


@dataclass(frozen=True, slots=True)
class Staging:
    """Writes what is new where nobody sees it, and makes sure of it."""

    incoming: LoadInput
    layout: Layout
    warehouse: Warehouse
    steps: StepTimer

    def stage(self, last: Commit | None, check: Callable[[StructType], None]) -> StagedLoad:
        """The commit that would publish what is new. ``check`` raises where readers could not have
        the columns that the warehouse is to have; nothing is written then."""
        source = self.incoming.source
        number = last.number + 1 if last else 1
        name = Commit.staging_name(number, uuid.uuid4().hex)
        planned = self.plan()
        before = self.warehouse.schema(last) or StructType()
        schema = merged(before, planned.schema, where=self.warehouse.path)
        check(schema)
        dead = self.write(planned, name)
        staged = self.count(name, with_letters=dead > 0)
        planned.arriving.check(staged.all)
        commit = Commit(
            number,
            name,
            source.topic_id,
            tuple(r for r in source.ranges if r.count),
            {r.topic_partition.partition: r.end for r in source.ranges},
            staged.records.records,
            staged.files,
            schema,
            self.layout,
            staged.letters.records,
        )
        return StagedLoad(commit, self.warehouse.size_bytes(name), planned.timeless.count())

    def plan(self) -> PlannedWrite:
        """What is to be read of the log, as the columns that it becomes; nothing is read yet.

        Raises ConfigError where the columns do not fit the layout.
        """
        with self.steps.step("plan the read"), translated("plan the read"):
            arriving = self.incoming.read()
            good = partitioned(arriving.frame, self.layout)
            timeless = ConditionCount(good, _without_event_time(self.layout))
            schema = self.layout.stored_schema(good.schema)
        return PlannedWrite(arriving, schema, timeless.frame, timeless)

    def write(self, planned: PlannedWrite, name: str) -> int:
        """Stage the records, and apart from them those that do not decode, whose number it is."""
        path, letters = self.warehouse.staging(name), self.letters(name)
        compression = self.incoming.config.compression
        gather = self._gathers(planned.arriving)
        with self.steps.step("write"), translated(f"stage records in {path}"):
            write(planned.frame, path, self.layout, compression, gather=gather)
        dead = planned.arriving.dead()
        if dead:
            with self.steps.step("dead letters"), translated(f"stage dead letters in {letters}"):
                write(planned.arriving.letters(), letters, self.layout.undivided, compression)
        return dead

    def _gathers(self, arriving: DecodedRead) -> bool:
        """Whether records are to be brought together by directory before they are written: files
        would be small if each task wrote what it reads."""
        columns = self.layout.partition_columns
        most = most_directories(arriving.size_bytes, tasks=arriving.tasks)
        # Of a compacted topic a sample by offsets would find few records.
        if most == 0 or self.incoming.source.compacted:
            return True
        if not columns:
            return False
        with self.steps.step("sample"), translated("look at some of the records"):
            some = partitioned(arriving.sample(), self.layout)
            return len(set(some.select(*columns).collect())) > most

    def letters(self, name: str) -> str:
        """The absolute path of a load's dead letters while they are staged."""
        return f"{self.warehouse.staging(name)}/{DEAD_LETTERS}"

    def count(self, name: str, *, with_letters: bool) -> StagedCounts:
        """What is really staged."""
        spark, path, letters = self.incoming.spark, self.warehouse.staging(name), NONE
        more: tuple[str, ...] = ()
        with self.steps.step("check"), translated(f"count what was staged in {path}"):
            records, files = list_and_count(spark, path, self.layout, name)
            if with_letters:
                letters, more = list_and_count(
                    spark, self.letters(name), self.layout.undivided, name
                )
        return StagedCounts(records, letters, (*files, *more))


def _without_event_time(layout: Layout) -> str | None:
    """The condition that holds for records whose event time is null, if any can be so."""
    return f"`{layout.period_columns[0]}` is null" if layout.period_columns else None
