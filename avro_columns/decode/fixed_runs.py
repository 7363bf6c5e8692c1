"""Fields that nobody wants, passed over several at a time.

Going behind a field takes a look at its first byte or two, in nearly all datums: a number of few
bytes, the index of a union, the length of a short text. So the cursors go on by what tables say of
these bytes, and there is one look for all of the fields if a cursor has come too far. Whatever is
not so simple, as a long text, and whatever may be wrong, counts as too far: such cursors go back
and on field by field, which tells what is wrong and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from avro_columns.decode.cursors import Chunk, Cursors, Longs, ends_of_numbers

Stride = Callable[[Chunk, Longs], Longs]
"""The bytes that values at those places take; ``TOO_FAR`` if that takes a closer look."""

#: More than any datum has.
TOO_FAR: Final = np.int64(1 << 40)

#: Numbers of 32 bits that are mostly found in one word of eight bytes.
INTS_AT_ONCE: Final = 4

# By the first byte: the length and the text; odd ones are negative, and those from 128 on go on.
_TEXT: Final = np.array(
    [1 + n // 2 if n < 128 and n % 2 == 0 else TOO_FAR for n in range(256)], np.int64
)


class Skipped(Protocol):
    """A reader of a field, of which only this is needed."""

    def skip(self, cursors: Cursors) -> None:
        """Goes on behind the next value of each cursor."""


class FixedRuns:
    """Goes behind one field or several. Thread-safe."""

    def __init__(self, readers: Sequence[Skipped], fixed_runs: Sequence[Stride]) -> None:
        """``fixed_runs`` go together as far as ``readers`` do."""
        self._readers = readers
        self._strides = fixed_runs

    def skip(self, cursors: Cursors) -> None:
        chunk, start = cursors.chunk, cursors.at
        # A byte behind the data, which is too far for all cursors but those that are parked.
        edge = chunk.park + 1
        at = start
        for stride in self._strides:
            at = np.minimum(at + stride(chunk, at), edge)
        cursors.at = at
        odd = np.flatnonzero(at > cursors.end)
        if odd.size:
            at[odd] = start[odd]
            part = cursors.select(odd)
            for reader in self._readers:
                reader.skip(part)
                part.park_again()
            cursors.merge(odd, part)


def over_text(chunk: Chunk, at: Longs) -> Longs:
    """Sizes of texts or bytes, with their lengths."""
    return _TEXT.take(chunk.data[at])


def over_ints(count: int) -> Stride:
    """Returns a stride over ``count`` numbers in a row."""

    def stride(chunk: Chunk, at: Longs) -> Longs:
        sizes = ends_of_numbers(chunk, at, count)
        sizes[sizes == 0] = TOO_FAR
        return sizes

    return stride


def over_sizes(sizes: Sequence[int]) -> Stride:
    """Returns a stride over a union whose members take ``sizes`` bytes each."""
    table = np.full(256, TOO_FAR)
    for index, size in enumerate(sizes[:64]):
        table[2 * index] = 1 + size
    return lambda chunk, at: table.take(chunk.data[at])


def over_optional(index: int, members: int, inner: Stride) -> Stride:
    """Returns a stride over a union of ``members``, of which only that with ``index`` takes
    bytes."""
    heads = over_sizes([0] * members)

    def stride(chunk: Chunk, at: Longs) -> Longs:
        is_there = chunk.data[at] == 2 * index
        return heads(chunk, at) + np.where(is_there, inner(chunk, at + 1), 0)

    return stride
