"""Record batches of payload layout 1 back into columns: all that are there, or some.

What is not selected need not be there, and is not looked at. Nothing that the payload says is
believed: nodes and buffers are checked against the type and the chunks before Arrow gets them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa
from pyarrow import types

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import compute as pc
from spark_logbus.record import format as fmt
from spark_logbus.record.chunks import Directory, chosen_chunks
from spark_logbus.record.columns.layout import (
    ALL,
    ColumnLayout,
    ColumnSelection,
    column_layout,
    struct_of,
)
from spark_logbus.record.columns.messages import column_messages
from spark_logbus.record.gather import Int64s
from spark_logbus.record.header import (
    Buffer,
    RecordBatchHeader,
    directory_of,
    verify_beginning,
    verify_chunk,
)
from spark_logbus.record.rows.ipc import (
    TIME_BYTES,
    TIMES,
    EnvelopeError,
    MessageNumbers,
    claims_of_buffers,
    read_message,
)
from spark_logbus.record.rows.nulls import refuse_nulls


def verify_selected(
    header: RecordBatchHeader, data: Buffer, selection: ColumnSelection
) -> Directory:
    """Check a record batch, whose header has just been parsed from it, of which only what stands
    before the columns and the selected ones are there, and return its directory. Raises
    CorruptRecordBatchError."""
    directory = verify_beginning(header, data)
    view = memoryview(data)
    at = directory.body_start
    for number in _chosen(header, directory, selection):
        end = at + directory.length(number)
        verify_chunk(header, directory, number, view[at:end])
        at = end
    if at != len(view):
        raise _undecodable(header, f"{len(view)} bytes came, expected {at}")
    return directory


def selected_size(header: RecordBatchHeader, beginning: Buffer, selection: ColumnSelection) -> int:
    """Bytes of the record batch when only the selected columns are there.

    Of the record batch itself no more need be there than stands before the columns. Raises
    CorruptRecordBatchError.
    """
    directory = directory_of(header, beginning)
    chosen = _chosen(header, directory, selection)
    return directory.body_start + sum(directory.length(number) for number in chosen)


def decode_columns(
    header: RecordBatchHeader,
    data: Buffer,
    value_type: pa.DataType | None,
    *,
    selection: ColumnSelection = ALL,
    is_selected: bool = False,
    directory: Directory | None = None,
    max_decoded_bytes: int = fmt.MAX_DECODED_BYTES,
) -> dict[str, pa.Array]:
    """The selected columns of one verified record batch, by name in the order of
    ``record.rows.columns``; with ``is_selected``, of one that came with no others. ``directory`` is
    its own, if whoever verified it has kept that.

    ``value`` holds the selected fields of ``value_type``, the type of the record batch's schema,
    and is null where the record is a tombstone. Without a type the columns beside it can be read by
    who does not know the schema, and ``value``, without fields, is there where it shows tombstones.
    ``offset_delta`` is there where it is in the record batch. What is not compressed or selected
    before is a view of ``data``. Raises CorruptRecordBatchError when the payload is not what the
    header and the type say.
    """
    knows = value_type is not None
    layout = column_layout(value_type if knows else pa.struct([]), header.attributes)
    directory = directory or directory_of(header, data)
    view = memoryview(data)
    room = fmt.CHUNKS_AT + len(directory) * fmt.CHUNK.size
    if len(directory) < len(layout.columns) or (knows and len(directory) > len(layout.columns)):
        raise _undecodable(
            header, f"it has {len(directory)} columns, its schema {len(layout.columns)}"
        )
    chosen = tuple(_chosen(header, directory, selection))
    if not knows:
        chosen = tuple(number for number in chosen if number < layout.own)
    try:
        numbers = read_message(view[room : directory.body_start])
        _check_numbers(numbers, header, directory, layout)
        _check_count(numbers, max_decoded_bytes)
        came = chosen if is_selected else tuple(range(len(directory)))
        starts = _starts(directory, came)
        if numbers.compression is not Compression.NONE:
            _check_claims(numbers, view, directory, layout, chosen, starts, max_decoded_bytes)
        if len(chosen) == len(directory) or (knows and not (is_selected or numbers.compression)):
            arrow_batch = pa.ipc.read_record_batch(pa.py_buffer(view[room:]), layout.schema)
            arrays = [arrow_batch.column(number) for number in chosen]
        else:
            arrays = _read_chosen(numbers, view, directory, layout, chosen, starts)
        for array in arrays:
            array.validate(full=True)
        by_number = dict(zip(chosen, arrays, strict=True))
        named = named_columns(layout, by_number, value_type, count=header.record_count)
        if "offset_delta" in named:
            check_deltas(header, named["offset_delta"])
        return named
    except MemoryError:  # also one of Arrow's exceptions; the record batch is not to blame
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _undecodable(header, error) from error


def _chosen(
    header: RecordBatchHeader, directory: Directory, selection: ColumnSelection
) -> list[int]:
    return chosen_chunks(
        header.attributes, len(directory), columns=selection.columns, fields=selection.fields
    )


def _undecodable(header: RecordBatchHeader, problem: object) -> CorruptRecordBatchError:
    return CorruptRecordBatchError(
        f"Record batch at offset {header.base_offset}: its payload cannot be decoded as columns of "
        f"schema {header.schema_id} ({problem})."
    )


def _starts(directory: Directory, came: Sequence[int]) -> dict[int, int]:
    """Position of each chunk in what came."""
    ends = accumulate((directory.length(number) for number in came), initial=directory.body_start)
    return dict(zip(came, ends, strict=False))


def _check_numbers(
    numbers: MessageNumbers, header: RecordBatchHeader, directory: Directory, layout: ColumnLayout
) -> None:
    """Checks that each column has its nodes, and its buffers within its chunk."""
    count = header.record_count
    if numbers.record_count != count:
        raise EnvelopeError(f"it holds {numbers.record_count} records, the header says {count}")
    if numbers.compression is not header.compression:
        raise EnvelopeError(f"its buffers have compression {numbers.compression.name.lower()}")
    if numbers.body_length != header.size - directory.body_start:
        raise EnvelopeError(f"its Arrow message has a body of {numbers.body_length} bytes")
    nodes, buffers = layout.columns[-1].nodes.stop, layout.columns[-1].buffers.stop
    there = len(numbers.nodes), len(numbers.buffers)
    is_all = len(directory) == len(layout.columns)
    if there[0] < nodes or there[1] < buffers or (is_all and there != (nodes, buffers)):
        raise EnvelopeError(
            f"it holds {len(numbers.nodes)} columns and children, expected {nodes}; "
            f"{len(numbers.buffers)} buffers, expected {buffers}"
        )
    bounds = np.array([directory.bounds], np.int64) - directory.body_start
    check_columns(layout, numbers.nodes[None], numbers.buffers[None], bounds, count)


def _check_count(numbers: MessageNumbers, max_decoded_bytes: int) -> None:
    """Bounds the records: each has a timestamp, so there are no more than can be of those. This
    counts where nobody asks for timestamps, and the columns that were chosen take no bytes."""
    room = max_decoded_bytes if numbers.compression else int(numbers.buffers[TIMES, 1])
    if numbers.record_count * TIME_BYTES > room:
        raise EnvelopeError(f"it has no room for the timestamps of {numbers.record_count} records")


def _check_claims(
    numbers: MessageNumbers,
    view: memoryview,
    directory: Directory,
    layout: ColumnLayout,
    chosen: Sequence[int],
    starts: Mapping[int, int],
    max_decoded_bytes: int,
) -> None:
    """Bounds what the compressed buffers claim to take when decoded, before Arrow takes it."""
    claimed = 0
    for number in chosen:
        shift = starts[number] - (directory.bounds[number] - directory.body_start)
        buffers = numbers.buffers[_slice(layout.columns[number].buffers)].tolist()
        claimed += claims_of_buffers(view, [(place + shift, size) for place, size in buffers])
    if claimed > max_decoded_bytes:
        raise EnvelopeError(
            f"it claims to take {claimed} bytes when decoded, the limit is {max_decoded_bytes}"
        )


def check_columns(
    layout: ColumnLayout,
    nodes: Int64s,
    buffers: Int64s,
    bounds: Int64s,
    record_counts: Int64s | int,
) -> None:
    """Raises EnvelopeError unless the columns of record batches are as long as these are, and have
    their buffers within their chunks, of which ``bounds`` tells where they begin in the body, and
    where the last one ends. Arrays have a row for each record batch."""
    places, stops = layout.columns[-1].nodes.stop, layout.columns[-1].buffers.stop
    lengths, null_counts = nodes[:, :places, 0], nodes[:, :places, 1]
    if null_counts.min() < 0 or (null_counts > lengths).any():  # so none is below 0
        raise EnvelopeError("it has impossible lengths, or more nulls than records")
    if (lengths[:, layout.first_nodes] != np.reshape(record_counts, (-1, 1))).any():
        raise EnvelopeError("one of its columns has not as many records as the header says")
    starts, ends = bounds[:, layout.chunk_of_buffers], bounds[:, layout.chunk_of_buffers + 1]
    at, sizes = buffers[:, :stops, 0], buffers[:, :stops, 1]
    if (
        (at < starts).any()
        or sizes.min() < 0
        or (sizes > ends - at).any()
        or (at & (fmt.ALIGNMENT - 1)).any()
    ):
        raise EnvelopeError("one of its columns points outside of its bytes")


def _slice(numbers: range) -> slice:
    return slice(numbers.start, numbers.stop)


def _read_chosen(
    numbers: MessageNumbers,
    view: memoryview,
    directory: Directory,
    layout: ColumnLayout,
    chosen: tuple[int, ...],
    starts: Mapping[int, int],
) -> list[pa.Array]:
    """Reads the chosen columns, by a message that has no others."""
    filled = tuple(number for number in chosen if layout.columns[number].buffers)
    arrays = {
        number: pa.nulls(numbers.record_count, layout.columns[number].field.type)
        for number in chosen
        if number not in filled
    }
    if filled:
        messages = column_messages(
            tuple(layout.columns[number].field for number in filled), numbers.compression
        )
        nodes, buffers, places = [], [], []
        at = 0
        for number in filled:
            column = layout.columns[number]
            nodes.append(numbers.nodes[None, _slice(column.nodes)])
            shift = at - (directory.bounds[number] - directory.body_start)
            buffers.append(numbers.buffers[None, _slice(column.buffers)] + np.array([shift, 0]))
            places.append((starts[number], directory.length(number)))
            at += directory.length(number)
        head = messages.metadata(numbers.record_count, at, nodes, buffers).tobytes()
        buffer = pa.allocate_buffer(len(head) + at)
        target = memoryview(buffer).cast("B")
        target[: len(head)] = head
        to = len(head)
        for start, size in places:
            target[to : to + size] = view[start : start + size]
            to += size
        arrow_batch = pa.ipc.read_record_batch(buffer, messages.schema)
        arrays.update(zip(filled, arrow_batch.columns, strict=True))
    return [arrays[number] for number in chosen]


def named_columns(
    layout: ColumnLayout,
    arrays: Mapping[int, pa.Array],
    value_type: pa.DataType | None,
    *,
    count: int,
) -> dict[str, pa.Array]:
    """The columns of ``count`` records by name, of those of the payload by number. Raises
    ValueError for nulls where there can be none."""
    named = {
        layout.columns[number].field.name: array
        for number, array in arrays.items()
        if number < layout.own
    }
    for name in ("timestamp", "offset_delta", "tombstone"):
        if name in named and named[name].null_count:
            raise ValueError(f"a record has no {name}")
    is_struct = value_type is not None and types.is_struct(value_type)
    if "tombstone" in named and value_type is not None and not is_struct:
        raise ValueError("it has a column of tombstones, and its values are no records")
    values = [array for number, array in arrays.items() if number >= layout.own]
    fields = [layout.columns[number].field for number in arrays if number >= layout.own]
    tombstones = named.pop("tombstone", None)
    for field, array in zip(fields, values, strict=True):
        refuse_nulls(field, array, tombstones)
    if is_struct or (value_type is None and tombstones is not None):
        named["value"] = struct_of(values, fields, count, tombstones)
    elif values:
        named["value"] = values[0]
    order = ("timestamp", "key", "value", "headers", "offset_delta")
    return {name: named[name] for name in order if name in named}


def check_deltas(header: RecordBatchHeader, deltas: pa.Array) -> None:
    """Raises ValueError unless they rise from 0 or more, up to the last of the header."""
    rising = pc.all(pc.greater(deltas[1:], deltas[:-1])).as_py() is not False
    if not rising or deltas[0].as_py() < 0 or deltas[-1].as_py() > header.last_offset_delta:
        raise ValueError("its offset deltas do not rise, or beyond the last")
