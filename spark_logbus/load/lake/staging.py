"""Records that a load stages for a lake's table: its columns, its files, and the commit of them.

The files have the names and the places that they keep. No version of the table names them before
the commit does, so nobody sees them, and what a dead load has left is deleted by its mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final

from pyspark.sql.types import StructType

from spark_logbus.load.commit import Commit
from spark_logbus.load.errors import translated
from spark_logbus.load.lake.columns import Fit, casts, conformed, fit
from spark_logbus.load.lake.marks import Mark
from spark_logbus.load.lake.table import LakeFile, LakeVersion, properties_of
from spark_logbus.load.lake.topic_tables import TopicTables
from spark_logbus.load.lake.writing import Written, write, write_directly
from spark_logbus.load.layout import Layout
from spark_logbus.load.read.input import DecodedRead, LoadInput
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tally import ConditionCount, RecordTally
from spark_logbus.load.target import StagedLoad

#: Bytes of the log that one task reads and writes before a shuffle could bring them together.
ONE_TASK_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class StagedCommit(Commit):
    """A commit with the files that it puts into the tables. Immutable."""

    _: KW_ONLY
    mark: Mark
    #: Version whose columns the files have.
    written_on: LakeVersion
    added: tuple[LakeFile, ...] = ()
    removed: tuple[LakeFile, ...] = ()
    letters: tuple[LakeFile, ...] = ()
    data_change: bool = True

    @staticmethod
    def of(commit: Commit) -> StagedCommit:
        """Returns a commit that this target has staged."""
        assert isinstance(commit, StagedCommit), "a target commits what it has staged itself"
        return commit


def replacing(
    last: Commit,
    mark: Mark,
    version: LakeVersion,
    written: Written,
    files: Sequence[LakeFile],
    *,
    data_change: bool,
    letters: tuple[LakeFile, ...] = (),
) -> StagedCommit:
    """Returns the commit of the same offsets that puts what was written in the place of ``files``
    (pure)."""
    return StagedCommit(
        mark.number,
        mark.staging,
        last.topic_id,
        (),
        last.ends,
        0,
        tuple(file.path for file in written.files),
        version.schema,
        last.layout,
        replaces=tuple(file.path for file in files),
        mark=mark,
        added=written.files,
        removed=tuple(files),
        letters=letters,
        data_change=data_change,
        written_on=version,
    )


@dataclass(frozen=True, slots=True)
class Planned:
    """Records that are to be read of the log, as the columns of the table."""

    decoded: DecodedRead
    layout: Layout
    fit: Fit
    #: Version to write on, where no column must change before that.
    version: LakeVersion | None
    topic_id: str


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Files that hold the records of a load, and apart from them those that do not decode."""

    #: Version whose columns they have.
    version: LakeVersion
    records: Written
    letters: Written
    without_event_time: int

    @property
    def tally(self) -> RecordTally:
        return self.records.with_others(self.letters).tally

    def load(self, commit: StagedCommit) -> StagedLoad:
        """Returns them as staged with their commit."""
        return StagedLoad(
            commit,
            self.records.tally.records,
            self.letters.tally.records,
            self.records.size_bytes + self.letters.size_bytes,
            self.without_event_time,
        )


def plan(tables: TopicTables, load_input: LoadInput, steps: StepTimer) -> Planned:
    """Plans the read, and checks that the table takes its columns; nothing is written yet."""
    with steps.step("plan the read"), translated("plan the read"):
        decoded = load_input.read()
        version = tables.records.newest()
        if version is None:
            layout = tables.records.layout_of_new(tables.choice)
            schema = tables.records.partitioned(decoded.frame, layout).schema
            planned = Fit(StructType(schema.fields), added=tuple(schema.names))
        else:
            layout = version.layout(tables.choice)
            frame = version.partitioned(decoded.frame, layout)
            added = {*version.partition_names} - {*version.schema.names}
            fields = [each for each in frame.schema.fields if each.name not in added]
            planned = fit(
                version.schema,
                StructType(fields),
                evolve=tables.config.evolve,
                widens=tables.records.widens,
                where=tables.name,
            )
    return Planned(decoded, layout, planned, version, load_input.source.topic_id)


def stage(tables: TopicTables, planned: Planned, mark: Mark, steps: StepTimer) -> StagedFiles:
    """Writes the records, and apart from them those that do not decode."""
    decoded, layout = planned.decoded, planned.layout
    with steps.step("prepare the table"), translated(f"prepare {tables.name}"):
        version = _ready(tables, planned)
        tables.own_directory().write(mark)
    names = version.partition_names
    divided = partial(version.partitioned, layout=layout)
    gather = decoded.gathers(names, divided, steps)
    with steps.step("write"), translated(f"write files of {tables.name}"):
        direct = None
        if not gather or decoded.size_bytes <= ONE_TASK_BYTES:
            direct = _write_directly(tables, planned, version, mark, gather=gather)
        if direct is not None:
            written, timeless = direct
        else:
            frame = conformed(divided(decoded.frame), version.schema, names)
            timed = version.timed_name(layout)
            counted = ConditionCount(frame, None if timed is None else f"`{timed}` is null")
            written = write(
                counted.frame,
                version.writer(),
                mark.staging,
                tables.config.compression,
                gather=gather,
            )
            timeless = counted.count()
    letters = Written()
    if decoded.dead():
        with steps.step("dead letters"), translated(f"write files of {tables.letters.name}"):
            letters = tables.letters.write(decoded.letters(), mark, planned.topic_id)
    return StagedFiles(version, written, letters, timeless)


def _ready(tables: TopicTables, planned: Planned) -> LakeVersion:
    """Makes the table, or its new columns, so that files can be written for it."""
    properties = properties_of(tables.config.topic, planned.topic_id, planned.layout)
    version = planned.version
    if version is None:
        tables.records.create(planned.fit.schema, planned.layout, properties)
        return tables.opened()
    if any(version.properties.get(name) != value for name, value in properties.items()):
        tables.records.set_properties(properties)
        version = None
    if planned.fit.changes:
        tables.records.evolve(planned.fit.schema)
        version = None
    return version or tables.opened()


def _write_directly(
    tables: TopicTables, planned: Planned, version: LakeVersion, mark: Mark, *, gather: bool
) -> tuple[Written, int] | None:
    """Writes the records in the processes that read them; returns also the number of those without
    event time. None where Spark must make something of them."""
    decoded = planned.decoded
    schema, source = decoded.frame.schema, decoded.direct()
    divider = version.divider(planned.layout, schema)
    if source is None or divider is None or not casts(schema, version.schema):
        return None
    done = write_directly(
        tables.spark,
        source,
        divider,
        version.writer(),
        mark.staging,
        tables.config.compression,
        gather=gather,
    )
    decoded.counted(done.read, done.dead)
    return done.written, done.without_event_time
