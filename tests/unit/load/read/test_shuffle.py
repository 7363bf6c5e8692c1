"""When a load gathers its records by directory, and where it takes a sample of them."""

from __future__ import annotations

import itertools

import pytest

from spark_logbus.load.read.shuffle import FILE_BYTES, WORTH_BYTES, most_directories, sampled
from spark_logbus.model import OffsetRange, TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


@pytest.mark.parametrize(
    ("size_bytes", "tasks", "most"),
    [
        (0, 0, 0),
        (WORTH_BYTES - 1, 1, 0),
        (WORTH_BYTES, 1, WORTH_BYTES // FILE_BYTES),
        (20 * FILE_BYTES, 4, 5),
        (20 * FILE_BYTES - 1, 4, 4),
        (20 * FILE_BYTES, 21, 0),
    ],
)
def test_files_of_a_task_are_no_small_ones(size_bytes: int, tasks: int, most: int) -> None:
    assert most_directories(size_bytes, tasks=tasks) == most


@pytest.mark.parametrize(
    "ranges",
    [
        [OffsetRange(A, 7, 8)],
        [OffsetRange(A, 7, 20)],
        [OffsetRange(A, 0, 1_000_000)],
        [OffsetRange(A, 5, 9), OffsetRange(B, 3, 3), OffsetRange(B, 1_000, 9_999)],
        [OffsetRange(A, 10 * n, 10 * n + 1) for n in range(1_000)],
    ],
    ids=["one", "few", "many", "two-partitions", "many-ranges"],
)
def test_a_sample_is_of_the_ranges_from_end_to_end(ranges: list[OffsetRange]) -> None:
    sample = sampled(ranges)
    offsets = {(each.topic_partition, o) for each in ranges for o in range(each.start, each.end)}
    taken = {(each.topic_partition, o) for each in sample for o in range(each.start, each.end)}
    assert taken <= offsets
    assert {min(offsets), max(offsets)} <= taken
    assert len(taken) <= 400


def test_a_sample_shows_more_directories_than_a_task_may_have() -> None:
    """Samples records in the order of time, in as many directories as a task's bytes allow."""
    most = most_directories(512 << 20, tasks=1)
    days = 366
    sample = sampled([OffsetRange(A, 0, days * 1_000)])
    assert len({each.start // 1_000 for each in sample}) > most
    gaps = {b.start - a.start for a, b in itertools.pairwise(sample)}
    assert max(gaps) - min(gaps) <= 1


def test_nothing_has_no_sample() -> None:
    assert sampled([OffsetRange(A, 4, 4)]) == ()
