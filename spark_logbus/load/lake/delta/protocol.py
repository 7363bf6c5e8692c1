"""Features of Delta's protocol: what a load must honour in a table, and what it can read (pure).

A table names the features that its writers must know. Some bind whoever appends, and a load does
not keep them: such a table is refused by name. The others bind only who updates or deletes, or
the library keeps them. See "Table Features" in Delta's PROTOCOL.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_logbus.errors import ConfigError

#: Feature with which a file may have rows that are deleted.
DELETION_VECTORS: Final = "deletionVectors"

#: Features that bind nobody who appends plain files, or are checked by the settings below.
_WRITER_FEATURES: Final = frozenset({
    "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", DELETION_VECTORS,
    "generatedColumns", "invariants", "timestampNtz", "v2Checkpoint",
})  # fmt: skip
_READER_FEATURES: Final = frozenset({
    "columnMapping", DELETION_VECTORS, "timestampNtz", "typeWidening", "typeWidening-preview",
    "v2Checkpoint", "vacuumProtocolCheck",
})  # fmt: skip

_RETENTION: Final = "delta.setTransactionRetentionDuration"
_MAPPING: Final = "delta.columnMapping.mode"
_APPEND_ONLY: Final = "delta.appendOnly"
_CONSTRAINT: Final = "delta.constraints."
#: Settings that bind whoever appends where they are true.
_SETTINGS: Final = {
    "delta.enableRowTracking": "row tracking",
    "delta.enableInCommitTimestamps": "in-commit timestamps",
    "delta.enableIcebergCompatV1": "compatibility with Iceberg",
    "delta.enableIcebergCompatV2": "compatibility with Iceberg",
}
#: How the metadata of a column begins that has a value of the table's making, or a condition.
_OF_COLUMNS: Final = {
    "delta.generationExpression": "a generated column",
    "delta.identity.": "an identity column",
    "delta.invariants": "a column with an invariant",
    "CURRENT_DEFAULT": "a column with a default",
    "__CHAR_VARCHAR_TYPE_STRING": "a column of limited length",
}

_TYPES: Final = (
    BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType,
    LongType, ShortType, StringType, TimestampNTZType, TimestampType,
)  # fmt: skip


def check_writable(
    features: Collection[str], schema: StructType, properties: Mapping[str, str], *, where: str
) -> None:
    """Raises ConfigError, which names the feature, for a table that loads must not append to."""
    found = [f"feature {each}" for each in sorted({*features} - _WRITER_FEATURES)]
    found += [what for name, what in _SETTINGS.items() if _is_true(properties, name)]
    found += [f"the constraint {name}" for name in properties if name.startswith(_CONSTRAINT)]
    if properties.get(_MAPPING, "none") != "none":
        found.append(f"column mapping ({_MAPPING} is {properties[_MAPPING]})")
    for path, each in _fields(schema):
        for name, what in _OF_COLUMNS.items():
            found += [f"{what} ({path})" for key in each.metadata if key.startswith(name)]
    if found:
        raise ConfigError(
            f"Table {where} has {', '.join(dict.fromkeys(found))}, which loads do not keep. "
            "Nothing was written. Load into a table without that, and copy from there."
        )
    if _RETENTION in properties:
        raise ConfigError(
            f"Table {where} forgets offsets after {properties[_RETENTION]} ({_RETENTION}), and "
            f"would be loaded again from the beginning. Unset {_RETENTION} of the table."
        )
    check_columns(schema, where=where)


def check_removable(properties: Mapping[str, str], *, where: str) -> None:
    """Raises ConfigError for a table from which no record may be removed."""
    if _is_true(properties, _APPEND_ONLY):
        raise ConfigError(
            f"Table {where} takes records and gives none away ({_APPEND_ONLY}), so no window can "
            f"be replaced. Set {_APPEND_ONLY} of the table to false for it."
        )


def check_readable(features: Collection[str], properties: Mapping[str, str], *, where: str) -> None:
    """Raises ConfigError, which names the feature, for a table whose files a load cannot read by
    themselves."""
    unknown = sorted({*features} - _READER_FEATURES)
    if unknown:
        raise ConfigError(
            f"Table {where} can be read with {', '.join(unknown)} alone, which loads do not know. "
            "Copy it into a table without that."
        )
    if properties.get(_MAPPING, "none") != "none":
        raise ConfigError(
            f"Table {where} has column mapping ({_MAPPING} is {properties[_MAPPING]}): its files "
            "have other names than its columns, which loads do not know. Copy it into a table "
            "without that."
        )


def check_columns(schema: StructType, *, where: str) -> None:
    """Raises ConfigError for a column of a type that Delta does not have, or loads do not write."""
    for path, each in _fields(schema):
        kind = each.dataType
        if not isinstance(kind, (*_TYPES, StructType, ArrayType, MapType)):
            raise ConfigError(
                f"Column {path} of {where} is {kind.simpleString()}, a type that loads do not "
                "write into a Delta table. Convert it, or leave it out."
            )


def _fields(schema: StructType, path: Sequence[str] = ()) -> Iterator[tuple[str, StructField]]:
    """All fields with their dotted names, those within others too; elements of arrays and maps are
    taken for fields."""
    for each in schema.fields:
        own = (*path, each.name)
        yield ".".join(own), each
        yield from _inner(each.dataType, own)


def _inner(kind: DataType, path: Sequence[str]) -> Iterator[tuple[str, StructField]]:
    match kind:
        case StructType():
            yield from _fields(kind, path)
        case ArrayType():
            yield from _fields(StructType([StructField("element", kind.elementType)]), path)
        case MapType():
            both = [StructField("key", kind.keyType), StructField("value", kind.valueType)]
            yield from _fields(StructType(both), path)


def _is_true(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "false").strip().lower() == "true"
