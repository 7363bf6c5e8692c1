"""What a load brings, written as files where nobody sees them and checked there, before it is
committed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from spark_logbus.load.commits import DEAD_LETTERS, Commit
from spark_logbus.load.hadoop import translated
from spark_logbus.load.incoming import Incoming
from spark_logbus.load.layout import Layout, Period
from spark_logbus.load.reading import partitioned
from spark_logbus.load.schema import merged
from spark_logbus.load.staged_files import look, write
from spark_logbus.load.steps import Steps
from spark_logbus.load.tally import Counted, Tally
from spark_logbus.load.target import Staged
from spark_logbus.load.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Staging:
    """Writes what is new where nobody sees it, and makes sure of it."""

    incoming: Incoming
    layout: Layout
    warehouse: Warehouse
    steps: Steps
    #: Raises where readers could not have the columns that the warehouse is to have.
    check: Callable[[StructType], None]

    def stage(self, last: Commit | None) -> Staged:
        """The commit that would publish what is new."""
        layout, spark, source = self.layout, self.incoming.spark, self.incoming.source
        number = last.number + 1 if last else 1
        name = Commit.staging_name(number, uuid.uuid4().hex)
        path = self.warehouse.staging(name)
        with self.steps.step("plan the read"), translated("plan the read"):
            arriving = self.incoming.read()
            good = partitioned(arriving.frame, layout)
            timeless = Counted(good, _without_event_time(layout))
            before = self.warehouse.schema(last) or StructType()
            schema = merged(before, layout.stored_schema(good.schema), where=self.warehouse.path)
            self.check(schema)
        with self.steps.step("write"), translated(f"stage load {number} in {path}"):
            write(timeless.frame, path, layout, self.incoming.config.compression)
        with self.steps.step("check"), translated(f"count what was staged in {path}"):
            staged, files = look(spark, path, layout, name)
        letters = Tally(0, 0)
        if arriving.dead():
            with self.steps.step("dead letters"), translated(f"stage dead letters in {path}"):
                letters, more = self._keep_apart(arriving.letters(), name)
                files = (*files, *more)
        arriving.check(staged.with_others(letters))
        commit = Commit(
            number,
            name,
            source.topic_id,
            tuple(r for r in source.ranges if r.count),
            {r.topic_partition.partition: r.end for r in source.ranges},
            staged.records,
            files,
            schema,
            layout,
            letters.records,
        )
        return Staged(commit, self.warehouse.size_bytes(name), timeless.count())

    def _keep_apart(self, letters: DataFrame, name: str) -> tuple[Tally, tuple[str, ...]]:
        """Stage dead letters; what they are, and their files."""
        path = f"{self.warehouse.staging(name)}/{DEAD_LETTERS}"
        undivided = Layout(period=Period.NONE, format=self.layout.format)
        write(letters, path, undivided, self.incoming.config.compression)
        return look(self.incoming.spark, path, undivided, name)


def _without_event_time(layout: Layout) -> str:
    """The condition that holds for records whose event time is null."""
    return f"`{layout.period_columns[0]}` is null" if layout.period_columns else "false"
