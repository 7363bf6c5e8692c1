"""Payloads: an Arrow record batch into a record batch, and back without a copy.

The columns of a payload are in ``spark_logbus.record.rows.columns``, whose names are here too.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
)
from spark_logbus.model import Compression, TimestampType
from spark_logbus.record import compute as pc
from spark_logbus.record import format as fmt
from spark_logbus.record.header import (
    NO_STAMP,
    Buffer,
    ProducerStamp,
    RecordBatchHeader,
    write_header,
)
from spark_logbus.record.rows.columns import HEADERS, TIMESTAMP, canonical, payload_schema
from spark_logbus.record.rows.ipc import EnvelopeError, UsualMessage, check_envelope
from spark_logbus.record.rows.rows import RowsMessage
from spark_logbus.record.rows.serialize import bytes_of, serialized

__all__ = [
    "HEADERS",
    "MIN_RECORDS_TO_COMPRESS",
    "NO_STAMP",
    "TIMESTAMP",
    "ProducerStamp",
    "bytes_of",
    "canonical",
    "decode",
    "decoded_size",
    "encode",
    "encode_column",
    "encode_rows",
    "encode_value",
    "payload_schema",
]

# Below this, a compressed buffer's framing costs more than it saves.
MIN_RECORDS_TO_COMPRESS = 50


@dataclass(frozen=True, slots=True)
class _Columns:
    """Facts that follow from the columns of a payload alone, worked out once."""

    schema: Any
    attributes: int
    schema_message_size: int
    nodes: int  # columns with their children, as Arrow counts them
    usual: UsualMessage
    rows: RowsMessage


def _columns(*, has_key: bool, has_headers: bool, has_offset_delta: bool) -> _Columns:
    schema = payload_schema(
        has_key=has_key, has_headers=has_headers, has_offset_delta=has_offset_delta
    )
    attributes = fmt.LAYOUT_ARROW_BATCH << fmt.LAYOUT_SHIFT
    attributes |= fmt.HAS_KEY if has_key else 0
    attributes |= fmt.HAS_HEADERS if has_headers else 0
    attributes |= fmt.HAS_OFFSET_DELTA if has_offset_delta else 0
    nodes = 2 + has_key + 4 * has_headers + has_offset_delta
    sample = pa.RecordBatch.from_arrays(
        [pa.nulls(1, column.type) for column in schema], schema=schema
    )
    message = memoryview(sample.serialize()).cast("B")
    return _Columns(
        schema,
        attributes,
        len(schema.serialize()),
        nodes,
        UsualMessage(message),
        RowsMessage(message),
    )


_COLUMNS: dict[tuple[str, ...], _Columns] = {
    tuple(columns.schema.names): columns
    for columns in (
        _columns(has_key=key, has_headers=headers, has_offset_delta=delta)
        for key, headers, delta in product((False, True), repeat=3)
    )
}

_PLAIN_COLUMNS = _COLUMNS["timestamp", "value"]

_COLUMN_BITS = fmt.HAS_KEY | fmt.HAS_HEADERS | fmt.HAS_OFFSET_DELTA
_BY_ATTRIBUTES = {columns.attributes & _COLUMN_BITS: columns for columns in _COLUMNS.values()}

_MIN_MAX = pc.get_function("min_max")  # half the cost of pc.min_max
_COUNTED_HERE = 64  # records up to which even that costs more than Python's min and max
_ROOM = bytes(fmt.HEADER_SIZE)


def encode(
    arrow_batch: pa.RecordBatch,
    *,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    stamp: ProducerStamp = NO_STAMP,
    schema_id: int = fmt.PLAIN_BYTES_SCHEMA,
    last_offset_delta: int | None = None,
    control: bool = False,
) -> memoryview:
    """One record batch, ready to append, from an arrow batch of one or more records.

    ``arrow_batch`` must be canonical (see ``canonical``); other columns raise
    InvalidRequestError, and one that no reader would accept RecordBatchTooLargeError. Base
    offset, leader epoch and append time stay 0 for the leader to stamp. The result is writable
    and 8-byte aligned.

    With a column ``offset_delta``, ``last_offset_delta`` may lie after its last value: the
    record batch then also stands for the removed offsets in between.
    """
    count = arrow_batch.num_rows
    if count == 0:
        raise InvalidRequestError("A record batch needs at least one record, got 0.")
    schema = arrow_batch.schema
    columns = _COLUMNS.get(tuple(schema.names))
    if columns is None or not schema.equals(columns.schema):
        raise InvalidRequestError(
            f"The arrow batch is not in canonical form, its columns are {_describe(schema)}."
        )
    if count < MIN_RECORDS_TO_COMPRESS:
        compression = Compression.NONE
    attributes = columns.attributes | compression
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= fmt.LOG_APPEND_TIME
    if control:
        attributes |= fmt.CONTROL
    last_delta = count - 1
    if attributes & fmt.HAS_OFFSET_DELTA:
        last_delta = arrow_batch.column(arrow_batch.num_columns - 1)[-1].as_py()
        if last_offset_delta is not None:
            last_delta = max(last_delta, last_offset_delta)
    first_us, last_us = time_bounds(arrow_batch.column(0))
    record_batch = serialized(
        arrow_batch,
        room=fmt.HEADER_SIZE,
        schema_message_size=columns.schema_message_size,
        compression=compression,
    )
    write_header(
        record_batch, attributes, count, last_delta, first_us, last_us,
        stamp=stamp, schema_id=schema_id,
    )  # fmt: skip
    return record_batch


def encode_rows(
    times_us: array[int], keys: Sequence[bytes | None], values: Sequence[bytes | None]
) -> memoryview:
    """Encodes records without headers as ``encode`` does, for a third to a half of the cost.

    ``times_us`` has 64 bits for each; ``keys`` is empty or has one for each. Of more than
    ``rows.FEW_RECORDS`` none may be null.
    """
    names = ("timestamp", "key", "value") if keys else ("timestamp", "value")
    columns, count = _COLUMNS[names], len(times_us)
    payload = columns.rows.payload(times_us, [keys, values] if keys else [values])
    if count <= _COUNTED_HERE:
        first_us, last_us = min(times_us), max(times_us)
    else:
        times = np.frombuffer(times_us, np.int64)
        first_us, last_us = int(times.min()), int(times.max())
    return _record_batch(payload, columns.attributes, count, first_us, last_us)


def encode_value(time_us: int, value: bytes) -> memoryview:
    """Encodes one record without a key as ``encode_rows`` does, for a third of the cost."""
    payload = _PLAIN_COLUMNS.rows.payload_of_value(time_us, value)
    return _record_batch(payload, _PLAIN_COLUMNS.attributes, 1, time_us, time_us)


def encode_column(time_us: int, values: pa.Array) -> memoryview:
    """Encodes ``values`` with one time as ``encode`` does, for a third of the cost; one or more of
    binary type, none of them null."""
    payload = _PLAIN_COLUMNS.rows.payload_of_column(time_us, values)
    return _record_batch(payload, _PLAIN_COLUMNS.attributes, len(values), time_us, time_us)


def _record_batch(
    payload: Sequence[Any], attributes: int, count: int, first_us: int, last_us: int
) -> memoryview:
    record_batch = memoryview(bytearray().join((_ROOM, *payload)))
    write_header(record_batch, attributes, count, count - 1, first_us, last_us, keep_gil=True)
    return record_batch


def time_bounds(timestamps: pa.Array) -> tuple[int, int]:
    if timestamps.null_count:
        raise InvalidRequestError(
            f"Every record needs a timestamp, {timestamps.null_count} have none."
        )
    if len(timestamps) <= _COUNTED_HERE:
        start = timestamps.offset
        times = memoryview(timestamps.buffers()[1]).cast("q")[start : start + len(timestamps)]
        return min(times), max(times)
    bounds = _MIN_MAX.call([timestamps])
    return bounds[0].value, bounds[1].value


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "none"


def decoded_size(header: RecordBatchHeader, record_batch: Buffer) -> int:
    """Bytes that the compressed buffers of a record batch claim to take when decoded; 0 when it is
    not compressed, for then they are views of it. Nothing is decoded.

    Raises CorruptRecordBatchError when the payload is not what the header says.
    """
    columns = _BY_ATTRIBUTES[header.attributes & _COLUMN_BITS]
    payload = memoryview(record_batch)[fmt.HEADER_SIZE :]
    try:
        return check_envelope(payload, compression=header.compression, nodes=columns.nodes)
    except EnvelopeError as error:
        raise CorruptRecordBatchError(
            f"Record batch at offset {header.base_offset}: its payload cannot be decoded ({error})."
        ) from error


def decode(
    header: RecordBatchHeader,
    record_batch: Buffer,
    *,
    max_decoded_bytes: int = fmt.MAX_DECODED_BYTES,
) -> pa.RecordBatch:
    """The arrow batch of one verified record batch; its buffers are views of ``record_batch``.

    Raises CorruptRecordBatchError when the payload is not what the header says, whatever a
    hostile or broken writer put there: buffers are checked against their body, and compressed
    buffers that claim to become more than ``max_decoded_bytes`` are not touched. One of layout 1
    is for ``record.columns.decoder.decode_columns``, which knows its schema.
    """
    if header.layout != fmt.LAYOUT_ARROW_BATCH:
        raise CorruptRecordBatchError(
            f"Record batch at offset {header.base_offset}: its values are columns of schema "
            f"{header.schema_id}, and nobody reads them without that schema."
        )
    columns = _BY_ATTRIBUTES[header.attributes & _COLUMN_BITS]
    payload = memoryview(record_batch)[fmt.HEADER_SIZE :]
    try:
        if header.attributes & fmt.COMPRESSION_MASK or not columns.usual.has_form(payload):
            _check_envelope(payload, header, columns, max_decoded_bytes)
        arrow_batch = pa.ipc.read_record_batch(pa.py_buffer(payload), columns.schema)
        arrow_batch.validate(full=True)
    except MemoryError:  # also one of Arrow's exceptions; the record batch is not to blame
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptRecordBatchError(
            f"Record batch at offset {header.base_offset}: its payload cannot be decoded ({error})."
        ) from error
    problem = _content_problem(header, arrow_batch)
    if problem:
        raise CorruptRecordBatchError(f"Record batch at offset {header.base_offset}: {problem}.")
    return arrow_batch


def _check_envelope(
    payload: memoryview, header: RecordBatchHeader, columns: _Columns, max_decoded_bytes: int
) -> None:
    decoded_bytes = check_envelope(payload, compression=header.compression, nodes=columns.nodes)
    if decoded_bytes > max_decoded_bytes:
        raise EnvelopeError(
            f"it claims to take {decoded_bytes} bytes when decoded, "
            f"the limit is {max_decoded_bytes}"
        )


def _content_problem(header: RecordBatchHeader, arrow_batch: pa.RecordBatch) -> str | None:
    count = arrow_batch.num_rows
    if count != header.record_count:
        return f"the payload holds {count} records, the header says {header.record_count}"
    if arrow_batch.column(0).null_count:
        return "a record has no timestamp"
    if header.has_offset_delta:
        deltas = arrow_batch.column(arrow_batch.num_columns - 1)
        rising = pc.all(pc.greater(deltas[1:], deltas[:-1])).as_py() is not False
        if deltas.null_count or not rising or deltas[0].as_py() < 0:
            return "its offset deltas do not rise"
        if deltas[-1].as_py() > header.last_offset_delta:
            return (
                f"its last offset delta is {deltas[-1]}, expected at most "
                f"{header.last_offset_delta}"
            )
    return None
