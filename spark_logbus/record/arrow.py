"""Payloads: an Arrow record batch into a record batch, and back without a copy.

A ``pyarrow.RecordBatch`` is called an *arrow batch* here, to keep it apart from the log's
record batch. Columns of an arrow batch, in this order, absent ones left out::

    timestamp     timestamp[us, UTC]                          never null
    key           binary                                      null = no key
    value         binary                                      null = tombstone
    headers       list<struct<key: string, value: binary>>    null = no headers
    offset_delta  int32                                       only after compaction
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_logbus.errors import CorruptRecordBatchError, InvalidRequestError
from spark_logbus.model import Compression, TimestampType
from spark_logbus.record import format as fmt
from spark_logbus.record.header import Buffer, RecordBatchHeader, checksum

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=True), pa.field("value", pa.binary())])
)

# Below this, a compressed buffer's framing costs more than it saves.
MIN_RECORDS_TO_COMPRESS = 50

_CODECS = {Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """What an idempotent producer writes into its record batches' headers."""

    producer_id: int = fmt.NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = fmt.NO_SEQUENCE


NO_STAMP = ProducerStamp()


@lru_cache(maxsize=8)
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


@lru_cache(maxsize=8)
def _write_options(compression: Compression) -> Any:
    return pa.ipc.IpcWriteOptions(compression=_CODECS.get(compression))


@lru_cache(maxsize=8)
def _schema_message_size(schema: Any) -> int:
    return len(schema.serialize())


def encode(
    arrow_batch: pa.RecordBatch,
    *,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    stamp: ProducerStamp = NO_STAMP,
    schema_id: int = fmt.PLAIN_BYTES_SCHEMA,
) -> memoryview:
    """One record batch, ready to append, from an arrow batch of one or more records.

    ``arrow_batch`` must be canonical (see ``canonical``). Base offset, leader epoch and append
    time stay 0 for the leader to stamp. The result is writable and 8-byte aligned.
    """
    count = arrow_batch.num_rows
    if count == 0:
        raise InvalidRequestError("A record batch needs at least one record, got 0.")
    names = arrow_batch.schema.names
    if count < MIN_RECORDS_TO_COMPRESS:
        compression = Compression.NONE
    attributes = int(compression) | fmt.LAYOUT_ARROW_BATCH << fmt.LAYOUT_SHIFT
    attributes |= fmt.HAS_KEY if "key" in names else 0
    attributes |= fmt.HAS_HEADERS if "headers" in names else 0
    attributes |= fmt.LOG_APPEND_TIME if timestamp_type is TimestampType.LOG_APPEND_TIME else 0
    last_delta = count - 1
    if "offset_delta" in names:
        attributes |= fmt.HAS_OFFSET_DELTA
        last_delta = arrow_batch.column(names.index("offset_delta"))[-1].as_py()
    first_us, last_us = _time_bounds(arrow_batch.column(0))
    record_batch = _serialize_after_header(arrow_batch, compression)
    fmt.HEADER.pack_into(
        record_batch, 0, 0, len(record_batch) - fmt.LENGTH_FIELD_END, 0, 0, fmt.MAGIC_V1, 0,
        attributes, 0, count, last_delta, first_us, last_us, stamp.producer_id,
        stamp.producer_epoch, stamp.base_sequence, schema_id,
    )  # fmt: skip
    fmt.CRC.pack_into(record_batch, fmt.CRC_AT, checksum(record_batch))
    return record_batch


