"""Columns of a table for those of a load: their types, and which types of a table that is there
already take each value unchanged (pure).

A value that a column would round, pad or cut off is refused by the column's type, before anything
is written. Structs, lists and maps become JSON: so do headers, with values in base64.

Values go through a staging table whose columns are numbered, because names of fields are free text
that not every layer in between quotes. It holds JSON, and times without a zone, as text: the
database makes its own types of them, and no layer in between converts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_logbus.errors import ConfigError
from spark_logbus.load.chosen_columns import exact_column
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.schema import IncompatibleColumnsError
from spark_logbus.load.tables import MAX_NAME_BYTES

_TEXT: Final = "text"
_ZONED: Final = "timestamp with time zone"
_ZONELESS: Final = "timestamp without time zone"

#: For each type, those that take all its values; the first is what a load makes.
_TYPES: Final[Mapping[type[DataType], tuple[str, ...]]] = {
    StringType: (_TEXT, "character varying"),
    BinaryType: ("bytea",),
    BooleanType: ("boolean",),
    ByteType: ("smallint", "integer", "bigint", "numeric"),
    ShortType: ("smallint", "integer", "bigint", "numeric"),
    IntegerType: ("integer", "bigint", "numeric"),
    LongType: ("bigint", "numeric"),
    FloatType: ("real", "double precision"),
    DoubleType: ("double precision",),
    DateType: ("date",),
    TimestampType: (_ZONED,),
    TimestampNTZType: (_ZONELESS,),
    StructType: ("json", "jsonb", _TEXT),
    ArrayType: ("json", "jsonb", _TEXT),
    MapType: ("json", "jsonb", _TEXT),
}
_NESTED: Final = (StructType, ArrayType, MapType)
#: To the microsecond, in UTC; a field that is null is told.
_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}

#: Columns that say which record a row is, whichever load has brought it, and when that was.
ROWS: Final = (
    StructType()
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
)


class UnknownRowsError(WarehouseError):
    """The rows of a table do not say which record of the log each of them is."""


@dataclass(frozen=True, slots=True)
class ExistingColumn:
    """A column of a table that is there. Immutable."""

    type: str  # as the database writes it, with length and precision
    needed: bool  # may not be null, and has no default


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a load, as the database has it. Immutable."""

    name: str
    types: tuple[str, ...]  # which take all its values; the first where the load makes the table
    staged: str  # its type in the staging table

    def into(self, existing: Mapping[str, ExistingColumn]) -> str:
        """SQL type of this column in the target table."""
        there = existing.get(self.name)
        return self.types[0] if there is None else there.type


