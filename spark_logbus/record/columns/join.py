"""Columns of many record batches of layout 1 at once, joined.

Record batches of one schema with the same attributes, as one producer makes them one after the
other, have directories and Arrow metadata that differ in numbers only. These are read as arrays
with a row for each record batch, and checked as ``column_decoder`` checks those of one. Then new
metadata, of the selected columns alone, and the chunks as they came make a stream of Arrow
messages, which Arrow reads, validates and joins in one call each.

Whatever is not as expected, as a payload that lies, is left to ``column_decoder.decode_columns``,
record batch by record batch: so there is one place that decides what is wrong with a payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from spark_logbus.model import Compression
from spark_logbus.record import format as fmt
from spark_logbus.record.chunks import chosen_chunks
from spark_logbus.record.columns.decoder import check_columns, named_columns
from spark_logbus.record.columns.layout import ColumnLayout, ColumnSelection, column_layout
from spark_logbus.record.columns.messages import WORD, ColumnMessages, column_messages
from spark_logbus.record.gather import Int64s
from spark_logbus.record.rows.ipc import TIME_BYTES, TIMES, EnvelopeError, claims_of_buffers
from spark_logbus.record.rows.join import deltas_rise
from spark_logbus.record.run import RecordBatchRun

_LOW: Final = (1 << 32) - 1
_READ_OPTIONS: Final = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True)
class ColumnRun:
    """Record batches of layout 1 with the same attributes, as many columns, and columns that begin
    at the same byte, and came. Arrays have a row a record batch."""

    run: RecordBatchRun
    body_start: int

    came: tuple[int, ...]
    """The numbers of the chunks that came."""

    lengths: Int64s
    """Of each chunk, came or not."""

    checksums: Int64s

    def part(self, count: int) -> ColumnRun:
        """The first of them."""
        return ColumnRun(
            self.run.part(0, count),
            self.body_start,
            self.came,
            self.lengths[:count],
            self.checksums[:count],
        )

    @cached_property
    def edges(self) -> Int64s:
        """Position in the data of each chunk that came, and the end of the last one."""
        sizes = np.cumsum(self.lengths[:, self.came], axis=1)
        begin = self.run.bounds[:-1, None] + self.body_start
        return np.concatenate([begin, begin + sizes], axis=1)

    @cached_property
    def bounds(self) -> Int64s:
        """Position in the body of each chunk, came or not, and the end of the last one."""
        ends = np.cumsum(self.lengths, axis=1)
        return np.concatenate([np.zeros_like(ends[:, :1]), ends], axis=1)


def column_run(run: RecordBatchRun, selection: ColumnSelection) -> ColumnRun | None:
    """The directories of ``run``, whose record batches have the same attributes and either came
    whole, or with the columns of ``selection``; None unless they are sound and alike."""
    words, starts = _words(run), run.bounds[:-1] // WORD
    heads = words[starts + fmt.DIRECTORY_AT // WORD]
    count, body_start = int(heads[0]) & _LOW, int(heads[0]) >> 32
    least = fmt.CHUNKS_AT + count * fmt.CHUNK.size
    if (
        (heads != heads[0]).any()
        or not 1 <= count <= fmt.MAX_CHUNKS
        or not least <= body_start <= fmt.MAX_BEGINNING_BYTES
        or body_start % fmt.ALIGNMENT
        or body_start > np.diff(run.bounds).min()
    ):
        return None
    entries = words[starts[:, None] + (fmt.CHUNKS_AT // WORD + np.arange(count))]
    lengths, checksums = entries & _LOW, entries >> 32 & _LOW
    attributes = int(run.attributes[0])
    came = tuple(
        chosen_chunks(attributes, count, columns=selection.columns, fields=selection.fields)
        if run.is_cut(0)
        else range(count)
    )
    sizes = run.headers["batch_length"].astype(np.int64) + fmt.LENGTH_FIELD_END
    if (
        (lengths % fmt.ALIGNMENT).any()
        or (body_start + lengths.sum(axis=1) != sizes).any()
        or (body_start + lengths[:, came].sum(axis=1) != np.diff(run.bounds)).any()
    ):
        return None
    return ColumnRun(run, body_start, came, lengths, checksums)


def _words(run: RecordBatchRun) -> Int64s:
    return np.frombuffer(run.data[: int(run.bounds[-1])], "<i8")


def verified_columns(columns: ColumnRun) -> int:
    """The number of record batches, from the first on, of which everything that came is as it was
    written."""
    run, data = columns.run, columns.run.data
    headers = run.headers
    seed = crc32c(headers["checked_prefix"][0].tobytes())
    padded: list[bool] = np.any(headers["padding"], axis=1).tolist()
    rows = zip(
        run.bounds[:-1].tolist(),
        headers["crc"].tolist(),
        columns.edges.tolist(),
        columns.checksums[:, columns.came].tolist(),
        strict=True,
    )
    for number, (start, crc, edges, checksums) in enumerate(rows):
        beginning = data[start + fmt.CHECKED_FROM : start + columns.body_start]
        if (
            padded[number]
            or crc32c(beginning, seed) != crc
            or [crc32c(data[at:end]) for at, end in pairwise(edges)] != checksums
        ):
            return number
    return len(run)


def joined_columns(
    columns: ColumnRun,
    value_type: pa.DataType,
    selection: ColumnSelection,
    *,
    max_decoded_bytes: int,
) -> dict[str, pa.Array] | None:
    """Decodes all records of ``columns``, which are verified, as ``decoder.decode_columns`` does.

    None if they have to be decoded one by one, as those are that would take more than
    ``max_decoded_bytes`` when they are decompressed together.
    """
    run = columns.run
    layout = column_layout(value_type, int(run.attributes[0]))
    count = len(layout.columns)
    if count != columns.lengths.shape[1]:
        return None
    chosen = tuple(
        chosen_chunks(
            int(run.attributes[0]), count, columns=selection.columns, fields=selection.fields
        )
    )
    compression = Compression(int(run.attributes[0]) & fmt.COMPRESSION_MASK)
    try:
        stream = _Stream(columns, layout, compression, chosen)
        if compression and stream.claimed_bytes() > max_decoded_bytes:
            return None
        arrays = stream.read()
        named = named_columns(layout, arrays, value_type, count=int(run.record_counts.sum()))
    except MemoryError:  # also one of Arrow's exceptions
        raise
    except (pa.ArrowException, OSError, ValueError):
        return None
    deltas = named.get("offset_delta")
    return named if deltas is None or deltas_rise(run, deltas) else None


class _Stream:
    """The Arrow messages of the chosen columns. Raises EnvelopeError for numbers that do not fit,
    as ``column_decoder`` does."""

    def __init__(
        self,
        columns: ColumnRun,
        layout: ColumnLayout,
        compression: Compression,
        chosen: tuple[int, ...],
    ) -> None:
        self._columns, self._layout = columns, layout
        self._compression = compression
        self._chosen = chosen
        self._filled = tuple(number for number in chosen if layout.columns[number].buffers)
        run, bounds = columns.run, columns.bounds
        form = _all_columns(layout, compression)
        if columns.body_start != layout.room + form.metadata_size:
            raise EnvelopeError("its metadata has another size")
        first = (run.bounds[:-1] + layout.room) // WORD
        metadata = _words(run)[first[:, None] + np.arange(form.form.words)]
        numbers = form.form
        count = len(run)
        nodes = metadata[:, numbers.nodes.start : numbers.nodes.stop].reshape(count, -1, 2)
        buffers = metadata[:, numbers.buffers.start : numbers.buffers.stop].reshape(count, -1, 2)
        counts = run.record_counts
        if (
            not form.are_all(metadata)
            or (metadata[:, numbers.record_count] != counts).any()
            or (metadata[:, numbers.body_length] != bounds[:, -1]).any()
        ):
            raise EnvelopeError("its metadata is of another form")
        check_columns(layout, nodes, buffers, bounds, counts)
        if not compression and (counts * TIME_BYTES > buffers[:, TIMES, 1]).any():
            raise EnvelopeError("it has no room for its timestamps")
        self._nodes, self._buffers, self._bounds = nodes, buffers, bounds

    def claimed_bytes(self) -> int:
        """Bytes that the chosen buffers, which are compressed, claim to take when decoded; each
        record has a timestamp besides."""
        data, edges = self._columns.run.data, self._columns.edges
        claimed = int(self._columns.run.record_counts.sum()) * TIME_BYTES
        for number in self._filled:
            places = self._layout.columns[number].buffers
            buffers = self._buffers[:, places.start : places.stop]
            at = edges[:, [self._columns.came.index(number)]] - self._bounds[:, [number]]
            places, sizes = (buffers[:, :, 0] + at).ravel(), buffers[:, :, 1].ravel()
            claimed += claims_of_buffers(data, zip(places.tolist(), sizes.tolist(), strict=True))
        return claimed

    def read(self) -> dict[int, pa.Array]:
        """The chosen columns by number, in order, validated."""
        count = int(self._columns.run.record_counts.sum())
        filled = dict(zip(self._filled, self._read_filled(count), strict=True))
        return {
            number: filled[number]
            if number in filled
            else pa.nulls(count, self._layout.columns[number].field.type)
            for number in self._chosen
        }

    def _read_filled(self, count: int) -> list[pa.Array]:
        if not self._filled:
            return []
        fields = tuple(self._layout.columns[number].field for number in self._filled)
        messages = column_messages(fields, self._compression)
        table = pa.ipc.open_stream(self._bytes(messages), options=_READ_OPTIONS).read_all()
        table.validate(full=True)  # of each record batch, before their offsets are followed
        columns = table.combine_chunks().columns
        if any(column.num_chunks != 1 or len(column) != count for column in columns):
            raise EnvelopeError("its columns do not fit one array")
        return [column.chunk(0) for column in columns]

    def _bytes(self, messages: ColumnMessages) -> pa.Buffer:
        """The stream."""
        nodes, buffers = [], []
        at = np.zeros(len(self._nodes), np.int64)
        for number in self._filled:
            column = self._layout.columns[number]
            own = self._buffers[:, column.buffers.start : column.buffers.stop].copy()
            own[:, :, 0] += (at - self._bounds[:, number])[:, None]
            nodes.append(self._nodes[:, column.nodes.start : column.nodes.stop])
            buffers.append(own)
            at = at + self._columns.lengths[:, number]
        metadata = messages.metadata(self._columns.run.record_counts, at, nodes, buffers)
        # Where the messages begin and end in the stream.
        first = len(messages.schema_message)
        stops = first + np.cumsum(at + messages.metadata_size)
        starts = stops - at - messages.metadata_size
        buffer = pa.allocate_buffer(int(stops[-1]))
        target = memoryview(buffer).cast("B")
        target[:first] = messages.schema_message
        words = np.frombuffer(target, "<i8")
        words[starts[:, None] // WORD + np.arange(messages.form.words)] = metadata
        self._copy_chunks(target, (starts + messages.metadata_size).tolist())
        return buffer

    def _copy_chunks(self, target: memoryview, places: list[int]) -> None:
        """The chosen chunks of each record batch to its place in the stream."""
        edges, came = self._columns.edges, self._columns.came
        spans = _spans([came.index(number) for number in self._filled])
        data = self._columns.run.data.cast("B")
        for start, stop in spans:
            sources = edges[:, start].tolist(), edges[:, stop].tolist()
            for number, (begin, end) in enumerate(zip(*sources, strict=True)):
                to = places[number]
                places[number] = after = to + end - begin
                target[to:after] = data[begin:end]


def _spans(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Rising numbers as half-open spans of those that follow one another."""
    breaks = [at for at, (one, other) in enumerate(pairwise(numbers), 1) if other != one + 1]
    return [
        (numbers[start], numbers[stop - 1] + 1)
        for start, stop in pairwise([0, *breaks, len(numbers)])
    ]


def _all_columns(layout: ColumnLayout, compression: Compression) -> ColumnMessages:
    return column_messages(tuple(column.field for column in layout.columns), compression)
