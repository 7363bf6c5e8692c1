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

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_logbus.audit.warehouse import Loads
from spark_logbus.load.commit import Commit
from spark_logbus.load.config import JdbcTable
from spark_logbus.load.errors import SupersededError, WarehouseError, translated
from spark_logbus.load.jdbc import frames
from spark_logbus.load.jdbc.columns import TableColumn, columns_of
from spark_logbus.load.jdbc.connection import Database, DatabaseError, DatabaseUnavailableError
from spark_logbus.load.jdbc.ledger import Ledger
from spark_logbus.load.jdbc.moves import GivingWay, Moves, StagedCommit
from spark_logbus.load.jdbc.staging import Part, StagingTables, tally_of_parts
from spark_logbus.load.jdbc.tables import Tables
from spark_logbus.load.jdbc.window import ROWS, check_known
from spark_logbus.load.plan.window import Window
from spark_logbus.load.plan.window_rows import ExistingRows, check_all_read, inside
from spark_logbus.load.read.input import DecodedRead, LoadInput
from spark_logbus.load.steps import StepTimer
from spark_logbus.load.tally import NONE, tally_of
from spark_logbus.load.target import StagedLoad, StagedReplacement
from spark_logbus.model import OffsetRange


@dataclass(frozen=True, slots=True)
class TableReplacement:
    """A window of a table that is planned to be read again, where ``before`` is."""

    target: TableTarget
    arriving: DecodedRead
    columns: tuple[TableColumn, ...]
    last: Commit
    window: Window
    before: ExistingRows
    steps: StepTimer
    columns_left_out: tuple[str, ...]
    columns_added: tuple[str, ...] = ()  # a load does not alter a table

    def stage(self) -> StagedReplacement:
        return self.target.stage_again(self)


