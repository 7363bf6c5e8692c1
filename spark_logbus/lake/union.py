"""One read over a table and its topic, all at once or as a history and the stream that follows it.

Loads may commit, compact and reprocess meanwhile (see ``seam``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from spark_logbus.errors import ConfigError
from spark_logbus.lake.records import batch, stream
from spark_logbus.lake.seam import find_seam
from spark_logbus.load.config import LoadConfig
from spark_logbus.load.tables import DeltaTable, IcebergTable, JdbcTable
from spark_logbus.spark.options import zookeeper_address

Table: TypeAlias = str | JdbcTable | DeltaTable | IcebergTable
"""Target of a topic's loads: the directory of a warehouse, or the name of a table."""

_NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})


class HistoryAndStream(NamedTuple):
    """A table's rows, and a stream that begins exactly where they end."""

    history: DataFrame
    stream: DataFrame


def union_read(
    spark: SparkSession,
    topic: str,
    table: Table,
    *,
    columns: Sequence[str] | None = None,
    zookeeper: str | None = None,
    json_schema: str | None = None,
    avro_schema: str | None = None,
    drop_value: bool = False,
    dead_letters: bool = False,
) -> DataFrame:
    """Reads a topic's records from its beginning in the table to its end in the log as of now.

    Each record is there once, as one row in the columns of the table; records of the log as a load
    would store them. ``table`` is the target of the topic's loads: the directory of a warehouse, or
    the name of a table. ``columns`` are names of the table's columns, to read these in this order.
    ``zookeeper`` is as in the source's options. The others say how values become columns, and are
    those of the loads; with ``dead_letters`` values that do not decode are left out.

    Both parts are read when an action runs, from the files and offsets that were found here.

    Raises DataLossError where the log does not go on where the table ends, ConfigError where the
    columns of both cannot be made alike with these options, and WarehouseError for a table that
    cannot be read, or that a killed load has left half rewritten.
    """
    config = _config(topic, table, zookeeper, json_schema, avro_schema, drop_value, dead_letters)
    seam = find_seam(spark, config, columns)
    rest = batch(spark, config, seam, columns)
    rows = seam.history.rows
    return rest if rows is None else rows.union(rest)


def union_stream(
    spark: SparkSession,
    topic: str,
    table: Table,
    *,
    columns: Sequence[str] | None = None,
    zookeeper: str | None = None,
    json_schema: str | None = None,
    avro_schema: str | None = None,
    drop_value: bool = False,
    dead_letters: bool = False,
    options: Mapping[str, str] = _NO_OPTIONS,
) -> HistoryAndStream:
    """Reads a table's rows, and streams the topic's records from there on, in the same columns.

    Arguments and errors are those of ``union_read``; ``options`` are further ones of the source,
    such as ``maxOffsetsPerTrigger``. A query that has a checkpoint goes on from that: take the
    history once, with the query's first start.
    """
    config = _config(topic, table, zookeeper, json_schema, avro_schema, drop_value, dead_letters)
    seam = find_seam(spark, config, columns)
    rest = stream(spark, config, seam, columns, options)
    rows = seam.history.rows
    if rows is None:
        rows = spark.createDataFrame([], rest.schema)
    return HistoryAndStream(rows, rest)


def _config(
    topic: str,
    table: Table,
    zookeeper: str | None,
    json_schema: str | None,
    avro_schema: str | None,
    drop_value: bool,
    dead_letters: bool,
) -> LoadConfig:
    """Options of the load that would bring the log's part in. Raises ConfigError."""
    if not isinstance(table, Table):
        raise ConfigError(
            f"table is {table!r}, expected the directory of a warehouse as a text, a JdbcTable, a "
            "DeltaTable or an IcebergTable."
        )
    return LoadConfig(
        topic=topic,
        warehouse=table,
        zookeeper=zookeeper_address(zookeeper),
        json_schema=json_schema,
        avro_schema=avro_schema,
        drop_value=drop_value,
        dead_letters=dead_letters,
    )
