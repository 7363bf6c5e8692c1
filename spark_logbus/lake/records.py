"""Records of the log as a load would store them: its part of a union, all at once or as a stream.

A union has the columns of the table. Those that the log's records do not have are asked for by the
name of the option that makes them, unless a load would leave them null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from spark_logbus.datasource.value_types import retyped
from spark_logbus.errors import ConfigError
from spark_logbus.lake.seam import Seam
from spark_logbus.load.chosen_columns import chosen, exact_column
from spark_logbus.load.config import LoadConfig
from spark_logbus.load.lake.columns import conformed, fit
from spark_logbus.load.read.reading import decoded, read, without_dead_letters
from spark_logbus.load.read.values import MALFORMED, VALUE, AvroFields

#: Options that say what a stream reads, which follows from the table.
_OWN: Final = frozenset(
    {
        "zookeeper", "subscribe", "assign", "subscribepattern", "path", "includeheaders",
        "columns", "flatten", "schemaversion", "onundecodable", "startingoffsetsbytimestamp",
        "startingoffsets", "startingtimestamp",
    }
)  # fmt: skip


def batch(
    spark: SparkSession, config: LoadConfig, seam: Seam, columns: Sequence[str] | None
) -> DataFrame:
    """Records from the table's end to where the log's was, in the columns of the union."""
    decoding = seam.decoding
    planned = read(spark, seam.source.ranges, config.zookeeper, config.topic, decoding)
    records = without_dead_letters(decoded(planned.frame, decoding), decoding)
    return _alike(records, config, seam, columns)


def stream(
    spark: SparkSession,
    config: LoadConfig,
    seam: Seam,
    columns: Sequence[str] | None,
    options: Mapping[str, str],
) -> DataFrame:
    """Records from the table's end on, in the columns of the union. Raises ConfigError for one of
    ``options`` that is not for the caller to give."""
    for name in options:
        if name.lower() in _OWN:
            raise ConfigError(
                f"options names {name}, which follows from the table and the topic; leave it out."
            )
    decoding = seam.decoding
    starts = {str(r.topic_partition.partition): r.start for r in seam.source.ranges}
    reader = spark.readStream.format("logbus").options(
        **options,
        **decoding.options,
        zookeeper=config.zookeeper,
        subscribe=config.topic,
        startingOffsets=json.dumps({config.topic: starts}),
    )
    records = reader.load().select(*decoding.columns_read)
    if decoding.avro is not None:
        made = decoding.avro.added_to(records.schema)
        records = records.mapInArrow(partial(_decode, decoding.avro, records.schema, made), made)
    records = without_dead_letters(decoded(records, decoding), decoding)
    return _alike(records, config, seam, columns)


def _decode(
    avro: AvroFields, read: StructType, made: StructType, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Adds the fields of values. Spark hands instants over in the session's zone."""
    schema = to_arrow_schema(read, timezone="UTC")
    yield from avro.decode((_in_schema(each, schema) for each in batches), made)


def _in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [retyped(array, each.type) for array, each in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _alike(
    records: DataFrame, config: LoadConfig, seam: Seam, columns: Sequence[str] | None
) -> DataFrame:
    """``records`` in the table's columns, by name, order and type; in those of a load where the
    table has none yet. Raises ConfigError, and IncompatibleColumnsError for types that differ."""
    history = seam.history
    if history.rows is None:
        stored = history.stored(records, columns)
        return stored.select(*map(exact_column, chosen(stored.columns, columns, where=seam.table)))
    wanted = history.rows.schema
    _check_there(wanted.names, records.columns, config, seam)
    stored = history.stored(records, wanted.names)
    # New fields are left out as long as the table has none of them.
    fit(_nullable(wanted), stored.schema, evolve=True, widens=False, where=seam.table)
    return conformed(stored, wanted, ())


def _nullable(schema: StructType) -> StructType:
    return StructType([StructField(each.name, each.dataType) for each in schema.fields])


def _check_there(
    wanted: Sequence[str], there: Sequence[str], config: LoadConfig, seam: Seam
) -> None:
    """Raises ConfigError where the log's records lack columns that the table's have, or tell
    malformed values in a column that it does not have."""
    history, decoding = seam.history, seam.decoding
    tells_malformed = decoding.json is not None and not decoding.dead_letters
    if tells_malformed and MALFORMED not in history.columns:
        raise ConfigError(
            f"{seam.table} has no column {MALFORMED}: loads into it keep values that do not "
            "decode apart, and the log's part would have rows without fields in their place. "
            "Give dead_letters=True, as those loads do."
        )
    if decoding.has_schema:
        return  # a load leaves columns of earlier versions of the schema null
    # Of values that decode, or fail the read, none is malformed.
    null = {MALFORMED} if decoding.dead_letters or decoding.avro is not None else set()
    missing = [name for name in wanted if name not in {*there, *history.made, *null}]
    if not missing:
        return
    if missing == [VALUE] and config.drop_value:
        remedy = "Leave drop_value out"
    elif decoding.json is None and decoding.avro is None:
        remedy = "Give json_schema or avro_schema, as its loads do (--json-schema or --avro-schema)"
    else:
        given = "avro_schema" if decoding.json is None else "json_schema"
        remedy = f"Name them in {given} too"
    raise ConfigError(
        f"{seam.table} has columns that records of {config.topic} do not have as they are read "
        f"here: {', '.join(missing)}. {remedy}, or choose others with columns."
    )
