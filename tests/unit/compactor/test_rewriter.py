"""What becomes of record batches, as tables: which are left as they are, joined, extended."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from spark_logbus.compactor.pieces import BatchPart, is_filler
from spark_logbus.compactor.reading import offsets_of
from spark_logbus.compactor.rewriter import JOIN_BYTES, Rewriter
from spark_logbus.model import Compression, TimestampType
from spark_logbus.record import RecordBatchHeader, split, stamp, verify
from spark_logbus.record.rows.arrow import decode, encode
from tests.builders.compaction import Keyed, arrow_batch_of, keyed_batch, stamped_batch
from tests.fakes.clock import NOW_US


def original(base: int, count: int, *, size: int = 10) -> memoryview:
    return stamped_batch(base, *(Keyed(b"%d" % n, bytes(size)) for n in range(base, base + count)))


def whole(data: memoryview) -> BatchPart:
    header = verify(data)
    arrow_batch = decode(header, data)
    return BatchPart(header, data, arrow_batch, offsets_of(header, arrow_batch), len(data))


def part(data: memoryview, *keep: int) -> BatchPart:
    """Makes the part of a record batch with the records at these offsets alone."""
    header = verify(data)
    arrow_batch = decode(header, data)
    mask = [offset in keep for offset in offsets_of(header, arrow_batch)]
    left = arrow_batch.filter(mask)
    return BatchPart(header, None, left, keep, left.nbytes)


def opaque(data: memoryview) -> BatchPart:
    return BatchPart(verify(data), data, None, (), len(data))


class Gone(tuple[RecordBatchHeader]):
    """A record batch of which nothing stays."""


def gone(base: int, count: int) -> Gone:
    return Gone((verify(original(base, count)),))


BatchInfo = BatchPart | Gone
Written = list[tuple[int, int, list[int]]]


def rewritten(
    base: int, end: int, steps: Sequence[BatchInfo]
) -> tuple[list[tuple[RecordBatchHeader, memoryview]], Rewriter]:
    out = bytearray()
    rewriter = Rewriter(base, write=out.extend)
    for step in steps:
        if isinstance(step, Gone):
            rewriter.removed(step[0])
        else:
            rewriter.add(step)
    rewriter.finish(end)
    return list(split(out, allow_tail=False)), rewriter


def shown(batches: Sequence[tuple[RecordBatchHeader, memoryview]]) -> Written:
    """Base offset, next offset and the offsets of the records; none for a filler."""
    return [
        (
            header.base_offset,
            header.next_offset,
            [] if is_filler(header) else list(offsets_of(header, decode(header, data))),
        )
        for header, data in batches
    ]


BIG = JOIN_BYTES // 2 // 2 + 1000  # two such records are not small any more


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([whole(original(0, 3))], [(0, 3, [0, 1, 2])]),
        ([part(original(0, 3), 1)], [(0, 3, [1])]),
        ([part(original(0, 3), 0)], [(0, 3, [0])]),
        ([gone(0, 3)], [(0, 3, [])]),
        ([gone(0, 2), gone(2, 2)], [(0, 4, [])]),
        ([gone(0, 2), whole(original(2, 2))], [(0, 4, [2, 3])]),
        ([whole(original(0, 2)), gone(2, 2)], [(0, 4, [0, 1])]),
        # Small neighbours are joined, over gaps too.
        ([whole(original(0, 2)), whole(original(2, 2))], [(0, 4, [0, 1, 2, 3])]),
        ([whole(original(0, 2)), gone(2, 3), part(original(5, 2), 6)], [(0, 7, [0, 1, 6])]),
        # Large ones are not; a gap goes to the one that is written anew.
        (
            [whole(original(0, 2, size=BIG)), gone(2, 3), part(original(5, 3, size=BIG), 6, 7)],
            [(0, 2, [0, 1]), (2, 8, [6, 7])],
        ),
        (
            [whole(original(0, 2, size=BIG)), gone(2, 3), whole(original(5, 2, size=BIG))],
            [(0, 5, [0, 1]), (5, 7, [5, 6])],
        ),
        # What has to stay as it is gets fillers around it.
        (
            [gone(0, 2), opaque(original(2, 2)), gone(4, 2), opaque(original(6, 1)), gone(7, 1)],
            [(0, 2, []), (2, 4, [2, 3]), (4, 6, []), (6, 7, [6]), (7, 8, [])],
        ),
        (
            [whole(original(0, 2)), gone(2, 2), opaque(original(4, 2))],
            [(0, 4, [0, 1]), (4, 6, [4, 5])],
        ),
    ],
)
def test_offsets_stay_dense_from_one_record_batch_to_the_next(
    steps: list[BatchInfo], expected: Written
) -> None:
    assert shown(rewritten(0, expected[-1][1], steps)[0]) == expected


def test_what_is_not_touched_keeps_its_bytes() -> None:
    first, second = original(0, 2, size=BIG), original(2, 2, size=BIG)
    batches, rewriter = rewritten(0, 4, [whole(first), whole(second)])
    assert [bytes(data) for _, data in batches] == [bytes(first), bytes(second)]
    assert not rewriter.changed
    small = keyed_batch(Keyed(b"k", b"v"), producer_id=9)
    (batch,), _ = rewritten(0, 1, [whole(small)])
    assert batch[0].producer_id == 9


def test_rewritten_batches_have_no_producer() -> None:
    first = keyed_batch(Keyed(b"a", b"1", NOW_US + 5), Keyed(b"b", b"2"), producer_id=9)
    second = keyed_batch(Keyed(b"c", b"3", NOW_US + 1), producer_id=9)
    stamp(first, base_offset=0, leader_epoch=3, append_time_us=100)
    stamp(second, base_offset=2, leader_epoch=4, append_time_us=200)
    ((header, _),), _ = rewritten(0, 3, [part(first, 0), whole(second)])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.leader_epoch, header.append_time_us) == (4, 200)
    assert (header.base_timestamp_us, header.max_timestamp_us) == (NOW_US + 1, NOW_US + 5)


def variant(base: int, **options: object) -> memoryview:
    records = arrow_batch_of(Keyed(b"%d" % n, b"v") for n in range(60))
    data = encode(records, **options)  # type: ignore[arg-type]
    stamp(data, base_offset=base, leader_epoch=1, append_time_us=base)
    return data


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ({}, {}, True),
        ({"compression": Compression.LZ4}, {"compression": Compression.LZ4}, True),
        ({"compression": Compression.LZ4}, {}, False),
        ({"compression": Compression.LZ4}, {"compression": Compression.ZSTD}, False),
        ({"schema_id": 1}, {"schema_id": 2}, False),
        ({"timestamp_type": TimestampType.LOG_APPEND_TIME}, {}, False),
        # Their times are those of the headers, which differ.
        (
            {"timestamp_type": TimestampType.LOG_APPEND_TIME},
            {"timestamp_type": TimestampType.LOG_APPEND_TIME},
            False,
        ),
    ],
)
def test_only_what_one_header_can_describe_is_joined(
    first: dict[str, object], second: dict[str, object], joined: bool
) -> None:
    pieces = [whole(variant(0, **first)), whole(variant(60, **second))]
    batches, _ = rewritten(0, 120, pieces)
    assert len(batches) == (1 if joined else 2)
    assert batches[0][0].compression is pieces[0].header.compression


def test_columns_that_only_some_have_are_null_for_the_others() -> None:
    plain = stamped_batch(0, Keyed(b"a", b"1"))
    rich = stamped_batch(1, Keyed(None, b"2", NOW_US, (("h", b"x"),)))
    ((header, data),), _ = rewritten(0, 2, [whole(plain), whole(rich)])
    rows = decode(header, data).to_pylist()
    assert [row["key"] for row in rows] == [b"a", None]
    assert [row["headers"] for row in rows] == [None, [{"key": "h", "value": b"x"}]]


def test_joined_record_batches_stay_below_their_size() -> None:
    pieces = [whole(original(n, 1, size=JOIN_BYTES // 8)) for n in range(20)]
    batches, _ = rewritten(0, 20, pieces)
    assert 3 <= len(batches) <= 4
    assert all(header.size <= JOIN_BYTES + 1000 for header, _ in batches)


def in_epoch(data: memoryview, epoch: int) -> memoryview:
    stamp(data, base_offset=verify(data).base_offset, leader_epoch=epoch, append_time_us=NOW_US)
    return data


def test_each_has_the_epoch_of_the_last_one_that_it_stands_for() -> None:
    """A follower goes by it: lower, it would take its log for one that has diverged."""
    for kinds in itertools.product("wpog", repeat=4):
        steps: list[BatchInfo] = []
        for number, kind in enumerate(kinds):
            data = in_epoch(original(10 * number, 10), 1 + 2 * number)
            if kind == "g":
                steps.append(Gone((verify(data),)))
            elif kind == "p":
                steps.append(part(data, 10 * number + 3))
            else:
                steps.append(whole(data) if kind == "w" else opaque(data))
        batches, _ = rewritten(0, 40, steps)
        assert batches[-1][0].next_offset == 40
        for header, _ in batches:
            assert header.leader_epoch == 1 + 2 * ((header.next_offset - 1) // 10), kinds
