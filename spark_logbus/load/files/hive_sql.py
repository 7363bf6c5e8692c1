"""SQL that makes and keeps a table over a warehouse's files.

Pure: text out of names. Names of databases and tables are letters, digits and underscores, as Hive
has it; names of columns, values of directories and paths may be anything, and are quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from spark_logbus.load.config import TableName
from spark_logbus.load.layout import FileFormat

#: Of one statement: Spark parses it whole, and sends them to the metastore by the hundred.
PARTITIONS_PER_STATEMENT: Final = 500

_ESCAPED: Final = re.compile("%([0-9A-Fa-f]{2})")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


def create(
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
    """What Spark and Hive have put into the name of a directory."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
