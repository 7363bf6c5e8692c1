"""Names of a value's fields as columns, beside the columns of its record.

A field keeps its name, unless the record has a column of that name: then it has the prefix
``value_``, and the record's column is what it is in all topics. Case does not count, as Spark does
not tell names apart by it. The rule depends on no option and on no other field, so a column stays
the same field's while a schema gets versions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

PREFIX: Final = "value_"

#: Columns of a record, in lower case, which fields of a value stand beside when they are flattened.
#: Their ``value`` is not there then.
BESIDE_FIELDS: Final = frozenset(
    {"key", "topic", "partition", "offset", "timestamp", "timestamptype", "headers", "undecodable"}
)


def column_of(field: str, taken: Collection[str] = BESIDE_FIELDS) -> str:
    """The column of a field, where ``taken`` are the names, in lower case, of other columns."""
    return PREFIX + field if field.lower() in taken else field


def fields_of(columns: Iterable[str], fields: Collection[str]) -> list[str]:
    """The field of each of the ``columns`` that stand beside those of a record, where the value has
    the ``fields``: that of which ``column_of`` has made it, else the one of its own name."""
    return [field_of(column, fields) for column in columns]


def field_of(column: str, fields: Collection[str]) -> str:
    field = column.removeprefix(PREFIX)
    renamed = column not in fields and field in fields and field.lower() in BESIDE_FIELDS
    return field if renamed else column


def alike(names: Sequence[str]) -> tuple[str, str] | None:
    """Two names that differ in their case only, if at all; None if there are none."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            return seen[name.lower()], name
        seen[name.lower()] = name
    return None


def clash(columns: Mapping[str, str]) -> tuple[str, str] | None:
    """Two fields, of which one has its column by its prefix and the other by its own name;
    ``columns`` are those of fields, by field."""
    by_name: dict[str, list[str]] = {}
    for field, column in columns.items():
        by_name.setdefault(column.lower(), []).append(field)
    for fields in by_name.values():
        if len({columns[field] == field for field in fields}) > 1:
            renamed = next(field for field in fields if columns[field] != field)
            return renamed, next(field for field in fields if columns[field] == field)
    return None
