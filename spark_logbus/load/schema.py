"""The schema of a warehouse: all columns that its loads have written, each of one type.

Every load writes Parquet files of its own, and readers take them for one table. Parquet keeps a
type in each file: a column that is an ``int`` in one and a ``string`` in another makes the table
unreadable as a whole. So a load may add columns and leave some out, and may not change a type.
"""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from spark_logbus.load.errors import WarehouseError


class IncompatibleColumnsError(WarehouseError):
    """A load would write a column with another type than earlier loads did."""


def merged(kept: StructType, new: StructType, *, where: str) -> StructType:
    """All columns of both (pure): those of ``kept`` first.

    ``where`` names the warehouse for the message of IncompatibleColumnsError, which is raised when
    a column, or a field within one, has two types or is written in two ways.
    """
    return _struct(kept, new, (), where)


def _struct(kept: StructType, new: StructType, path: tuple[str, ...], where: str) -> StructType:
    before = {field.name.lower(): field for field in kept.fields}
    found = {field.name.lower(): field for field in new.fields}
    fields = []
    for key, field in before.items():
        other = found.get(key)
        if other is None:
            fields.append(field)
            continue
        if other.name != field.name:
            # Spark takes the two for one column, and most other readers for two.
            raise IncompatibleColumnsError(
                f"Field {'.'.join((*path, field.name))} of {where} is written {other.name} in this "
                "load. Many readers would take them for two, and Spark for one. Nothing was "
                f"written. Write it {field.name} as before, or load into another directory."
            )
        kind = _type(field.dataType, other.dataType, (*path, field.name), where)
        fields.append(StructField(field.name, kind))
    added = [StructField(f.name, f.dataType) for key, f in found.items() if key not in before]
    return StructType([*fields, *added])


def _type(kept: DataType, new: DataType, path: tuple[str, ...], where: str) -> DataType:
    match kept, new:
        case StructType(), StructType():
            return _struct(kept, new, path, where)
        case ArrayType(), ArrayType():
            return ArrayType(_type(kept.elementType, new.elementType, (*path, "element"), where))
        case MapType(), MapType():
            return MapType(
                _type(kept.keyType, new.keyType, (*path, "key"), where),
                _type(kept.valueType, new.valueType, (*path, "value"), where),
            )
    if kept != new:
        raise IncompatibleColumnsError(
            f"Field {'.'.join(path)} of {where} has the type {kept.simpleString()}, and "
            f"{new.simpleString()} in this load; with both, the whole could not be read any more. "
            f"Nothing was written. Load it as {kept.simpleString()} and convert it when reading, "
            "leave it out, or load into another directory."
        )
    return kept
