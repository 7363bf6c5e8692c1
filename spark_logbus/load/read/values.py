"""What becomes of values: columns of their fields, or bytes as they came.

Values of a topic with a schema are columns already when they are read. Those of other topics stay
bytes, and may have columns beside them: of JSON, with the types of ``--json-schema``, or of Avro
datums, with a schema that is given.

A value that does not decode fails the load, but for JSON, whose ``malformed_value`` repeats it.
With dead letters it is taken out instead: ``UNDECODABLE`` holds its bytes and the reason while the
load runs, and is null for all other records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    StructField,
    StructType,
)

from avro_columns.confluent import MAGIC, PREFIX_BYTES
from avro_columns.decode.cursors import Undecodable
from avro_columns.decode.decoder import Decoded, Decoder
from avro_columns.values.arrow_types import arrow_type
from spark_logbus.datasource.columns import UNDECODABLE_TYPE
from spark_logbus.datasource.value_types import retyped, spark_type
from spark_logbus.errors import ConfigError, UndecodableRecordError
from spark_logbus.load.errors import reason
from spark_logbus.load.layout import EVENT_TIME
from spark_logbus.schemas.avro_errors import logbus_errors
from spark_logbus.spark.field_names import alike, clash, column_of

#: The columns of a record, besides those of its value. The topic is the directory's name.
RECORD: Final = ("key", "partition", "offset", "timestamp", "headers")
VALUE: Final = "value"
MALFORMED: Final = "malformed_value"
#: Name of the column that the source gives to values that do not decode.
UNDECODABLE: Final = "undecodable"
#: Names, in lower case, of columns that stand beside those of the fields, or did while a load runs.
_BESIDE_FIELDS: Final = frozenset({*RECORD, MALFORMED, UNDECODABLE, EVENT_TIME})
_NAME_FIELDS: Final = 'Name fields and types, as in "carrier string, delay int".'


def fields_of_schema(frame: DataFrame) -> DataFrame:
    """``frame`` with the fields of ``value`` in its place, if it has any.

    Raises ConfigError where two of them would be one column.
    """
    columns = columns_of_schema(frame.schema)
    if not columns:
        return frame
    fields = [F.col(VALUE)[name].alias(column) for name, column in columns.items()]
    return frame.select(*(name for name in frame.columns if name != VALUE), *fields)


def columns_of_schema(schema: StructType) -> dict[str, str]:
    """The columns that take the place of ``value``, by its fields; none where it is no struct.

    Raises ConfigError where two of them would be one column.
    """
    value = schema[VALUE].dataType
    if not isinstance(value, StructType):
        return {}
    return _columns_of(
        value,
        "The schema of the topic has",
        "Give one of them another name in a new version of the schema, with an alias.",
    )


# -- JSON ---------------------------------------------------------------------------------


def json_fields(ddl: str, *, drop_value: bool) -> StructType:
    """The fields that ``--json-schema`` names. Raises ConfigError; needs a Spark session."""
    try:
        schema = DataType.fromDDL(ddl) if ddl.strip() else StructType()
    except (PySparkException, Py4JJavaError) as error:  # the other for some types' digits
        raise ConfigError(f"--json-schema is {ddl!r}: {reason(error)} {_NAME_FIELDS}") from error
    if not isinstance(schema, StructType):
        raise ConfigError(f"--json-schema is {ddl!r}, which is a single type. {_NAME_FIELDS}")
    if not schema.fields:
        raise ConfigError(f"--json-schema is {ddl!r}, which names no fields. {_NAME_FIELDS}")
    _check_names(schema, "--json-schema", drop_value=drop_value)
    _check_stored(schema, ddl)
    try:
        # What Spark's JSON has no values for is said now, and not by a task.
        SparkSession.active().range(0).select(F.from_json(F.lit("{}"), schema))
    except PySparkException as error:
        raise ConfigError(
            f"--json-schema is {ddl!r}, which JSON has no values for: {reason(error)} Name such a "
            "field as string, and convert it when reading."
        ) from error
    return schema


def _check_stored(kind: DataType, ddl: str, place: str = "") -> None:
    """Raise ConfigError for a type that Spark's JSON gives and its writers of files refuse."""
    match kind:
        case StructType():
            for each in kind.fields:
                _check_stored(each.dataType, ddl, f"{place}.{each.name}" if place else each.name)
        case ArrayType():
            _check_stored(kind.elementType, ddl, place)
        case MapType():
            _check_stored(kind.valueType, ddl, place)
        case CalendarIntervalType():
            raise ConfigError(
                f"--json-schema is {ddl!r}, which no file of a warehouse can hold: {place} is "
                f"{kind.simpleString()}. Name such a field as string, or leave it out."
            )


