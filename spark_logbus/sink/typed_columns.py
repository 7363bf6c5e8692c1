"""DataFrames for topics with a schema: which columns are whose, checked on the driver.

The values' fields are the columns of the DataFrame, or those of its struct ``value``. Their types
are checked against the schema before any task runs; that no null stands where none may be is seen
by tasks, in the rows.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from avro_columns.errors import AvroError
from avro_columns.values.arrow_types import avro_schema
from avro_columns.values.coerce import coerce
from avro_columns.values.resolved_tree import Node, Record, parse
from spark_logbus.errors import InvalidOptionError
from spark_logbus.schemas.avro_errors import logbus_errors
from spark_logbus.sink.columns import SinkColumns, fits, refuse_twice
from spark_logbus.spark.field_names import field_of

# Columns of a record that a DataFrame may have beside the fields of its value, unless these have
# such a name themselves.
_RECORD: Final = ("key", "headers", "timestamp", "topic", "partition")
_EVOLVE: Final = " With the option evolve, new columns become a new version of the schema."
# What a DataFrame that was read from a topic has beside, and nobody can write.
_PASSED_OVER: Final = ("offset", "timestampType", "topic")


def check_typed_columns(schema: StructType, text: str, *, topic: str) -> SinkColumns:
    """The columns of a DataFrame for a topic whose values have the schema ``text``.

    Raises InvalidOptionError that names the column and its type.
    """
    columns, fields = _sorted_out(schema, text, topic)
    columns_of_value: Any = _empty(fields)
    if columns.fields is None and not isinstance(_parsed(text), Record):
        columns_of_value = columns_of_value.column("value")
    try:
        coerce(columns_of_value, text)
    except AvroError as error:
        raise InvalidOptionError(
            f"The DataFrame does not fit the schema of topic {topic}: {error.message}"
            f"{_EVOLVE if evolved(schema, text, topic=topic) else ''}"
        ) from error
    return columns


def evolved(schema: StructType, text: str, *, topic: str) -> str | None:
    """The schema with the columns of the DataFrame that it does not have, as fields that may be
    null; None if it has all.

    Raises InvalidOptionError for columns that Avro has no type or name for.
    """
    _, fields = _sorted_out(schema, text, topic)
    known = json.loads(text)
    names = {field["name"] for field in known["fields"]} if _is_record(known) else set()
    missing = [field for field in fields if field.name not in names]
    if not missing or not _is_record(known):
        return None
    added = to_arrow_schema(StructType([_nullable(field) for field in missing]), timezone="UTC")
    try:
        made = avro_schema(added, name=f"{known['name']}Added")
    except AvroError as error:
        raise InvalidOptionError(
            f"The schema of topic {topic} cannot take up the new columns: {error.message}"
        ) from error
    return json.dumps({**known, "fields": [*known["fields"], *made["fields"]]})


@logbus_errors
def _parsed(text: str) -> Node:
    return parse(text)


def _is_record(known: Any) -> bool:
    return isinstance(known, dict) and known.get("type") == "record"


def _nullable(field: StructField) -> StructField:
    return StructField(field.name, field.dataType, nullable=True)


def _sorted_out(schema: StructType, text: str, topic: str) -> tuple[SinkColumns, list[StructField]]:
    """The columns of the record, and the fields of the value."""
    refuse_twice(schema)
    node = _parsed(text)
    known = {field.name for field in node.fields} if isinstance(node, Record) else {"value"}
    by_name = {field.name: field for field in schema.fields}
    # A DataFrame that was read with flatten has the columns of the record, and fields of the same
    # names under others.
    names = {name: field_of(name, known) for name in by_name}
    known -= {field for column, field in names.items() if column != field}
    own = [name for name in _RECORD if name in by_name and name not in known]
    for name in own:
        if not fits(name, by_name[name].dataType):
            raise InvalidOptionError(
                f"Column {name} has the type {by_name[name].dataType.simpleString()}, which is not "
                "that of a record's; drop it, or cast it in a select first."
            )
    value = by_name.get("value")
    is_struct = value is not None and isinstance(value.dataType, StructType)
    flat = isinstance(node, Record) and not (is_struct and "value" not in known)
    left_out = {*own, *(name for name in _PASSED_OVER if name not in known)}
    others = [field for field in schema.fields if field.name not in left_out]
    if not flat:
        if value is None:
            raise InvalidOptionError(
                f"The values of topic {topic} are no records, and the DataFrame has no column "
                "value; select the values under that name."
            )
        odd = next((field.name for field in others if field.name != "value"), None)
        if odd is not None:
            raise InvalidOptionError(
                f"The DataFrame has a column value for topic {topic} and beside it {odd}, which no "
                "record has; drop it, or move it into value."
            )
    columns = SinkColumns(
        record=tuple(
            name
            for name in ("value", "key", "headers", "timestamp")
            if name in own or name == "value"
        ),
        has_topic=False,
        has_partition="partition" in own,
        fields=tuple(field.name for field in others) if flat else None,
        field_names=tuple(names[field.name] for field in others) if flat else (),
    )
    if flat:
        return columns, [
            StructField(names[each.name], each.dataType, each.nullable) for each in others
        ]
    assert value is not None
    inner = value.dataType
    return columns, list(inner.fields) if isinstance(inner, StructType) else [value]


def _empty(fields: list[StructField]) -> Any:
    return to_arrow_schema(StructType(fields), timezone="UTC").empty_table()
