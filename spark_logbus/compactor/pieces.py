"""Parts of record batches that stay, and record batches made of them again. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from spark_logbus.errors import RecordBatchTooLargeError
from spark_logbus.model import TimestampType
from spark_logbus.record import RecordBatchHeader, stamp
from spark_logbus.record import format as fmt
from spark_logbus.record.rows.arrow import TIMESTAMP, encode, payload_schema
from spark_logbus.record.rows.plain import integers


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Part of one record batch that stays: at least one record, or a whole that is not decoded.

    ``record_batch`` are its bytes if nothing was removed, so that they can stay as they are.
    ``arrow_batch`` is None for a record batch that has to.
    """

    header: RecordBatchHeader
    record_batch: memoryview | None
    arrow_batch: pa.RecordBatch | None
    offsets: Sequence[int]
    size: int

    def joins(self, other: BatchPart) -> bool:
        """True if one record batch can hold both: all that a header says once must be the same."""
        mine, theirs = self.header, other.header
        return (
            self.arrow_batch is not None
            and other.arrow_batch is not None
            and mine.compression is theirs.compression
            and mine.schema_id == theirs.schema_id
            and mine.timestamp_type is theirs.timestamp_type
            # Then the time of each record is the one in the header.
            and (
                mine.timestamp_type is TimestampType.CREATE_TIME
                or mine.append_time_us == theirs.append_time_us
            )
        )


def joined(
    pieces: Sequence[BatchPart], *, base_offset: int, end_offset: int, leader_epoch: int
) -> Iterator[memoryview]:
    """The records of ``pieces`` as one record batch that stands for ``[base_offset, end_offset)``,
    stamped with ``leader_epoch``.

    More than one where the format's limits ask for it. A producer's stamp is gone: sequences
    count records, and some are missing.
    """
    schema = payload_schema(
        has_key=any(piece.header.has_key for piece in pieces),
        has_headers=any(piece.header.has_headers for piece in pieces),
    )
    rows = [_columns(piece.arrow_batch, schema) for piece in pieces]
    arrow_batch = rows[0] if len(rows) == 1 else pa.concat_batches(rows)
    offsets = [offset for piece in pieces for offset in piece.offsets]
    header = msgspec.structs.replace(pieces[-1].header, leader_epoch=leader_epoch)
    yield from _encoded(
        arrow_batch, offsets, header, base_offset=base_offset, end_offset=end_offset
    )


def _columns(arrow_batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``; null throughout where the record batch had none."""
    names = arrow_batch.schema.names
    count = arrow_batch.num_rows
    columns = [
        arrow_batch.column(field.name) if field.name in names else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _encoded(
    arrow_batch: pa.RecordBatch,
    offsets: list[int],
    header: RecordBatchHeader,
    *,
    base_offset: int,
    end_offset: int,
) -> Iterator[memoryview]:
    count = len(offsets)
    last_delta = end_offset - 1 - base_offset
    records = arrow_batch
    if last_delta != count - 1:  # else the offsets are dense
        deltas = integers((offset - base_offset for offset in offsets), pa.int32())
        records = records.append_column(pa.field("offset_delta", pa.int32()), deltas)
    try:
        record_batch = encode(
            records,
            compression=header.compression,
            timestamp_type=header.timestamp_type,
            schema_id=header.schema_id,
            last_offset_delta=last_delta,
        )
    except RecordBatchTooLargeError:
        if count == 1:
            raise
        half = count // 2
        halves = ((0, half, base_offset, offsets[half]), (half, count, offsets[half], end_offset))
        for start, stop, base, end in halves:
            yield from _encoded(
                arrow_batch.slice(start, stop - start),
                offsets[start:stop],
                header,
                base_offset=base,
                end_offset=end,
            )
        return
    _stamp(record_batch, header, base_offset)
    yield record_batch


def placeholder(header: RecordBatchHeader, *, base_offset: int, end_offset: int) -> memoryview:
    """A record batch without records for consumers, where nothing stayed of ``[base, end)``.

    Control, so that nobody sees its one record; with the smallest timestamp, so that no search by
    time stops here; appended when ``header``'s was. It goes at the next compaction that finds a
    record batch to extend in its place.
    """
    columns = [
        integers([-(1 << 63)], TIMESTAMP),
        pa.nulls(1, pa.binary()),
        integers([0], pa.int32()),
    ]
    schema = payload_schema(has_key=False, has_headers=False, has_offset_delta=True)
    record_batch = encode(
        pa.RecordBatch.from_arrays(columns, schema=schema),
        last_offset_delta=end_offset - 1 - base_offset,
        control=True,
    )
    _stamp(record_batch, header, base_offset)
    return record_batch


def is_filler(header: RecordBatchHeader) -> bool:
    """True of what ``placeholder`` made: nobody but compaction writes offset deltas, and compaction
    keeps other control as it is."""
    return header.is_control and header.has_offset_delta


def _stamp(record_batch: memoryview, header: RecordBatchHeader, base_offset: int) -> None:
    stamp(
        record_batch,
        base_offset=base_offset,
        leader_epoch=header.leader_epoch,
        append_time_us=header.append_time_us,
    )


def size_of(header: RecordBatchHeader, arrow_batch: pa.RecordBatch) -> int:
    """Estimates the bytes of the records; asking Arrow takes longer than knowing."""
    if not header.compression and arrow_batch.num_rows == header.record_count:
        return header.size
    return int(arrow_batch.nbytes) + fmt.HEADER_SIZE
