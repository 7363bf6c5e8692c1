"""A window of a lake's table, read again from the log and replaced in one commit.

The commit takes away the files that hold records of the window, and adds those with what was read
and with what else was in them. Dead letters of the window are replaced in their table after that.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from spark_logbus.errors import DataLossError
from spark_logbus.load.commit import Commit
from spark_logbus.load.errors import WarehouseError, translated
from spark_logbus.load.lake.letters import outside
from spark_logbus.load.lake.marks import new_mark
from spark_logbus.load.lake.reading import divided_rows, rows_by_file
from spark_logbus.load.lake.staging import Planned, plan, replacing, stage
from spark_logbus.load.lake.table import LakeFile, LakeVersion
from spark_logbus.load.lake.topic_tables import TopicTables
from spark_logbus.load.lake.writing import Written, write
from spark_logbus.load.plan.window import ExistingRows, Window, check_all_read
from spark_logbus.load.read.input import LoadInput
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tally import TALLIED, together
from spark_logbus.load.target import PlannedReplacement, StagedLoad
from spark_logbus.model import OffsetRange
from spark_logbus.plurals import plural


def find(tables: TopicTables, ranges: tuple[OffsetRange, ...]) -> ExistingRows:
    """Counts what is there of ``ranges``."""
    with translated(f"look for records in the files of {tables.name}"):
        version = tables.opened()
        found = rows_by_file(tables.spark, version, version.files(), ranges)
        dead = tables.letters.find(ranges)
    return ExistingRows(
        sum(each.tally.records for each in found),
        sum(each.tally.records for each in dead),
        together(each.tally for each in (*found, *dead)),
        tuple(sorted(each.file.path for each in found)),
        tuple(sorted(each.file.path for each in dead)),
        sum(each.others for each in found),
        sum(each.others for each in dead),
    )


def plan_replacement(
    tables: TopicTables,
    load_input: LoadInput,
    last: Commit,
    window: Window,
    before: ExistingRows,
    steps: StepTimer,
) -> PlannedReplacement:
    """Plans to read the window again, to be put in the place of what is there ``before``."""
    planned = plan(tables, load_input, steps)
    read = planned.decoded.frame.schema.names
    own = () if planned.version is None else planned.version.partition_names
    return PlannedReplacement(
        columns_added=planned.fit.added,
        columns_left_out=tuple(
            name for name in planned.fit.schema.names if name not in (*read, *own)
        ),
        stage=partial(_stage_replacement, tables, planned, last, window, before, steps),
    )


def _stage_replacement(
    tables: TopicTables,
    planned: Planned,
    last: Commit,
    window: Window,
    before: ExistingRows,
    steps: StepTimer,
) -> StagedLoad:
    mark = new_mark(last.number + 1)
    staged = stage(tables, planned, mark, steps)
    planned.decoded.check_staged(staged.tally)
    replaced = _files_before(tables, staged.version, before)
    kept = Written()
    if before.kept_records:
        with steps.step("keep the others"), translated(f"write what stays in {tables.name}"):
            files = divided_rows(tables.spark, staged.version, replaced, planned.layout)
            kept = write(
                files.where(outside(window.ranges)),
                staged.version.writer(),
                mark.staging,
                tables.config.compression,
            )
        if kept.tally.records != before.kept_records:
            raise DataLossError(
                f"Expected {plural(before.kept_records, 'other record')} in {tables.name}, wrote "
                f"{kept.tally.records:,}; nothing was changed. Run it again."
            )
    letters = staged.letters.files
    if not window.all_read(planned.decoded.tally(), before.tally):
        with translated(f"compare what was written with {tables.name}"):
            again = tables.rows_of(staged.version, staged.records.files, letters, TALLIED)
            check_all_read(tables.config.topic, tables.rows(), again, window)
    listed = replace(
        mark,
        letters=tuple(file.path for file in letters),
        replaced=window.ranges if before.dead_letters else (),
        ends=last.ends,
    )
    both = staged.records.with_others(kept)
    commit = replacing(
        last, listed, staged.version, both, replaced, data_change=True, letters=letters
    )
    return staged.load(
        replace(commit, dead_letters=staged.letters.tally.records, replaces=before.names)
    )


def _files_before(
    tables: TopicTables, version: LakeVersion, before: ExistingRows
) -> list[LakeFile]:
    """Lists the files that hold records of the window. Raises WarehouseError where another writer
    has replaced some since they were looked for."""
    names = {*before.files}
    there = [file for file in version.files() if file.path in names]
    if len(there) != len(before.files):
        raise WarehouseError(
            f"Another writer has changed {tables.name} meanwhile: of "
            f"{plural(len(before.files), 'file')} with records of the window, {len(there)} can be "
            "found. Nothing was changed. Run it again."
        )
    return there
