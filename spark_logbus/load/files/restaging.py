"""A window of a warehouse staged anew: its records as they are decoded now, and beside them the
others of the files that it stands in, as they are.

The commit has the offsets of the last one, and names the files that it replaces.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from spark_logbus.load.commit import Commit
from spark_logbus.load.errors import translated
from spark_logbus.load.files.small_files import records_of
from spark_logbus.load.files.staged_files import write
from spark_logbus.load.files.staging import PlannedWrite, Staging
from spark_logbus.load.files.window import letters_of
from spark_logbus.load.layout import Layout
from spark_logbus.load.plan.window import Window
from spark_logbus.load.plan.window_rows import ExistingRows, check_all_read, inside
from spark_logbus.load.schema import IncompatibleColumnsError, merged
from spark_logbus.load.tally import NONE, ObservedTally, Tally
from spark_logbus.load.target import StagedReplacement


def plan_replacement(
    staging: Staging, last: Commit, window: Window, before: ExistingRows
) -> FileReplacement:
    """What is to be read again where ``before`` is; nothing is read yet.

    Raises ConfigError, and IncompatibleColumnsError where a column has another type than in a file
    that stays.
    """
    planned, warehouse = staging.plan(), staging.warehouse
    kept = warehouse.schema(last) or StructType()
    try:
        schema = merged(kept, planned.schema, where=warehouse.path)
    except IncompatibleColumnsError as error:
        if before.kept_records or set(warehouse.file_sizes()) - {*before.files}:
            raise IncompatibleColumnsError(
                f"{error.message} Or reprocess all that is in the warehouse at once: where no "
                "file of before is left, a column may change its type."
            ) from error
        schema = planned.schema
    return FileReplacement(staging, last, window, before, planned, schema, frozenset(kept.names))


@dataclass(frozen=True, slots=True)
class FileReplacement:
    """The window of one warehouse, where ``before`` is what is there of it."""

    staging: Staging
    last: Commit
    window: Window
    before: ExistingRows
    planned: PlannedWrite
    schema: StructType  # of all columns of the warehouse when the window is in place
    known: frozenset[str]  # those that it has

    @property
    def columns_added(self) -> tuple[str, ...]:
        return tuple(name for name in self.planned.schema.names if name not in self.known)

    @property
    def columns_left_out(self) -> tuple[str, ...]:
        read = set(self.planned.schema.names)
        return tuple(name for name in self.schema.names if name not in read)

    def stage(self) -> StagedReplacement:
        staging, before, last, planned = self.staging, self.before, self.last, self.planned
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
            schema=self.schema,
            dead_letters=0,
            replaces=before.names,
        )
        if not self.window.all_read(read, before.tally):
            self._check_all_read(commit)
        return StagedReplacement(
            commit,
            read.records - dead,
            dead,
            planned.timeless.count(),
            staging.warehouse.size_bytes(name),
        )

    def _keep(self, name: str) -> Tally:
        """Stage the records of replaced files that are not of the window; what they are."""
        staging, before, last = self.staging, self.before, self.last
        spark, warehouse = staging.incoming.spark, staging.warehouse
        others = ~inside(self.window.ranges)
        kept = NONE
        if not before.kept:
            return kept
        with staging.steps.step("keep the others"), translated(f"stage what stays in {name}"):
            if before.kept_records:
                frame = records_of(spark, warehouse, last, before.files).where(others)
                kept = self._copy(frame, warehouse.staging(name), last.layout)
            if before.kept_letters:
                frame = letters_of(spark, warehouse, last, before).where(others)
                copied = self._copy(frame, staging.letters(name), last.layout.undivided)
                kept = kept.with_others(copied)
        return kept

    def _copy(self, frame: DataFrame, path: str, layout: Layout) -> Tally:
        observed = ObservedTally(frame)
        write(observed.frame, path, layout, self.staging.incoming.config.compression)
        return observed.tally()

    def _check_all_read(self, commit: Commit) -> None:
        warehouse, columns = self.staging.warehouse, "partition int, offset bigint"
        with translated(f"compare what is staged with {warehouse.path}"):
            held, read = warehouse.rows(columns), warehouse.rows(columns, staged=commit)
            check_all_read(self.staging.incoming.config.topic, held, read, self.window)