def parse_json(
    frame: DataFrame, fields: StructType, *, drop_value: bool, dead_letters: bool
) -> DataFrame:
    """Add the fields of JSON values as columns, beside the values as they came.

    ``malformed_value`` repeats those that do not parse, or with ``dead_letters`` ``UNDECODABLE``
    holds them. With ``drop_value`` they are all that is kept of values: what the fields do not name
    is dropped.
    """
    text = F.col(VALUE).cast("string")
    columns = {name: column_of(name, _BESIDE_FIELDS) for name in fields.names}
    corrupt = _free_name(MALFORMED, fields.names)
    parsed = F.from_json(
        text,
        StructType([*fields.fields]).add(corrupt, "string"),
        {"columnNameOfCorruptRecord": corrupt},
    )
    frame = frame.withColumn("_parsed", parsed)
    bad = F.col("_parsed").isNull() | F.col("_parsed")[corrupt].isNotNull()
    apart = ("_parsed", VALUE) if drop_value else ("_parsed",)
    kept = [name for name in frame.columns if name not in apart]
    if dead_letters:
        # A record without a value, as one that deletes a key, has nothing that could be wrong.
        letter = F.struct(F.col(VALUE).alias("value"), _json_reason(text, fields).alias("reason"))
        told = F.when(bad & F.col(VALUE).isNotNull(), letter).alias(UNDECODABLE)
    else:
        told = F.when(bad, F.col(VALUE)).alias(MALFORMED)
    made = [F.col("_parsed")[name].alias(column) for name, column in columns.items()]
    return frame.select(*kept, *made, told)


def _free_name(name: str, taken: Iterable[str]) -> str:
    """``name``, or one like it that is none of those ``taken``, whatever their case."""
    others = {each.lower() for each in taken}
    return name if name.lower() not in others else _free_name(f"_{name}", others)


def _json_reason(text: Column, fields: StructType) -> Column:
    """Tells why a value does not parse, which Spark does not."""
    as_texts = F.from_json(text, _as_texts(fields))
    misfits = [
        F.when(
            as_texts[f.name].isNotNull() & F.col("_parsed")[f.name].isNull(),
            F.lit(f"{f.name} is not {f.dataType.simpleString()}"),
        )
        for f in fields.fields
    ]
    listed = F.concat_ws(", ", *misfits)
    return F.when(F.try_parse_json(text).isNull(), "the value is not JSON").otherwise(
        F.when(listed == "", "the value is no JSON object of these fields").otherwise(listed)
    )


def _as_texts(fields: StructType) -> StructType:
    texts = StructType()
    for each in fields.fields:
        texts = texts.add(each.name, "string")
    return texts


