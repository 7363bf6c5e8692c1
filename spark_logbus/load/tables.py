"""Names of the tables that loads write to, checked when built.

A password comes from a file or the environment, and a URL that holds one is refused: everyone on
the machine can read a command line, and jobs are logged with theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

from spark_logbus.errors import ConfigError
from spark_logbus.security.addresses import holds_password

#: Environment variables of a database, by the connection property that they stand for.
ENVIRONMENT: Final = {"user": "LOGBUS_JDBC_USER", "password": "LOGBUS_JDBC_PASSWORD"}
#: PostgreSQL cuts off a longer name, without an error.
MAX_NAME_BYTES: Final = 63

_JDBC: Final = "jdbc:postgresql:"
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_$]*"
_JDBC_TABLE: Final = re.compile(rf"(?:({_NAME})\.)?({_NAME})")
_SECRETS: Final = ("password", "sslpassword")
_HIVE_TABLE: Final = re.compile(r"(\w+)\.(\w+)", re.ASCII)
#: After the name of a lake's table: its dead letters.
_DEAD_LETTERS: Final = "_dead_letters"


@dataclass(frozen=True, slots=True)
class JdbcTable:
    """A table, by its exact name, in a database that is reached by JDBC. Checked when built."""

    url: str
    table: str  # schema.table; without a schema: in public
    #: Properties of connections: user, password and whatever the driver knows. Never shown.
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(_JDBC):
            shown = ":".join(self.url.split(":")[:2])
            raise ConfigError(
                f"--jdbc-url begins with {shown!r}, expected {_JDBC}//host:port/database. A load "
                "makes, fills and drops tables in one transaction, which other databases end at "
                "each of these steps."
            )
        address, _, parameters = self.url.partition("?")
        named = [name.lower() for name, _ in parse_qsl(parameters, keep_blank_values=True)]
        if any(secret in named for secret in _SECRETS) or "@" in address:
            raise ConfigError(
                "--jdbc-url holds credentials, which everyone on the machine could read. Put user "
                f"and password into the file of --jdbc-properties, or into "
                f"{' and '.join(ENVIRONMENT.values())}."
            )
        if _JDBC_TABLE.fullmatch(self.table) is None:
            raise ConfigError(
                f"--jdbc-table is {self.table!r}, expected schema.table, of letters, digits, _ and "
                "$, as the database's catalogue has it."
            )
        for name in (self.schema, self.dead_letters):
            if len(name) > MAX_NAME_BYTES:
                raise ConfigError(
                    f"--jdbc-table {self.table} needs the name {name}, of {len(name)} bytes; the "
                    f"database takes {MAX_NAME_BYTES}. Choose a shorter one."
                )

    @property
    def schema(self) -> str:
        return self.table.rpartition(".")[0] or "public"

    @property
    def name(self) -> str:
        return self.table.rpartition(".")[2]

    @property
    def dead_letters(self) -> str:
        return f"{self.name}_dead_letters"

    @property
    def address(self) -> str:
        """The database, without parameters of the connection."""
        return self.url.partition("?")[0]

    def __str__(self) -> str:
        return f"{self.address} {self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class TableName:
    """Name of a table in the Hive metastore. Immutable."""

    database: str
    table: str

    @staticmethod
    def parse(text: str) -> TableName:
        """Raises ConfigError unless ``text`` is ``db.table``."""
        parts = _HIVE_TABLE.fullmatch(text)
        if parts is None:
            raise ConfigError(
                f"--hive-table is {text!r}, expected database.table of letters, digits and "
                "underscores, as in default.flights."
            )
        return TableName(*parts.groups())

    @property
    def quoted(self) -> str:
        return f"`{self.database}`.`{self.table}`"

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A Delta table, by the path or URI of its directory. Checked when built."""

    uri: str
    #: Options of the storage, as the library ``deltalake`` names them. Never shown.
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.uri.strip("/ "):
            raise ConfigError(f"--delta is {self.uri!r}, expected the path or URI of a table.")
        _check_no_credentials(
            "--delta",
            self.uri,
            remedy="Put them into the file of --lake-properties, or into the environment.",
        )

    @property
    def dead_letters(self) -> DeltaTable:
        """Table of the records that do not decode."""
        return DeltaTable(self.uri.rstrip("/") + _DEAD_LETTERS, self.options)

    def __str__(self) -> str:
        return self.uri.rstrip("/")


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """An Iceberg table, by its catalogue and its name there. Checked when built."""

    catalog: str
    #: Namespace and table, with dots between: ``lake.flights``.
    table: str
    #: Properties of the catalogue and of its storage, as the library ``pyiceberg`` names them,
    #: which win over those of its own configuration. Never shown.
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not all(self.identifier) or len(self.identifier) < 2 or not self.catalog:
            raise ConfigError(
                f"--iceberg is {str(self).rstrip('.')!r}, expected catalogue, namespace and "
                "table, as in prod.lake.flights."
            )

    @staticmethod
    def parse(text: str, properties: Mapping[str, str]) -> IcebergTable:
        """Parses ``catalogue.namespace.table``. Raises ConfigError."""
        catalog, _, table = text.partition(".")
        return IcebergTable(catalog, table, properties)

    @property
    def identifier(self) -> tuple[str, ...]:
        """Parts of the table's name in the catalogue."""
        return tuple(self.table.split("."))

    @property
    def dead_letters(self) -> IcebergTable:
        """Table of the records that do not decode."""
        return IcebergTable(self.catalog, self.table + _DEAD_LETTERS, self.properties)

    def __str__(self) -> str:
        return f"{self.catalog}.{self.table}"


TableOfLake: TypeAlias = DeltaTable | IcebergTable
"""A table of a lake, in either format."""


def check_warehouse(root: str) -> None:
    """Raises ConfigError for a directory whose URI has a password in it."""
    _check_no_credentials(
        "--warehouse",
        root,
        remedy="Put them into Hadoop's configuration (as fs.s3a.access.key), or its credential "
        "store.",
    )


def _check_no_credentials(option: str, uri: str, *, remedy: str) -> None:
    if holds_password(uri):
        raise ConfigError(
            f"{option} holds credentials, which everyone on the machine could read. {remedy}"
        )
