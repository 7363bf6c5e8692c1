"""The columns of a payload: their schema, and other arrow batches made to fit it.

A ``pyarrow.RecordBatch`` is called an *arrow batch* here, to keep it apart from the log's
record batch. Columns of an arrow batch, in this order, absent ones left out::

    timestamp     timestamp[us, UTC]                          never null
    key           binary                                      null = no key
    value         binary                                      null = tombstone
    headers       list<struct<key: string, value: binary>>    null = no headers
    offset_delta  int32                                       only after compaction
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from spark_logbus.errors import InvalidRequestError
from spark_logbus.record import compute as pc
from spark_logbus.record.rows.plain import repeated, scalar

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=True), pa.field("value", pa.binary())])
)


@cache  # eight schemas in all
def payload_schema(*, has_key: bool, has_headers: bool, has_offset_delta: bool = False) -> Any:
    """The Arrow schema that the attributes of a record batch name."""
    fields = [pa.field("timestamp", TIMESTAMP)]
    if has_key:
        fields.append(pa.field("key", pa.binary()))
    fields.append(pa.field("value", pa.binary()))
    if has_headers:
        fields.append(pa.field("headers", HEADERS))
    if has_offset_delta:
        fields.append(pa.field("offset_delta", pa.int32()))
    return pa.schema(fields)


def canonical(arrow_batch: pa.RecordBatch, *, now_us: int) -> pa.RecordBatch:
    """Returns ``arrow_batch`` with exactly the columns and types of a payload.

    Takes ``value`` and optionally ``key``, ``timestamp`` and ``headers``; strings become UTF-8
    bytes; a missing or null timestamp becomes ``now_us``; key and headers columns that are null
    throughout are dropped. Other columns are refused by name, and so are headers with an element
    or a name that is null.
    """
    names = arrow_batch.schema.names
    unknown = set(names) - {"timestamp", "key", "value", "headers"}
    if unknown or "value" not in names or len(set(names)) < len(names):
        raise InvalidRequestError(
            "Expected the columns value and optionally key, timestamp, headers, "
            f"each once; got {', '.join(names) or 'none'}."
        )
    count = arrow_batch.num_rows
    columns = {"timestamp": _timestamps(arrow_batch, now_us, count)}
    for name, arrow_type in (("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)):
        if name not in names:
            continue
        column = arrow_batch.column(name)
        if name == "value" or column.null_count < count:
            if name == "headers":
                _check_header_fields(column.type)
            columns[name] = _cast(name, column, arrow_type)
            if name == "headers":
                _check_headers(columns[name])
    schema = payload_schema(has_key="key" in columns, has_headers="headers" in columns)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def _check_header_fields(arrow_type: pa.DataType) -> None:
    # Arrow casts structs by field name and fills absent fields with nulls: headers would vanish.
    entry = getattr(arrow_type, "value_type", None)
    if entry is None or not pa.types.is_struct(entry) or pa.types.is_map(arrow_type):
        return
    names = [entry.field(i).name for i in range(entry.num_fields)]
    if sorted(names) != ["key", "value"]:
        raise InvalidRequestError(
            f"Each of the headers needs the fields key and value, got {', '.join(names) or 'none'}."
        )


def _check_headers(headers: pa.Array) -> None:
    """Raise InvalidRequestError for a header that is null, or whose name is."""
    entries = headers.flatten()
    if not entries.null_count and not entries.field("key").null_count:
        return
    row, header = next(
        (row, header)
        for row, record in enumerate(headers.to_pylist())
        for header in record or ()
        if header is None or header["key"] is None
    )
    raise InvalidRequestError(
        f"The headers of row {row} have "
        f"{'an element that is null' if header is None else 'one whose key is null'}; each needs a "
        "key, which may be empty, and a value, which may be null. Filter such elements out."
    )


def _timestamps(arrow_batch: pa.RecordBatch, now_us: int, count: int) -> pa.Array:
    if "timestamp" not in arrow_batch.schema.names:
        return repeated(now_us, count, TIMESTAMP)
    column = _cast("timestamp", arrow_batch.column("timestamp"), TIMESTAMP)
    return pc.fill_null(column, scalar(now_us, TIMESTAMP)) if column.null_count else column


def _cast(name: str, column: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    if column.type == arrow_type:
        return column
    try:
        return column.cast(arrow_type)
    except pa.ArrowException as error:
        raise InvalidRequestError(
            f"Column {name} has type {column.type}, which cannot become {arrow_type}: {error}"
        ) from error
