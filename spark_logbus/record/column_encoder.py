"""Typed values into record batches of payload layout 1 (``spark_logbus.record.chunks``)."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from crc32c import crc32c
from pyarrow import types

from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import Compression, TimestampType
from spark_logbus.record import format as fmt
from spark_logbus.record.arrow import (
    MIN_RECORDS_TO_COMPRESS,
    NO_STAMP,
    ProducerStamp,
    time_bounds,
)
from spark_logbus.record.chunks import RECORD_COLUMNS
from spark_logbus.record.column_layout import ColumnLayout, column_layout
from spark_logbus.record.header import checksum
from spark_logbus.record.ipc import read_message
from spark_logbus.record.serialize import serialized


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
    and those of ``key``, ``headers`` and ``offset_delta`` that are there. Raises
    InvalidRequestError, RecordBatchTooLargeError.
    """
    count = arrow_batch.num_rows
    if count == 0:
        raise InvalidRequestError("A record batch needs at least one record, got 0.")
    columns = dict(zip(arrow_batch.schema.names, arrow_batch.columns, strict=True))
    value = columns.pop("value")
    if types.is_struct(value.type) and value.null_count:
        columns["tombstone"] = value.is_null()
    attributes = fmt.LAYOUT_COLUMNS << fmt.LAYOUT_SHIFT | sum(
        bit for name, bit in RECORD_COLUMNS if name in columns
    )
    layout = column_layout(value.type, attributes)
    own = [columns.pop(column.field.name) for column in layout.columns[: layout.own]]
    if columns or any(
        array.type != column.field.type for array, column in zip(own, layout.columns, strict=False)
    ):
        raise InvalidRequestError(
            "A record batch is made of the columns timestamp, value and optionally key, headers, "
            f"offset_delta in their types; got {arrow_batch.schema.to_string()}."
        )
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
    payload = pa.RecordBatch.from_arrays([*own, *fields], schema=layout.schema)
    record_batch = serialized(
        payload,
        room=layout.room,
        schema_message_size=layout.schema_message_size,
        compression=compression,
    )
    fmt.HEADER.pack_into(
        record_batch, 0, 0, len(record_batch) - fmt.LENGTH_FIELD_END, 0, 0, fmt.MAGIC_V1, 0,
        attributes, 0, count, last_delta, first_us, last_us, stamp.producer_id,
        stamp.producer_epoch, stamp.base_sequence, schema_id,
    )  # fmt: skip
    _write_directory(record_batch, layout)
    fmt.CRC.pack_into(record_batch, fmt.CRC_AT, checksum(record_batch))
    return record_batch


def _write_directory(record_batch: memoryview, layout: ColumnLayout) -> None:
    metadata_size = int.from_bytes(record_batch[layout.room + 4 : layout.room + 8], "little")
    body_start = layout.room + 8 + metadata_size
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
