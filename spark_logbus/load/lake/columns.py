"""Columns of a lake's table beside those of a load: what fits, what is added and widened (pure).

A table keeps the types that it has. A column takes the values of a narrower type, and of no other
one: a value that it would round or cut off is refused by its type, before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

from spark_logbus.load.schema import IncompatibleColumnsError

#: Whole numbers, and numbers with a fraction, from the narrowest on.
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_FRACTION: Final = (FloatType, DoubleType)


@dataclass(frozen=True, slots=True)
class Fit:
    """Columns of a table when a load has been there. Immutable."""

    #: The table's columns, then those that are added.
    schema: StructType
    #: Dotted names of fields that are added, and of those whose types get wider.
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Tells whether the table must change before the load."""
        return bool(self.added or self.widened)


def fit(table: StructType, load: StructType, *, evolve: bool, widens: bool, where: str) -> Fit:
    """Compares the columns of a ``load`` with those of the ``table`` called ``where``.

    Raises IncompatibleColumnsError for a field that the table does not take: of another type, new
    without ``evolve``, or wider where the format does not widen (``widens``).
    """
    found = _Comparison(evolve, widens, where)
    schema = found.struct(table, load, ())
    return Fit(schema, tuple(found.added), tuple(found.widened))


@dataclass(slots=True)
class _Comparison:
    evolve: bool
    widens: bool
    where: str
    added: list[str] = field(default_factory=list)
    widened: list[str] = field(default_factory=list)

    def struct(self, table: StructType, load: StructType, path: tuple[str, ...]) -> StructType:
        there = {each.name.lower(): each for each in table.fields}
        new = {each.name.lower(): each for each in load.fields}
        fields = []
        for key, kept in there.items():
            other, name = new.get(key), ".".join((*path, kept.name))
            if other is None:
                if not kept.nullable:
                    raise self._error(
                        f"Column {name} of {self.where} may not be null, and the "
                        "load has no such column"
                    )
                fields.append(kept)
                continue
            if other.name != kept.name:
                raise self._error(
                    f"Column {name} of {self.where} is written {other.name} in this load, and many "
                    "readers would take them for two"
                )
            kind = self._type(kept.dataType, other.dataType, (*path, kept.name))
            fields.append(StructField(kept.name, kind, kept.nullable, kept.metadata))
        for key, other in new.items():
            if key not in there:
                self._add(".".join((*path, other.name)), other.dataType)
                fields.append(StructField(other.name, nullable(other.dataType)))
        return StructType(fields)

    def _add(self, name: str, kind: DataType) -> None:
        if not self.evolve:
            raise self._error(
                f"{self.where} has no column {name} ({kind.simpleString()})",
                remedy="Give --evolve, and the load adds it; or leave the field out",
            )
        self.added.append(name)

    def _type(self, table: DataType, load: DataType, path: tuple[str, ...]) -> DataType:
        match table, load:
            case StructType(), StructType():
                return self.struct(table, load, path)
            case ArrayType(), ArrayType():
                kind = self._type(table.elementType, load.elementType, (*path, "element"))
                return ArrayType(kind, table.containsNull)
            case MapType(), MapType():
                key = self._type(table.keyType, load.keyType, (*path, "key"))
                value = self._type(table.valueType, load.valueType, (*path, "value"))
                return MapType(key, value, table.valueContainsNull)
        if table == load or takes(table, load):
            return table
        name = ".".join(path)
        told = f"Column {name} of {self.where} is {table.simpleString()}, and the load has it as "
        if not takes(load, table):
            raise self._error(f"{told}{load.simpleString()}, of which it does not take every value")
        if not self.widens:
            raise self._error(
                f"{told}{load.simpleString()}, which is wider; the table's format is not widened "
                "here"
            )
        if not self.evolve:
            raise self._error(
                f"{told}{load.simpleString()}, which is wider",
                remedy="Give --evolve, and the load widens it; or convert the value",
            )
        self.widened.append(name)
        return load

    def _error(self, what: str, *, remedy: str = "") -> IncompatibleColumnsError:
        usual = "Convert it, leave it out, or load into another table"
        return IncompatibleColumnsError(f"{what}. Nothing was written. {remedy or usual}.")


def takes(wide: DataType, narrow: DataType) -> bool:
    """Tells whether a column of one type holds each value of another one unchanged."""
    for kinds in (_WHOLE, _FRACTION):
        if isinstance(wide, kinds) and isinstance(narrow, kinds):
            return kinds.index(type(wide)) >= kinds.index(type(narrow))
    if isinstance(wide, DecimalType) and isinstance(narrow, DecimalType):
        return wide.scale == narrow.scale and wide.precision >= narrow.precision
    return wide == narrow


def nullable(kind: DataType) -> DataType:
    """The type whose fields, elements and values may all be null: what is added to a table."""
    match kind:
        case StructType():
            return StructType([StructField(f.name, nullable(f.dataType)) for f in kind.fields])
        case ArrayType():
            return ArrayType(nullable(kind.elementType))
        case MapType():
            return MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def conformed(frame: DataFrame, schema: StructType, keep: tuple[str, ...]) -> DataFrame:
    """The columns of ``schema`` in their order, and those called ``keep`` behind them; null for
    what ``frame`` does not have. Fields of structs go by their names."""
    have = {each.name: each.dataType for each in frame.schema.fields}
    columns = []
    for each in schema.fields:
        column = F.lit(None).cast(each.dataType)
        if each.name in have:
            column = _as(F.col(_quoted(each.name)), have[each.name], each.dataType)
        columns.append(column.alias(each.name))
    others = [F.col(_quoted(name)) for name in keep if name not in schema.names]
    return frame.select(*columns, *others)


def casts(have: StructType, want: StructType) -> bool:
    """Tells whether the columns of a load become those of the table by name and cast alone: fields
    within columns are the same, in the same order (pure)."""
    there = {each.name: each.dataType for each in want.fields}
    return all(
        not isinstance(each.dataType, (StructType, ArrayType, MapType))
        or nullable(each.dataType) == nullable(there[each.name])
        for each in have.fields
        if each.name in there
    )


def _as(column: Column, have: DataType, want: DataType) -> Column:
    """A value as another type that takes it."""
    if nullable(have) == nullable(want):
        return column
    match have, want:
        case StructType(), StructType():
            own = {each.name: each.dataType for each in have.fields}
            fields = [
                (
                    _as(column.getField(each.name), own[each.name], each.dataType)
                    if each.name in own
                    else F.lit(None).cast(each.dataType)
                ).alias(each.name)
                for each in want.fields
            ]
            return F.when(column.isNotNull(), F.struct(*fields))
        case ArrayType(), ArrayType():
            return F.transform(column, lambda each: _as(each, have.elementType, want.elementType))
        case MapType(), MapType():
            return F.map_from_entries(
                F.transform(
                    F.map_entries(column),
                    lambda each: F.struct(
                        _as(each.getField("key"), have.keyType, want.keyType).alias("key"),
                        _as(each.getField("value"), have.valueType, want.valueType).alias("value"),
                    ),
                )
            )
    return column.cast(want)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
