"""The table to load into, and how its database is reached.

Whoever is on the machine sees a command line, and jobs are logged with theirs. So a password comes
from a file or the environment, and a URL that holds one is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from spark_logbus.errors import ConfigError

#: Environment variables, by the connection property that they stand for.
ENVIRONMENT: Final = {"user": "LOGBUS_JDBC_USER", "password": "LOGBUS_JDBC_PASSWORD"}
_PREFIX: Final = "jdbc:postgresql:"
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_$]*"
_TABLE: Final = re.compile(rf"(?:({_NAME})\.)?({_NAME})")
_SECRETS: Final = ("password", "sslpassword")
_DEAD_LETTERS: Final = "_dead_letters"
#: PostgreSQL cuts off what is longer, without an error.
MAX_NAME_BYTES: Final = 63


@dataclass(frozen=True, slots=True)
class JdbcTable:
    """A table, by its exact name, in a database that is reached by JDBC. Checked when built."""

    url: str
    table: str  # schema.table; without a schema: in public
    #: Of connections: user, password and whatever the driver knows. Never shown.
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(_PREFIX):
            shown = ":".join(self.url.split(":")[:2])
            raise ConfigError(
                f"--jdbc-url begins with {shown!r}, expected {_PREFIX}//host:port/database. A load "
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
        if _TABLE.fullmatch(self.table) is None:
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
        return f"{self.name}{_DEAD_LETTERS}"

    @property
    def address(self) -> str:
        """The database, without parameters of the connection."""
        return self.url.partition("?")[0]

    def __str__(self) -> str:
        return f"{self.address} {self.schema}.{self.name}"


def properties_of(path: str | None) -> dict[str, str]:
    """Those in the file, in Java's form of one ``name=value`` a line, and in the environment,
    which wins. Raises ConfigError."""
    properties = {} if path is None else _read(path)
    for name, variable in ENVIRONMENT.items():
        if variable in os.environ:
            properties[name] = os.environ[variable]
    return properties


def _read(path: str) -> dict[str, str]:
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--jdbc-properties {path} cannot be read: {error}.") from error
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            # The line itself may be a password.
            raise ConfigError(
                f"Line {number} of --jdbc-properties {path} is no name=value, as in user=loader; "
                "comments begin with #."
            )
        found[name.strip()] = value.strip()
    return found