def quoted(name: str) -> str:
    """Quotes an identifier, taken exactly as it is."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def columns_of(schema: StructType) -> tuple[TableColumn, ...]:
    """Returns the columns of a table for a schema. Raises ConfigError for one that no table can
    have."""
    return tuple(_column(field.name, field.dataType) for field in schema.fields)


def _column(name: str, kind: DataType) -> TableColumn:
    length = len(name.encode())
    if length > MAX_NAME_BYTES or not name or "\0" in name:
        raise ConfigError(
            f"The values have a field {name!r}, of {length} bytes, which cannot name a column; the "
            f"database takes 1 to {MAX_NAME_BYTES}. Leave it out of --json-schema, or load into "
            "files."
        )
    if isinstance(kind, DecimalType):
        exact = f"numeric({kind.precision},{kind.scale})"
        return TableColumn(name, (exact, "numeric"), exact)
    types = _TYPES.get(type(kind))
    if types is None:
        raise ConfigError(
            f"The values have a field {name} of the type {kind.simpleString()}, for which there is "
            "no type in the database; name it as another type, as string, or leave it out."
        )
    as_text = isinstance(kind, (*_NESTED, TimestampNTZType))
    return TableColumn(name, types, _TEXT if as_text else types[0])


def check_fit(
    columns: Sequence[TableColumn], existing: Mapping[str, ExistingColumn], *, table: str
) -> None:
    """Raises IncompatibleColumnsError unless a table with the columns ``existing`` takes those of
    the load."""
    nothing = "Nothing was written."
    for column in columns:
        there = existing.get(column.name)
        if there is None:
            raise IncompatibleColumnsError(
                f"Table {table} has no column {column.name}, which the load brings. {nothing} Add "
                f"it (ALTER TABLE {table} ADD COLUMN {quoted(column.name)} {column.types[0]}), "
                "leave the field out, or load into another table."
            )
        if there.type not in column.types:
            wanted = " or ".join(column.types)
            raise IncompatibleColumnsError(
                f"Column {column.name} of {table} is {there.type}, expected {wanted}, which hold "
                f"every value of the load as it is. {nothing} Change the column's type, load the "
                "field with another, or load into another table."
            )
    known = {column.name for column in columns}
    for name, other in existing.items():
        if other.needed and name not in known:
            raise IncompatibleColumnsError(
                f"Column {name} of {table} may not be null and has no default, and the load does "
                f"not bring it. {nothing} Give it a default, or let it be null."
            )


def check_known(existing: Mapping[str, ExistingColumn], *, table: str) -> None:
    """Raises UnknownRowsError unless a table with these columns has those of ``ROWS`` (pure)."""
    for column in columns_of(ROWS):
        there = existing.get(column.name)
        if there is None or there.type not in column.types:
            found = "none of that name" if there is None else there.type
            raise UnknownRowsError(
                f"Which record of the log a row of {table} is, is not known: its column "
                f"{column.name} is {found}, expected {' or '.join(column.types)}. Nothing was "
                "changed. Restore the column as it was loaded, or load into another table with "
                "--from."
            )


def staged_frame(frame: DataFrame) -> DataFrame:
    """Selects the columns as the staging table has them, under their numbers."""
    names = [numbered(place) for place in range(len(frame.columns))]
    kinds = [field.dataType for field in frame.schema.fields]
    staged = (_staged(F.col(n), kind).alias(n) for n, kind in zip(names, kinds, strict=True))
    return frame.toDF(*names).select(*staged)


def with_json_texts(frame: DataFrame) -> DataFrame:
    """Replaces structs, lists and maps by the JSON texts that the database gets of them."""
    nested = (each.name for each in frame.schema.fields if isinstance(each.dataType, _NESTED))
    return frame.withColumns({name: F.to_json(exact_column(name), _JSON) for name in nested})


def numbered(place: int) -> str:
    """The name of a staged column."""
    return f"c{place}"


def _staged(column: Column, kind: DataType) -> Column:
    if isinstance(kind, _NESTED):
        return F.to_json(column, _JSON)
    return column.cast("string") if isinstance(kind, TimestampNTZType) else column


def create_staging(columns: Sequence[TableColumn], *, table: str) -> str:
    listed = ", ".join(f"{numbered(place)} {each.staged}" for place, each in enumerate(columns))
    return f"CREATE TABLE {table} ({listed})"


def create_target(columns: Sequence[TableColumn], *, table: str) -> str:
    """Statement that makes the table. One record has one row: the database refuses a second."""
    listed = ", ".join(f"{quoted(each.name)} {each.types[0]}" for each in columns)
    return f'CREATE TABLE {table} ({listed}, PRIMARY KEY ("partition", "offset"))'


def insert_staged(
    columns: Sequence[TableColumn],
    existing: Mapping[str, ExistingColumn],
    *,
    table: str,
    staging: str,
) -> str:
    """Statement that moves staged rows: text becomes what the target has in its place; other types
    are the same, or wider."""
    names = ", ".join(quoted(each.name) for each in columns)
    values = ", ".join(
        numbered(place) if each.staged == each.into(existing) else _cast(place, each, existing)
        for place, each in enumerate(columns)
    )
    return f"INSERT INTO {table} ({names}) SELECT {values} FROM {staging}"


def _cast(place: int, column: TableColumn, existing: Mapping[str, ExistingColumn]) -> str:
    return f"CAST({numbered(place)} AS {column.into(existing)})"
