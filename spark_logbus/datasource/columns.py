"""The columns that the source offers, and the choice of them that ``.schema(...)`` makes.

Names, types and order are those of Spark's Kafka source. Spark does not prune columns of a Python
source by itself; a schema with fewer columns is how a reader says which it needs, and only those
are built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_logbus.config import nearest
from spark_logbus.errors import InvalidOptionError

HEADERS_TYPE = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}

# Columns that a record may leave null, so that a schema must not promise otherwise.
_NULLABLE = ("key", "value", "headers")


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The columns to build, in order. Picklable: it goes to the tasks."""

    schema: StructType

    @property
    def names(self) -> list[str]:
        return list(self.schema.names)

    def arrow_schema(self) -> Any:
        """Exactly the Arrow schema that Spark compares the first arrow batch with."""
        return to_arrow_schema(self.schema, timezone="UTC")


def full_schema(*, include_headers: bool) -> StructType:
    fields = [StructField(name, kind) for name, kind in COLUMNS.items()]
    if include_headers:
        fields.append(StructField("headers", HEADERS_TYPE))
    return StructType(fields)


def choose_columns(schema: StructType, *, include_headers: bool) -> ColumnChoice:
    """Check a schema that Spark hands over, a user's or our own, column by column."""
    offered = full_schema(include_headers=include_headers)
    types = {field.name: field.dataType for field in offered.fields}
    if not schema.fields:
        raise InvalidOptionError("The schema of a logbus read needs at least one column, got none.")
    seen: set[str] = set()
    for field in schema.fields:
        if field.name not in types:
            raise InvalidOptionError(_unknown_column(field.name, list(types)))
        if field.name in seen:
            raise InvalidOptionError(f"The schema names the column {field.name} twice.")
        seen.add(field.name)
        _check_type(field, types[field.name])
    return ColumnChoice(schema)


def _check_type(field: StructField, expected: DataType) -> None:
    if field.dataType != expected:
        raise InvalidOptionError(
            f"The schema gives column {field.name} the type {field.dataType.simpleString()}, "
            f"the source has {expected.simpleString()}; read that, and cast it in a select."
        )
    if field.name in _NULLABLE and not field.nullable:
        raise InvalidOptionError(
            f"The schema says that column {field.name} is NOT NULL, but a record may have none; "
            "leave NOT NULL out, and filter in a where."
        )


def _unknown_column(name: str, offered: list[str]) -> str:
    if name == "headers":
        return "The schema has the column headers; set the option includeHeaders to true for it."
    meant = nearest(name, offered)
    hint = f"did you mean {meant}?" if meant else f"it has {', '.join(offered)}."
    return f"The schema names the column {name}, which the logbus source does not have; {hint}"
