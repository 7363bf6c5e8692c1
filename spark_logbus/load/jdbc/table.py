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

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_logbus.errors import DataLossError
from spark_logbus.load.commits import Commit
from spark_logbus.load.hadoop import WarehouseError, translated
from spark_logbus.load.incoming import Incoming
from spark_logbus.load.jdbc.columns import (
    Existing,
    TableColumn,
    check_fit,
    columns_of,
    create_staging,
    create_target,
    insert_staged,
    numbered,
    quoted,
    staged_frame,
)
from spark_logbus.load.jdbc.config import JdbcTable
from spark_logbus.load.jdbc.connection import (
    DRIVER,
    Database,
    DatabaseError,
    DatabaseUnavailableError,
    Transaction,
)
from spark_logbus.load.jdbc.ledger import Ledger
from spark_logbus.load.steps import Steps
from spark_logbus.load.tally import TALLIED, Tally, tally_of
from spark_logbus.load.target import Staged
from spark_logbus.load.warehouse import SupersededError

_DEAD: Final = "_dead"
#: Of one load: a database takes a hundred in all by default.
_CONNECTIONS: Final = 8
#: Rows that go to the database at once, and come back.
_BATCH_ROWS: Final = "10000"
#: What says which record a row is, and when that was.
_ROWS: Final = {"partition": "int", "offset": "bigint", "timestamp": "timestamp"}


@dataclass(frozen=True, slots=True)
class _Part:
    """Records that are staged, and the table that they are for."""

    table: str
    staging: str
    schema: StructType
    columns: tuple[TableColumn, ...]
    records: int


