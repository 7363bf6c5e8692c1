"""Transactions on a database, through the JVM that Spark runs in.

The driver is loaded as Spark's own JDBC source loads it, so that what ``--packages`` and ``--jars``
bring is found. Each transaction has a connection of its own: between two of them Spark reads and
writes for minutes or hours, and a connection that idles so long may be cut off on its way.

A load that stands still in a transaction would keep the next one waiting. So nobody waits for a
lock for longer than ``LOCK_S``, and the server itself ends a transaction in which nothing happens
for ``IDLE_S``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_logbus.errors import ConfigError, Fault
from spark_logbus.load.errors import WarehouseError, reason
from spark_logbus.load.jdbc.columns import ExistingColumn, quoted
from spark_logbus.load.tables import ENVIRONMENT, MAX_NAME_BYTES, JdbcTable

DRIVER: Final = "org.postgresql.Driver"
#: More than another load's transaction takes between two statements, and a person would wait.
LOCK_S: Final = 30
#: More than the driver of a load needs between two statements on a machine that swaps.
IDLE_S: Final = 60

#: Connections of Spark in one load: a database takes a hundred in all by default.
_CONNECTIONS: Final = 8
#: Rows that go to the database at once, and come back.
_BATCH_ROWS: Final = "10000"

_LOCK_NOT_AVAILABLE: Final = "55P03"
_UNIQUE_VIOLATION: Final = "23505"
_DUPLICATE_TABLE: Final = "42P07"
# Of SQLSTATE, the classes and states of a database that is away, and may come back.
_AWAY: Final = ("08", "57P", "53", "25P03")


class DatabaseError(WarehouseError):
    """The database refuses what a load asks of it; ``state`` is its SQLSTATE."""

    fault: ClassVar[Fault] = "server"
    state: str = ""

    @property
    def is_taken(self) -> bool:
        """Another transaction has put in, or made, the very same."""
        return self.state in (_UNIQUE_VIOLATION, _DUPLICATE_TABLE)

    @property
    def is_locked(self) -> bool:
        """Another transaction is at it."""
        return self.state == _LOCK_NOT_AVAILABLE


class DatabaseUnavailableError(DatabaseError):
    """The database cannot be reached, or went away."""

    fault: ClassVar[Fault] = "network"
    retriable: ClassVar[bool] = True


class DriverMissingError(ConfigError):
    """The JDBC driver is not on Spark's class path."""


