"""The columns that the source offers, and the choice of them that ``.schema(...)`` makes.

Names, types and order are those of Spark's Kafka source. Spark does not prune columns of a Python
source by itself; a schema with fewer columns is how a reader says which it needs, and only those
are built.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_logbus.config import nearest
from spark_logbus.datasource.options import ValueOptions
from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import OnUndecodable
from spark_logbus.spark.field_names import PREFIX, clash, column_of, fields_of

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

# Columns that every record has. All others a record may leave null, also fields of a value that is
# null as a whole, so that a schema must not promise otherwise.
_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")

# Columns beside those of the fields of a value.
_RECORD_COLUMNS = frozenset({*COLUMNS, "headers", "undecodable"} - {"value"})

UNDECODABLE_TYPE = StructType(
    [StructField("value", BinaryType()), StructField("reason", StringType())]
)


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The columns to build, in order. Picklable: it goes to the tasks."""

    schema: StructType

    values: ValueOptions = ValueOptions()
    """How values of a topic with a schema are read."""

    @property
    def names(self) -> list[str]:
        return list(self.schema.names)

    @property
    def reads_fields(self) -> bool:
        """Is anything read of a typed value?"""
        return self._of_value != ()

    def value_fields(self, offered: Callable[[], Collection[str]]) -> tuple[str, ...] | None:
        """The fields of a typed value that are read; None: the value as a whole, which also tells
        what does not decode where nothing else is read of it.

        ``offered`` gives all fields of the value, and is asked for them only where it matters."""
        names = self._of_value
        if not self.values.flatten or not any(name.startswith(PREFIX) for name in names or ()):
            return names
        return tuple(fields_of(names or (), offered()))

    @property
    def _of_value(self) -> tuple[str, ...] | None:
        """The columns of fields, or the fields of the column ``value``; None: all of it."""
        fields: tuple[str, ...] = ()
        if self.values.flatten:
            fields = tuple(name for name in self.names if name not in _RECORD_COLUMNS)
        elif "value" in self.names:
            value = self.schema["value"].dataType
            return tuple(value.names) if isinstance(value, StructType) else None
        return None if not fields and "undecodable" in self.names else fields

    def arrow_schema(self) -> Any:
        """Exactly the Arrow schema that Spark compares the first arrow batch with."""
        return to_arrow_schema(self.schema, timezone="UTC")


def full_schema(*, include_headers: bool) -> StructType:
    """The columns of topics without a schema."""
    fields = [StructField(name, kind) for name, kind in COLUMNS.items()]
    if include_headers:
        fields.append(StructField("headers", HEADERS_TYPE))
    return StructType(fields)


def typed_schema(value: DataType, values: ValueOptions, *, include_headers: bool) -> StructType:
    """The columns of topics whose values are of that type.

    Raises InvalidOptionError for fields that cannot become columns, and columns that there are not.
    """
    record = full_schema(include_headers=include_headers)
    if values.on_undecodable is OnUndecodable.KEEP:
        record = record.add("undecodable", UNDECODABLE_TYPE)
    if values.flatten:
        if not isinstance(value, StructType):
            raise InvalidOptionError(
                f"Option flatten: the values are {value.simpleString()}, which has no fields; "
                "leave flatten out."
            )
        columns = {name: column_of(name) for name in value.names}
        both = clash(columns)
        if both is not None:
            raise InvalidOptionError(
                f"Option flatten: the field {both[0]} would be the column {columns[both[0]]}, as "
                f"every record has a column {both[0].lower()}, and the value has a field "
                f"{both[1]}, too; read it without flatten, as value."
            )
        fields = [StructField(columns[field.name], field.dataType) for field in value.fields]
        others = [field for field in record.fields if field.name != "value"]
        offered = StructType([*fields, *others])
    else:
        offered = StructType(
            [
                StructField("value", value) if field.name == "value" else field
                for field in record.fields
            ]
        )
    return offered if values.columns is None else _narrowed(offered, values)


