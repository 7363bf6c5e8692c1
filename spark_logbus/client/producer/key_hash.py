"""CRC-32C of many keys at once, as ``crc32c`` has it of one.

A CRC without its initial value is linear: that of a message is the XOR of those of its bytes, each
followed by as many zeros as there are bytes behind it, and zeros in front change nothing. So keys
of one length are cut into words, the first one with zeros in front, and each pair of bytes of a
word is looked up in a table of its own, of 256 KiB, for all keys in one step. The initial value
adds what the CRC of as many zeros is.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

MAX_KEY_BYTES: Final = 40
"""A UUID as a text has 36. For longer ones the instruction that a processor has for it, called for
each key, takes as long."""

_WORD: Final = 8
_ROWS: Final = 1 << 12  # at once, so that they stay in the processor's cache

Bytes = npt.NDArray[np.uint8]
Uint32s = npt.NDArray[np.uint32]


def crc32c_of_each(keys: pa.BinaryArray) -> Uint32s | None:
    """Returns the checksum of each of ``keys``, of which none is null; None if they are not of one
    length from 1 to ``MAX_KEY_BYTES``."""
    if not len(keys):
        return None
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, "<i4")[keys.offset : keys.offset + len(keys) + 1]
    length = int(offsets[1] - offsets[0])
    if not 0 < length <= MAX_KEY_BYTES or (np.diff(offsets) != length).any():
        return None
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]].reshape(-1, length)
    rows = (data[first : first + _ROWS] for first in range(0, len(data), _ROWS))
    return np.concatenate([_linear(each) for each in rows]) ^ np.uint32(crc32c(bytes(length)))


def _linear(keys: Bytes) -> Uint32s:
    """The CRC of each, from an initial value of 0 on, as it is before it is inverted."""
    tables = _tables()
    found = np.zeros(len(keys), np.uint32)
    word = np.zeros((len(keys), _WORD), np.uint8)
    halves, pairs = word.view("<u4"), word.view("<u2").T
    first = keys.shape[1] % _WORD  # bytes of the first word, if it is not a whole one
    for stop in range(first or _WORD, keys.shape[1] + 1, _WORD):
        size = min(stop, _WORD)
        word[:, _WORD - size :] = keys[:, stop - size : stop]
        halves[:, 0] ^= found
        # No pair lies outside of its table; with "wrap" numpy does not look for that first.
        found, *others = (
            table.take(pair, mode="wrap")
            for table, pair in zip(tables, pairs.astype(np.intp), strict=True)
        )
        for other in others:
            found ^= other
    return found


@cache
def _tables() -> list[Uint32s]:
    """Returns what each pair of bytes adds, by the place of the pair in a word."""
    bytewise = np.array(
        [
            [_linear_of(bytes([byte, *bytes(_WORD - 1 - place)])) for byte in range(256)]
            for place in range(_WORD)
        ],
        np.uint32,
    )
    return [
        (high[:, None] ^ low[None, :]).reshape(-1)
        for low, high in zip(bytewise[0::2], bytewise[1::2], strict=True)
    ]


def _linear_of(message: bytes) -> int:
    return crc32c(message) ^ crc32c(bytes(len(message)))
