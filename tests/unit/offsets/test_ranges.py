"""How ranges become input partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets import ranges as ranges_module
from spark_logbus.offsets.ranges import (
    MIN_PIECE_BYTES,
    SplitLimits,
    Splitter,
    piece_bytes,
    piece_count,
    split_by_count,
)

MIB = 1 << 20
RECORD_BYTES = 1 << 10


def a_range(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicPartition("t", partition), start, end)


def splitter(
    ranges: Mapping[OffsetRange, int],
) -> dict[OffsetRange, tuple[list[OffsetRange], int]]:
    """Brokers that hold records of 1 KiB in record batches of 100, and cut between those."""
    cut = {}
    for one, target in ranges.items():
        step = max(1, target // RECORD_BYTES // 100) * 100
        bounds = [one.start, *range((one.start // step + 1) * step, one.end, step), one.end]
        pieces = [
            OffsetRange(one.topic_partition, bounds[i], bounds[i + 1])
            for i in range(len(bounds) - 1)
        ]
        cut[one] = (pieces, one.count * RECORD_BYTES)
    return cut


def split(
    asked: Sequence[OffsetRange], limits: SplitLimits, splitter: Splitter
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task."""
    return [task.ranges for task in ranges_module.split(asked, limits, splitter)]


@pytest.mark.parametrize(
    ("total", "limits", "expected"),
    [
        (1024 * MIB, SplitLimits(max_bytes=128 * MIB, parallelism=2), 128 * MIB),
        (100 * MIB, SplitLimits(max_bytes=128 * MIB, parallelism=2), 50 * MIB),
        (4 * MIB, SplitLimits(max_bytes=128 * MIB, parallelism=8), MIN_PIECE_BYTES),
        (100 * MIB, SplitLimits(max_bytes=10 * MIB, parallelism=2), 10 * MIB),
        (100 * MIB, SplitLimits(min_partitions=50, parallelism=2), 2 * MIB),
        (0, SplitLimits(min_partitions=5), 1),
    ],
)
def test_piece_bytes(total: int, limits: SplitLimits, expected: int) -> None:
    assert piece_bytes(total, limits) == expected


