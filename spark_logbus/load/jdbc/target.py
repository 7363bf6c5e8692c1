"""A table of a database as the target of a load.

Spark writes the records of a load into a staging table of its own, with many connections. They are
counted there. Then one transaction, on the driver, puts in the row of the load, with which it keeps
other loads out (see ``ledger``), moves the records over, makes the table where it is not there yet,
and drops the staging table. Before it commits nothing of the load is there, after it everything.

A lock in ZooKeeper keeps two loads apart, as for files. Where that is not enough, because a load
stood still for longer than its session, or because two clusters or two spellings of an address have
a lock each, the database decides: a load begins by dropping the staging tables of all others. The
transaction of one that is not dead needs its own, so it comes before that and is seen, or fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_logbus.audit.warehouse import Loads
from spark_logbus.load.chosen_columns import chosen, exact_column
from spark_logbus.load.commit import Commit
from spark_logbus.load.errors import SupersededError, WarehouseError, translated
from spark_logbus.load.jdbc.columns import (
    ROWS,
    ExistingColumn,
    check_fit,
    check_known,
    columns_of,
    with_json_texts,
)
from spark_logbus.load.jdbc.connection import Database, DatabaseError, DatabaseUnavailableError
from spark_logbus.load.jdbc.ledger import Ledger
from spark_logbus.load.jdbc.staging import Part, StagedCommit, StagingTables, tally_of_parts
from spark_logbus.load.plan.window import ExistingRows, Window, below, check_all_read, inside
from spark_logbus.load.read.input import DecodedRead, LoadInput
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tables import JdbcTable
from spark_logbus.load.tally import NONE, tally_of
from spark_logbus.load.target import History, PlannedReplacement, StagedLoad
from spark_logbus.model import OffsetRange


class TableTarget:
    """One table. Not thread-safe; only for the holder of its lock."""

    def __init__(self, spark: SparkSession, table: JdbcTable, topic: str, *, holder: str) -> None:
        self._table = table
        self._database = Database(spark, table, application=f"logbus: {holder}")
        self._ledger = Ledger(self._database, table, topic, holder)
        self._staging = StagingTables(self._database, table)

    @property
    def path(self) -> str:
        return str(self._table)

    @property
    def dead_letters(self) -> str:
        return f"{self._table.schema}.{self._table.dead_letters}"

    def check_names(self, names: Sequence[str]) -> None:
        """Does nothing: a table has no names of its own; columns are checked with their types."""

    def recover(self) -> Commit | None:
        self._ledger.create()
        try:
            with self._database.transaction() as transaction:
                self._staging.drop_all(transaction)
                # In this order: who committed before its staging was dropped is seen.
                last = self._ledger.last(transaction)
                there = transaction.existing(self._database.qualified(self._table.name))
        except DatabaseError as error:
            if error.is_locked:
                raise self._ledger.held() from error
            raise
        self._require_table(last, there)
        return last

    def _require_table(
        self, last: Commit | None, existing: Mapping[str, ExistingColumn] | None
    ) -> None:
        """Raises WarehouseError where there is no table, and loads were committed there."""
        if last is not None and existing is None:
            raise WarehouseError(
                f"Table {self._table} is missing, and the {self._ledger.name} of its schema says "
                f"that load {last.number} was committed there. Restore the table, or load into "
                "another one."
            )

    def stage(self, load_input: LoadInput, last: Commit | None, steps: StepTimer) -> StagedLoad:
        decoded, name = self._plan(load_input, steps), self._staging.new_name()
        parts = self._staging.stage(decoded, name, steps)
        decoded.check(tally_of_parts(parts))
        source, (records, dead_letters) = load_input.source, _counts(parts)
        commit = StagedCommit(
            last.number + 1 if last else 1,
            name,
            source.topic_id,
            source.filled_ranges,
            source.ends,
            records,
            (),
            dead_letters=dead_letters,
            last=last,
            parts=parts,
        )
        return StagedLoad(commit, records, dead_letters)

    def _plan(self, load_input: LoadInput, steps: StepTimer) -> DecodedRead:
        """Plans the read, and checks that the tables take its columns; nothing is read yet."""
        with steps.step("plan the read"), translated("plan the read"):
            decoded = load_input.read()
            self._check_fit(self._table.name, decoded.frame.schema)
            if load_input.decoding.dead_letters:
                self._check_fit(self._table.dead_letters, decoded.letters().schema)
        return decoded

    def _check_fit(self, name: str, schema: StructType) -> None:
        """Raises IncompatibleColumnsError unless the table takes the columns of ``schema``, or is
        not there yet; ConfigError for a column that no table can have."""
        columns, table = columns_of(schema), self._database.qualified(name)
        with self._database.transaction() as transaction:
            existing = transaction.existing(table)
        if existing is not None:
            check_fit(columns, existing, table=table)

    def rows(self, staged: Commit | None = None) -> DataFrame:
        if staged is not None:
            return self._staging.rows(_staged(staged).parts, ROWS.names)
        return reduce(DataFrame.unionByName, map(self._known, self._names()))

    def _known(self, name: str) -> DataFrame:
        """Reads the columns that say which record each row of a table is."""
        found = self._database.read(name)
        # A table that was there before the first load may have wider numbers.
        return found.select(*(F.col(each.name).cast(each.dataType) for each in ROWS.fields))

    def _names(self) -> list[str]:
        """Names of the table, and of its dead letters if there are any; UnknownRowsError."""
        names = []
        with self._database.transaction() as transaction:
            for name in (self._table.name, self._table.dead_letters):
                table = self._database.qualified(name)
                existing = transaction.existing(table)
                if existing is not None:
                    check_known(existing, table=table)
                    names.append(name)
        return names

    def loads(self) -> Loads:
        return self._ledger.loads()

    def history(self, columns: Sequence[str] | None = None) -> History:
        table = self._database.qualified(self._table.name)
        with self._database.transaction() as transaction:
            # Read before the rows are: what comes in between is above these ends.
            last = self._ledger.last(transaction) if self._ledger.is_there(transaction) else None
            existing = transaction.existing(table)
        self._require_table(last, existing)
        stored = partial(self._stored, existing)
        if existing is None:
            return History(last, None, (), (), partial(stored, StructType()))
        check_known(existing, table=table)
        with translated(f"read {self._table}"):
            rows = self._database.read(self._table.name)
            names = chosen(rows.columns, columns, where=str(self._table))
            ends = {} if last is None else last.ends
            found = rows.where(below(ends)).select(*map(exact_column, names))
        return History(last, found, tuple(rows.columns), (), partial(stored, rows.schema))

    def _stored(
        self,
        existing: Mapping[str, ExistingColumn] | None,
        read: StructType,
        frame: DataFrame,
        wanted: Sequence[str] | None,
    ) -> DataFrame:
        """Columns as a load would put them in, with the types that Spark ``read`` of the table."""
        known = {each.name: each.dataType for each in read.fields}
        if existing is not None:
            columns = [each for each in columns_of(frame.schema) if each.name in existing]
            own = {each.name: existing[each.name] for each in columns}
            check_fit(columns, own, table=self._database.qualified(self._table.name))
        texts = with_json_texts(frame)
        return texts.select(
            *(
                exact_column(each.name).cast(known.get(each.name, each.dataType)).alias(each.name)
                for each in texts.schema.fields
            )
        )

    def find(self, last: Commit, ranges: tuple[OffsetRange, ...]) -> ExistingRows:
        names = self._names()
        with translated(f"look for records in {self._table}"):
            tallies = [tally_of(self._known(name).where(inside(ranges))) for name in names]
        records, letters = (*tallies, NONE)[:2]
        return ExistingRows(records.records, letters.records, records.with_others(letters))

    def plan_replacement(
        self,
        load_input: LoadInput,
        last: Commit,
        window: Window,
        before: ExistingRows,
        steps: StepTimer,
    ) -> PlannedReplacement:
        decoded = self._plan(load_input, steps)
        with self._database.transaction() as transaction:
            existing = transaction.existing(self._database.qualified(self._table.name)) or {}
        read = decoded.frame.schema.names
        return PlannedReplacement(
            columns_added=(),  # a load does not alter a table
            columns_left_out=tuple(name for name in existing if name not in read),
            stage=partial(self._stage_replacement, decoded, last, window, before, steps),
        )

    def _stage_replacement(
        self,
        decoded: DecodedRead,
        last: Commit,
        window: Window,
        before: ExistingRows,
        steps: StepTimer,
    ) -> StagedLoad:
        name = self._staging.new_name()
        parts = self._staging.stage(decoded, name, steps)
        decoded.check_staged(tally_of_parts(parts))
        if not window.all_read(decoded.tally(), before.tally):
            with translated(f"compare what is staged with {self._table}"):
                staged = self._staging.rows(parts, ROWS.names)
                check_all_read(self._ledger.topic, self.rows(), staged, window)
        records, dead_letters = _counts(parts)
        commit = StagedCommit(
            last.number + 1,
            name,
            last.topic_id,
            (),
            last.ends,
            records,
            (),
            dead_letters=dead_letters,
            last=last,
            parts=parts,
            replaced=window.ranges,
            before=before,
        )
        return StagedLoad(commit, records, dead_letters)

    def prepare(self, commit: Commit) -> None:
        """Does nothing: all that is left is one transaction."""

    def commit(self, commit: Commit) -> None:
        staged = _staged(commit)
        try:
            with self._database.transaction() as transaction:
                self._ledger.enter(transaction, staged)
                self._staging.apply(transaction, staged)
        except DatabaseUnavailableError:
            # Perhaps only the answer was lost.
            if not self._ledger.holds(staged):
                raise
        except SupersededError:
            self._discard(staged)
            raise

    def publish(self, commit: Commit) -> None:
        """Does nothing: readers see a transaction when it commits."""

    def announce(self, last: Commit) -> None:
        """Does nothing: the database is the one to ask."""

    def rewrite(self, last: Commit, *, least: int) -> Commit | None:
        """Does nothing: a table has no small files."""
        return None

    def _discard(self, commit: StagedCommit) -> None:
        """Drops what is staged of a load that is refused; the next one would drop it too."""
        with suppress(WarehouseError):
            self._staging.drop(commit.parts)


def _staged(commit: Commit) -> StagedCommit:
    assert isinstance(commit, StagedCommit), "a target commits what it has staged itself"
    return commit


def _counts(parts: Sequence[Part]) -> tuple[int, int]:
    """Counts records and dead letters that are staged."""
    records, *letters = (part.tally.records for part in parts)
    return records, sum(letters)
