"""Columns of an Iceberg table, as Spark, Iceberg and Arrow have them (pure).

Iceberg knows a column by its id, which stands in the table's schema and in each file: a column that
another writer renames stays the same one. Its numbers are of 32 or 64 bits, so that a byte and a
short are stored as an int.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final

import pyarrow as pa
from pyiceberg import types as ice
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.update.schema import UpdateSchema
from pyspark.sql import types as sp

from spark_logbus.errors import ConfigError

_IDS: Final = "PARQUET:field_id"

#: Types without parameters: those that a table is made with come first.
_PAIRS: Final[tuple[tuple[type[sp.DataType], type[ice.PrimitiveType]], ...]] = (
    (sp.StringType, ice.StringType),
    (sp.BinaryType, ice.BinaryType),
    (sp.BooleanType, ice.BooleanType),
    (sp.IntegerType, ice.IntegerType),
    (sp.LongType, ice.LongType),
    (sp.FloatType, ice.FloatType),
    (sp.DoubleType, ice.DoubleType),
    (sp.DateType, ice.DateType),
    (sp.TimestampType, ice.TimestamptzType),
    (sp.TimestampNTZType, ice.TimestampType),
)
_TO_SPARK: Final[dict[type, type[sp.DataType]]] = {iceberg: spark for spark, iceberg in _PAIRS}
_TO_ICEBERG: Final[dict[type, Callable[[], ice.PrimitiveType]]] = {
    **dict(_PAIRS),
    sp.ByteType: ice.IntegerType,
    sp.ShortType: ice.IntegerType,
}


def spark_schema(schema: Schema, *, table: str) -> sp.StructType:
    """Returns a table's columns as Spark has them. Raises ConfigError for one of a type that Spark
    does not have."""
    return _spark_struct(schema.as_struct(), "", table)


def _spark_struct(struct: ice.StructType, prefix: str, table: str) -> sp.StructType:
    return sp.StructType(
        [
            sp.StructField(
                field.name,
                _spark_type(field.field_type, f"{prefix}{field.name}", table),
                nullable=not field.required,
            )
            for field in struct.fields
        ]
    )


def _spark_type(kind: ice.IcebergType, path: str, table: str) -> sp.DataType:
    match kind:
        case ice.StructType():
            return _spark_struct(kind, f"{path}.", table)
        case ice.ListType():
            element = _spark_type(kind.element_type, f"{path}.element", table)
            return sp.ArrayType(element, containsNull=not kind.element_required)
        case ice.MapType():
            return sp.MapType(
                _spark_type(kind.key_type, f"{path}.key", table),
                _spark_type(kind.value_type, f"{path}.value", table),
                valueContainsNull=not kind.value_required,
            )
        case ice.DecimalType():
            return sp.DecimalType(kind.precision, kind.scale)
    found = _TO_SPARK.get(type(kind))
    if found is None:
        raise ConfigError(
            f"Column {path} of {table} has Iceberg's type {kind}, which a load can neither write "
            "nor read. Load into a table without it."
        )
    return found()


def iceberg_schema(schema: sp.StructType) -> Schema:
    """Returns columns of records as Iceberg has them, all optional, with ids that a table replaces
    by its own. Raises ConfigError for one of a type that Iceberg does not have."""
    return Schema(*_iceberg_struct(schema, "", count(1)).fields)


def _iceberg_struct(struct: sp.StructType, prefix: str, ids: count[int]) -> ice.StructType:
    return ice.StructType(
        *(
            ice.NestedField(
                field_id=next(ids),
                name=field.name,
                field_type=_iceberg_type(field.dataType, f"{prefix}{field.name}", ids),
                required=False,
            )
            for field in struct.fields
        )
    )


def _iceberg_type(kind: sp.DataType, path: str, ids: count[int]) -> ice.IcebergType:
    match kind:
        case sp.StructType() if kind.fields:
            return _iceberg_struct(kind, f"{path}.", ids)
        case sp.ArrayType():
            return ice.ListType(
                element_id=next(ids),
                element_type=_iceberg_type(kind.elementType, f"{path}.element", ids),
                element_required=False,
            )
        case sp.MapType():
            return ice.MapType(
                key_id=next(ids),
                key_type=_iceberg_type(kind.keyType, f"{path}.key", ids),
                value_id=next(ids),
                value_type=_iceberg_type(kind.valueType, f"{path}.value", ids),
                value_required=False,
            )
        case sp.DecimalType():
            return ice.DecimalType(kind.precision, kind.scale)
    found = _TO_ICEBERG.get(type(kind))
    if found is None:
        raise ConfigError(
            f"The values have a field {path} of the type {kind.simpleString()}, which no Iceberg "
            "table can have. Leave it out of the schema, or give it another type."
        )
    return found()


def arrow_schema(schema: Schema, *, ids: bool) -> pa.Schema:
    """Returns a table's columns as Arrow has them, in the types that Spark takes and gives; with
    ``ids`` their fields hold what a file needs for Iceberg to know them again."""
    found = schema_to_pyarrow(schema, include_field_ids=ids)
    return pa.schema([_small_field(field, ids) for field in found])


def _small_field(field: pa.Field, ids: bool) -> pa.Field:
    metadata = field.metadata or {}
    kept = {_IDS: metadata[_IDS.encode()]} if ids else None
    return pa.field(field.name, _small_type(field.type, ids), field.nullable, kept)


def _small_type(kind: pa.DataType, ids: bool) -> pa.DataType:
    """The type with offsets of 32 bits, which is what Spark has."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_small_field(field, ids) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_small_field(kind.key_field, ids), _small_field(kind.item_field, ids))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_small_field(kind.value_field, ids))
    return kind


def evolve(update: UpdateSchema, known: Schema, new: Schema) -> None:
    """Adds to ``update`` the columns and nested fields of ``new`` that ``known`` does not have, and
    the types of ``new`` that take all values of those of ``known``."""
    _evolve_struct(update, known.as_struct(), new.as_struct(), ())


def _evolve_struct(
    update: UpdateSchema, known: ice.StructType, new: ice.StructType, path: tuple[str, ...]
) -> None:
    for field in new.fields:
        there = known.field_by_name(field.name)
        own = (*path, field.name)
        if there is None:
            update.add_column(own, field.field_type)
        else:
            _evolve_type(update, there.field_type, field.field_type, own)


def _evolve_type(
    update: UpdateSchema, known: ice.IcebergType, new: ice.IcebergType, path: tuple[str, ...]
) -> None:
    match known, new:
        case ice.StructType(), ice.StructType():
            _evolve_struct(update, known, new, path)
        case ice.ListType(), ice.ListType():
            _evolve_type(update, known.element_type, new.element_type, (*path, "element"))
        case ice.MapType(), ice.MapType():
            _evolve_type(update, known.value_type, new.value_type, (*path, "value"))
        case ice.PrimitiveType(), ice.PrimitiveType() if _is_wider(known, new):
            update.update_column(path, field_type=new)


def _is_wider(known: ice.PrimitiveType, new: ice.PrimitiveType) -> bool:
    """Tells whether Iceberg lets a column of the one type become one of the other."""
    match known, new:
        case (ice.IntegerType(), ice.LongType()) | (ice.FloatType(), ice.DoubleType()):
            return True
        case ice.DecimalType(), ice.DecimalType():
            return known.scale == new.scale and known.precision < new.precision
    return False
