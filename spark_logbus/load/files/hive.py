"""A table of a Hive metastore over a warehouse's files, for readers in SQL.

The load writes and commits its files as it does without a table. The table is an external one over
them: it has the warehouse's columns, a partition for each directory, and in a property the load
that it was told of last. After each load has been published it is told what came: new columns,
directories, then the property. All of that may be repeated, and each load begins with what the one
before it left untold, because it was killed or the metastore was away. A table that is not there is
made, with the partitions of all loads so far.

It is a table as Spark's ``USING parquet`` makes them, which Spark reads with its own reader, and
which stands in the metastore as a table of Hive where Hive has all its types.

A table that a load could not keep so is refused, before the load writes anything.

Names of databases and tables are letters, digits and underscores, as Hive has it; names of columns,
values of directories and paths may be anything, and are quoted in statements.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_logbus.errors import ConfigError, Fault, LogbusError
from spark_logbus.load.commit import Commit
from spark_logbus.load.errors import WarehouseError, reason
from spark_logbus.load.files.warehouse import Warehouse
from spark_logbus.load.layout import FileFormat, Layout
from spark_logbus.load.tables import TableName

#: The property with the name of the last load's staging directory, which no other load has.
LOAD_PROPERTY: Final = "logbus.load"

#: Partitions of one statement: Spark parses it whole, and sends them to the metastore by the
#: hundred.
PARTITIONS_PER_STATEMENT: Final = 500

_ESCAPED: Final = re.compile("%([0-9A-Fa-f]{2})")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_UNWRITTEN: Final = "Nothing was written."


class MetastoreError(WarehouseError):
    """The metastore does not answer, or refuses what the load asks of it."""

    fault: ClassVar[Fault] = "server"
    retriable: ClassVar[bool] = True


class HiveTableError(WarehouseError):
    """The table in the metastore is not one over this warehouse."""


@dataclass(frozen=True, slots=True)
class MetastoreTable:
    """A table as the metastore has it. Immutable."""

    kind: str  # EXTERNAL, MANAGED or VIEW
    provider: str
    location: str
    columns: StructType  # those that name directories last
    partition_columns: tuple[str, ...] = ()
    load: str | None = None  # LOAD_PROPERTY


def table_mismatch(found: MetastoreTable, layout: Layout, *, path: str) -> str | None:
    """Tells what keeps a table from being one over the warehouse at ``path`` (pure)."""
    if found.kind != "EXTERNAL":
        return f"is a {found.kind.lower()}{'' if found.kind == 'VIEW' else ' table'}"
    if found.provider != layout.format.value:
        return f"has the format {found.provider}, and the warehouse {layout.format.value}"
    if found.location != path:
        return f"is at {found.location}, and the warehouse at {path}"
    there, wanted = (
        [name.lower() for name in names]
        for names in (found.partition_columns, layout.partition_columns)
    )
    if there != wanted:
        return f"is partitioned by {_listed(there)}, and the warehouse by {_listed(wanted)}"
    return None


def missing_columns(found: StructType, wanted: StructType) -> StructType | str:
    """Columns to add, so that the table has all that are wanted (pure); or what keeps them out.

    A column that the table alone has is null for readers, and may stay.
    """
    there = {field.name.lower(): field.dataType for field in found.fields}
    added = StructType()
    for field in wanted.fields:
        kind = there.get(field.name.lower())
        if kind is None:
            added = added.add(field)
        # Compared without what may be null: DDL does not tell it of elements of arrays.
        elif (before := kind.simpleString()) != (now := field.dataType.simpleString()):
            return f"has the column {field.name} as {before}, and the warehouse as {now}"
    return added


class HiveTable:
    """The table over one topic's warehouse. Not thread-safe."""

    def __init__(self, spark: SparkSession, name: str, warehouse: Warehouse) -> None:
        self._spark = spark
        self._name = TableName.parse(name)
        self._warehouse = warehouse

    def check(self, layout: Layout, stored: StructType | None) -> None:
        """Checks that the table can be kept, before anything is written; ``stored`` are the columns
        of the warehouse, as far as they are known.

        Raises ConfigError without Hive support, MetastoreError, HiveTableError.
        """
        implementation = self._spark.conf.get("spark.sql.catalogImplementation")
        if implementation != "hive":
            raise ConfigError(
                f"--hive-table {self._name} needs a session with Hive's metastore, and this one "
                f"has the catalog {implementation}; make it with enableHiveSupport()."
            )
        with self._translated(_UNWRITTEN):
            if not self._spark.catalog.databaseExists(self._name.database):
                raise HiveTableError(
                    f"--hive-table is {self._name}, and the metastore has no database "
                    f"{self._name.database}; make it with CREATE DATABASE, or name another. "
                    f"{_UNWRITTEN}"
                )
            found = self._found()
        if found is not None:
            self._missing_columns(found, layout, stored, _UNWRITTEN)

    def register(self, commit: Commit) -> None:
        """Tell the table of all loads up to ``commit``, which are published; repeating it is
        harmless.

        Raises MetastoreError, HiveTableError.
        """
        state = (
            f"Load {commit.number} is committed and its files are in place; the next load, also "
            "one with nothing new, tells the table."
        )
        with self._translated(state):
            found = self._found()
            stored = self._warehouse.schema(commit)
            if stored is None or (found is not None and found.load == commit.staging):
                return
            layout = commit.layout
            if found is None:
                statements = [
                    create_table(
                        self._name,
                        layout.table_schema(stored).toDDL(),
                        partition_columns=layout.partition_columns,
                        format=layout.format,
                        location=self._warehouse.path,
                    )
                ]
            else:
                added = self._missing_columns(found, layout, stored, state)
                statements = [add_columns(self._name, added.toDDL())] if added else []
            if layout.partition_columns:
                told = None if found is None else found.load
                directories = self._warehouse.directories_since(told)
                statements += add_partitions(self._name, directories)
            statements.append(set_property(self._name, LOAD_PROPERTY, commit.staging))
            with _as_written(self._spark):
                for statement in statements:
                    self._spark.sql(statement)
            # Queries of this session: they keep a listing of the files.
            self._spark.catalog.refreshTable(self._name.quoted)

    def _missing_columns(
        self, found: MetastoreTable, layout: Layout, stored: StructType | None, state: str
    ) -> StructType:
        """Columns that the table lacks; HiveTableError where it is none over this warehouse."""
        wrong: StructType | str | None = table_mismatch(found, layout, path=self._warehouse.path)
        if wrong is None:
            wrong = missing_columns(found.columns, layout.table_schema(stored or StructType()))
        if isinstance(wrong, str):
            view = "VIEW" if found.kind == "VIEW" else "TABLE"
            files = "; its files stay" if found.kind == "EXTERNAL" else ""
            raise HiveTableError(
                f"--hive-table {self._name} {wrong}. {state} Name another table, or "
                f"DROP {view} {self._name}{files}, and the next load makes it anew over the "
                "warehouse."
            )
        return wrong

    def _found(self) -> MetastoreTable | None:
        jvm: Any = self._spark._jvm
        catalog: Any = self._spark._jsparkSession.sessionState().catalog()
        name = jvm.org.apache.spark.sql.catalyst.TableIdentifier(
            self._name.table, jvm.scala.Option.apply(self._name.database)
        )
        if not catalog.tableExists(name):
            return None
        table = catalog.getTableMetadata(name)
        kind, provider = str(table.tableType().name()), table.provider()
        load = table.properties().get(LOAD_PROPERTY)
        partition_columns = StructType.fromJson(json.loads(table.partitionSchema().json()))
        return MetastoreTable(
            kind,
            str(provider.get()).lower() if provider.isDefined() else "",
            str(jvm.org.apache.hadoop.fs.Path(table.location()).toString())
            if table.storage().locationUri().isDefined()
            else "",
            StructType.fromJson(json.loads(table.schema().json())),
            tuple(partition_columns.names),
            str(load.get()) if load.isDefined() else None,
        )

    @contextmanager
    def _translated(self, state: str) -> Iterator[None]:
        """Errors of Spark, Hive and the JVM as one MetastoreError, that tells the state of the
        load."""
        try:
            yield
        except LogbusError:
            raise
        except Exception as error:  # as in errors.translated
            raise MetastoreError(
                f"The Hive metastore does not take what --hive-table {self._name} needs: "
                f"{reason(error)} {state} See to it that the metastore runs, and that Spark has "
                "its address (hive.metastore.uris in hive-site.xml) and its jars for Hive, then "
                "run the load again."
            ) from error


