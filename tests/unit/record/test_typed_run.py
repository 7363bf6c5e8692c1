"""Runs in which record batches of columns stand beside others."""

from __future__ import annotations

import itertools
import struct

import pytest

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.model import Compression
from spark_logbus.record import format as fmt
from spark_logbus.record import parse_header, stamp, verify
from spark_logbus.record.run import find_run, verified
from tests.builders.forged import encoded
from tests.builders.typed import flights, typed_record_batch


def run_of(*record_batches: bytes | bytearray | memoryview) -> bytearray:
    data, offset = bytearray(), 0
    for one in record_batches:
        made = bytearray(one)
        stamp(made, base_offset=offset, leader_epoch=0, append_time_us=0)
        offset = parse_header(made).next_offset
        data += made
    return data


TYPED = typed_record_batch([*flights(0, 4), None], keys=[b"k"] * 5)
PACKED = typed_record_batch(flights(0, 60), compression=Compression.ZSTD)
PLAIN = encoded(3)
MIXED = (PLAIN, TYPED, PACKED, PLAIN, TYPED)


def test_a_run_of_both_layouts_is_found_and_verified() -> None:
    data = run_of(*MIXED)
    run = find_run(memoryview(data))
    assert run is not None
    assert [len(run.record_batch(number)) for number in range(len(run))] == list(map(len, MIXED))
    assert [run.header(number).layout for number in range(len(run))] == [0, 1, 1, 0, 1]
    assert verified(run) == len(run)


@pytest.mark.parametrize("number", range(len(MIXED)))
def test_damage_ends_what_is_verified(number: int) -> None:
    data = run_of(*MIXED)
    start = sum(map(len, MIXED[:number]))
    for at in (start + 41, start + len(MIXED[number]) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 1
        run = find_run(memoryview(damaged))
        assert run is not None
        assert verified(run) == number


def test_each_header_is_judged_in_a_run_as_it_is_alone() -> None:
    """Headers of every attribute and layout, with a schema and without, of every small size."""
    layouts = itertools.product(range(4), (0, fmt.HAS_TOMBSTONES), (0, 7), (80, 88, 96, 104))
    for layout, tombstones, schema_id, size in layouts:
        record_batch = bytearray(encoded(3)[:size])
        record_batch += bytes(size - len(record_batch))
        struct.pack_into("<I", record_batch, fmt.LENGTH_AT, size - fmt.LENGTH_FIELD_END)
        attributes = layout << fmt.LAYOUT_SHIFT | tombstones
        fmt.ATTRIBUTES.pack_into(record_batch, fmt.ATTRIBUTES_AT, attributes)
        struct.pack_into("<I", record_batch, 70, schema_id)
        try:
            parse_header(record_batch)
            is_sound = True
        except (CorruptRecordBatchError, UnsupportedVersionError):
            is_sound = False
        run = find_run(memoryview(run_of(PLAIN, PLAIN) + _at(record_batch, 6)))
        assert run is not None
        assert len(run) == 2 + is_sound
        assert is_sound == (
            (layout == 0 and not tombstones) or (layout == 1 and schema_id == 7 and size >= 96)
        )


def _at(record_batch: bytearray, offset: int) -> bytearray:
    stamp(record_batch, base_offset=offset, leader_epoch=0, append_time_us=0)
    return record_batch


@pytest.mark.parametrize("record_batch", [TYPED, PACKED], ids=["plain", "zstd"])
def test_every_flipped_bit_of_a_record_batch_of_columns(record_batch: bytes) -> None:
    for at in range(24, len(record_batch)):
        for bit in range(8):
            damaged = bytearray(record_batch)
            damaged[at] ^= 1 << bit
            with pytest.raises((CorruptRecordBatchError, UnsupportedVersionError)):
                verify(damaged)


def test_every_truncation_of_a_record_batch_of_columns() -> None:
    for end in range(len(TYPED)):
        with pytest.raises(CorruptRecordBatchError):
            verify(TYPED[:end])
        assert find_run(memoryview(TYPED[:end])) is None