@pytest.mark.parametrize(
    ("size", "target", "expected"),
    [
        (0, MIB, 1),
        (MIB, MIB, 1),
        (MIB + MIB // 3, MIB, 1),  # a little more than its share is not worth a task
        (2 * MIB - MIB // 3, MIB, 2),
        (9 * MIB, 6 * MIB, 3),  # but never above the bound of 4 MiB
    ],
)
def test_piece_count(size: int, target: int, expected: int) -> None:
    assert piece_count(size, target, SplitLimits(max_bytes=4 * MIB)) == expected


def test_nothing_to_read_gives_no_piece_and_asks_nobody() -> None:
    def never(ranges: object) -> dict[OffsetRange, tuple[list[OffsetRange], int]]:
        raise AssertionError("asked")

    assert split([a_range(0, 5, 5)], SplitLimits(), never) == []


def test_no_piece_has_more_records_than_allowed() -> None:
    asked = [a_range(0, 5, 30), a_range(1, 0, 7)]
    limits = SplitLimits(max_records=10, min_partitions=2)
    assert split(asked, limits, splitter) == [
        (a_range(0, 5, 13),), (a_range(0, 13, 21),), (a_range(0, 21, 30),), (a_range(1, 0, 7),)
    ]  # fmt: skip


def test_small_partitions_share_a_task() -> None:
    asked = [a_range(1, 0, 50), a_range(0, 10, 60)]
    assert split(asked, SplitLimits(parallelism=8), splitter) == [tuple(sorted(asked))]


def test_as_many_shared_tasks_as_run_at_once_and_of_equal_size() -> None:
    many = [a_range(number, 0, 30_000) for number in range(63)]  # of 30 MB each
    shares = split(many, SplitLimits(parallelism=9), splitter)
    assert [len(share) for share in shares] == [7] * 9


def test_a_shared_task_is_worth_starting() -> None:
    many = [a_range(number, 0, 3_000) for number in range(10)]  # of 3 MB each
    shares = split([*many, a_range(11, 0, 5)], SplitLimits(parallelism=16), splitter)
    assert [len(share) for share in shares] == [3, 2, 3, 3]


def test_a_shared_task_is_bounded_where_few_cores_are_known() -> None:
    many = [a_range(number, 0, 100_000) for number in range(10)]  # of 100 MB each
    shares = split(many, SplitLimits(), splitter)
    assert [len(share) for share in shares] == [2, 3, 2, 3]


def test_shared_tasks_keep_the_bound_on_bytes() -> None:
    asked = [a_range(number, 0, 4_000) for number in range(6)]  # of 4 MB each
    shares = split(asked, SplitLimits(max_bytes=9 * MIB, parallelism=1), splitter)
    assert [len(share) for share in shares] == [2, 2, 2]


def test_the_rest_beside_a_hot_partition_is_few_tasks() -> None:
    many = [a_range(number, 0, 10_000) for number in range(1, 10)]  # of 10 MB each
    limits = SplitLimits(parallelism=2)
    shares = split([a_range(0, 0, 800_000), *many], limits, splitter)
    assert [len(share) for share in shares] == [1, 1, 4, 5]


def test_asked_for_partitions_each_get_a_task() -> None:
    asked = [a_range(number, 0, 5) for number in range(10)]
    assert len(split(asked, SplitLimits(min_partitions=1), splitter)) == 10


def test_shared_tasks_keep_the_bound_on_records() -> None:
    asked = [a_range(number, 0, 4) for number in range(5)]
    shares = split(asked, SplitLimits(max_records=10), splitter)
    assert [sum(r.count for r in share) for share in shares] == [8, 8, 4]


def test_a_large_range_is_cut_where_record_batches_meet() -> None:
    shares = split([a_range(0, 0, 100_000)], SplitLimits(parallelism=4), splitter)
    assert len(shares) == 4
    pieces = [piece for share in shares for piece in share]
    assert {piece.start % 100 for piece in pieces} == {0}
    assert max(p.count for p in pieces) - min(p.count for p in pieces) <= 400


@pytest.mark.parametrize("min_partitions", [None, 30])
def test_tasks_know_what_they_read_in_bytes(min_partitions: int | None) -> None:
    asked = [a_range(0, 0, 100_000), a_range(1, 5, 60), a_range(2, 0, 7)]
    limits = SplitLimits(parallelism=4, min_partitions=min_partitions)
    for task in ranges_module.split(asked, limits, splitter):
        assert task.size_bytes == sum(r.count for r in task.ranges) * RECORD_BYTES


def test_min_partitions_above_what_bytes_give() -> None:
    pieces = split([a_range(0, 0, 10), a_range(1, 0, 90)], SplitLimits(min_partitions=10), splitter)
    assert len(pieces) >= 10
    assert sum(p.count for share in pieces for p in share) == 100


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 3_000)), max_size=6),
    st.none() | st.integers(1, 40),
    st.integers(1, 4 * MIB),
    st.integers(1, 16),
)
def test_pieces_cover_the_ranges_exactly(
    shapes: list[tuple[int, int]], min_partitions: int | None, max_bytes: int, parallelism: int
) -> None:
    asked = [a_range(number, start, start + n) for number, (start, n) in enumerate(shapes)]
    limits = SplitLimits(
        max_bytes=max_bytes, min_partitions=min_partitions, parallelism=parallelism
    )
    shares = split(asked, limits, splitter)
    pieces = [piece for share in shares for piece in share]
    assert all(piece.count for piece in pieces)
    for one in asked:
        own = [p for p in pieces if p.topic_partition == one.topic_partition]
        assert [p.start for p in own[1:]] == [p.end for p in own[:-1]]
        if one.count:
            assert (own[0].start, own[-1].end) == (one.start, one.end)
    assert len(shares) >= min(min_partitions or 0, sum(one.count for one in asked))


def test_split_by_count_never_makes_empty_pieces() -> None:
    assert split_by_count([a_range(0, 0, 2)], 50) == [a_range(0, 0, 1), a_range(0, 1, 2)]
