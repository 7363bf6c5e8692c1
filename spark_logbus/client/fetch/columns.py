"""Many record batches of a fetch as columns, without work for each of them where that can be.

``decoded`` (``client.fetch.batches``) decodes one record batch and says what is wrong with it; here
as many as are alike are verified and decoded together, and what cannot be is left to that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_logbus.client.fetch.batches import FetchedBatch, decoded, encoded_batch
from spark_logbus.client.fetch.plain_reader import PLAIN_READER, PlainReader
from spark_logbus.errors import CorruptRecordBatchError, UndecodableRecordError
from spark_logbus.model import TimestampType, TopicPartition
from spark_logbus.record import format as fmt
from spark_logbus.record.rows.join import deltas_of, joined
from spark_logbus.record.run import RecordBatchRun, verified

# To decode fewer together takes longer than one by one.
_LEAST_TOGETHER: Final = 10
_LEAST_TYPED_TOGETHER: Final = 3


class PartitionRows(NamedTuple):
    """Number of rows of one partition."""

    topic_partition: TopicPartition
    rows: int


@dataclass(frozen=True, slots=True)
class FetchedColumns:
    """Records of one or more record batches with the same attributes, cut to what was asked for."""

    partitions: Sequence[PartitionRows]
    """Number of rows of each partition, in their order."""

    columns: Mapping[str, pa.Array]
    """Columns of ``record.rows.columns`` that were asked for, without ``key`` and ``headers`` that
    are null throughout. Of a topic with a schema also ``undecodable``, if such records are kept."""

    base_offset: int
    """The offset of the first record."""

    next_offset: int
    """The offset after the last record."""

    offsets: pa.Array | None
    """The offset of each record, int64; None: each is the one after that of the one before."""

    timestamp_type: TimestampType

    size_bytes: int
    """About what the columns take."""

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.partitions)

    @classmethod
    def of(
        cls, fetched: Sequence[FetchedBatch], wanted: Collection[str], *, size_bytes: int
    ) -> FetchedColumns:
        """The ``wanted`` columns of record batches of one partition with the same attributes."""
        first, header = fetched[0], fetched[0].header
        arrow_batches = [one.arrow_batch for one in fetched]
        return cls(
            [PartitionRows(first.topic_partition, sum(one.num_rows for one in arrow_batches))],
            {
                name: _concatenated([one.column(name) for one in arrow_batches])
                for name in first.arrow_batch.schema.names
                if _is_wanted(name, wanted)
            },
            first.base_offset,
            fetched[-1].next_offset,
            _concatenated([one.offsets() for one in fetched])
            if any(one.has_gaps for one in fetched)
            or any(one.next_offset != other.base_offset for one, other in pairwise(fetched))
            else None,
            header.timestamp_type,
            size_bytes,
        )


def _is_wanted(name: str, wanted: Collection[str]) -> bool:
    return name in wanted or name == "undecodable"


def _concatenated(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def take_columns(
    topic_partition: TopicPartition,
    run: RecordBatchRun,
    wanted: Collection[str],
    *,
    start: int,
    end: int,
    enough_rows: int,
    enough_bytes: int,
    values: PlainReader = PLAIN_READER,
) -> tuple[int, FetchedColumns | None]:
    """The records in ``[start, end)`` of so many of the first record batches of ``run`` as have the
    same attributes and make up about ``enough_rows`` or ``enough_bytes``, and their number.

    Stops before a damaged record batch, and raises CorruptRecordBatchError if that is the first
    one. None if none of their records are in that range.
    """
    count = _alike(run, end=end, enough_rows=enough_rows, enough_bytes=enough_bytes)
    part = run.part(0, count)
    together = _together(part, wanted, values, enough_bytes=enough_bytes)
    if together is not None:
        count, columns = together
        found = _cut(topic_partition, part.part(0, count), columns, start=start, end=end)
        if found is None:
            return count, None
        read = values.as_read_together(part, found.columns)
        if read is not None:
            columns = {name: column for name, column in read.items() if _is_wanted(name, wanted)}
            size = found.size_bytes
            if values.decodes_datums:  # which may take more, or less, than their bytes
                size = sum(column.nbytes for column in columns.values())
            return count, replace(found, columns=columns, size_bytes=size)
    return _one_by_one(
        topic_partition,
        part,
        wanted,
        start=start,
        end=end,
        enough_bytes=enough_bytes,
        values=values,
    )


def _together(
    run: RecordBatchRun,
    wanted: Collection[str],
    values: PlainReader,
    *,
    enough_bytes: int,
) -> tuple[int, dict[str, pa.Array]] | None:
    """The columns of as many of the first record batches of ``run``, which are alike, as are
    sound, and the number of these; without columns if they are no records. None if they are to be
    verified and decoded one by one."""
    attributes = int(run.headers["checked_prefix"][0]) >> fmt.ATTRIBUTES_SHIFT
    if attributes & fmt.LAYOUT_MASK:
        if len(run) < _LEAST_TYPED_TOGETHER or attributes & fmt.CONTROL:
            return None
        return values.joined(run)
    if len(run) < _LEAST_TOGETHER:
        return None
    count = verified(run)
    if not count or attributes & fmt.CONTROL:
        return (count, {}) if count else None
    return joined(run.part(0, count), wanted, enough_bytes=enough_bytes)


_ALL: Final = ("timestamp", "key", "value", "headers")
_JOINED_ROWS: Final = 1 << 20
_JOINED_BYTES: Final = 2 << 20  # of which the copies stay in the processor's cache
# Attributes of record batches that are handed out one by one: what is in their headers matters.
_NOT_JOINED: Final = fmt.COMPRESSION_MASK | fmt.CONTROL | fmt.LOG_APPEND_TIME | fmt.HAS_OFFSET_DELTA


def take_batch(
    topic_partition: TopicPartition,
    run: RecordBatchRun,
    *,
    start: int,
    end: int,
    values: PlainReader = PLAIN_READER,
) -> tuple[int, FetchedBatch | None]:
    """The records in ``[start, end)`` of the first record batch of ``run``, or of as many small
    ones as can be decoded together, and how many these are.

    Raises and stops as ``take_columns`` does.
    """
    attributes = int(run.headers["checked_prefix"][0]) >> fmt.ATTRIBUTES_SHIFT
    if not attributes & _NOT_JOINED:
        count = _alike(run, end=end, enough_rows=_JOINED_ROWS, enough_bytes=_JOINED_BYTES)
        together = _together(run.part(0, count), _ALL, values, enough_bytes=_JOINED_BYTES)
        if together is not None:
            count, columns = together
            part = run.part(0, count)
            rows = int(part.record_counts.sum())
            skip, stop = max(0, start - part.base_offset), min(rows, end - part.base_offset)
            if skip >= stop:
                return count, None
            cut = {name: column.slice(skip, stop - skip) for name, column in columns.items()}
            read = values.as_read_together(part, cut)
            if read is not None:
                whole = pa.RecordBatch.from_arrays([*read.values()], names=[*read])
                first, header = part.base_offset + skip, part.header(0)
                return count, FetchedBatch(topic_partition, first, whole, header, values.schema)
    raw = encoded_batch(run, 0)
    return 1, decoded(topic_partition, raw, start=start, end=end, values=values)


def _alike(run: RecordBatchRun, *, end: int, enough_rows: int, enough_bytes: int) -> int:
    """The number of record batches to decode together, from the first one on; at least 1."""
    if run.cut is not None:
        others = np.flatnonzero(run.cut != run.cut[0])
        run = run.part(0, int(others[0])) if len(others) else run
    few = run.part(0, _LEAST_TOGETHER)
    prefixes, counts = few.headers["checked_prefix"].tolist(), few.headers["record_count"].tolist()
    schema_ids = few.headers["schema_id"].tolist()
    sizes, first_offsets = np.diff(few.bounds).tolist(), few.headers["base_offset"].tolist()
    rows = size = 0
    for number, prefix in enumerate(prefixes):
        if number and (
            prefix != prefixes[0]
            or schema_ids[number] != schema_ids[0]
            or first_offsets[number] >= end
        ):
            return number
        rows, size = rows + counts[number], size + sizes[number]
        if rows >= enough_rows or size >= enough_bytes:
            return number + 1
    enough = min(
        int(np.searchsorted(run.record_counts.cumsum(), enough_rows)) + 1,
        int(np.searchsorted(run.bounds[1:] - run.bounds[0], enough_bytes)) + 1,
        int(np.searchsorted(run.headers["base_offset"], end)),
        len(run),
    )
    others = np.flatnonzero(
        (run.headers["checked_prefix"][:enough] != prefixes[0])
        | (run.headers["schema_id"][:enough] != schema_ids[0])
    )
    return max(1, int(others[0]) if len(others) else enough)


def _one_by_one(
    topic_partition: TopicPartition,
    run: RecordBatchRun,
    wanted: Collection[str],
    *,
    start: int,
    end: int,
    enough_bytes: int,
    values: PlainReader,
) -> tuple[int, FetchedColumns | None]:
    """Takes what ``take_columns`` does, of record batches with the same attributes."""
    found: list[FetchedBatch] = []
    count = size = 0
    for number in range(len(run)):
        try:
            raw = encoded_batch(run, number)
            fetched = decoded(topic_partition, raw, start=start, end=end, values=values)
        except (CorruptRecordBatchError, UndecodableRecordError):
            if number == 0:
                raise
            break
        count += 1
        if fetched is not None:
            found.append(fetched)
            size += fetched.decoded_bytes
            if size >= enough_bytes:
                break
    return count, FetchedColumns.of(found, wanted, size_bytes=size) if found else None


def _cut(
    topic_partition: TopicPartition,
    run: RecordBatchRun,
    columns: dict[str, pa.Array],
    *,
    start: int,
    end: int,
) -> FetchedColumns | None:
    attributes = int(run.attributes[0])
    if attributes & fmt.CONTROL:
        return None
    base = run.base_offset
    rows = int(run.record_counts.sum())
    if attributes & fmt.HAS_OFFSET_DELTA:
        deltas = deltas_of(columns.pop("offset_delta"))
        offsets = np.repeat(run.headers["base_offset"], run.record_counts) + deltas
        skip, stop = (int(at) for at in np.searchsorted(offsets, [start, end]))
    else:
        offsets = None
        skip, stop = max(0, start - base), min(rows, end - base)
    if skip >= stop:
        return None
    if skip or stop < rows:
        columns = {name: column.slice(skip, stop - skip) for name, column in columns.items()}
    if offsets is None:
        base, next_offset = base + skip, base + stop
    else:
        offsets = offsets[skip:stop]
        base, next_offset = int(offsets[0]), int(offsets[-1]) + 1
    appended = attributes & fmt.LOG_APPEND_TIME
    return FetchedColumns(
        [PartitionRows(topic_partition, stop - skip)],
        columns,
        base,
        next_offset,
        pa.Array.from_buffers(pa.int64(), stop - skip, [None, pa.py_buffer(offsets)])
        if offsets is not None
        else None,
        TimestampType.LOG_APPEND_TIME if appended else TimestampType.CREATE_TIME,
        sum(column.nbytes for column in columns.values())
        if attributes & fmt.COMPRESSION_MASK
        else run.size,
    )