def _narrowed(offered: StructType, values: ValueOptions) -> StructType:
    """The columns that the option ``columns`` names; fields of a value that is not flattened make a
    narrower one, where the first of them is named."""
    assert values.columns is not None
    by_name = {field.name: field for field in offered.fields}
    inner: dict[str, StructField] = {}
    if not values.flatten and isinstance(by_name["value"].dataType, StructType):
        inner = {field.name: field for field in by_name["value"].dataType.fields}
    chosen: list[StructField] = []
    fields: list[StructField] = []
    for name in values.columns:
        if name in by_name:
            chosen.append(by_name[name])
        elif name in inner:
            if not fields:
                chosen.append(StructField("value", StructType(fields)))
            fields.append(inner[name])
        else:
            raise InvalidOptionError(
                _unknown_column(name, [*inner, *by_name], by="Option columns names")
            )
    if fields and sum(field.name == "value" for field in chosen) > 1:
        raise InvalidOptionError(
            f"Option columns names value and its field {fields[0].name}; name the one or the other."
        )
    return StructType(
        [
            StructField("value", StructType(fields)) if fields and field.name == "value" else field
            for field in chosen
        ]
    )


def check_columns(schema: StructType, offered: StructType) -> None:
    """Check a schema that Spark hands over, a user's or our own, column by column.

    Raises InvalidOptionError.
    """
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


def _check_type(field: StructField, expected: DataType) -> None:
    top = field.name == "value"
    if not _gives(field.dataType, expected, top=top):
        if _gives(_nullable(field), expected, top=top):
            raise InvalidOptionError(
                f"The schema says that a part of column {field.name} is NOT NULL, which may be "
                "null; leave NOT NULL out, and filter in a where."
            )
        raise InvalidOptionError(
            f"The schema gives column {field.name} the type {field.dataType.simpleString()}, "
            f"the source has {expected.simpleString()}; read that, and cast it in a select."
        )
    if field.name not in _NEVER_NULL and not field.nullable:
        raise InvalidOptionError(
            f"The schema says that column {field.name} is NOT NULL, but a record may have none; "
            "leave NOT NULL out, and filter in a where."
        )


def _nullable(field: StructField) -> DataType:
    """Its type, of which every part may be null."""
    return StructType([field]).toNullable()[field.name].dataType


def _gives(wanted: DataType, offered: DataType, *, top: bool) -> bool:
    """True if a column that is offered is one of the wanted type, or can be made so by leaving
    out fields of the value. What may be null there may be so in the wanted type."""
    if isinstance(wanted, StructType) and isinstance(offered, StructType):
        if not top and wanted.names != offered.names:
            return False
        fields = {field.name: field for field in offered.fields}
        return len({*wanted.names}) == len(wanted.names) and all(
            field.name in fields
            and (field.nullable or not fields[field.name].nullable)
            and _gives(field.dataType, fields[field.name].dataType, top=False)
            for field in wanted.fields
        )
    if isinstance(wanted, ArrayType) and isinstance(offered, ArrayType):
        return (wanted.containsNull or not offered.containsNull) and _gives(
            wanted.elementType, offered.elementType, top=False
        )
    if isinstance(wanted, MapType) and isinstance(offered, MapType):
        return (
            wanted.keyType == offered.keyType
            and (wanted.valueContainsNull or not offered.valueContainsNull)
            and _gives(wanted.valueType, offered.valueType, top=False)
        )
    return wanted == offered


def _unknown_column(
    name: str, offered: list[str], *, by: str = "The schema names the column"
) -> str:
    if name == "headers":
        has = "The schema has" if by.startswith("The schema") else by
        return f"{has} the column headers; set the option includeHeaders to true for it."
    if name == "undecodable":
        hint = "set the option onUndecodable to keep for it, in a read of topics with a schema."
    else:
        meant = nearest(name, offered)
        hint = f"did you mean {meant}?" if meant else f"it has {', '.join(offered)}."
    return f"{by} {name}, which the logbus source does not have; {hint}"
