"""Few records as a payload, put together here instead of by Arrow.

Arrow takes 20 µs to make columns of a record and to serialise them, most of it on the way to the
first byte, and its conversion of Python's values begins with the import of pandas where that is
installed. What it would write is known: a message whose constant part is that of all others with
the same columns, and the buffers one after the other. These bytes are the same as its own.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from spark_logbus.record.ipc import message_form

# More are worth Arrow's way, which costs less for each.
FEW_RECORDS: Final = 200

_WORD: Final = 8
_PADDING: Final = [bytes(-size % _WORD) for size in range(_WORD)]

Column = Sequence[bytes | None]


class RowsMessage:
    """Writes messages with the columns of one that Arrow has written."""

    __slots__ = ("_body_length", "_buffers", "_nodes", "_pack", "_record_count", "_words")

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

    def payload(self, times_us: Sequence[int], columns: Sequence[Column]) -> list[bytes]:
        """The pieces of the payload; each column has one for each time, which fits 64 bits."""
        count = len(times_us)
        times = array("q", times_us).tobytes()
        body = [times]
        at = len(times)
        nodes, buffers = [count, 0], [0, 0, 0, at]
        for column in columns:
            nulls = column.count(None)
            nodes += count, nulls
            pieces = [_validity(column) if nulls else b"", *_offsets_and_data(column, nulls)]
            for piece in pieces:
                size = len(piece)
                buffers += at, size
                body += piece, _PADDING[size % _WORD]
                at += size + -size % _WORD
        words = list(self._words)
        words[self._body_length], words[self._record_count] = at, count
        words[self._nodes], words[self._buffers] = nodes, buffers
        return [self._pack(*words), *body]


def _validity(column: Column) -> bytes:
    bits = sum(1 << number for number, each in enumerate(column) if each is not None)
    return bits.to_bytes((len(column) + 7) // 8, "little")


def _offsets_and_data(column: Column, nulls: int) -> tuple[bytes, bytes]:
    data = [each or b"" for each in column] if nulls else column
    offsets = array("i", accumulate(map(len, data), initial=0))  # type: ignore[arg-type]
    return offsets.tobytes(), b"".join(data)  # type: ignore[arg-type]
