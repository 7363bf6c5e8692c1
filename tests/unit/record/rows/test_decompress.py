"""Buffers decompressed in one go, of which some are not what they claim."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from spark_logbus.model import Compression
from spark_logbus.record.rows.decompress import claimed_sizes, decompressed
from spark_logbus.record.rows.serialize import CODECS

BUFFERS = [b"one" * 100, b"2", bytes(range(256)) * 400, b"last one"]


def compressed(
    buffers: list[bytes], claims: list[int], compression: Compression
) -> tuple[memoryview, list[int], list[int]]:
    """Buffers as a payload has them, and where they begin and how long they are."""
    codec = pa.Codec(CODECS[compression])
    data, starts, sizes = bytearray(), [], []
    for buffer, claim in zip(buffers, claims, strict=True):
        one = struct.pack("<q", claim) + codec.compress(buffer, asbytes=True)
        starts.append(len(data))
        sizes.append(len(one))
        data += one + bytes(-len(one) % 8)
    return memoryview(data), starts, sizes


def found_in(
    buffers: list[bytes], claims: list[int], compression: Compression
) -> list[bytes] | None:
    data, *places = compressed(buffers, claims, compression)
    starts, sizes = (np.array(each, np.int64) for each in places)
    assert claimed_sizes(data, starts, sizes).tolist() == claims
    found = decompressed(data, starts, sizes, np.array(claims, np.int64), compression)
    if found is None:
        return None
    return [
        bytes(found[0][at : at + claim])
        for at, claim in zip(found[1].tolist(), claims, strict=True)
    ]


LENGTHS = [len(buffer) for buffer in BUFFERS]
each_codec = pytest.mark.parametrize("compression", [*CODECS])


@each_codec
def test_honest_buffers_become_what_they_were(compression: Compression) -> None:
    assert found_in(BUFFERS, LENGTHS, compression) == BUFFERS


@each_codec
@pytest.mark.parametrize("lies", [(0, 0, 0, 1), (0, 0, 0, -1), (8, 0, -8, 0), (-8, 0, 8, 0)])
def test_lies_are_noticed_also_when_they_cancel_out(
    compression: Compression, lies: tuple[int, ...]
) -> None:
    """Lies that cancel out would shift what is between two of them."""
    claims = [length + lie for length, lie in zip(LENGTHS, lies, strict=True)]
    assert found_in(BUFFERS, claims, compression) is None


@each_codec
def test_a_frame_that_does_not_decompress_is_noticed(compression: Compression) -> None:
    data, starts, sizes = compressed(BUFFERS, LENGTHS, compression)
    data[starts[1] + 8] ^= 1  # the magic of a frame
    places = [np.array(each, np.int64) for each in (starts, sizes, LENGTHS)]
    assert decompressed(data, places[0], places[1], places[2], compression) is None


def test_buffers_without_a_length_claim_nothing() -> None:
    data = memoryview(struct.pack("<qqq", -1, 7, 300))
    starts, sizes = np.array([0, 8, 16, 24]), np.array([24, 7, 8, 0])
    assert claimed_sizes(data, starts, sizes).tolist() == [-1, 0, 300, 0]
