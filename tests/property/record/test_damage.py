"""Any damage is found: truncation, flipped bits, garbage, splices. Nothing crashes or over-reads.

What the leader stamps (base offset, leader epoch, append time) stands outside the checksum by
design, so there a flipped bit changes that field and nothing else.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.model import Compression
from spark_logbus.record import HEADER_SIZE, checksum, parse_header, split, verify
from spark_logbus.record import format as fmt
from spark_logbus.record.rows.arrow import decode
from tests.builders.forged import encoded
from tests.property.examples import examples
from tests.property.record.strategies import record_batches

DEFAULT = settings(max_examples=examples(80))
DAMAGE = (CorruptRecordBatchError, UnsupportedVersionError)
STAMPED = {
    "base_offset": range(8),
    "leader_epoch": range(12, 16),
    "append_time_us": range(16, 24),
}


def check_flip(record_batch: bytes, at: int, bit: int) -> None:
    damaged = bytearray(record_batch)
    damaged[at] ^= 1 << bit
    field = next((name for name, place in STAMPED.items() if at in place), None)
    base_offset = int.from_bytes(damaged[:8], "little", signed=True)
    if field is None or not 0 <= base_offset <= fmt.MAX_OFFSET:
        with pytest.raises(DAMAGE):
            verify(damaged)
        return
    before, after = verify(record_batch), verify(damaged)
    assert getattr(before, field) != getattr(after, field)
    assert structs.replace(after, **{field: getattr(before, field)}) == before
    assert decode(after, damaged).equals(decode(before, record_batch))


@pytest.mark.parametrize("compression", Compression)
def test_every_flipped_bit_of_one_record_batch(compression: Compression) -> None:
    record_batch = bytes(encoded(60, compression))
    for at in range(len(record_batch)):
        for bit in range(8):
            check_flip(record_batch, at, bit)


@DEFAULT
@given(record_batches(), st.data())
def test_any_flipped_bit_of_any_record_batch(record_batch: bytes, data: st.DataObject) -> None:
    at = data.draw(
        st.one_of(st.integers(0, HEADER_SIZE - 1), st.integers(0, len(record_batch) - 1))
    )
    check_flip(record_batch, at, data.draw(st.integers(0, 7)))


def test_every_truncation_of_one_record_batch() -> None:
    record_batch = memoryview(bytes(encoded(60)))
    for end in range(len(record_batch)):
        with pytest.raises(DAMAGE):
            verify(record_batch[:end])
        assert list(split(record_batch[:end], allow_tail=True)) == []


@DEFAULT
@given(record_batches(), st.data())
def test_any_bytes_overwritten(record_batch: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(24, len(record_batch) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=64))
    damaged = (record_batch[:at] + junk + record_batch[at + len(junk) :])[: len(record_batch)]
    assume(damaged != record_batch)
    with pytest.raises(DAMAGE):
        verify(damaged)


@DEFAULT
@given(record_batches(), record_batches(), st.data())
def test_a_splice_of_two(first: bytes, second: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(28, len(first)))
    resume = data.draw(st.integers(0, len(second)))
    spliced = first[:cut] + second[resume:]
    assume(spliced != first)
    # From byte 24 on, all of it may be the second's; then only the stamped fields are the first's.
    assume(spliced[24:] != second[24:])
    with pytest.raises(DAMAGE):
        verify(spliced)


@DEFAULT
@given(record_batches(), record_batches())
def test_the_header_of_one_with_the_payload_of_another(first: bytes, second: bytes) -> None:
    assume(first[HEADER_SIZE:] != second[HEADER_SIZE:])
    with pytest.raises(DAMAGE):
        verify(first[:HEADER_SIZE] + second[HEADER_SIZE:])


@DEFAULT
@given(st.binary(max_size=400), st.booleans())
def test_garbage(garbage: bytes, allow_tail: bool) -> None:
    with pytest.raises(DAMAGE):
        verify(garbage)
    try:
        pieces = list(split(garbage, allow_tail=allow_tail))
    except DAMAGE:
        return
    assert pieces == []


@DEFAULT
@given(st.lists(record_batches(), min_size=1, max_size=3), st.binary(max_size=100), st.data())
def test_garbage_after_a_run(run: list[bytes], garbage: bytes, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(run[-1]) - 1))
    stream = b"".join(run[:-1]) + run[-1][:end] + garbage
    assume(not stream.startswith(b"".join(run)))
    found: list[bytes] = []
    with contextlib.suppress(*DAMAGE):
        found.extend(bytes(view) for _, view in split(stream, allow_tail=True))
    assert found == run[: len(found)]
    assert len(found) < len(run)


@DEFAULT
@given(record_batches(), st.integers(1, 500), st.integers(1, 500))
def test_nothing_outside_is_read(record_batch: bytes, before: int, after: int) -> None:
    """Answers are the same, whatever stands around the bytes."""
    around = b"\xa5" * before + record_batch + b"\x5a" * after
    view = memoryview(around)[before : before + len(record_batch)]
    header = verify(view)
    assert header == verify(record_batch) == parse_header(around, before)
    assert decode(header, view).equals(decode(header, record_batch))


@DEFAULT
@given(record_batches(), st.data())
def test_damage_under_a_right_checksum_is_typed(record_batch: bytes, data: st.DataObject) -> None:
    """A writer that lies: the header check or decode finds it, or its records are well-formed."""
    damaged = bytearray(record_batch)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(24, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    fmt.CRC.pack_into(damaged, fmt.CRC_AT, checksum(damaged))
    try:
        header = verify(damaged)
        arrow_batch = decode(header, damaged)
    except DAMAGE:
        return
    arrow_batch.validate(full=True)
    assert arrow_batch.num_rows == header.record_count


@pytest.mark.slow
@settings(max_examples=5_000)
@given(record_batches(), st.data())
def test_any_flipped_bit_of_many(record_batch: bytes, data: st.DataObject) -> None:
    check_flip(
        record_batch,
        data.draw(st.integers(0, len(record_batch) - 1)),
        data.draw(st.integers(0, 7)),
    )
