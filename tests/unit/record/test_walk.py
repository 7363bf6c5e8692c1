"""Walks over record batches: whole ones in order, and where they end."""

from __future__ import annotations

import struct

import pytest

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.record import LENGTH_FIELD_END, read_headers, split, stamp
from tests.builders.forged import encoded
from tests.builders.record_batches import record_batch

RUN = bytes(encoded(1) + encoded(60) + encoded(3))
COUNTS = (1, 60, 3)


# -- a buffer -------------------------------------------------------------------------------


def test_yields_each_with_a_view_of_its_bytes() -> None:
    pieces = list(split(RUN, allow_tail=False))
    assert tuple(header.record_count for header, _ in pieces) == COUNTS
    assert b"".join(view for _, view in pieces) == RUN
    assert all(view.obj is RUN for _, view in pieces)


def test_nothing_is_a_run_of_none() -> None:
    assert list(split(b"", allow_tail=False)) == []


def test_a_tail_is_left_out_or_refused() -> None:
    whole = len(encoded(1)) + len(encoded(60))
    for end in range(whole + 1, len(RUN)):
        tailed = memoryview(RUN)[:end]
        assert len(list(split(tailed, allow_tail=True))) == 2
        with pytest.raises(CorruptRecordBatchError, match="cut off"):
            list(split(tailed, allow_tail=False))


def test_damage_is_met_only_where_it_is() -> None:
    damaged = bytearray(RUN)
    damaged[len(encoded(1)) + 200] ^= 1
    pieces = split(damaged, allow_tail=True)
    assert next(pieces)[0].record_count == 1
    with pytest.raises(CorruptRecordBatchError, match="checksum"):
        next(pieces)


@pytest.mark.parametrize("length", [0, 1, 56, 67])
def test_a_length_below_a_header_ends_the_walk(length: int) -> None:
    data = bytearray(RUN)
    struct.pack_into("<I", data, 8, length)
    with pytest.raises(CorruptRecordBatchError):
        list(split(data, allow_tail=True))


def test_a_swallowing_length_fails_its_checksum() -> None:
    data = bytearray(RUN)
    both = len(encoded(1)) + len(encoded(60))
    struct.pack_into("<I", data, 8, both - LENGTH_FIELD_END)
    with pytest.raises(CorruptRecordBatchError, match="checksum"):
        list(split(data, allow_tail=True))


def test_a_length_past_the_end_looks_like_a_tail() -> None:
    # By design: only a caller that knows where the data ends can tell the two apart.
    data = bytearray(RUN)
    struct.pack_into("<I", data, 8, len(RUN))
    assert list(split(data, allow_tail=True)) == []
    with pytest.raises(CorruptRecordBatchError, match="cut off"):
        list(split(data, allow_tail=False))


# -- headers of a file ----------------------------------------------------------------------

PAYLOADS = (0, 424, 3_912, 9_000, 16)  # within a page, up to one's end, and over several


def file(first_offset: int = 0) -> tuple[bytearray, list[int]]:
    """Record batches of two records each, and where they begin."""
    data, positions = bytearray(), []
    for number, size in enumerate(PAYLOADS):
        made = record_batch(2, payload=bytes(size))
        stamp(made, base_offset=first_offset + 2 * number, leader_epoch=0, append_time_us=0)
        positions.append(len(data))
        data += made
    return data, positions


def headers(data: bytearray, limit: int | None = None) -> list[tuple[int, int]]:
    """Position and base offset of each that is found."""
    view = bytes(data)

    def pread(length: int, position: int) -> bytes:
        return view[position : position + length]

    found = read_headers(pread, len(view) if limit is None else limit)
    return [(position, header.base_offset) for position, header in found]


def test_headers_of_a_file_from_any_offset() -> None:
    for first in (0, 1_000):
        data, positions = file(first)
        offsets = range(first, first + 2 * len(PAYLOADS), 2)
        assert headers(data) == list(zip(positions, offsets, strict=True))


def test_headers_end_at_the_limit() -> None:
    data, positions = file()
    for limit in range(len(data) + 1):
        whole = [at for at in (*positions[1:], len(data)) if at <= limit]
        assert len(headers(data, limit)) == len(whole)


@pytest.mark.parametrize("byte", [0, 10, 24, 25, 36])
def test_headers_end_before_a_damaged_one(byte: int) -> None:
    data, positions = file()
    data[positions[3] + byte] ^= 0x40
    assert [at for at, _ in headers(data)] == positions[:3]
