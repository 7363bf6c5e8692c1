"""How a bound on records is shared out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets.trigger_limits import share


def ranges(counts: list[int], *, base: int = 0) -> dict[TopicPartition, OffsetRange]:
    topic_partitions = [TopicPartition("t", number) for number in range(len(counts))]
    return {
        topic_partition: OffsetRange(topic_partition, base, base + n)
        for topic_partition, n in zip(topic_partitions, counts, strict=True)
    }


@pytest.mark.parametrize(
    ("counts", "limit", "expected"),
    [
        ([10, 10], 100, [10, 10]),  # all fits
        ([10, 10], 20, [10, 10]),
        ([100, 100], 10, [5, 5]),
        ([300, 100], 40, [30, 10]),  # in proportion
        ([100, 0], 10, [10, 0]),  # nothing from nothing
        ([1000, 1], 10, [9, 1]),  # nobody starves, and the sum stays
        ([5, 5, 5], 1, [1, 1, 1]),  # one each, though that is more than the limit
        ([1, 1, 1], 2, [1, 1, 1]),
        ([10, 10, 10], 10, [4, 3, 3]),  # what division leaves goes to the first
        ([], 10, []),
    ],
)
def test_share(counts: list[int], limit: int, expected: list[int]) -> None:
    ends = share(ranges(counts), limit)
    assert list(ends.values()) == expected


def test_limit_and_offsets_of_64_bits_are_exact() -> None:
    huge = (1 << 63) - 1
    assert list(share(ranges([3, 4], base=huge - 10), huge).values()) == [huge - 7, huge - 6]
    ends = share(ranges([huge // 2, huge // 2]), huge // 3)
    assert sum(ends.values()) == huge // 3


@given(st.lists(st.integers(0, 10_000), max_size=12), st.integers(1, 20_000))
def test_share_never_starves_and_keeps_the_sum(counts: list[int], limit: int) -> None:
    asked = ranges(counts, base=7)
    taken = {topic_partition: end - 7 for topic_partition, end in share(asked, limit).items()}
    with_records = [topic_partition for topic_partition, r in asked.items() if r.count]
    assert all(
        0 <= taken[topic_partition] <= asked[topic_partition].count for topic_partition in asked
    )
    assert all(taken[topic_partition] >= 1 for topic_partition in with_records)
    assert sum(taken.values()) == min(sum(counts), max(limit, len(with_records)))
