"""Compressed buffers of many record batches, decompressed in one go.

To decompress a small buffer, Arrow first makes a decompressor, which for ZSTD takes longer than the
buffer itself. But frames of a codec that follow each other are one stream, and a stream has one
decompressor.

A stream does not tell where one frame ends and the next begins. So a mark stands behind each: a
frame of random bytes that only this process knows. When it comes out where it should, the frame in
front became as many bytes as was claimed for it, and what a payload lies about cannot shift what
another holds.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from spark_logbus.model import Compression
from spark_logbus.record.gather import Int64s
from spark_logbus.record.rows.serialize import CODECS

_PREFIX: Final = 8  # the decompressed length, before the frame
_MARK: Final = 8


def claimed_sizes(data: memoryview, starts: Int64s, sizes: Int64s) -> Int64s:
    """Length that each buffer says it has when decompressed; -1 of one that is not compressed.

    ``starts`` are multiples of 8; an empty buffer, as any too small for that prefix, says 0.
    """
    words = np.frombuffer(data[: len(data) - len(data) % _PREFIX], "<i8")
    has_prefix = sizes >= _PREFIX
    claims: Int64s = np.where(has_prefix, words[np.where(has_prefix, starts // _PREFIX, 0)], 0)
    return claims


def decompressed(
    data: memoryview, starts: Int64s, sizes: Int64s, claims: Int64s, compression: Compression
) -> tuple[memoryview, Int64s] | None:
    """The buffers, and where each begins now; None if one does not become what it claims.

    The arrays are of one dimension, with an element a buffer of which none is empty.
    """
    if not len(claims):
        return data, starts
    codec = CODECS[compression]
    mark, frame = _mark(codec)
    places = zip((starts + _PREFIX).tolist(), (starts + sizes).tolist(), strict=True)
    compressed = b"".join([part for at, end in places for part in (data[at:end], frame)])
    ends = (claims + _MARK).cumsum()
    total = int(ends[-1])
    try:
        with pa.CompressedInputStream(pa.BufferReader(compressed), codec) as stream:
            found = memoryview(stream.read_buffer(total + 1))
    except MemoryError:  # also one of Arrow's exceptions; the payloads are not to blame
        raise
    except (pa.ArrowException, OSError):
        return None
    if len(found) != total:
        return None
    marks = np.frombuffer(found, np.uint8)[ends[:, None] + np.arange(-_MARK, 0)]
    if not (marks == np.frombuffer(mark, np.uint8)).all():
        return None
    return found, ends - _MARK - claims


@lru_cache(maxsize=len(CODECS))
def _mark(codec: str) -> tuple[bytes, bytes]:
    """The bytes of a mark, and its frame."""
    mark = secrets.token_bytes(_MARK)
    return mark, pa.Codec(codec).compress(mark, asbytes=True)
