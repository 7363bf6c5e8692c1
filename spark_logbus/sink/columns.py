"""The columns that the sink takes, checked once on the driver; and rows sorted by destination.

The record's own columns (value, key, headers, timestamp) go through as they are. ``topic`` and
``partition`` say where a row goes and are not stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from spark_logbus.config import nearest
from spark_logbus.errors import InvalidOptionError, InvalidRequestError
from spark_logbus.record import compute as pc
from spark_logbus.record.rows.arrow import TIMESTAMP
from spark_logbus.record.rows.plain import scalar

# Columns of a record, and what a DataFrame may hold for them.
_BYTES = "binary or string"
_EXPECTED = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
    "topic": "string",
    "partition": "int",
}


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns that a DataFrame brings. Picklable: it goes to the tasks."""

    #: Of value, key, headers and timestamp the ones that are there.
    record: tuple[str, ...]
    #: Rows name their topics (and the option topic does not overrule them).
    has_topic: bool
    has_partition: bool
    #: Of a topic with a schema: the columns that are fields of the value. None: ``value`` is there.
    fields: tuple[str, ...] | None = None
    #: What the value calls these.
    field_names: tuple[str, ...] = ()


def check_columns(schema: StructType, *, topic_given: bool) -> SinkColumns:
    """Refuse a schema that cannot be written, naming the column; other columns are passed over,
    as Spark's Kafka sink does, unless they look like a misspelt one."""
    types = {field.name: field.dataType for field in schema.fields}
    refuse_twice(schema, only=_EXPECTED)
    for name, dtype in types.items():
        if name in _EXPECTED and not fits(name, dtype):
            raise InvalidOptionError(
                f"Column {name} has the type {dtype.simpleString()}, the logbus sink takes "
                f"{_EXPECTED[name]}; cast it in a select first."
            )
    if "value" not in types:
        raise InvalidOptionError(
            f"The logbus sink needs a column value (binary or string); the DataFrame has "
            f"{', '.join(types) or 'no columns'}."
        )
    if not topic_given and "topic" not in types:
        raise InvalidOptionError(
            "The logbus sink needs to know the topic: set the option topic, or add a column topic."
        )
    _refuse_misspelt(list(types))
    return SinkColumns(
        record=tuple(n for n in ("value", "key", "headers", "timestamp") if n in types),
        has_topic="topic" in types and not topic_given,
        has_partition="partition" in types,
    )


def refuse_twice(schema: StructType, *, only: Collection[str] | None = None) -> None:
    """Raise InvalidOptionError for a name, of ``only`` these, that two columns have."""
    for name in schema.names if only is None else only:
        if schema.names.count(name) > 1:
            raise InvalidOptionError(
                f"The DataFrame has {schema.names.count(name)} columns named {name}; keep one."
            )


def fits(name: str, dtype: DataType) -> bool:
    """True if a DataFrame may hold that for a column of a record."""
    match name:
        case "value" | "key":
            return isinstance(dtype, BinaryType | StringType)
        case "headers":
            return _is_headers(dtype)
        case "timestamp":
            return isinstance(dtype, TimestampType)
        case "topic":
            return isinstance(dtype, StringType)
        case _:
            return isinstance(dtype, IntegerType)


def _is_headers(dtype: DataType) -> bool:
    if not isinstance(dtype, ArrayType) or not isinstance(dtype.elementType, StructType):
        return False
    fields = dtype.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


def _refuse_misspelt(names: list[str]) -> None:
    absent = [name for name in _EXPECTED if name not in names]
    for name in names:
        if name in _EXPECTED or name == "timestampType":
            continue
        meant = nearest(name, absent, cutoff=0.8)
        if meant:
            raise InvalidOptionError(
                f"Column {name} is unknown to the logbus sink; did you mean {meant}? "
                "Rename it, or drop it if it is not to be written."
            )


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of rows; ``partition`` None leaves it to the key or the producer's turn."""

    topic: str
    partition: int | None


def record_columns(arrow_batch: pa.RecordBatch, columns: SinkColumns) -> pa.RecordBatch:
    """The columns of the records, with Spark's session-timezone timestamps as UTC."""
    if columns.fields is not None:
        fields = arrow_batch.select(list(columns.fields))
        value = fields.rename_columns(list(columns.field_names)).to_struct_array()
        others = [name for name in columns.record if name != "value"]
        arrays = [value, *(arrow_batch.column(name) for name in others)]
        chosen = pa.RecordBatch.from_arrays(arrays, names=["value", *others])
    else:
        chosen = arrow_batch.select(list(columns.record))
    if "timestamp" in columns.record:
        at = chosen.schema.get_field_index("timestamp")
        # The zone is only a label of the type: the numbers are µs since the epoch either way.
        chosen = chosen.set_column(at, "timestamp", chosen.column(at).cast(TIMESTAMP))
    return chosen


def by_destination(
    arrow_batch: pa.RecordBatch, columns: SinkColumns, *, topic: str | None
) -> Iterator[tuple[Destination, pa.RecordBatch]]:
    """The rows for each destination, in their order, as records' columns.

    ``topic`` is the option, which wins. Rows are gathered once, not filtered once per
    destination.
    """
    records = record_columns(arrow_batch, columns)
    if not columns.has_topic and not columns.has_partition:
        yield Destination(_known(topic), None), records
        return
    codes, topics = _topic_codes(arrow_batch, columns, topic)
    table = pa.table({"topic": codes, "partition": _partitions(arrow_batch, columns)})
    distinct = table.group_by(["topic", "partition"]).aggregate([([], "count_all")])
    if distinct.num_rows == 1:
        yield _destination(topics, distinct, 0), records
        return
    order = pc.sort_indices(
        table,
        sort_keys=[("topic", "ascending"), ("partition", "ascending")],
    )
    gathered = records.take(order)
    distinct = distinct.sort_by([("topic", "ascending"), ("partition", "ascending")])
    start = 0
    for number in range(distinct.num_rows):
        count = distinct.column("count_all")[number].as_py()
        yield _destination(topics, distinct, number), gathered.slice(start, count)
        start += count


def _topic_codes(
    arrow_batch: pa.RecordBatch, columns: SinkColumns, topic: str | None
) -> tuple[Any, list[str]]:
    """A number for each row's topic, and the topics by number."""
    if not columns.has_topic:
        return pa.repeat(scalar(0, pa.int32()), arrow_batch.num_rows), [_known(topic)]
    column = arrow_batch.column("topic")
    if column.null_count:
        raise InvalidRequestError(
            f"Column topic is null in {column.null_count} of {len(column)} rows, and the option "
            "topic is not set; every row needs a topic."
        )
    encoded = column.dictionary_encode()
    return encoded.indices.cast(pa.int32()), encoded.dictionary.to_pylist()


def _partitions(arrow_batch: pa.RecordBatch, columns: SinkColumns) -> Any:
    if not columns.has_partition:
        return pa.nulls(arrow_batch.num_rows, pa.int32())
    return arrow_batch.column("partition").cast(pa.int32())


def _destination(topics: list[str], distinct: pa.Table, row: int) -> Destination:
    topic = topics[distinct.column("topic")[row].as_py()]
    return Destination(topic, distinct.column("partition")[row].as_py())


def _known(topic: str | None) -> str:
    assert topic is not None, "without a column topic the option is there, check_columns saw to it"
    return topic
