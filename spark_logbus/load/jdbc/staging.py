"""Staging tables: what a load brings, where nobody looks for it, and counted there.

Spark writes them with many connections, so that they are in no transaction. Their names say to
which table they belong and are of one load each: the next one finds and drops them.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_logbus.load.config import JdbcTable
from spark_logbus.load.errors import translated
from spark_logbus.load.jdbc import frames
from spark_logbus.load.jdbc.columns import (
    TableColumn,
    columns_of,
    create_staging,
    numbered,
    staged_frame,
)
from spark_logbus.load.jdbc.connection import Database, Transaction
from spark_logbus.load.read.input import DecodedRead
from spark_logbus.load.steps import StepTimer
from spark_logbus.load.tally import NONE, TALLIED, Tally, tally_of

_DEAD: Final = "_dead"


@dataclass(frozen=True, slots=True)
class Part:
    """Records that are staged, and the table that they are for. Immutable."""

    table: str
    staging: str
    schema: StructType
    columns: tuple[TableColumn, ...]
    tally: Tally


def tally_of_parts(parts: Iterable[Part]) -> Tally:
    """Of all of them."""
    return reduce(Tally.with_others, (part.tally for part in parts), NONE)


class StagingTables:
    """Those of loads into one table. Not thread-safe."""

    def __init__(self, spark: SparkSession, database: Database, table: JdbcTable) -> None:
        self._spark = spark
        self._database = database
        self._table = table

    def new_name(self) -> str:
        """One that no other load has."""
        return f"{self._prefix}{uuid.uuid4().hex[:16]}"

    def drop_all(self, transaction: Transaction) -> None:
        """Those of all loads."""
        found = transaction.rows(
            "SELECT tablename::text FROM pg_tables WHERE schemaname = ? AND "
            "starts_with(tablename, ?) ORDER BY tablename",
            self._table.schema,
            self._prefix,
        )
        for (name,) in found:
            transaction.run(f"DROP TABLE IF EXISTS {self._database.qualified(name)}")

    def drop(self, parts: Iterable[Part]) -> None:
        """Those of one load, which need not be there any more."""
        with self._database.transaction() as transaction:
            for part in parts:
                name = self._database.qualified(part.staging)
                transaction.run(f"DROP TABLE IF EXISTS {name}")

    def stage(
        self, arriving: DecodedRead, columns: tuple[TableColumn, ...], name: str, steps: StepTimer
    ) -> tuple[Part, ...]:
        """Records, then dead letters if there are any, as they really are in staging."""
        with steps.step("write"), self._translated("stage records", name):
            self._write(arriving.frame, columns, name)
        with steps.step("check"), self._translated("count what was staged", name):
            parts = [self._part(self._table.name, name, arriving.frame.schema, columns)]
        if arriving.dead():
            with steps.step("dead letters"), self._translated("stage dead letters", name):
                parts.append(self._keep_apart(arriving.letters(), name + _DEAD))
        return tuple(parts)

    def _keep_apart(self, letters: DataFrame, name: str) -> Part:
        # A reason may quote what is wrong, and texts of the database hold no character 0.
        letters = letters.withColumn("reason", F.translate("reason", "\0", "\ufffd"))
        columns = columns_of(letters.schema)
        self._write(letters, columns, name)
        return self._part(self._table.dead_letters, name, letters.schema, columns)

    def _write(self, frame: DataFrame, columns: Sequence[TableColumn], name: str) -> None:
        with self._database.transaction() as transaction:
            transaction.run(create_staging(columns, table=self._database.qualified(name)))
        frames.append(staged_frame(frame), self._database, name)

    def _part(
        self, table: str, name: str, schema: StructType, columns: tuple[TableColumn, ...]
    ) -> Part:
        tally = tally_of(self._read(name, schema, TALLIED))
        return Part(table, name, schema, columns, tally)

    def rows(self, parts: Iterable[Part], wanted: Sequence[str]) -> DataFrame:
        """Columns of what is staged, under the names that they will have."""
        found = (self._read(part.staging, part.schema, wanted) for part in parts)
        return reduce(DataFrame.unionByName, found)

    def _read(self, name: str, schema: StructType, wanted: Sequence[str]) -> DataFrame:
        listed = [
            F.col(numbered(place)).alias(each.name)
            for place, each in enumerate(schema.fields)
            if each.name in wanted
        ]
        return frames.read(self._spark, self._database, name).select(*listed)

    @property
    def _prefix(self) -> str:
        """Of the table's own; a name of 63 bytes leaves no room for the table's."""
        return f"logbus_staging_{hashlib.sha256(self._table.name.encode()).hexdigest()[:16]}_"

    def _translated(self, what: str, name: str) -> Any:
        where = f"{self._database.qualified(name)} of {self._database.address}"
        return translated(f"{what} in {where}")
