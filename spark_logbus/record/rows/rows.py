"""Records of Python's values as a payload, put together here instead of by Arrow.

Arrow takes 20 µs to make columns of a record and to serialise them, most of it on the way to the
first byte, and its conversion of Python's values begins with the import of pandas where that is
installed. Of many records it copies each value twice, and lets go of the interpreter several times,
which a thread that sends beside one that is busy waits 5 ms for to have back. What it would write
is known: a message whose constant part is that of all others with the same columns, and the buffers
one after the other. These bytes are the same as its own.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from spark_logbus.record.rows.ipc import message_form

# More than these cost less by column; with nulls among them, by Arrow.
FEW_RECORDS: Final = 200

_WORD: Final = 8
_NUMBER: Final = struct.Struct("<q").pack
_TIME_AND_OFFSETS: Final = struct.Struct("<qii").pack
_VALUE_AT: Final = 16  # in the body of one record, behind these
_PADDING: Final = [bytes(-size % _WORD) for size in range(_WORD)]

Column = Sequence[bytes | None]
Buffer: TypeAlias = "bytes | array[int]"


class RowsMessage:
    """Writes messages with the columns of one that Arrow has written."""

    __slots__ = (
        "_body_length", "_buffers", "_nodes", "_one_value", "_pack", "_record_count", "_words"
    )  # fmt: skip

    def __init__(self, payload: memoryview) -> None:
        """``payload`` is uncompressed, of one row or more: a column of times, and others of
        bytes."""
        form = message_form(payload)
        assert form is not None, "Arrow aligns the numbers of its messages"
        words = struct.Struct(f"<{form.words}q")
        self._pack = words.pack
        self._words = words.unpack_from(payload)
        self._body_length, self._record_count = form.body_length, form.record_count
        self._nodes = slice(form.nodes.start, form.nodes.stop)
        self._buffers = slice(form.buffers.start, form.buffers.stop)

        self._one_value: tuple[bytes, bytes, bytes] | None = None

    def payload_of_value(self, time_us: int, value: bytes) -> tuple[bytes, ...]:
        """``payload`` of one record, of a time and a value: all but three numbers is known."""
        if self._one_value is None:
            words = self._pack(*self._words_of([1, 0, 1, 0], [0, 0, 0, 8, 8, 0, 8, 8, 16, 0], 0, 1))
            length_at = _WORD * self._body_length
            size_at = _WORD * (self._buffers.stop - 1)
            self._one_value = (
                words[:length_at],
                words[length_at + _WORD : size_at],
                words[size_at + _WORD :],
            )
        before, between, behind = self._one_value
        size = len(value)
        padding = _PADDING[size % _WORD]
        return (
            before, _NUMBER(_VALUE_AT + size + len(padding)), between, _NUMBER(size), behind,
            _TIME_AND_OFFSETS(time_us, 0, size), value, padding,
        )  # fmt: skip

    def payload(self, times_us: array[int], columns: Sequence[Column]) -> list[Buffer]:
        """The pieces of the payload; each column has one value for each time.

        Of more than ``FEW_RECORDS`` records none may be null, or TypeError is raised.
        """
        count = len(times_us)
        size = _WORD * count
        nodes, buffers = [count, 0], [0, 0, 0, size]
        body: list[Buffer] = [times_us]
        at = size
        for column in columns:
            if count <= FEW_RECORDS:
                nulls = column.count(None)
                validity = _validity(column) if nulls else b""
                data = [each or b"" for each in column] if nulls else column
                offsets = array("i", accumulate(map(len, data), initial=0))  # type: ignore[arg-type]
            else:
                nulls, validity, data = 0, b"", column
                offsets = _many_offsets(column)
            nodes += count, nulls
            for pieces, size in (
                ([validity], len(validity)),
                ([offsets], 4 * (count + 1)),
                (data, offsets[-1]),
            ):
                buffers += at, size
                body += pieces  # type: ignore[arg-type]
                padding = _PADDING[size % _WORD]
                body.append(padding)
                at += size + len(padding)
        return [self._pack(*self._words_of(nodes, buffers, at, count)), *body]

    def payload_of_column(self, time_us: int, column: pa.Array) -> list[Any]:
        """``payload`` of records that are values without nulls, all of one time."""
        count, start = len(column), column.offset
        _, ends, data = column.buffers()
        offsets: Any = memoryview(ends).cast("i")[start : start + count + 1]
        first, last = offsets[0], offsets[-1]
        if first:
            offsets = np.frombuffer(offsets, np.int32) - np.int32(first)
        times_size, offsets_size, size = _WORD * count, 4 * (count + 1), last - first
        offsets_padding, padding = _PADDING[offsets_size % _WORD], _PADDING[size % _WORD]
        at = times_size + offsets_size + len(offsets_padding)
        buffers = [0, 0, 0, times_size, times_size, 0, times_size, offsets_size, at, size]
        words = self._words_of([count, 0, count, 0], buffers, at + size + len(padding), count)
        values = b"" if data is None else memoryview(data)[first:last]
        times = array("q", (time_us,)) * count
        return [self._pack(*words), times, offsets, offsets_padding, values, padding]

    def _words_of(
        self, nodes: list[int], buffers: list[int], body_length: int, count: int
    ) -> list[int]:
        words = list(self._words)
        words[self._body_length], words[self._record_count] = body_length, count
        words[self._nodes], words[self._buffers] = nodes, buffers
        return words


def _many_offsets(column: Column) -> array[int]:
    lengths = np.fromiter(map(len, column), np.int64, len(column))  # type: ignore[arg-type]
    offsets = array("i", [0])
    # Their sum is below the largest record batch, which is far below 2 GiB.
    offsets.frombytes(lengths.cumsum().astype(np.int32).tobytes())
    return offsets


def _validity(column: Column) -> bytes:
    bits = sum(1 << number for number, each in enumerate(column) if each is not None)
    return bits.to_bytes((len(column) + 7) // 8, "little")
