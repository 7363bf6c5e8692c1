"""Typed values into record batches of payload layout 1 (``spark_logbus.record.chunks``)."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import pyarrow as pa
from crc32c import crc32c
from pyarrow import types

from spark_logbus.errors import InvalidRequestError, RecordBatchTooLargeError
from spark_logbus.model import Compression, TimestampType
from spark_logbus.record import format as fmt
from spark_logbus.record.chunks import RECORD_COLUMNS
from spark_logbus.record.columns.layout import RECORD_TYPES, ColumnLayout, column_layout
from spark_logbus.record.header import NO_STAMP, ProducerStamp, write_header
from spark_logbus.record.rows.arrow import MIN_RECORDS_TO_COMPRESS, time_bounds
from spark_logbus.record.rows.ipc import read_message
from spark_logbus.record.rows.nulls import refuse_nulls
from spark_logbus.record.rows.serialize import serialized

_NEEDED: Final = frozenset({"timestamp", "value"})
_TAKEN: Final = frozenset({*_NEEDED, "key", "headers", "offset_delta"})
_MAX_SCHEMA_ID: Final = (1 << 32) - 1


def encode_columns(
    arrow_batch: pa.RecordBatch,
    *,
    schema_id: int,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    stamp: ProducerStamp = NO_STAMP,
    last_offset_delta: int | None = None,
) -> memoryview:
    """One record batch of layout 1, as ``arrow.encode`` makes those of layout 0.

    ``arrow_batch`` has the columns ``timestamp``, ``value`` of the type of schema ``schema_id``,
    and those of ``key``, ``headers`` and ``offset_delta`` that are there. What no reader would
    accept raises InvalidRequestError, or RecordBatchTooLargeError.
    """
    count = arrow_batch.num_rows
    if count == 0:
        raise InvalidRequestError("A record batch needs at least one record, got 0.")
    if not fmt.PLAIN_BYTES_SCHEMA < schema_id <= _MAX_SCHEMA_ID:
        raise InvalidRequestError(
            f"Columns need the id of their schema, from 1 to {_MAX_SCHEMA_ID}; got {schema_id}."
        )
    columns = dict(zip(arrow_batch.schema.names, arrow_batch.columns, strict=True))
    if (
        not _NEEDED <= columns.keys() <= _TAKEN
        or len(columns) < arrow_batch.num_columns
        or any(columns[name].type != kind for name, kind in RECORD_TYPES.items() if name in columns)
    ):
        raise InvalidRequestError(
            "A record batch is made of the columns timestamp, value and optionally key, headers, "
            f"offset_delta in their types; got {arrow_batch.schema.to_string()}."
        )
    value = columns.pop("value")
    if types.is_struct(value.type) and value.null_count:
        columns["tombstone"] = value.is_null()
    attributes = fmt.LAYOUT_COLUMNS << fmt.LAYOUT_SHIFT | sum(
        bit for name, bit in RECORD_COLUMNS if name in columns
    )
    layout = column_layout(value.type, attributes)
    own = [columns[column.field.name] for column in layout.columns[: layout.own]]
    if count < MIN_RECORDS_TO_COMPRESS:
        compression = Compression.NONE
    attributes |= compression
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= fmt.LOG_APPEND_TIME
    last_delta = count - 1
    if attributes & fmt.HAS_OFFSET_DELTA:
        last_delta = max(arrow_batch.column("offset_delta")[-1].as_py(), last_offset_delta or 0)
    first_us, last_us = time_bounds(own[0])
    fields = value.flatten() if types.is_struct(value.type) else [value]
    _check_values([*own, *fields], layout, columns.get("tombstone"))
    payload = pa.RecordBatch.from_arrays([*own, *fields], schema=layout.schema)
    record_batch = serialized(
        payload,
        room=layout.room,
        schema_message_size=layout.schema_message_size,
        compression=compression,
    )
    _write_directory(record_batch, layout)  # first, as the checksum covers it
    write_header(
        record_batch, attributes, count, last_delta, first_us, last_us,
        stamp=stamp, schema_id=schema_id,
    )  # fmt: skip
    return record_batch


def _check_values(
    arrays: list[pa.Array], layout: ColumnLayout, tombstones: pa.Array | None
) -> None:
    """Readers check the same, and would take the record batch for a damaged one."""
    for number, (array, column) in enumerate(zip(arrays, layout.columns, strict=True)):
        try:
            array.validate(full=True)
            if number >= layout.own:
                refuse_nulls(column.field, array, tombstones)
        except (pa.ArrowInvalid, ValueError) as error:
            raise InvalidRequestError(
                f"The column {column.field.name} holds what its type {column.field.type} does not "
                f"allow: {error}"
            ) from error


def _write_directory(record_batch: memoryview, layout: ColumnLayout) -> None:
    metadata_size = int.from_bytes(record_batch[layout.room + 4 : layout.room + 8], "little")
    body_start = layout.room + 8 + metadata_size
    if body_start > fmt.MAX_BEGINNING_BYTES:
        raise RecordBatchTooLargeError(
            f"What stands before the columns of the record batch takes {body_start} bytes, the "
            f"format allows {fmt.MAX_BEGINNING_BYTES}; use a schema with fewer fields."
        )
    numbers = read_message(record_batch[layout.room : body_start])
    places = [*numbers.buffers[:, 0].tolist(), numbers.body_length]
    bounds = [body_start + places[column.buffers.start] for column in layout.columns]
    bounds.append(len(record_batch))
    fmt.DIRECTORY.pack_into(record_batch, fmt.DIRECTORY_AT, len(layout.columns), body_start)
    for number, (start, stop) in enumerate(pairwise(bounds)):
        fmt.CHUNK.pack_into(
            record_batch,
            fmt.CHUNKS_AT + number * fmt.CHUNK.size,
            stop - start,
            crc32c(record_batch[start:stop]),
        )