class TableTarget:
    """One table. Not thread-safe; only for the holder of its lock, and for one load."""

    def __init__(self, spark: SparkSession, table: JdbcTable, topic: str, *, holder: str) -> None:
        self._spark = spark
        self._table = table
        self._database = Database(spark, table, application=f"logbus: {holder}")
        self._ledger = Ledger(self._database, table, topic, holder)
        self._last: Commit | None = None
        self._parts: list[_Part] = []

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
                for name in self._staging_tables(transaction):
                    transaction.run(f"DROP TABLE IF EXISTS {self._qualified(name)}")
                # In this order: who committed before its staging was dropped is seen.
                self._last = last = self._ledger.last(transaction)
                there = self._existing(transaction, self._table.name)
        except DatabaseError as error:
            if error.is_locked:
                raise self._ledger.held() from error
            raise
        if last is not None and last.records and there is None:
            raise WarehouseError(
                f"Table {self._table} is missing, and the {self._ledger.name} of its schema says "
                f"that load {last.number} has committed records there. Restore the table, or "
                "load into another one."
            )
        return last

    def stage(self, incoming: Incoming, last: Commit | None, steps: Steps) -> Staged:
        number = last.number + 1 if last else 1
        name = f"{self._staging_prefix}{uuid.uuid4().hex[:16]}"
        with steps.step("plan the read"), translated("plan the read"):
            arriving = incoming.read()
            columns = columns_of(arriving.frame.schema)
            self._check_fit(self._table.name, columns)
            if incoming.decoding.dead_letters:
                self._check_fit(self._table.dead_letters, columns_of(arriving.letters().schema))
        with steps.step("write"), self._staging(f"stage load {number}", name):
            self._write(arriving.frame, columns, name)
        with steps.step("check"), self._staging("count what was staged", name):
            staged = self._tally(name, arriving.frame.schema)
        self._parts = [
            _Part(self._table.name, name, arriving.frame.schema, columns, staged.records)
        ]
        letters = Tally(0, 0)
        if arriving.dead():
            with steps.step("dead letters"), self._staging("stage dead letters", name):
                letters = self._keep_apart(arriving.letters(), name + _DEAD)
        arriving.check(staged.with_others(letters))
        source = incoming.source
        return Staged(
            Commit(
                number,
                name,
                source.topic_id,
                tuple(r for r in source.ranges if r.count),
                {r.topic_partition.partition: r.end for r in source.ranges},
                staged.records,
                (),
                dead_letters=letters.records,
            )
        )

    def _keep_apart(self, letters: DataFrame, staging: str) -> Tally:
        # A reason may quote what is wrong, and texts of the database hold no character 0.
        letters = letters.withColumn("reason", F.translate("reason", "\0", "\ufffd"))
        columns = columns_of(letters.schema)
        self._write(letters, columns, staging)
        tally = self._tally(staging, letters.schema)
        self._parts.append(
            _Part(self._table.dead_letters, staging, letters.schema, columns, tally.records)
        )
        return tally

    def rows(self, staged: Commit | None = None) -> DataFrame:
        if staged is not None:
            frames = [self._read(each.staging, each.schema, *_ROWS) for each in self._parts]
        else:
            with self._database.transaction() as transaction:
                names = [
                    name
                    for name in (self._table.name, self._table.dead_letters)
                    if self._existing(transaction, name) is not None
                ]
            frames = [self._known(name) for name in names]
        return reduce(DataFrame.unionByName, frames)

    def prepare(self, commit: Commit) -> None:
        """Nothing: all that is left is one transaction."""

    def commit(self, commit: Commit) -> None:
        try:
            with self._database.transaction() as transaction:
                self._ledger.enter(transaction, commit, self._last)
                for part in self._parts:
                    self._move(transaction, part)
        except DatabaseUnavailableError:
            # Perhaps only the answer was lost.
            if not self._ledger.holds(commit):
                raise
        except SupersededError:
            self._discard()
            raise

    def publish(self, commit: Commit) -> None:
        """Nothing: readers see a transaction when it commits."""

    def announce(self, last: Commit) -> None:
        """Nothing: the database is the one to ask."""

    def rewrite(self, last: Commit) -> Commit | None:
        return None

    def _move(self, transaction: Transaction, part: _Part) -> None:
        """Staged records into their table, which is made if it is not there."""
        table, staging = self._qualified(part.table), self._qualified(part.staging)
        existing = self._existing(transaction, part.table)
        if existing is None:
            transaction.run(create_target(part.columns, table=table))
        else:
            check_fit(part.columns, existing, table=table)
        moved = transaction.run(
            insert_staged(part.columns, existing or {}, table=table, staging=staging)
        )
        if moved != part.records:
            raise DataLossError(
                f"Expected {part.records:,} records, which were staged for {table}, but it took "
                f"{moved:,}; nothing was committed. Does the table have a trigger, a rule or "
                "policies that leave rows out?"
            )
        transaction.run(f"DROP TABLE {staging}")

    def _check_fit(self, name: str, columns: Sequence[TableColumn]) -> None:
        with self._database.transaction() as transaction:
            existing = self._existing(transaction, name)
        if existing is not None:
            check_fit(columns, existing, table=self._qualified(name))

    def _existing(self, transaction: Transaction, name: str) -> Mapping[str, Existing] | None:
        """The columns of a table; None if there is none of that name."""
        kinds = transaction.rows(
            "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(?)", self._qualified(name)
        )
        if not kinds:
            return None
        if kinds[0][0] not in ("r", "p"):
            raise WarehouseError(
                f"{self._qualified(name)} is no table but a view or of another kind, into which "
                "records and offsets do not go together. Load into a table."
            )
        found = transaction.rows(
            "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef "
            "AND attidentity = '' FROM pg_attribute WHERE attrelid = to_regclass(?) AND "
            "attnum > 0 AND NOT attisdropped",
            self._qualified(name),
        )
        return {column: Existing(kind, needed) for column, kind, needed in found}

    # -- staging --------------------------------------------------------------------------

    @property
    def _staging_prefix(self) -> str:
        """Of the table's own; a name of 63 bytes leaves no room for the table's."""
        return f"logbus_staging_{hashlib.sha256(self._table.name.encode()).hexdigest()[:16]}_"

    def _staging_tables(self, transaction: Transaction) -> list[str]:
        found = transaction.rows(
            "SELECT tablename::text FROM pg_tables WHERE schemaname = ? AND "
            "starts_with(tablename, ?) ORDER BY tablename",
            self._table.schema,
            self._staging_prefix,
        )
        return [name for (name,) in found]

    def _write(self, frame: DataFrame, columns: Sequence[TableColumn], name: str) -> None:
        staging = self._qualified(name)
        with self._database.transaction() as transaction:
            transaction.run(create_staging(columns, table=staging))
        # Spark's own option for it, numPartitions, hides from the load what passes through.
        bounded = staged_frame(frame).coalesce(_CONNECTIONS)
        writer = bounded.write.format("jdbc").options(**self._options)
        writer.option("dbtable", staging).mode("append").save()

    def _tally(self, name: str, schema: StructType) -> Tally:
        return tally_of(self._read(name, schema, *TALLIED))

    def _read(self, name: str, schema: StructType, *wanted: str) -> DataFrame:
        """Columns of what is staged, under the names that they will have."""
        listed = [
            F.col(numbered(place)).alias(each.name)
            for place, each in enumerate(schema.fields)
            if each.name in wanted
        ]
        reader = self._spark.read.format("jdbc").options(**self._options)
        return reader.option("dbtable", self._qualified(name)).load().select(*listed)

    def _known(self, name: str) -> DataFrame:
        """The rows of a table of records, as far as they say which record each of them is."""
        reader = self._spark.read.format("jdbc").options(**self._options)
        found = reader.option("dbtable", self._qualified(name)).load()
        # A table that was there before the first load may have wider numbers.
        return found.select(*(F.col(each).cast(kind) for each, kind in _ROWS.items()))

    def _staging(self, what: str, name: str) -> Any:
        return translated(f"{what} in {self._qualified(name)} of {self._database.address}")

    def _discard(self) -> None:
        """What is staged of a load that is refused; the next one would drop it too."""
        with suppress(WarehouseError), self._database.transaction() as transaction:
            for part in self._parts:
                transaction.run(f"DROP TABLE IF EXISTS {self._qualified(part.staging)}")

    @property
    def _options(self) -> dict[str, str]:
        """Spark's, for the same connections."""
        return {
            **self._database.properties,
            "url": self._table.url,
            "driver": DRIVER,
            "batchsize": _BATCH_ROWS,
            "fetchsize": _BATCH_ROWS,
        }

    def _qualified(self, name: str) -> str:
        return f"{quoted(self._table.schema)}.{quoted(name)}"