class TableTarget:
    """One table. Not thread-safe; only for the holder of its lock."""

    def __init__(self, spark: SparkSession, table: JdbcTable, topic: str, *, holder: str) -> None:
        self._spark = spark
        self._table = table
        self._database = Database(spark, table, application=f"logbus: {holder}")
        self._ledger = Ledger(self._database, table, topic, holder)
        self._staging = StagingTables(spark, self._database, table)
        self._tables = Tables(self._database)
        self._moves = Moves(self._tables, table)

    @property
    def path(self) -> str:
        return str(self._table)

    @property
    def dead_letters(self) -> str:
        return f"{self._table.schema}.{self._table.dead_letters}"

    def check_names(self, names: Sequence[str]) -> None:
        """A table has no names of its own; columns are checked with their types."""

    def recover(self) -> Commit | None:
        self._ledger.create()
        try:
            with self._database.transaction() as transaction:
                self._staging.drop_all(transaction)
                # In this order: who committed before its staging was dropped is seen.
                last = self._ledger.last(transaction)
                there = self._tables.existing(transaction, self._table.name)
        except DatabaseError as error:
            if error.is_locked:
                raise self._ledger.held() from error
            raise
        if last is not None and there is None:
            raise WarehouseError(
                f"Table {self._table} is missing, and the {self._ledger.name} of its schema says "
                f"that load {last.number} was committed there. Restore the table, or load into "
                "another one."
            )
        return last

    def stage(self, incoming: LoadInput, last: Commit | None, steps: StepTimer) -> StagedLoad:
        number = last.number + 1 if last else 1
        arriving, columns = self._plan(incoming, steps)
        name = self._staging.new_name()
        parts = self._staging.stage(arriving, columns, name, steps)
        arriving.check(tally_of_parts(parts))
        source = incoming.source
        records, dead_letters = _counts(parts)
        return StagedLoad(
            StagedCommit(
                number,
                name,
                source.topic_id,
                tuple(r for r in source.ranges if r.count),
                {r.topic_partition.partition: r.end for r in source.ranges},
                records,
                (),
                dead_letters=dead_letters,
                last=last,
                parts=parts,
            )
        )

    def _plan(
        self, incoming: LoadInput, steps: StepTimer
    ) -> tuple[DecodedRead, tuple[TableColumn, ...]]:
        """What is to be read, as columns that the table takes; nothing is read yet."""
        with steps.step("plan the read"), translated("plan the read"):
            arriving = incoming.read()
            columns = columns_of(arriving.frame.schema)
            self._tables.check_fit(self._table.name, columns)
            if incoming.decoding.dead_letters:
                self._tables.check_fit(
                    self._table.dead_letters, columns_of(arriving.letters().schema)
                )
        return arriving, columns

    def rows(self, staged: Commit | None = None) -> DataFrame:
        if staged is not None:
            return self._staging.rows(_staged(staged).parts, ROWS.names)
        return reduce(DataFrame.unionByName, map(self._known, self._names()))

    def _known(self, name: str) -> DataFrame:
        """The rows of a table of records, as far as they say which record each of them is."""
        found = frames.read(self._spark, self._database, name)
        # A table that was there before the first load may have wider numbers.
        return found.select(*(F.col(each.name).cast(each.dataType) for each in ROWS.fields))

    def _names(self) -> list[str]:
        """The table, and that of its dead letters if there is one; UnknownRowsError."""
        with self._database.transaction() as transaction:
            names = (self._table.name, self._table.dead_letters)
            found = {name: self._tables.existing(transaction, name) for name in names}
        there = {name: columns for name, columns in found.items() if columns is not None}
        for name, columns in there.items():
            check_known(columns, table=self._tables.qualified(name))
        return [*there]

    def loads(self) -> Loads:
        return self._ledger.loads()

    def find(self, last: Commit, ranges: tuple[OffsetRange, ...]) -> ExistingRows:
        names = self._names()
        with translated(f"look for records in {self._table}"):
            tallies = [tally_of(self._known(name).where(inside(ranges))) for name in names]
        records, letters = (*tallies, NONE)[:2]
        return ExistingRows(records.records, letters.records, records.with_others(letters))

    def plan_replacement(
        self,
        incoming: LoadInput,
        last: Commit,
        window: Window,
        before: ExistingRows,
        steps: StepTimer,
    ) -> TableReplacement:
        arriving, columns = self._plan(incoming, steps)
        with self._database.transaction() as transaction:
            existing = self._tables.existing(transaction, self._table.name) or {}
        read = {column.name for column in columns}
        left_out = tuple(name for name in existing if name not in read)
        return TableReplacement(self, arriving, columns, last, window, before, steps, left_out)

    def stage_again(self, again: TableReplacement) -> StagedReplacement:
        """The commit that would put the window in place."""
        name, window, arriving = self._staging.new_name(), again.window, again.arriving
        parts = self._staging.stage(arriving, again.columns, name, again.steps)
        arriving.check_staged(tally_of_parts(parts))
        if not window.all_read(arriving.tally(), again.before.tally):
            topic = arriving.incoming.config.topic
            with translated(f"compare what is staged with {self._table}"):
                read = self._staging.rows(parts, ROWS.names)
                check_all_read(topic, self.rows(), read, window)
        records, dead_letters = _counts(parts)
        commit = StagedCommit(
            again.last.number + 1,
            name,
            again.last.topic_id,
            (),
            again.last.ends,
            records,
            (),
            dead_letters=dead_letters,
            last=again.last,
            parts=parts,
            giving_way=GivingWay(window.ranges, again.before),
        )
        return StagedReplacement(commit, records, dead_letters)

    def prepare(self, commit: Commit) -> None:
        """Nothing: all that is left is one transaction."""

    def commit(self, commit: Commit) -> None:
        staged = _staged(commit)
        try:
            with self._database.transaction() as transaction:
                self._ledger.enter(transaction, staged, staged.last, staged.replaced)
                self._moves.apply(transaction, staged)
        except DatabaseUnavailableError:
            # Perhaps only the answer was lost.
            if not self._ledger.holds(staged):
                raise
        except SupersededError:
            self._discard(staged)
            raise

    def publish(self, commit: Commit) -> None:
        """Nothing: readers see a transaction when it commits."""

    def announce(self, last: Commit) -> None:
        """Nothing: the database is the one to ask."""

    def rewrite(self, last: Commit) -> Commit | None:
        return None

    def _discard(self, commit: StagedCommit) -> None:
        """What is staged of a load that is refused; the next one would drop it too."""
        with suppress(WarehouseError):
            self._staging.drop(commit.parts)


def _staged(commit: Commit) -> StagedCommit:
    assert isinstance(commit, StagedCommit), "a target commits what it has staged itself"
    return commit


def _counts(parts: Sequence[Part]) -> tuple[int, int]:
    """Records and dead letters that are staged."""
    records, *letters = (part.tally.records for part in parts)
    return records, sum(letters)
