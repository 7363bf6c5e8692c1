"""What becomes of values: columns of their fields, or bytes as they came.

Values of a topic with a schema are columns already when they are read. Those of other topics stay
bytes, and may have columns beside them: of JSON, with the types of ``--json-schema``, or of Avro
datums, with a schema that is given.

A value that does not decode fails the load, but for JSON, whose ``malformed_value`` repeats it.
With dead letters it is taken out instead: ``UNDECODABLE`` holds its bytes and the reason while the
load runs, and is null for all other records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from spark_logbus.datasource.columns import UNDECODABLE_TYPE
from spark_logbus.datasource.value_types import retyped, spark_type
from spark_logbus.errors import ConfigError, UndecodableRecordError
from spark_logbus.load.hadoop import reason
from spark_logbus.schemas.columns.arrow_types import arrow_type
from spark_logbus.schemas.columns.confluent import MAGIC, PREFIX_BYTES
from spark_logbus.schemas.columns.cursors import Undecodable
from spark_logbus.schemas.columns.decoder import Decoded, Decoder

#: The columns of a record, besides those of its value. The topic is the directory's name.
RECORD: Final = ("key", "partition", "offset", "timestamp", "headers")
VALUE: Final = "value"
MALFORMED: Final = "malformed_value"
#: The name that the source gives it.
UNDECODABLE: Final = "undecodable"
_RESERVED: Final = (*RECORD, MALFORMED, UNDECODABLE)


def fields_of_schema(frame: DataFrame) -> DataFrame:
    """``frame`` with the fields of ``value`` in its place, if it has any.

    Raises ConfigError where one of them has the name of a column that a load adds.
    """
    value = frame.schema[VALUE].dataType
    if not isinstance(value, StructType):
        return frame
    _refuse_reserved(
        value,
        "The schema of the topic has the fields",
        "Give them other names in a new version of the schema, with aliases.",
    )
    fields = [F.col(VALUE)[name].alias(name) for name in value.names]
    return frame.select(*(name for name in frame.columns if name != VALUE), *fields)


# -- JSON ---------------------------------------------------------------------------------


def json_fields(ddl: str, *, drop_value: bool) -> StructType:
    """The fields that ``--json-schema`` names. Raises ConfigError; needs a Spark session."""
    try:
        schema = DataType.fromDDL(ddl)
    except PySparkException as error:
        raise ConfigError(
            f"--json-schema is {ddl!r}: {reason(error)} Name fields and types, as in "
            '"carrier string, delay int".'
        ) from error
    if not isinstance(schema, StructType):
        raise ConfigError(
            f"--json-schema is {ddl!r}, which is a single type; name fields and types, as in "
            '"carrier string, delay int".'
        )
    _check_names(schema, "--json-schema", drop_value=drop_value)
    return schema


def parse_json(
    frame: DataFrame, fields: StructType, *, drop_value: bool, dead_letters: bool
) -> DataFrame:
    """Add the fields of JSON values as columns, beside the values as they came.

    ``malformed_value`` repeats those that do not parse, or with ``dead_letters`` ``UNDECODABLE``
    holds them. With ``drop_value`` they are all that is kept of values: what the fields do not name
    is dropped.
    """
    text = F.col(VALUE).cast("string")
    parsed = F.from_json(
        text,
        StructType([*fields.fields]).add(MALFORMED, "string"),
        {"columnNameOfCorruptRecord": MALFORMED},
    )
    frame = frame.withColumn("_parsed", parsed)
    bad = F.col("_parsed").isNull() | F.col("_parsed")[MALFORMED].isNotNull()
    apart = ("_parsed", VALUE) if drop_value else ("_parsed",)
    kept = [name for name in frame.columns if name not in apart]
    if dead_letters:
        # A record without a value, as one that deletes a key, has nothing that could be wrong.
        letter = F.struct(F.col(VALUE).alias("value"), _json_reason(text, fields).alias("reason"))
        told = F.when(bad & F.col(VALUE).isNotNull(), letter).alias(UNDECODABLE)
    else:
        told = F.when(bad, F.col(VALUE)).alias(MALFORMED)
    return frame.select(*kept, *[F.col("_parsed")[name].alias(name) for name in fields.names], told)


def _json_reason(text: Column, fields: StructType) -> Column:
    """Why a value does not parse: Spark does not say it."""
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
    fields: StructType = field(init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError, and SchemaError for what is no schema of columns."""
        fields = spark_type(arrow_type(self.schema))
        if not isinstance(fields, StructType):
            raise ConfigError(
                f"--avro-schema is the schema of {fields.simpleString()}, which has no fields that "
                "could become columns; expected a record."
            )
        _check_names(fields, "--avro-schema", drop_value=self.drop_value)
        # Also those that Avro does not let be null: a record may have no value at all.
        object.__setattr__(self, "fields", fields.toNullable())

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


def _check_names(fields: StructType, option: str, *, drop_value: bool) -> None:
    _refuse_reserved(
        fields,
        f"{option} names",
        "Leave it out, or load values as they are and select the field when reading.",
    )
    if VALUE in {name.lower() for name in fields.names} and not drop_value:
        raise ConfigError(
            f"{option} names {VALUE}, the column that keeps each value as it came. Leave it out "
            "and select the field when reading, or give the column up with --drop-value."
        )


def _refuse_reserved(fields: StructType, who: str, remedy: str) -> None:
    taken = sorted({name.lower() for name in fields.names} & set(_RESERVED))
    if taken:
        raise ConfigError(
            f"{who} {', '.join(taken)}, which the load adds itself ({', '.join(_RESERVED)}). "
            f"{remedy}"
        )
