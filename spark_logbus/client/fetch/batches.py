"""Turns the bytes of a fetch into arrow batches with offsets. Pure.

Two steps, so that a reader can ask for more between them: ``walk`` reads only the headers, which
say where the next fetch begins; ``decoded`` verifies the checksum and decodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_logbus.client.fetch.plain_reader import PLAIN_READER, PlainReader
from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression, OffsetRange, TopicPartition
from spark_logbus.record import RecordBatchHeader
from spark_logbus.record import compute as pc
from spark_logbus.record.rows.plain import integers, scalar
from spark_logbus.record.run import RecordBatchRun, find_run

if TYPE_CHECKING:
    from avro_columns.values.resolved_tree import Node


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Records of one record batch, or of several small ones, cut to what was asked for.

    ``base_offset`` is the offset of the first record in ``arrow_batch``, whose columns are those
    of ``record.rows.arrow``; the buffers of one record batch are views of the received bytes.
    ``header`` is of the whole record batch, the first one of several. Offsets rise by one, unless
    the arrow batch has ``offset_delta``.
    """

    topic_partition: TopicPartition
    base_offset: int
    arrow_batch: pa.RecordBatch
    header: RecordBatchHeader
    value_schema: Node | None = None
    """Schema of the column ``value``; None: bytes."""

    @property
    def has_gaps(self) -> bool:
        """False: offsets rise by one."""
        return "offset_delta" in self.arrow_batch.schema.names

    @property
    def decoded_bytes(self) -> int:
        """Size of the arrow batch in bytes, about. To ask Arrow for that of views of what was
        received takes longer than to decode them."""
        header = self.header
        is_view = header.compression is Compression.NONE and self.value_schema is None
        if is_view and self.arrow_batch.num_rows <= header.record_count:
            return header.size
        return int(self.arrow_batch.nbytes)

    @property
    def next_offset(self) -> int:
        """The offset after the last record here."""
        if not self.has_gaps:
            return int(self.base_offset + self.arrow_batch.num_rows)
        deltas = self.arrow_batch.column("offset_delta")
        return int(self.header.base_offset + deltas[-1].as_py() + 1)

    def part(self, start: int, rows: int) -> FetchedBatch:
        """Returns up to ``rows`` of the records, from number ``start`` on."""
        left = self.arrow_batch.slice(start, rows)
        first = self.base_offset + start
        if self.has_gaps:
            first = self.header.base_offset + left.column("offset_delta")[0].as_py()
        return replace(self, base_offset=first, arrow_batch=left)

    def offsets(self) -> pa.Array:
        """The offset of each record, int64."""
        if self.has_gaps:
            deltas = self.arrow_batch.column("offset_delta").cast(pa.int64())
            return pc.add(deltas, scalar(self.header.base_offset, pa.int64()))
        dense = range(self.base_offset, self.base_offset + self.arrow_batch.num_rows)
        return integers(dense, pa.int64())


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One record batch as received, header parsed, checksum not verified yet. Whole, unless
    ``is_cut``: then it came with some of its columns only."""

    header: RecordBatchHeader
    data: memoryview
    is_cut: bool = False


def received_run(
    topic_partition: TopicPartition,
    data: memoryview,
    *,
    position: int,
    chosen_by: PlainReader | None = None,
) -> RecordBatchRun | None:
    """The whole record batches of a fetch at ``position``; one that is cut off is left out, and
    None is returned if there is no other. With ``chosen_by`` they came with the columns that it
    chose.

    Checksums are left for later. It ends before a damaged header, so that the record batches in
    front of it are read; at the start, where the next fetch then begins, that raises
    CorruptRecordBatchError or UnsupportedVersionError.
    """
    try:
        run = find_run(data) if chosen_by is None else chosen_by.find_chosen(data)
    except CorruptRecordBatchError as error:
        raise CorruptRecordBatchError(
            f"{topic_partition} is damaged at offset {position}. {error}"
        ) from error
    if run is not None and not run.base_offset <= position < run.part(0, 1).next_offset:
        first = run.header(0)
        raise CorruptRecordBatchError(
            f"{topic_partition}: expected a record batch with offset {position}, "
            f"got the offsets {first.base_offset} to {first.last_offset}."
        )
    return run


def walk(
    topic_partition: TopicPartition, data: memoryview, *, position: int
) -> Iterator[EncodedBatch]:
    """The record batches of ``received_run`` one by one."""
    run = received_run(topic_partition, data, position=position)
    if run is not None:
        yield from (encoded_batch(run, number) for number in range(len(run)))


def encoded_batch(run: RecordBatchRun, number: int) -> EncodedBatch:
    """Returns one of the record batches of ``run``."""
    return EncodedBatch(run.header(number), run.record_batch(number), run.is_cut(number))


def decoded(
    topic_partition: TopicPartition,
    raw: EncodedBatch,
    *,
    start: int,
    end: int,
    values: PlainReader = PLAIN_READER,
) -> FetchedBatch | None:
    """Returns the records of ``raw`` in ``[start, end)``, verified, as ``values`` reads them; None
    if there are none."""
    header = raw.header
    if header.base_offset >= end:
        return None
    try:
        arrow_batch = values.stored(header, raw.data, is_cut=raw.is_cut)
        if arrow_batch is None:
            return None
        rows = _rows(header, arrow_batch, start=start, end=end)
        if not rows:
            return None
        if len(rows) < header.record_count:
            arrow_batch = arrow_batch.slice(rows.start, len(rows))
        arrow_batch = values.as_read(topic_partition, header, arrow_batch, rows)
    except CorruptRecordBatchError as error:
        raise damaged(topic_partition, header, error) from error
    if not arrow_batch.num_rows:
        return None
    first = rows.start
    if "offset_delta" in arrow_batch.schema.names:
        first = arrow_batch.column("offset_delta")[0].as_py()
    return FetchedBatch(
        topic_partition, header.base_offset + first, arrow_batch, header, values.schema
    )


def damaged(
    topic_partition: TopicPartition, header: RecordBatchHeader, error: CorruptRecordBatchError
) -> CorruptRecordBatchError:
    """The error for a record batch that cannot be read, which says where to go on."""
    lost = OffsetRange(topic_partition, header.base_offset, header.next_offset)
    return CorruptRecordBatchError(
        f"The records {lost} are damaged. Those before, and from offset {lost.end} on, "
        f"are readable: continue there. {error}"
    )


def _rows(header: RecordBatchHeader, arrow_batch: pa.RecordBatch, *, start: int, end: int) -> range:
    """The rows with offsets in ``[start, end)``."""
    if "offset_delta" in arrow_batch.schema.names:
        return range(*_rows_with_gaps(header, arrow_batch, start=start, end=end))
    return range(
        max(0, start - header.base_offset), min(header.record_count, end - header.base_offset)
    )


def _rows_with_gaps(
    header: RecordBatchHeader, arrow_batch: pa.RecordBatch, *, start: int, end: int
) -> tuple[int, int]:
    """The rows with offsets in ``[start, end)``; ``decode`` made sure that the deltas rise."""
    deltas = arrow_batch.column("offset_delta")
    first, after = (scalar(at - header.base_offset, pa.int64()) for at in (start, end))
    return pc.sum(pc.less(deltas, first)).as_py(), pc.sum(pc.less(deltas, after)).as_py()
