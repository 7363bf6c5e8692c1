"""A table of a lake as the target of a load, whatever its format.

The table's log is what commits: files and progress go in with one version (see ``table``). A load
goes through these steps, and may be killed at each::

    mark      a small file that names the load
    write     tasks write files under the names that they keep; no version names them yet
    commit    the next version names them, with the offsets after them
    letters   the table of dead letters gets its files, which the mark lists
    unmark

Before the commit nothing of the load is there; after it all, but perhaps for dead letters, which
the next load puts in place as the first thing it does.

**Two loads at once.** A lock in ZooKeeper keeps them apart. Where that is not enough, because one
stood still for longer than its session, the table decides. The progress has a token that changes
with each commit, and a commit is made on the very version whose token was looked at. So of two
loads that went on from the same progress one commits, and the other is told that it was superseded.
A load that finds the mark of another makes a commit with a new token before it deletes that one's
files.

**Others beside us** may write, compact, and clear away what no version names. A commit of theirs
makes ours fail; it is tried again on the new version, if that still has our columns.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_logbus.audit.warehouse import Loads
from spark_logbus.errors import DataLossError
from spark_logbus.load.chosen_columns import chosen, exact_column
from spark_logbus.load.commit import Commit
from spark_logbus.load.config import TargetConfig
from spark_logbus.load.errors import SupersededError, WarehouseError, translated
from spark_logbus.load.lake.columns import Fit, casts, conformed, fit
from spark_logbus.load.lake.letters import PAUSE_S, TRIES, DeadLetters, outside, too_busy
from spark_logbus.load.lake.marks import Mark, OwnDirectory, new_mark
from spark_logbus.load.lake.reading import FileRows, rows_by_file, rows_of
from spark_logbus.load.lake.table import (
    LAYOUT,
    TOPIC,
    TOPIC_ID,
    Change,
    LakeFile,
    LakeTable,
    LakeVersion,
    Progress,
    VersionConflictError,
    properties_of,
)
from spark_logbus.load.lake.writing import Written, write, write_directly
from spark_logbus.load.layout import Layout, LayoutChangedError, LayoutChoice, Period
from spark_logbus.load.plan.window import ExistingRows, Window, below, check_all_read
from spark_logbus.load.read.input import DecodedRead, LoadInput
from spark_logbus.load.schema import IncompatibleColumnsError
from spark_logbus.load.small_files import worth_rewriting
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tally import NONE, TALLIED, ConditionCount, ObservedTally, RecordTally
from spark_logbus.load.target import History, PlannedReplacement, StagedLoad
from spark_logbus.model import OffsetRange

#: Bytes of the log that one task reads and writes before a shuffle could bring them together.
ONE_TASK_BYTES: Final = 32 << 20
#: Columns that say which record each row is, and when that was.
_ROWS: Final = ("partition", "offset", "timestamp")


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


@dataclass(frozen=True, slots=True)
class Planned:
    """Records that are to be read of the log, as the columns of the table."""

    decoded: DecodedRead
    layout: Layout
    fit: Fit
    #: Version to write on, where no column must change before that.
    version: LakeVersion | None
    topic_id: str


class LakeTarget:
    """One table and that of its dead letters. Not thread-safe; only for the holder of its lock."""

    def __init__(
        self,
        spark: SparkSession,
        table: LakeTable,
        letters: LakeTable,
        config: TargetConfig,
        choice: LayoutChoice,
    ) -> None:
        self._spark = spark
        self._table = table
        self._letters = DeadLetters(spark, letters, config)
        self._config = config
        self._choice = choice
        self._token: int | None = None  # of the progress that this load goes on from

    @property
    def path(self) -> str:
        return self._table.name

    @property
    def dead_letters(self) -> str:
        return self._letters.name

    def check_names(self, names: Sequence[str]) -> None:
        """Does nothing: columns are checked with their types, when the read is planned."""

    # -- what was there before --------------------------------------------------------------------

    def recover(self) -> Commit | None:
        version = self._table.newest()
        if version is None:
            self._table.layout_of_new(self._choice)
            return None
        version.check_appendable()
        version.layout(self._choice)
        progress = self._progress(version)
        marks = self._own().marks()
        committed = []
        if progress is not None:
            committed = [mark for mark in marks if mark.token == progress.token]
            for mark in committed:
                self._finish(mark, progress.topic_id)
        if len(marks) > len(committed):
            progress = self._discard([mark for mark in marks if mark not in committed])
        self._token = None if progress is None else progress.token
        return _commit_of(progress, self._config.topic)

    def _progress(self, version: LakeVersion) -> Progress | None:
        """Reads the offsets of a version. Raises WarehouseError where it holds another topic."""
        topic = version.properties.get(TOPIC)
        if topic not in (None, self._config.topic):
            raise WarehouseError(
                f"Table {self.path} holds the topic {topic}, not {self._config.topic}: rows are "
                "known by partition and offset. Load into another table."
            )
        return version.progress(restored=self._config.accept_restore)

    def _topic_id(self, version: LakeVersion) -> str:
        return version.properties.get(TOPIC_ID, "")

    def _own(self) -> OwnDirectory:
        return OwnDirectory(*self._table.own_directory(), self._config.topic)

    def _discard(self, dead: Sequence[Mark]) -> Progress:
        """Makes sure that loads which have not committed no longer can, and deletes their files."""
        token, own = _new_token(), self._own()
        for _ in range(TRIES):
            version = self._opened()
            before = self._progress(version) or Progress(self._topic_id(version), 0, 0, {})
            try:
                version.commit(Change(before.fenced(token)))
                break
            except VersionConflictError:
                time.sleep(PAUSE_S)
        else:
            raise too_busy(f"fence a load of {self.path}")
        for mark in dead:
            if mark.token == before.token:  # has committed meanwhile
                self._finish(mark, before.topic_id)
                continue
            # One with an older number may have committed, and been taken over then.
            if mark.number > before.number:
                own.delete_files(mark)
                self._letters.discard(mark)
            own.delete(mark)
        return before.fenced(token)

    def _opened(self) -> LakeVersion:
        version = self._table.newest()
        if version is None:
            raise WarehouseError(
                f"Table {self.path} was there when this load began and is gone. Restore it, or run "
                "the load again for a new one."
            )
        return version

    # -- a load -----------------------------------------------------------------------------------

    def stage(self, load_input: LoadInput, last: Commit | None, steps: StepTimer) -> StagedLoad:
        planned = self._plan(load_input, steps)
        source = load_input.source
        # A table that is made anew may have the letters of an earlier one beside it.
        mark = new_mark(1 + (last.number if last else self._letters.number()))
        version, written, letters, timeless = self._write(planned, mark, steps)
        planned.decoded.check(written.with_others(letters).tally)
        commit = StagedCommit(
            mark.number,
            mark.staging,
            source.topic_id,
            source.filled_ranges,
            source.ends,
            written.tally.records,
            tuple(file.path for file in written.files),
            version.schema,
            planned.layout,
            letters.tally.records,
            mark=replace(
                mark,
                letters=tuple(file.path for file in letters.files),
                replaced=self._letters.held(source.filled_ranges),
                ends=source.ends,
            ),
            added=written.files,
            letters=letters.files,
            written_on=version,
        )
        return _staged(commit, written, letters, timeless)

    def _plan(self, load_input: LoadInput, steps: StepTimer) -> Planned:
        """Plans the read, and checks that the table takes its columns; nothing is written yet."""
        with steps.step("plan the read"), translated("plan the read"):
            decoded = load_input.read()
            version = self._table.newest()
            if version is None:
                layout = self._table.layout_of_new(self._choice)
                schema = self._table.partitioned(decoded.frame, layout).schema
                planned = Fit(StructType(schema.fields), added=tuple(schema.names))
            else:
                layout = version.layout(self._choice)
                frame = version.partitioned(decoded.frame, layout)
                added = {*version.partition_names} - {*version.schema.names}
                fields = [each for each in frame.schema.fields if each.name not in added]
                planned = fit(
                    version.schema,
                    StructType(fields),
                    evolve=self._config.evolve,
                    widens=self._table.widens,
                    where=self.path,
                )
        return Planned(decoded, layout, planned, version, load_input.source.topic_id)

    def _ready(self, planned: Planned) -> LakeVersion:
        """Makes the table, or its new columns, so that files can be written for it."""
        properties = properties_of(self._config.topic, planned.topic_id, planned.layout)
        version = planned.version
        if version is None:
            self._table.create(planned.fit.schema, planned.layout, properties)
            return self._opened()
        if any(version.properties.get(name) != value for name, value in properties.items()):
            self._table.set_properties(properties)
            version = None
        if planned.fit.changes:
            self._table.evolve(planned.fit.schema)
            version = None
        return version or self._opened()

    def _write(
        self, planned: Planned, mark: Mark, steps: StepTimer
    ) -> tuple[LakeVersion, Written, Written, int]:
        """Writes the records, and apart from them those that do not decode."""
        decoded, layout = planned.decoded, planned.layout
        with steps.step("prepare the table"), translated(f"prepare {self.path}"):
            version = self._ready(planned)
            self._own().write(mark)
        names = version.partition_names
        divided = partial(version.partitioned, layout=layout)
        gather = decoded.gathers(names, divided, steps)
        with steps.step("write"), translated(f"write files of {self.path}"):
            direct = None
            if not gather or decoded.size_bytes <= ONE_TASK_BYTES:
                direct = self._write_directly(planned, version, mark, gather=gather)
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
                    self._config.compression,
                    gather=gather,
                )
                timeless = counted.count()
        letters = Written()
        if decoded.dead():
            with steps.step("dead letters"), translated(f"write files of {self.dead_letters}"):
                letters = self._letters.write(decoded.letters(), mark, planned.topic_id)
        return version, written, letters, timeless

    def _write_directly(
        self, planned: Planned, version: LakeVersion, mark: Mark, *, gather: bool
    ) -> tuple[Written, int] | None:
        """Writes the records in the processes that read them; returns also the number of those
        without event time. None where Spark must make something of them."""
        decoded = planned.decoded
        schema, source = decoded.frame.schema, decoded.direct()
        divider = version.divider(planned.layout, schema)
        if source is None or divider is None or not casts(schema, version.schema):
            return None
        done = write_directly(
            self._spark,
            source,
            divider,
            version.writer(),
            mark.staging,
            self._config.compression,
            gather=gather,
        )
        decoded.counted(done.read, done.dead)
        return done.written, done.without_event_time

    def rows(self, staged: Commit | None = None) -> DataFrame:
        if staged is not None:
            own = _lake(staged)
            return self._of_files(own.written_on, own.added, own.letters, _ROWS)
        version = self._opened()
        frame = self._of_files(version, version.files(), self._letters.files(), _ROWS)
        return frame.where("partition is not null and offset is not null")

    def _of_files(
        self,
        version: LakeVersion,
        files: Sequence[LakeFile],
        letters: Sequence[LakeFile],
        columns: Sequence[str],
    ) -> DataFrame:
        """Reads ``columns`` of files of the table, and of the table of dead letters."""
        frame = rows_of(self._spark, version, files, columns)
        if letters:
            frame = frame.unionByName(self._letters.rows(letters, columns))
        return frame

    # -- the commit -------------------------------------------------------------------------------

    def prepare(self, commit: Commit) -> None:
        """Lists the dead letters in the mark, for whoever puts them in place."""
        staged = _lake(commit)
        if staged.mark.letters or staged.mark.replaced:
            self._own().write(staged.mark)

    def commit(self, commit: Commit) -> None:
        staged = _lake(commit)
        for _ in range(TRIES):
            version = self._opened()
            progress = self._progress(version)
            if progress is not None and progress.token == staged.mark.token:
                return  # only the answer was lost
            if (None if progress is None else progress.token) != self._token:
                self._withdraw(staged, progress)
            self._check_unchanged(staged, version)
            before = progress or Progress(commit.topic_id, 0, 0, {})
            after = before.after(commit.number, staged.mark.token, commit.ranges, commit.ends)
            after = replace(after, topic_id=commit.topic_id)
            change = Change(after, staged.added, staged.removed, staged.data_change)
            try:
                version.commit(change)
            except VersionConflictError:
                if staged.removed:
                    self._require_there(staged)
                time.sleep(PAUSE_S)
                continue
            except WarehouseError:
                # Perhaps only the answer was lost.
                now = self._progress(self._opened())
                if now is None or now.token != staged.mark.token:
                    raise
            self._token = staged.mark.token
            return
        raise too_busy(f"commit to {self.path}")

    def _check_unchanged(self, staged: StagedCommit, version: LakeVersion) -> None:
        """Raises WarehouseError where another writer has changed what the files rest on."""
        if version.table_id != staged.written_on.table_id:
            raise WarehouseError(
                f"Table {self.path} was dropped and made again while records were written. Nothing "
                "was committed. Run it again."
            )
        _check_columns(staged, version, self.path)
        gone = version.missing([file.path for file in staged.added])
        gone += self._letters.missing([file.path for file in staged.letters])
        if gone:
            raise WarehouseError(
                f"{len(gone)} files that were written for {self.path} are gone before their "
                f"commit, {gone[0]} among them: something clears away files that the table does "
                "not name yet, as a VACUUM without retention does. Nothing was committed. Keep "
                "such files for longer than a load takes, and run it again."
            )

    def _require_there(self, staged: StagedCommit) -> None:
        """Raises WarehouseError where another writer has replaced files that are to be removed."""
        there = {file.path for file in self._opened().files()}
        gone = [file.path for file in staged.removed if file.path not in there]
        if gone:
            raise WarehouseError(
                f"Another writer has replaced {len(gone)} files of {self.path} while their records "
                f"were read, {gone[0]} among them; nothing was changed. Run it again."
            )

    def _withdraw(self, staged: StagedCommit, progress: Progress | None) -> None:
        own = self._own()
        if progress is None or progress.number < staged.number:
            own.delete_files(staged.mark)
            self._letters.discard(staged.mark)
        own.delete(staged.mark)
        by = "its progress is gone" if progress is None else f"it stands at load {progress.number}"
        raise SupersededError(
            f"Load {staged.number} of {self.path} does not go on from the last commit any more: "
            f"another load has taken over, and {by}. Nothing of this load was committed. Run it "
            "again for what is new by then."
        )

    def publish(self, commit: Commit) -> None:
        """Puts the dead letters into their table, and takes the mark away."""
        staged = _lake(commit)
        self._finish(staged.mark, commit.topic_id)

    def _finish(self, mark: Mark, topic_id: str) -> None:
        """Does what is left to do for a load that is committed; doing it again is harmless."""
        if mark.letters or mark.replaced:
            with translated(f"put dead letters into {self.dead_letters}"):
                self._letters.put(mark, topic_id)
        self._own().delete(mark)

    def announce(self, last: Commit) -> None:
        """Does nothing: the table is the one to ask."""

    # -- small files ------------------------------------------------------------------------------

    def rewrite(self, last: Commit, *, least: int) -> Commit | None:
        version = self._opened()
        sizes = {file: file.size_bytes for file in version.files() if file.removable}
        files = worth_rewriting(sizes, least=least, directory=lambda file: file.partition)
        if not files:
            return None
        mark = new_mark(last.number + 1)
        self._own().write(mark)
        with translated(f"rewrite {len(files)} files of {self.path}"):
            observed = ObservedTally(self._again(version, last.layout, files))
            written = write(
                observed.frame, version.writer(), mark.staging, self._config.compression
            )
        read = observed.tally()
        if written.tally != read:
            raise DataLossError(
                f"Expected {read.records:,} records, which {len(files)} files of {self.path} hold, "
                f"staged {written.tally.records:,}; nothing was changed. Run the load again."
            )
        return self._rewritten(last, mark, version, written, files, data_change=False)

    def _again(self, version: LakeVersion, layout: Layout, files: Sequence[LakeFile]) -> DataFrame:
        """Rows of files, with the columns that say where they belong."""
        frame = rows_of(self._spark, version, files)
        missing = {*version.partition_names} - {*frame.columns}
        return version.partitioned(frame, layout) if missing else frame

    def _rewritten(
        self,
        last: Commit,
        mark: Mark,
        version: LakeVersion,
        written: Written,
        files: Sequence[LakeFile],
        *,
        data_change: bool,
        letters: tuple[LakeFile, ...] = (),
    ) -> StagedCommit:
        """The next commit, of the same offsets, with what was written in the place of ``files``."""
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

    # -- a window ---------------------------------------------------------------------------------

    def loads(self) -> Loads:
        progress = self._progress(self._opened())
        return Loads() if progress is None else progress.loads

    def history(self, columns: Sequence[str] | None = None) -> History:
        version = self._table.newest()
        if version is None:
            layout = self._table.layout_of_new(self._choice)
            stored = partial(_stored, self._table, layout)
            return History(None, None, (), layout.period_columns, stored)
        layout, offered = self._layout_read(version), version.schema.names
        last = _commit_of(self._progress(version), self._config.topic)
        names = chosen(offered, columns, where=self.path)
        read = [*names, *(name for name in TALLIED if name not in names)]
        with translated(f"read {self.path}"):
            every = rows_of(self._spark, version, version.files(), read)
            rows = every.where(below({} if last is None else last.ends))
        rows, stored = rows.select(*map(exact_column, names)), partial(_stored, version, layout)
        return History(last, rows, tuple(offered), layout.period_columns, stored)

    def _layout_read(self, version: LakeVersion) -> Layout:
        """Layout of the records that are in; of none where no load has said it, and the one that
        loads have by default does not fit."""
        try:
            return version.layout(self._choice)
        except LayoutChangedError:
            if LAYOUT in version.properties:
                raise
            return Layout(period=Period.NONE)

    def find(self, last: Commit, ranges: tuple[OffsetRange, ...]) -> ExistingRows:
        with translated(f"look for records in the files of {self.path}"):
            version = self._opened()
            found = rows_by_file(self._spark, version, version.files(), ranges)
            dead = self._letters.find(ranges)
        return ExistingRows(
            sum(each.tally.records for each in found),
            sum(each.tally.records for each in dead),
            _together([*found, *dead]),
            tuple(sorted(each.file.path for each in found)),
            tuple(sorted(each.file.path for each in dead)),
            sum(each.others for each in found),
            sum(each.others for each in dead),
        )

    def plan_replacement(
        self,
        load_input: LoadInput,
        last: Commit,
        window: Window,
        before: ExistingRows,
        steps: StepTimer,
    ) -> PlannedReplacement:
        planned = self._plan(load_input, steps)
        read = planned.decoded.frame.schema.names
        own = () if planned.version is None else planned.version.partition_names
        return PlannedReplacement(
            columns_added=planned.fit.added,
            columns_left_out=tuple(
                name for name in planned.fit.schema.names if name not in (*read, *own)
            ),
            stage=partial(self._stage_replacement, planned, last, window, before, steps),
        )

    def _stage_replacement(
        self,
        planned: Planned,
        last: Commit,
        window: Window,
        before: ExistingRows,
        steps: StepTimer,
    ) -> StagedLoad:
        mark = new_mark(last.number + 1)
        version, written, letters, timeless = self._write(planned, mark, steps)
        decoded = planned.decoded
        decoded.check_staged(written.with_others(letters).tally)
        replaced = [file for file in version.files() if file.path in {*before.files}]
        if len(replaced) != len(before.files):
            raise WarehouseError(
                f"Another writer has changed {self.path} meanwhile: {len(before.files)} files held "
                f"records of the window, and {len(replaced)} of them are there. Nothing was "
                "changed. Run it again."
            )
        kept = Written()
        if before.kept_records:
            with steps.step("keep the others"), translated(f"write what stays in {self.path}"):
                others = self._again(version, planned.layout, replaced)
                others = others.where(outside(window.ranges))
                kept = write(others, version.writer(), mark.staging, self._config.compression)
            if kept.tally.records != before.kept_records:
                raise DataLossError(
                    f"Expected {before.kept_records:,} records that stay in {self.path}, wrote "
                    f"{kept.tally.records:,}; nothing was changed. Run it again."
                )
        if not window.all_read(decoded.tally(), before.tally):
            with translated(f"compare what was written with {self.path}"):
                again = self._of_files(version, written.files, letters.files, TALLIED)
                check_all_read(self._config.topic, self.rows(), again, window)
        listed = replace(
            mark,
            letters=tuple(file.path for file in letters.files),
            replaced=window.ranges if before.dead_letters else (),
            ends=last.ends,
        )
        both = written.with_others(kept)
        commit = replace(
            self._rewritten(
                last, listed, version, both, replaced, data_change=True, letters=letters.files
            ),
            dead_letters=letters.tally.records,
            replaces=before.names,
        )
        return _staged(commit, written, letters, timeless)


def _lake(commit: Commit) -> StagedCommit:
    assert isinstance(commit, StagedCommit), "a target commits what it has staged itself"
    return commit


def _staged(commit: StagedCommit, written: Written, letters: Written, timeless: int) -> StagedLoad:
    return StagedLoad(
        commit,
        written.tally.records,
        letters.tally.records,
        written.size_bytes + letters.size_bytes,
        timeless,
    )


def _stored(
    table: LakeTable | LakeVersion, layout: Layout, frame: DataFrame, wanted: Sequence[str] | None
) -> DataFrame:
    """Records with the columns that say which partition they belong to, where those are wanted."""
    if wanted is not None and {*wanted}.isdisjoint(layout.period_columns):
        return frame
    return table.partitioned(frame, layout)


def _commit_of(progress: Progress | None, topic: str) -> Commit | None:
    """The last commit, as its progress tells it (a fence alone is none)."""
    if progress is None or progress.number == 0:
        return None
    return Commit(progress.number, "", progress.topic_id, (), dict(progress.ends), 0, ())


def _check_columns(staged: StagedCommit, version: LakeVersion, where: str) -> None:
    """Raises IncompatibleColumnsError where the table no longer has the columns, or partitions,
    that the files were written with."""
    ours, theirs = staged.written_on.writer(), version.writer()
    there = {field.name: field for field in theirs.schema}
    changed = [
        field.name
        for field in ours.schema
        if field.name not in there or not field.equals(there[field.name], check_metadata=True)
    ]
    needed = [
        field.name
        for field in theirs.schema
        if not field.nullable and field.name not in ours.schema.names
    ]
    if changed or needed or ours.partition_names != theirs.partition_names:
        what = ", ".join([*changed, *needed]) or "partitions"
        raise IncompatibleColumnsError(
            f"Another writer has changed the columns of {where} while records were written: "
            f"{what}. Nothing was committed. Run the load again."
        )


def _together(found: Sequence[FileRows]) -> RecordTally:
    tally = NONE
    for each in found:
        tally = tally.with_others(each.tally)
    return tally


def _new_token() -> int:
    return secrets.randbits(63)