@contextmanager
def _as_written(spark: SparkSession) -> Iterator[None]:
    """Statements mean what is written here, however the session is set: Spark puts its settings in
    for ``${name}`` otherwise, also within quotes."""
    settings = ("spark.sql.variable.substitute", "spark.sql.parser.escapedStringLiterals")
    before = {key: spark.conf.get(key) for key in settings}
    for key in settings:
        spark.conf.set(key, "false")
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, str(value))


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "nothing"


# -- statements ----------------------------------------------------------------------------


def create_table(
    name: TableName,
    columns: str,
    *,
    partition_columns: Sequence[str],
    format: FileFormat,
    location: str,
) -> str:
    """``columns`` are all of them, as DDL. With a location the table is external: dropping it
    leaves the files."""
    divided = f" PARTITIONED BY ({', '.join(map(_quoted, partition_columns))})"
    return (
        f"CREATE TABLE {name.quoted} ({columns}) USING {format.value}"
        f"{divided if partition_columns else ''} LOCATION {_literal(location)}"
    )


def add_columns(name: TableName, columns: str) -> str:
    return f"ALTER TABLE {name.quoted} ADD COLUMNS ({columns})"


def add_partitions(name: TableName, directories: Sequence[str]) -> Iterator[str]:
    """Statements that may be repeated, for directories like ``date=2013-01-01/hour=5``; the
    partitions are where the table's location and their values say."""
    for first in range(0, len(directories), PARTITIONS_PER_STATEMENT):
        some = directories[first : first + PARTITIONS_PER_STATEMENT]
        clauses = " ".join(f"PARTITION ({_values(directory)})" for directory in some)
        yield f"ALTER TABLE {name.quoted} ADD IF NOT EXISTS {clauses}"


def set_property(name: TableName, key: str, value: str) -> str:
    return f"ALTER TABLE {name.quoted} SET TBLPROPERTIES ({_literal(key)} = {_literal(value)})"


def _values(directory: str) -> str:
    pairs = []
    for part in directory.split("/"):
        column, _, value = part.partition("=")
        what = "NULL" if value == _NULL else _literal(_unescaped(value))
        pairs.append(f"{_quoted(_unescaped(column))} = {what}")
    return ", ".join(pairs)


def _unescaped(name: str) -> str:
    """Undoes the escapes that Spark and Hive put into the names of directories."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
