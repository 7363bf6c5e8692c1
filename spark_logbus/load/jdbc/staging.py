"""Staging tables, which hold a load's rows until one transaction moves them into its tables.

Spark writes staging tables with many connections, so that they are in no transaction. Their names
say to which table they belong and are of one load each: the next one finds and drops them. The
transaction of the commit moves their rows; rows that are replaced go first.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_logbus.errors import DataLossError
from spark_logbus.load.commit import Commit
from spark_logbus.load.errors import translated
from spark_logbus.load.jdbc.columns import (
    check_fit,
    columns_of,
    create_staging,
    create_target,
    insert_staged,
    numbered,
    staged_frame,
)
from spark_logbus.load.jdbc.connection import Database, JdbcTransaction
from spark_logbus.load.plan.window import ExistingRows
from spark_logbus.load.read.input import DecodedRead
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tables import JdbcTable
from spark_logbus.load.tally import NONE, TALLIED, RecordTally, tally_of
from spark_logbus.model import OffsetRange
from spark_logbus.plurals import plural

_DEAD: Final = "_dead"


@dataclass(frozen=True, slots=True)
class Part:
    """Records that are staged, and the table that they are for. Immutable."""

    table: str
    staging: str
    schema: StructType
    tally: RecordTally


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCommit(Commit):
    """A commit, and the staging tables that hold its records until then. Immutable."""

    last: Commit | None  # which it goes on from
    parts: tuple[Part, ...]
    #: Ranges whose rows are deleted first, and how many rows these are.
    replaced: tuple[OffsetRange, ...] = ()
    before: ExistingRows = ExistingRows()


def tally_of_parts(parts: Iterable[Part]) -> RecordTally:
    """Tally of all records that are staged."""
    return reduce(RecordTally.with_others, (part.tally for part in parts), NONE)


class StagingTables:
    """Staging tables of the loads into one table. Not thread-safe."""

    def __init__(self, database: Database, table: JdbcTable) -> None:
        self._database = database
        self._table = table
        # A name of 63 bytes would leave no room in the staging table's.
        unique = hashlib.sha256(table.name.encode()).hexdigest()[:16]
        self._prefix = f"logbus_staging_{unique}_"

    def new_name(self) -> str:
        """Returns a name that no other load has."""
        return f"{self._prefix}{uuid.uuid4().hex[:16]}"

    def drop_all(self, transaction: JdbcTransaction) -> None:
        """Drops the staging tables of all loads."""
        found = transaction.rows(
            "SELECT tablename::text FROM pg_tables WHERE schemaname = ? AND "
            "starts_with(tablename, ?) ORDER BY tablename",
            self._table.schema,
            self._prefix,
        )
        for (name,) in found:
            transaction.run(f"DROP TABLE IF EXISTS {self._database.qualified(name)}")

    def drop(self, parts: Iterable[Part]) -> None:
        """Drops the staging tables of one load, where they are still there."""
        with self._database.transaction() as transaction:
            for part in parts:
                name = self._database.qualified(part.staging)
                transaction.run(f"DROP TABLE IF EXISTS {name}")

    def stage(self, decoded: DecodedRead, name: str, steps: StepTimer) -> tuple[Part, ...]:
        """Stages records, then dead letters if there are any; returns what is really there."""
        with steps.step("write"), self._translated("stage records", name):
            self._write(decoded.frame, name)
        with steps.step("check"), self._translated("count what was staged", name):
            parts = [self._part(self._table.name, name, decoded.frame.schema)]
        if decoded.dead():
            with steps.step("dead letters"), self._translated("stage dead letters", name):
                parts.append(self._keep_apart(decoded.letters(), name + _DEAD))
        return tuple(parts)

    def _keep_apart(self, letters: DataFrame, name: str) -> Part:
        # A reason may quote what is wrong, and texts of the database hold no character 0.
        letters = letters.withColumn("reason", F.translate("reason", "\0", "\ufffd"))
        self._write(letters, name)
        return self._part(self._table.dead_letters, name, letters.schema)

    def _write(self, frame: DataFrame, name: str) -> None:
        columns = columns_of(frame.schema)
        with self._database.transaction() as transaction:
            transaction.run(create_staging(columns, table=self._database.qualified(name)))
        self._database.append(staged_frame(frame), name)

    def _part(self, table: str, name: str, schema: StructType) -> Part:
        return Part(table, name, schema, tally_of(self._read(name, schema, TALLIED)))

    def rows(self, parts: Iterable[Part], wanted: Sequence[str]) -> DataFrame:
        """Reads columns of what is staged, under the names that they will have."""
        found = (self._read(part.staging, part.schema, wanted) for part in parts)
        return reduce(DataFrame.unionByName, found)

    def _read(self, name: str, schema: StructType, wanted: Sequence[str]) -> DataFrame:
        listed = [
            F.col(numbered(place)).alias(each.name)
            for place, each in enumerate(schema.fields)
            if each.name in wanted
        ]
        return self._database.read(name).select(*listed)

    def apply(self, transaction: JdbcTransaction, commit: StagedCommit) -> None:
        """Deletes the rows that are replaced and moves the staged ones into their tables.

        Raises DataLossError where not every row goes and comes, and IncompatibleColumnsError.
        """
        if commit.replaced:
            self.clear(transaction, commit)
        for part in commit.parts:
            self.move(transaction, part)

    def clear(self, transaction: JdbcTransaction, commit: StagedCommit) -> None:
        """Deletes the rows that are replaced, from the table and from its dead letters."""
        for name, expected in (
            (self._table.name, commit.before.records),
            (self._table.dead_letters, commit.before.dead_letters),
        ):
            table = self._database.qualified(name)
            if transaction.existing(table) is None:
                continue
            deleted = sum(
                transaction.run(
                    f'DELETE FROM {table} WHERE "partition" = ? AND "offset" >= ? AND "offset" < ?',
                    each.topic_partition.partition,
                    each.start,
                    each.end,
                )
                for each in commit.replaced
            )
            if deleted != expected:
                raise DataLossError(
                    f"Expected to replace {plural(expected, 'row')} of {table}, as many as the "
                    f"window had there, but {deleted:,} could be deleted; nothing was changed. If "
                    "somebody else has changed the table meanwhile, run it again; if not, does it "
                    "have a trigger, a rule or policies that keep rows?"
                )

    def move(self, transaction: JdbcTransaction, part: Part) -> None:
        """Moves staged records into their table, which is made if it is not there."""
        table, staging = map(self._database.qualified, (part.table, part.staging))
        columns, existing = columns_of(part.schema), transaction.existing(table)
        if existing is None:
            transaction.run(create_target(columns, table=table))
        else:
            check_fit(columns, existing, table=table)
        moved = transaction.run(
            insert_staged(columns, existing or {}, table=table, staging=staging)
        )
        if moved != part.tally.records:
            raise DataLossError(
                f"Expected {plural(part.tally.records, 'record')}, as staged for {table}, but it "
                f"took {moved:,}; nothing was committed. Does the table have a trigger, a rule or "
                "policies that leave rows out?"
            )
        transaction.run(f"DROP TABLE {staging}")

    def _translated(self, what: str, name: str) -> AbstractContextManager[None]:
        where = f"{self._database.qualified(name)} of {self._database.address}"
        return translated(f"{what} in {where}")