class JdbcTransaction:
    """One transaction under way. Not thread-safe."""

    def __init__(self, connection: Any, address: str) -> None:
        self._connection = connection
        self._address = address

    def run(self, sql: str, *parameters: object) -> int:
        """Runs a statement; returns the number of rows that it has changed."""
        with _translated(self._address), self._prepared(sql, parameters) as statement:
            return int(statement.executeLargeUpdate())

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Rows that a query finds, of texts, numbers, booleans and nulls."""
        with _translated(self._address), self._prepared(sql, parameters) as statement:
            found = statement.executeQuery()
            places = range(1, found.getMetaData().getColumnCount() + 1)
            rows = []
            while found.next():
                rows.append(tuple(found.getObject(place) for place in places))
            return rows

    def existing(self, table: str) -> Mapping[str, ExistingColumn] | None:
        """Columns of a table, by name; None if there is none of that qualified name."""
        kinds = self.rows("SELECT relkind::text FROM pg_class WHERE oid = to_regclass(?)", table)
        if not kinds:
            return None
        if kinds[0][0] not in ("r", "p"):
            raise WarehouseError(
                f"{table} is no table but a view or of another kind, into which records and "
                "offsets do not go together. Load into a table."
            )
        found = self.rows(
            "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef "
            "AND attidentity = '' FROM pg_attribute WHERE attrelid = to_regclass(?) AND "
            "attnum > 0 AND NOT attisdropped",
            table,
        )
        return {column: ExistingColumn(kind, needed) for column, kind, needed in found}

    def commit(self) -> None:
        with _translated(self._address):
            self._connection.commit()

    @contextmanager
    def _prepared(self, sql: str, parameters: tuple[object, ...]) -> Iterator[Any]:
        statement = self._connection.prepareStatement(sql)
        try:
            for place, parameter in enumerate(parameters, 1):
                statement.setObject(place, parameter)
            yield statement
        finally:
            statement.close()


class Database:
    """Database of a table: its transactions, and its tables as data frames. Not thread-safe."""

    def __init__(self, spark: SparkSession, table: JdbcTable, *, application: str) -> None:
        """``application`` is the name under which the database shows its connections."""
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._table = table
        self.properties: dict[str, str] = {
            # A connection that died without a word is noticed; inserts go many at a time.
            "tcpKeepAlive": "true",
            "reWriteBatchedInserts": "true",
            "ApplicationName": application[:MAX_NAME_BYTES],
            **table.properties,
        }

    @property
    def address(self) -> str:
        return self._table.address

    def qualified(self, name: str) -> str:
        """Name of a table in the schema, as statements write it."""
        return f"{quoted(self._table.schema)}.{quoted(name)}"

    @contextmanager
    def transaction(self) -> Iterator[JdbcTransaction]:
        """Opens a transaction, which commits at the end of the block unless that raises.

        Raises DatabaseError, DriverMissingError.
        """
        connection = self._connect()
        try:
            with _translated(self.address):
                connection.setAutoCommit(False)
            made = JdbcTransaction(connection, self.address)
            made.run(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
            made.run(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S}s'")
            yield made
            made.commit()
        finally:
            # What is not committed is rolled back by the server, also where this fails.
            self._close(connection)

    def read(self, name: str) -> DataFrame:
        """Reads a table of the schema, through one connection."""
        # Times without a zone would become instants else, of the session's zone.
        options = {**self._options(name), "preferTimestampNTZ": "true"}
        return self._spark.read.format("jdbc").options(**options).load()

    def append(self, frame: DataFrame, name: str) -> None:
        """Adds rows to a table that is there and has the columns of ``frame``."""
        # Spark's own option for it, numPartitions, hides from the load what passes through.
        writer = frame.coalesce(_CONNECTIONS).write.format("jdbc")
        writer.options(**self._options(name)).mode("append").save()

    def _options(self, name: str) -> dict[str, str]:
        return {
            **self.properties,
            "url": self._table.url,
            "driver": DRIVER,
            "dbtable": self.qualified(name),
            "batchsize": _BATCH_ROWS,
            "fetchsize": _BATCH_ROWS,
        }

    def _connect(self) -> Any:
        registry = self._jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry
        try:
            registry.register(DRIVER)
        except Exception as error:
            if "ClassNotFoundException" not in reason(error):
                raise
            raise DriverMissingError(
                f"There is no {DRIVER} on Spark's class path. Start the load with spark-submit "
                "--packages org.postgresql:postgresql:42.7.7, or with --jars and the driver's jar."
            ) from error
        with _translated(self.address):
            properties = self._jvm.java.util.Properties()
            for name, value in self.properties.items():
                properties.setProperty(name, value)
            connection = registry.get(DRIVER).connect(self._table.url, properties)
        if connection is None:
            raise ConfigError(
                f"--jdbc-url is {self._table.url!r}, which the driver does not know; expected "
                "jdbc:postgresql://host:port/database."
            )
        return connection

    def _close(self, connection: Any) -> None:
        # An error of the block says more, and without one the work is done.
        with suppress(DatabaseError), _translated(self.address):
            connection.rollback()
            connection.close()


@contextmanager
def _translated(address: str) -> Iterator[None]:
    """Raises errors of JDBC as a DatabaseError that says what to do."""
    try:
        yield
    except Py4JJavaError as error:
        java = error.java_exception
        gateway = SparkContext._gateway
        by_database = is_instance_of(gateway, java, "java.sql.SQLException")
        state = str(java.getSQLState() or "") if by_database else ""
        said = java.getMessage() if by_database else java.toString()
        raise error_of(state, str(said), address) from error
    except (Py4JError, PySparkException, OSError) as error:
        raise DatabaseUnavailableError(
            f"The connection to {address} was lost with Spark's JVM: {reason(error)}. Run the "
            "load again."
        ) from error


def error_of(state: str, text: str, address: str) -> DatabaseError:
    """Returns the error for an SQLSTATE (pure)."""
    said = " ".join(text.split())
    kind: type[DatabaseError] = DatabaseError
    match state:
        case _ if state.startswith(_AWAY):
            kind = DatabaseUnavailableError
            remedy = "Check that it runs and can be reached, and run the load again."
        case _ if state.startswith("28"):
            remedy = (
                "Put user and password into the file of --jdbc-properties, or into "
                f"{' and '.join(ENVIRONMENT.values())}."
            )
        case "3D000":
            remedy = "Create the database, or correct --jdbc-url."
        case "3F000":
            remedy = "Create the schema, or correct --jdbc-table."
        case "42501":
            remedy = (
                "Give the user the right to create tables in the schema, and to insert into the "
                "table; the load makes a staging table beside it."
            )
        case "22021" | "22P05":
            remedy = (
                "Its texts cannot hold the character with the number 0. Leave the field out, so "
                "that only the bytes of the value are kept, or load into files."
            )
        case _:
            remedy = "Nothing was committed. Run the load again once that is mended."
    error = kind(f"{address} says: {said}. {remedy}".replace(".. ", ". "))
    error.state = state
    return error
