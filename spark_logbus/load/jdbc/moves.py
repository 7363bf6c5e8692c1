"""What is staged into its tables, in the transaction of its commit; rows that give way go first."""

from __future__ import annotations

from dataclasses import dataclass

from spark_logbus.errors import DataLossError
from spark_logbus.load.commit import Commit
from spark_logbus.load.config import JdbcTable
from spark_logbus.load.jdbc.columns import check_fit, create_target, insert_staged
from spark_logbus.load.jdbc.connection import Transaction
from spark_logbus.load.jdbc.staging import Part
from spark_logbus.load.jdbc.tables import Tables
from spark_logbus.load.jdbc.window import delete_rows
from spark_logbus.load.plan.window_rows import ExistingRows
from spark_logbus.model import OffsetRange


@dataclass(frozen=True, slots=True)
class GivingWay:
    """Rows that are replaced: those of ``ranges``, of which there are so many."""

    ranges: tuple[OffsetRange, ...]
    before: ExistingRows


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCommit(Commit):
    """A commit with all that carries it out: it is in staging tables until then. Immutable."""

    last: Commit | None  # which it goes on from
    parts: tuple[Part, ...]
    giving_way: GivingWay | None = None

    @property
    def replaced(self) -> tuple[OffsetRange, ...]:
        return () if self.giving_way is None else self.giving_way.ranges


@dataclass(frozen=True, slots=True)
class Moves:
    """Of loads into one table and that of its dead letters."""

    tables: Tables
    table: JdbcTable

    def apply(self, transaction: Transaction, commit: StagedCommit) -> None:
        """Raises DataLossError where not every row goes and comes, and IncompatibleColumnsError."""
        if commit.giving_way is not None:
            self.clear(transaction, commit.giving_way)
        for part in commit.parts:
            self.move(transaction, part)

    def clear(self, transaction: Transaction, giving_way: GivingWay) -> None:
        """Delete the rows that give way."""
        before = giving_way.before
        for name, expected in (
            (self.table.name, before.records),
            (self.table.dead_letters, before.dead_letters),
        ):
            if self.tables.existing(transaction, name) is not None:
                table = self.tables.qualified(name)
                delete_rows(transaction, giving_way.ranges, table=table, expected=expected)

    def move(self, transaction: Transaction, part: Part) -> None:
        """Staged records into their table, which is made if it is not there."""
        table, staging = self.tables.qualified(part.table), self.tables.qualified(part.staging)
        existing = self.tables.existing(transaction, part.table)
        if existing is None:
            transaction.run(create_target(part.columns, table=table))
        else:
            check_fit(part.columns, existing, table=table)
        moved = transaction.run(
            insert_staged(part.columns, existing or {}, table=table, staging=staging)
        )
        if moved != part.tally.records:
            raise DataLossError(
                f"Expected {part.tally.records:,} records, which were staged for {table}, but it "
                f"took {moved:,}; nothing was committed. Does the table have a trigger, a rule or "
                "policies that leave rows out?"
            )
        transaction.run(f"DROP TABLE {staging}")
