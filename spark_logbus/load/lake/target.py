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
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from spark_logbus.audit.warehouse import Loads
from spark_logbus.load.commit import Commit
from spark_logbus.load.config import TargetConfig
from spark_logbus.load.errors import SupersededError, WarehouseError, translated
from spark_logbus.load.lake import history, small_files
from spark_logbus.load.lake import window as windows
from spark_logbus.load.lake.letters import PAUSE_S, TRIES, DeadLetters, too_busy
from spark_logbus.load.lake.marks import Mark, new_mark
from spark_logbus.load.lake.meanwhile import check_replaced, check_unchanged
from spark_logbus.load.lake.staging import StagedCommit, plan, stage
from spark_logbus.load.lake.table import (
    TOPIC_ID,
    Change,
    LakeTable,
    Progress,
    VersionConflictError,
)
from spark_logbus.load.lake.topic_tables import ROWS, TopicTables, commit_of
from spark_logbus.load.layout import LayoutChoice
from spark_logbus.load.plan.window import ExistingRows, Window
from spark_logbus.load.read.input import LoadInput
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.target import History, PlannedReplacement, StagedLoad
from spark_logbus.model import OffsetRange


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
        self._tables = TopicTables(
            spark, table, DeadLetters(spark, letters, config), config, choice
        )
        self._token: int | None = None  # of the progress that this load goes on from

    @property
    def path(self) -> str:
        return self._tables.name

    @property
    def dead_letters(self) -> str:
        return self._tables.letters.name

    def check_names(self, names: Sequence[str]) -> None:
        """Does nothing: columns are checked with their types, when the read is planned."""

    # -- what was there before --------------------------------------------------------------------

    def recover(self) -> Commit | None:
        version = self._tables.records.newest()
        if version is None:
            self._tables.records.layout_of_new(self._tables.choice)
            return None
        version.check_appendable()
        version.layout(self._tables.choice)
        progress = self._tables.progress(version)
        marks = self._tables.own_directory().marks()
        committed = []
        if progress is not None:
            committed = [mark for mark in marks if mark.token == progress.token]
            for mark in committed:
                self._finish(mark, progress.topic_id)
        if len(marks) > len(committed):
            progress = self._discard([mark for mark in marks if mark not in committed])
        self._token = None if progress is None else progress.token
        return commit_of(progress)

    def _discard(self, dead: Sequence[Mark]) -> Progress:
        """Makes sure that loads which have not committed no longer can, and deletes their files."""
        token, own = _new_token(), self._tables.own_directory()
        for _ in range(TRIES):
            version = self._tables.opened()
            topic_id = version.properties.get(TOPIC_ID, "")
            before = self._tables.progress(version) or Progress(topic_id, 0, 0, {})
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
                self._tables.letters.discard(mark)
            own.delete(mark)
        return before.fenced(token)

    # -- a load -----------------------------------------------------------------------------------

    def stage(self, load_input: LoadInput, last: Commit | None, steps: StepTimer) -> StagedLoad:
        planned = plan(self._tables, load_input, steps)
        source, letters = load_input.source, self._tables.letters
        # A table that is made anew may have the letters of an earlier one beside it.
        mark = new_mark(1 + (last.number if last else letters.number()))
        staged = stage(self._tables, planned, mark, steps)
        planned.decoded.check(staged.tally)
        commit = StagedCommit(
            mark.number,
            mark.staging,
            source.topic_id,
            source.filled_ranges,
            source.ends,
            staged.records.tally.records,
            tuple(file.path for file in staged.records.files),
            staged.version.schema,
            planned.layout,
            staged.letters.tally.records,
            mark=replace(
                mark,
                letters=tuple(file.path for file in staged.letters.files),
                replaced=letters.held(source.filled_ranges),
                ends=source.ends,
            ),
            added=staged.records.files,
            letters=staged.letters.files,
            written_on=staged.version,
        )
        return staged.load(commit)

    def rows(self, staged: Commit | None = None) -> DataFrame:
        if staged is None:
            return self._tables.rows()
        own = StagedCommit.of(staged)
        return self._tables.rows_of(own.written_on, own.added, own.letters, ROWS)

    # -- the commit -------------------------------------------------------------------------------

    def prepare(self, commit: Commit) -> None:
        """Lists the dead letters in the mark, for whoever puts them in place."""
        staged = StagedCommit.of(commit)
        if staged.mark.letters or staged.mark.replaced:
            self._tables.own_directory().write(staged.mark)

    def commit(self, commit: Commit) -> None:
        staged = StagedCommit.of(commit)
        for _ in range(TRIES):
            version = self._tables.opened()
            progress = self._tables.progress(version)
            if progress is not None and progress.token == staged.mark.token:
                return  # only the answer was lost
            if (None if progress is None else progress.token) != self._token:
                self._withdraw(staged, progress)
            check_unchanged(self._tables, staged, version)
            before = progress or Progress(commit.topic_id, 0, 0, {})
            after = before.after(commit.number, staged.mark.token, commit.ranges, commit.ends)
            after = replace(after, topic_id=commit.topic_id)
            change = Change(after, staged.added, staged.removed, staged.data_change)
            try:
                version.commit(change)
            except VersionConflictError:
                if staged.removed:
                    check_replaced(self._tables, staged)
                time.sleep(PAUSE_S)
                continue
            except WarehouseError:
                # Perhaps only the answer was lost.
                now = self._tables.progress(self._tables.opened())
                if now is None or now.token != staged.mark.token:
                    raise
            self._token = staged.mark.token
            return
        raise too_busy(f"commit to {self.path}")

    def _withdraw(self, staged: StagedCommit, progress: Progress | None) -> None:
        own = self._tables.own_directory()
        if progress is None or progress.number < staged.number:
            own.delete_files(staged.mark)
            self._tables.letters.discard(staged.mark)
        own.delete(staged.mark)
        by = "its progress is gone" if progress is None else f"it stands at load {progress.number}"
        raise SupersededError(
            f"Load {staged.number} of {self.path} does not go on from the last commit any more: "
            f"another load has taken over, and {by}. Nothing of this load was committed. Run it "
            "again for what is new by then."
        )

    def publish(self, commit: Commit) -> None:
        """Puts the dead letters into their table, and takes the mark away."""
        staged = StagedCommit.of(commit)
        self._finish(staged.mark, commit.topic_id)

    def _finish(self, mark: Mark, topic_id: str) -> None:
        """Does what is left to do for a load that is committed; doing it again is harmless."""
        if mark.letters or mark.replaced:
            with translated(f"put dead letters into {self.dead_letters}"):
                self._tables.letters.put(mark, topic_id)
        self._tables.own_directory().delete(mark)

    def announce(self, last: Commit) -> None:
        """Does nothing: the table is the one to ask."""

    # -- what is in, and what takes its place -----------------------------------------------------

    def loads(self) -> Loads:
        progress = self._tables.progress(self._tables.opened())
        return Loads() if progress is None else progress.loads

    def history(self, columns: Sequence[str] | None = None) -> History:
        return history.read(self._tables, columns)

    def rewrite(self, last: Commit, *, least: int) -> Commit | None:
        return small_files.rewrite(self._tables, last, least=least)

    def find(self, last: Commit, ranges: tuple[OffsetRange, ...]) -> ExistingRows:
        return windows.find(self._tables, ranges)

    def plan_replacement(
        self,
        load_input: LoadInput,
        last: Commit,
        window: Window,
        before: ExistingRows,
        steps: StepTimer,
    ) -> PlannedReplacement:
        return windows.plan_replacement(self._tables, load_input, last, window, before, steps)


def _new_token() -> int:
    return secrets.randbits(63)
