from __future__ import annotations

import pyarrow as pa
import pytest

from spark_logbus.client.fetch.batches import EncodedBatch, decoded, walk
from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.record import parse_header, stamp, verify
from spark_logbus.record.rows.arrow import TIMESTAMP, encode, payload_schema
from tests.builders.arrow_batches import T0, numbered, record_batch


def stored(base_offset: int, count: int) -> bytes:
    data = record_batch(numbered(base_offset, count))
    stamp(data, base_offset=base_offset, leader_epoch=1, append_time_us=7)
    return bytes(data)


def with_gaps(
    base_offset: int, deltas: list[int | None], *, end: int | None = None
) -> EncodedBatch:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([5] * len(deltas), pa.int64()).cast(TIMESTAMP),
            pa.array([b"%d" % (base_offset + (delta or 0)) for delta in deltas], pa.binary()),
            pa.array(deltas, pa.int32()),
        ],
        schema=payload_schema(has_key=False, has_headers=False, has_offset_delta=True),
    )
    last = None if end is None else end - 1 - base_offset
    data = encode(batch, last_offset_delta=last)
    stamp(data, base_offset=base_offset, leader_epoch=1, append_time_us=7)
    return EncodedBatch(verify(data), data)


def test_walk_finds_whole_record_batches_and_leaves_the_cut_tail() -> None:
    data = memoryview(stored(10, 5) + stored(15, 3) + stored(18, 4)[:50])
    raws = list(walk(T0, data, position=12))
    assert [(raw.header.base_offset, raw.header.record_count) for raw in raws] == [(10, 5), (15, 3)]


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (stored(10, 5), 15),  # before what was asked for
        (stored(10, 5), 9),  # a hole at the start
    ],
)
def test_walk_refuses_offsets_that_do_not_follow(data: bytes, position: int) -> None:
    with pytest.raises(CorruptRecordBatchError, match="expected a record batch"):
        list(walk(T0, memoryview(data), position=position))


@pytest.mark.parametrize(
    "behind",
    [stored(16, 1), stored(10, 5), bytes(16) + stored(15, 1)[16:30] + b"\xff" * 100],
    ids=["a hole", "again the same", "a damaged header"],
)
def test_walk_ends_before_what_does_not_follow(behind: bytes) -> None:
    data = memoryview(stored(10, 5) + behind)
    assert [raw.header.base_offset for raw in walk(T0, data, position=10)] == [10]


def test_walk_names_the_partition_of_a_damaged_header() -> None:
    data = bytearray(stored(10, 5))
    data[26] ^= 0xFF
    with pytest.raises(CorruptRecordBatchError, match=f"{T0} is damaged at offset 12"):
        list(walk(T0, memoryview(data), position=12))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 100, range(10, 15)),
        (12, 100, range(12, 15)),
        (0, 12, range(10, 12)),
        (11, 14, range(11, 14)),
        (14, 15, range(14, 15)),
        (15, 20, range(0)),
        (0, 10, range(0)),
    ],
)
def test_decoded_cuts_to_the_range(start: int, end: int, expected: range) -> None:
    data = memoryview(stored(10, 5))
    fetched = decoded(T0, EncodedBatch(parse_header(data), data), start=start, end=end)
    if not expected:
        assert fetched is None
        return
    assert fetched is not None
    assert fetched.base_offset == expected.start
    assert fetched.next_offset == expected.stop
    assert fetched.offsets().to_pylist() == list(expected)
    assert fetched.arrow_batch.column("value").to_pylist() == [b"%d" % n for n in expected]


def test_decoded_verifies_the_checksum() -> None:
    data = bytearray(stored(10, 5))
    data[-1] ^= 1
    raw = EncodedBatch(parse_header(data), memoryview(data))
    with pytest.raises(CorruptRecordBatchError, match=rf"{T0}\[10, 15\) are damaged.*checksum"):
        decoded(T0, raw, start=0, end=100)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 100, [20, 22, 25]), (21, 100, [22, 25]), (21, 25, [22]), (23, 25, []), (26, 90, [])],
)
def test_gaps_of_a_compacted_record_batch_are_kept(
    start: int, end: int, expected: list[int]
) -> None:
    fetched = decoded(T0, with_gaps(20, [0, 2, 5]), start=start, end=end)
    if not expected:
        assert fetched is None
        return
    assert fetched is not None
    assert fetched.offsets().to_pylist() == expected
    assert fetched.base_offset == expected[0]
    assert fetched.next_offset == expected[-1] + 1


@pytest.mark.parametrize("deltas", [[0, 2, 2], [3, 1, 4], [-1, 0, 4], [0, None, 4]])
def test_offset_deltas_must_rise(deltas: list[int | None]) -> None:
    with pytest.raises(CorruptRecordBatchError, match="do not rise"):
        decoded(T0, with_gaps(20, deltas), start=0, end=100)


def test_removed_offsets_belong_to_the_record_batch_before_them() -> None:
    first, second = with_gaps(20, [1, 2], end=30), with_gaps(30, [5])
    data = memoryview(bytes(first.data) + bytes(second.data))
    assert [raw.header.next_offset for raw in walk(T0, data, position=25)] == [30, 36]
    assert decoded(T0, first, start=23, end=30) is None
    fetched = decoded(T0, first, start=0, end=30)
    assert fetched is not None
    assert fetched.next_offset == 23


def test_a_hole_before_a_compacted_record_batch_is_damage_too() -> None:
    behind = with_gaps(30, [5]).data
    data = memoryview(bytes(with_gaps(20, [0]).data) + bytes(behind))
    assert [raw.header.base_offset for raw in walk(T0, data, position=20)] == [20]
    with pytest.raises(CorruptRecordBatchError, match="expected a record batch"):
        list(walk(T0, behind, position=21))
