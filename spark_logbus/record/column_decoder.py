"""Record batches of payload layout 1 back into columns: all that are there, or some.

What is not selected need not be there, and is not looked at. Nothing that the payload says is
believed: nodes and buffers are checked against the type and the chunks before Arrow gets them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import format as fmt
from spark_logbus.record.chunks import Directory, chosen_chunks
from spark_logbus.record.column_layout import (
    ALL,
    ColumnLayout,
    Selection,
    column_layout,
    struct_of,
)
from spark_logbus.record.header import (
    Buffer,
    RecordBatchHeader,
    directory_of,
    verify_beginning,
    verify_chunk,
)
from spark_logbus.record.ipc import EnvelopeError, MessageNumbers, message_form, read_message
from spark_logbus.record.nulls import refuse_nulls
from spark_logbus.record.serialize import serialized

_PREFIX: Final = 8  # the decoded length before each compressed buffer
_TIMES: Final = 1  # the buffer of timestamps, behind the one that says which are null
_TIME_BYTES: Final = 8


def verify_selected(header: RecordBatchHeader, data: Buffer, selection: Selection) -> None:
    """Check a record batch, whose header has just been parsed from it, of which only what stands
    before the columns and the selected ones are there. Raises CorruptRecordBatchError."""
    directory = verify_beginning(header, data)
    view = memoryview(data)
    at = directory.body_start
    for number in _chosen(header, directory, selection):
        end = at + directory.length(number)
        verify_chunk(header, directory, number, view[at:end])
        at = end
    if at != len(view):
        raise _undecodable(header, f"{len(view)} bytes came, expected {at}")


def selected_size(header: RecordBatchHeader, beginning: Buffer, selection: Selection) -> int:
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
    selection: Selection = ALL,
    is_selected: bool = False,
    max_decoded_bytes: int = fmt.MAX_DECODED_BYTES,
) -> dict[str, pa.Array]:
    """The selected columns of one verified record batch, by name in the order of
    ``record.columns``; with ``is_selected``, of one that came with no others.

    ``value`` holds the selected fields of ``value_type``, the type of the record batch's schema,
    and is null where the record is a tombstone. Without a type the columns beside it can be read by
    who does not know the schema, and ``value``, without fields, is there where it shows tombstones.
    ``offset_delta`` is there where it is in the record batch. What is not compressed or selected
    before is a view of ``data``. Raises CorruptRecordBatchError when the payload is not what the
    header and the type say.
    """
    knows = value_type is not None
    layout = column_layout(value_type if knows else pa.struct([]), header.attributes)
    directory = directory_of(header, data)
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
        return _columns(header, layout, dict(zip(chosen, arrays, strict=True)), value_type)
    except MemoryError:  # also one of Arrow's exceptions; the record batch is not to blame
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _undecodable(header, error) from error


def _chosen(header: RecordBatchHeader, directory: Directory, selection: Selection) -> list[int]:
    return chosen_chunks(
        header.attributes, len(directory), columns=selection.columns, fields=selection.fields
    )


def _undecodable(header: RecordBatchHeader, problem: object) -> CorruptRecordBatchError:
    return CorruptRecordBatchError(
        f"Record batch at offset {header.base_offset}: its payload cannot be decoded as columns of "
        f"schema {header.schema_id} ({problem})."
    )


def _starts(directory: Directory, came: Sequence[int]) -> dict[int, int]:
    """Where each chunk begins in what came."""
    ends = accumulate((directory.length(number) for number in came), initial=directory.body_start)
    return dict(zip(came, ends, strict=False))


def _check_numbers(
    numbers: MessageNumbers, header: RecordBatchHeader, directory: Directory, layout: ColumnLayout
) -> None:
    """That each column has its nodes, and its buffers within its chunk."""
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
    lengths, null_counts = numbers.nodes[:nodes].T
    if (lengths < 0).any() or (null_counts < 0).any() or (null_counts > lengths).any():
        raise EnvelopeError("it has impossible lengths, or more nulls than records")
    if any(lengths[column.nodes.start] != count for column in layout.columns):
        raise EnvelopeError(f"one of its columns has not the {count} records of the header")
    repeats = [len(column.buffers) for column in layout.columns]
    bounds = np.asarray(directory.bounds[: len(repeats) + 1], np.int64) - directory.body_start
    starts, ends = np.repeat(bounds[:-1], repeats), np.repeat(bounds[1:], repeats)
    places, sizes = numbers.buffers[:buffers].T
    if (
        (places < starts).any()
        or (places > ends).any()
        or (sizes < 0).any()
        or (sizes > ends - places).any()
        or (places % fmt.ALIGNMENT).any()
    ):
        raise EnvelopeError("one of its columns points outside of its bytes")


def _check_count(numbers: MessageNumbers, max_decoded_bytes: int) -> None:
    """Each record has a timestamp, so there are no more than there can be of those; also where
    nobody asks for timestamps, and the columns that were chosen take no bytes."""
    room = max_decoded_bytes if numbers.compression else int(numbers.buffers[_TIMES, 1])
    if numbers.record_count * _TIME_BYTES > room:
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
    """What the compressed buffers claim to take when decoded is bounded, before Arrow takes it."""
    claimed = 0
    for number in chosen:
        shift = starts[number] - (directory.bounds[number] - directory.body_start)
        for place, size in numbers.buffers[_slice(layout.columns[number].buffers)].tolist():
            if 0 < size < _PREFIX:
                raise EnvelopeError("one of its compressed buffers has no length")
            if size:
                at = place + shift
                claimed += max(0, int.from_bytes(view[at : at + _PREFIX], "little", signed=True))
    if claimed > max_decoded_bytes:
        raise EnvelopeError(
            f"it claims to take {claimed} bytes when decoded, the limit is {max_decoded_bytes}"
        )


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
    """Those columns, by a message that has no others."""
    filled = tuple(number for number in chosen if layout.columns[number].buffers)
    arrays = {
        number: pa.nulls(numbers.record_count, layout.columns[number].field.type)
        for number in chosen
        if number not in filled
    }
    if filled:
        message = _narrowed(
            tuple(layout.columns[number].field for number in filled), numbers.compression
        )
        nodes, buffers, places = [], [], []
        at = 0
        for number in filled:
            column = layout.columns[number]
            nodes.append(numbers.nodes[_slice(column.nodes)])
            shift = at - (directory.bounds[number] - directory.body_start)
            buffers.append(numbers.buffers[_slice(column.buffers)] + np.array([shift, 0]))
            places.append((starts[number], directory.length(number)))
            at += directory.length(number)
        head = message.words(numbers.record_count, at, nodes, buffers)
        buffer = pa.allocate_buffer(len(head) + at)
        target = memoryview(buffer).cast("B")
        target[: len(head)] = head
        to = len(head)
        for start, size in places:
            target[to : to + size] = view[start : start + size]
            to += size
        arrow_batch = pa.ipc.read_record_batch(buffer, message.schema)
        arrays.update(zip(filled, arrow_batch.columns, strict=True))
    return [arrays[number] for number in chosen]


class _Narrowed:
    """Makes the metadata of messages that have certain columns only."""

    def __init__(self, fields: tuple[pa.Field, ...], compression: Compression) -> None:
        # As nullable fields: metadata says nothing of that.
        self.schema = pa.schema(list(fields))
        sample = pa.RecordBatch.from_arrays(
            [pa.nulls(1, field.type) for field in fields], schema=self.schema
        )
        size = len(self.schema.serialize())
        payload = serialized(sample, room=0, schema_message_size=size, compression=compression)
        form = message_form(payload)
        assert form is not None, "Arrow aligns the numbers of its messages"
        self._form = form
        self._words = np.frombuffer(payload, "<i8", form.words).copy()

    def words(
        self, record_count: int, body_length: int, nodes: list[Any], buffers: list[Any]
    ) -> memoryview:
        form, words = self._form, self._words.copy()
        words[form.record_count], words[form.body_length] = record_count, body_length
        words[_slice(form.nodes)] = np.concatenate(nodes).ravel()
        words[_slice(form.buffers)] = np.concatenate(buffers).ravel()
        return memoryview(words.tobytes())


@lru_cache(maxsize=256)
def _narrowed(fields: tuple[pa.Field, ...], compression: Compression) -> _Narrowed:
    return _Narrowed(fields, compression)


def _columns(
    header: RecordBatchHeader,
    layout: ColumnLayout,
    arrays: Mapping[int, pa.Array],
    value_type: pa.DataType | None,
) -> dict[str, pa.Array]:
    named = {
        layout.columns[number].field.name: array
        for number, array in arrays.items()
        if number < layout.own
    }
    for name in ("timestamp", "offset_delta", "tombstone"):
        if name in named and named[name].null_count:
            raise ValueError(f"a record has no {name}")
    deltas = named.get("offset_delta")
    if deltas is not None:
        check_deltas(header, deltas)
    is_struct = value_type is not None and types.is_struct(value_type)
    if "tombstone" in named and value_type is not None and not is_struct:
        raise ValueError("it has a column of tombstones, and its values are no records")
    values = [array for number, array in arrays.items() if number >= layout.own]
    fields = [layout.columns[number].field for number in arrays if number >= layout.own]
    tombstones = named.pop("tombstone", None)
    for field, array in zip(fields, values, strict=True):
        refuse_nulls(field, array, tombstones)
    if is_struct or (value_type is None and tombstones is not None):
        named["value"] = struct_of(values, fields, header.record_count, tombstones)
    elif values:
        named["value"] = values[0]
    order = ("timestamp", "key", "value", "headers", "offset_delta")
    return {name: named[name] for name in order if name in named}


def check_deltas(header: RecordBatchHeader, deltas: pa.Array) -> None:
    """Raises ValueError unless they rise from 0 or more, up to the last of the header."""
    rising = pc.all(pc.greater(deltas[1:], deltas[:-1])).as_py() is not False
    if not rising or deltas[0].as_py() < 0 or deltas[-1].as_py() > header.last_offset_delta:
        raise ValueError("its offset deltas do not rise, or beyond the last")
