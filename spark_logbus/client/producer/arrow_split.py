"""Cuts arrow data into record batches that fit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import pyarrow as pa

from spark_logbus.errors import InvalidRequestError, RecordBatchTooLargeError
from spark_logbus.model import Compression
from spark_logbus.record import compute as pc
from spark_logbus.record.rows.arrow import bytes_of, encode
from spark_logbus.record.rows.builder import BATCH_OVERHEAD_BYTES
from spark_logbus.record.rows.plain import integers, scalar

_BINARY: Final = pa.binary()
_TIME_BYTES: Final = 8
_VALUE_ALONE: Final = ["value"]

Encode: TypeAlias = Callable[[pa.RecordBatch, Compression], memoryview]


def lone_values(data: pa.RecordBatch | pa.Table, *, limit: int) -> pa.Array | None:
    """The values of an arrow batch that holds nothing else, of binary type and none of them null,
    if a record batch of them is within ``limit`` bytes for sure."""
    if not isinstance(data, pa.RecordBatch) or data.schema.names != _VALUE_ALONE:
        return None
    values = data.column(0)
    if values.type != _BINARY or values.null_count or not len(values):
        return None
    at_most = BATCH_OVERHEAD_BYTES + sum([one.size for one in values.buffers() if one is not None])
    return values if at_most + _TIME_BYTES * len(values) <= limit else None


def arrow_batches(data: pa.RecordBatch | pa.Table, *, piece_bytes: int) -> list[pa.RecordBatch]:
    """The arrow batches of ``data``; a table of many small chunks is put together first."""
    if isinstance(data, pa.RecordBatch):
        return [data] if data.num_rows else []
    if not isinstance(data, pa.Table):
        raise InvalidRequestError(
            f"Expected a pyarrow RecordBatch or Table, got {type(data).__name__}."
        )
    chunks = max((column.num_chunks for column in data.columns), default=0)
    if chunks > 1 and data.nbytes / chunks < piece_bytes:
        data = data.combine_chunks()
    return [batch for batch in data.to_batches() if batch.num_rows]


def check_record_sizes(arrow_batch: pa.RecordBatch, *, topic: str, limit: int) -> None:
    """Raise RecordBatchTooLargeError if a record of a canonical arrow batch does not fit, which
    ``encode_pieces`` would find out when those before it are on their way."""
    room = limit - BATCH_OVERHEAD_BYTES
    if bytes_of(arrow_batch, enough=room) <= room:
        return
    if not pa.types.is_binary(arrow_batch.schema.field("value").type):
        return  # columns, of which no record is large unless a text is; met when it is encoded
    sizes = _record_sizes(arrow_batch)
    near = pc.indices_nonzero(pc.greater(sizes, scalar(room, pa.int64())))
    for row in near.to_pylist():
        size = sizes[row].as_py()
        if size <= limit:
            size = len(encode(arrow_batch.slice(row, 1)))  # one record is never compressed
        if size > limit:
            raise too_large(size, topic=topic, limit=limit)


def _record_sizes(arrow_batch: pa.RecordBatch) -> pa.Array:
    """The bytes of each record's key, value and headers."""
    sizes = _lengths(arrow_batch.column("value"))
    if "key" in arrow_batch.schema.names:
        sizes = pc.add(sizes, _lengths(arrow_batch.column("key")))
    if "headers" in arrow_batch.schema.names:
        headers = arrow_batch.column("headers")
        entries = headers.values
        lengths = pc.add(_lengths(entries.field("key")), _lengths(entries.field("value")))
        up_to = pa.concat_arrays([integers([0], pa.int64()), pc.cumulative_sum(lengths)])
        ends = up_to.take(headers.offsets)
        sizes = pc.add(sizes, pc.subtract(ends[1:], ends[:-1]))
    return sizes


def _lengths(column: pa.Array) -> pa.Array:
    lengths = pc.binary_length(column).cast(pa.int64())
    return pc.fill_null(lengths, scalar(0, pa.int64()))


def too_large(size: int, *, topic: str, limit: int) -> RecordBatchTooLargeError:
    return RecordBatchTooLargeError(
        f"A record for topic {topic} has {size} bytes; with its record batch header it is above "
        f"the limit of {limit} bytes. Split the record, or raise max.message.bytes of the topic "
        "and the broker's record batch limit."
    )


def encode_pieces(
    arrow_batch: pa.RecordBatch,
    *,
    topic: str,
    piece_bytes: int,
    limit: int,
    compression: Compression,
    encode: Encode,
) -> Iterator[tuple[memoryview, pa.RecordBatch]]:
    """Record batches of about ``piece_bytes`` and at most ``limit`` bytes, with their records."""
    count = arrow_batch.num_rows
    wanted = max(1, min(piece_bytes, limit - BATCH_OVERHEAD_BYTES))
    pieces = min(count, -(-bytes_of(arrow_batch, enough=wanted) // wanted)) or 1
    for number in range(pieces):
        start, stop = number * count // pieces, (number + 1) * count // pieces
        piece = arrow_batch.slice(start, stop - start)
        yield from _encode(piece, encode, topic=topic, limit=limit, compression=compression)


def _encode(
    piece: pa.RecordBatch, encode: Encode, *, topic: str, limit: int, compression: Compression
) -> Iterator[tuple[memoryview, pa.RecordBatch]]:
    data = encode(piece, compression)
    if len(data) <= limit:
        yield data, piece
    elif piece.num_rows == 1:
        raise too_large(len(data), topic=topic, limit=limit)
    else:  # records of very different sizes: halve until they fit
        half = piece.num_rows // 2
        for part in (piece.slice(0, half), piece.slice(half)):
            yield from _encode(part, encode, topic=topic, limit=limit, compression=compression)