# -- Avro ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AvroFields:
    """The fields of Avro datums of one schema. Picklable: it goes to the tasks."""

    schema: str
    dead_letters: bool
    drop_value: bool
    #: Their columns, in the schema's order.
    fields: StructType = field(init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError, and SchemaError for what is no schema of columns."""
        with logbus_errors:
            arrow = arrow_type(self.schema)
        fields = spark_type(arrow)
        if not isinstance(fields, StructType):
            raise ConfigError(
                f"--avro-schema is the schema of {fields.simpleString()}, which has no fields that "
                "could become columns; expected a record."
            )
        columns = _check_names(fields, "--avro-schema", drop_value=self.drop_value)
        # Also those that Avro does not let be null: a record may have no value at all.
        made = [StructField(columns[each.name], each.dataType) for each in fields.fields]
        object.__setattr__(self, "fields", StructType(made).toNullable())

    def added_to(self, schema: StructType) -> StructType:
        """The columns of records whose values are decoded."""
        kept = [each for each in schema.fields if each.name != VALUE or not self.drop_value]
        letter = StructType().add(UNDECODABLE, UNDECODABLE_TYPE).fields if self.dead_letters else []
        return StructType([*kept, *self.fields.fields, *letter])

    def decode(
        self, batches: Iterator[pa.RecordBatch], schema: StructType
    ) -> Iterator[pa.RecordBatch]:
        """``batches`` with columns of that ``schema``, which is ``added_to`` theirs.

        Raises UndecodableRecordError for a value that does not decode, unless it is a dead letter.
        """
        arrow = to_arrow_schema(schema, timezone="UTC")
        decoder = _decoder(self.schema)
        for batch in batches:
            values = batch.column(VALUE)
            with logbus_errors:
                decoded = decoder.decode(values)
            if decoded.undecodable and not self.dead_letters:
                first = decoded.undecodable[0]
                place = {name: batch.column(name)[first.row] for name in ("partition", "offset")}
                raise UndecodableRecordError(
                    f"The value at offset {place['offset']} of partition {place['partition']} does "
                    f"not decode with --avro-schema: {_why(first, values)}. Use --dead-letters to "
                    "load the others and keep such values apart."
                )
            columns = dict(zip(self.fields.names, decoded.values.flatten(), strict=True))
            columns[UNDECODABLE] = _letters(values, decoded)
            yield pa.RecordBatch.from_arrays(
                [
                    retyped(columns[each.name], each.type)
                    if each.name in columns
                    else batch.column(each.name)
                    for each in arrow
                ],
                schema=arrow,
            )


@lru_cache(maxsize=4)
def _decoder(schema: str) -> Decoder:
    with logbus_errors:
        return Decoder(schema)


def _letters(values: pa.Array, decoded: Decoded) -> pa.Array:
    letters: list[dict[str, object] | None] = [None] * len(values)
    for each in decoded.undecodable:
        letters[each.row] = {"value": values[each.row].as_py(), "reason": _why(each, values)}
    kind = pa.struct([pa.field("value", pa.binary()), pa.field("reason", pa.string())])
    return pa.array(letters, kind)


def _why(undecodable: Undecodable, values: pa.Array) -> str:
    """The reason, and what the value looks like if that is another format."""
    value: bytes = values[undecodable.row].as_py()
    schema_id = int.from_bytes(value[1:PREFIX_BYTES], "big")
    if len(value) < PREFIX_BYTES or value[0] != MAGIC or not schema_id:
        return undecodable.reason
    return (
        f"{undecodable.reason}; it begins like Confluent's wire format with the schema id "
        f"{schema_id}, which belongs into a topic with a schema (value.encoding=avro)"
    )


# -- names --------------------------------------------------------------------------------


def _check_names(fields: StructType, option: str, *, drop_value: bool) -> dict[str, str]:
    """The column of each field. Raises ConfigError."""
    if VALUE in {name.lower() for name in fields.names} and not drop_value:
        raise ConfigError(
            f"{option} names {VALUE}, the column that keeps each value as it came. Leave it out "
            "and select the field when reading, or give the column up with --drop-value."
        )
    return _columns_of(fields, f"{option} names", "Leave one of them out.")


def _columns_of(fields: StructType, who: str, remedy: str) -> dict[str, str]:
    """The column of each field. Raises ConfigError where two would have one; ``who`` names them,
    and ``remedy`` says what to do."""
    _check_fields(fields, (), who, remedy)
    columns = {name: column_of(name, _BESIDE_FIELDS) for name in fields.names}
    both = clash(columns)
    if both is not None:
        raise ConfigError(
            f"{who} the fields {both[0]} and {both[1]}. The first would be the column "
            f"{columns[both[0]]}, because the load adds a column {both[0].lower()} itself, and the "
            f"second is that already. {remedy}"
        )
    return columns


def _check_fields(kind: DataType, path: tuple[str, ...], who: str, remedy: str) -> None:
    """Raises ConfigError for fields without a name or with one name, also of structs within, of
    which Spark writes no files either."""
    if isinstance(kind, ArrayType):
        _check_fields(kind.elementType, path, who, remedy)
    elif isinstance(kind, MapType):
        _check_fields(kind.valueType, path, who, remedy)
    elif isinstance(kind, StructType):
        inside = f" in {'.'.join(path)}" if path else ""
        if not all(name.strip() for name in kind.names):
            raise ConfigError(
                f"{who} a field without a name{inside}, and so would its column have none. Give it "
                "one, or leave it out."
            )
        both = alike(kind.names)
        if both is not None:
            raise ConfigError(
                f"{who} the field {both[0]} twice{inside}. {remedy}"
                if both[0] == both[1]
                else f"{who} the fields {both[0]} and {both[1]}{inside}, which differ only in "
                f"case: Spark and the tables of most warehouses take them for one. {remedy}"
            )
        for each in kind.fields:
            _check_fields(each.dataType, (*path, each.name), who, remedy)