def _serialize_after_header(arrow_batch: pa.RecordBatch, compression: Compression) -> memoryview:
    """The payload, preceded by ``HEADER_SIZE`` bytes to be filled in, without a copy.

    Arrow's stream writer puts a schema message before the first batch. That message is larger
    than our header, so its tail is the room for the header, right before the payload.
    """
    schema = arrow_batch.schema
    prefix = _schema_message_size(schema)
    if compression is Compression.NONE:
        buffer = pa.allocate_buffer(prefix + pa.ipc.get_record_batch_size(arrow_batch))
        sink = pa.FixedSizeBufferWriter(buffer)
        pa.ipc.new_stream(sink, schema).write_batch(arrow_batch)
    else:
        stream = pa.BufferOutputStream()
        options = _write_options(compression)
        pa.ipc.new_stream(stream, schema, options=options).write_batch(arrow_batch)
        buffer = stream.getvalue()
    return memoryview(buffer).cast("B")[prefix - fmt.HEADER_SIZE :]


def _time_bounds(timestamps: pa.Array) -> tuple[int, int]:
    bounds = pc.min_max(timestamps.view(pa.int64())).as_py()
    return bounds["min"], bounds["max"]


def decode(header: RecordBatchHeader, record_batch: Buffer) -> pa.RecordBatch:
    """The arrow batch of one verified record batch; its buffers are views of ``record_batch``.

    Raises CorruptRecordBatchError when the payload is not what the header says, whatever a
    hostile or broken writer put there: buffers are checked against their body.
    """
    schema = payload_schema(
        has_key=header.has_key,
        has_headers=header.has_headers,
        has_offset_delta=header.has_offset_delta,
    )
    payload = pa.py_buffer(memoryview(record_batch)[fmt.HEADER_SIZE :])
    try:
        arrow_batch = pa.ipc.read_record_batch(payload, schema)
        arrow_batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptRecordBatchError(
            f"Record batch at offset {header.base_offset}: its payload cannot be decoded ({error})."
        ) from error
    if arrow_batch.num_rows != header.record_count:
        raise CorruptRecordBatchError(
            f"Record batch at offset {header.base_offset}: the payload holds "
            f"{arrow_batch.num_rows} records, the header says {header.record_count}."
        )
    if arrow_batch.column(0).null_count:
        raise CorruptRecordBatchError(
            f"Record batch at offset {header.base_offset}: a record has no timestamp."
        )
    return arrow_batch


def canonical(arrow_batch: pa.RecordBatch, *, now_us: int) -> pa.RecordBatch:
    """``arrow_batch`` with exactly the columns and types of a payload.

    Takes ``value`` and optionally ``key``, ``timestamp`` and ``headers``; strings become UTF-8
    bytes; a missing or null timestamp becomes ``now_us``; key and headers columns that are null
    throughout are dropped. Other columns are refused by name.
    """
    known = {"timestamp", "key", "value", "headers"}
    unknown = [name for name in arrow_batch.schema.names if name not in known]
    if unknown or "value" not in arrow_batch.schema.names:
        raise InvalidRequestError(
            f"Expected the columns value and optionally key, timestamp, headers; "
            f"got {', '.join(arrow_batch.schema.names)}."
        )
    count = arrow_batch.num_rows
    columns = {"timestamp": _timestamps(arrow_batch, now_us, count)}
    for name, arrow_type in (("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)):
        if name not in arrow_batch.schema.names:
            continue
        column = arrow_batch.column(name)
        if name == "value" or column.null_count < count:
            columns[name] = _cast(name, column, arrow_type)
    schema = payload_schema(has_key="key" in columns, has_headers="headers" in columns)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def _timestamps(arrow_batch: pa.RecordBatch, now_us: int, count: int) -> pa.Array:
    now = pa.scalar(now_us, TIMESTAMP)
    if "timestamp" not in arrow_batch.schema.names:
        return pa.repeat(now, count)
    column = _cast("timestamp", arrow_batch.column("timestamp"), TIMESTAMP)
    return pc.fill_null(column, now) if column.null_count else column


def _cast(name: str, column: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    if column.type == arrow_type:
        return column
    try:
        return column.cast(arrow_type)
    except pa.ArrowException as error:
        raise InvalidRequestError(
            f"Column {name} has type {column.type}, which cannot become {arrow_type}: {error}"
        ) from error
