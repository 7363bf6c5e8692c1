"""Attempts at one write have one content, however their tasks are cut."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_logbus.client.writes.content import UNKNOWN_INPUTS, write_content
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import WriteContent


def content(
    records: Mapping[tuple[str, int], int],
    unplaced: Mapping[str, int] | None = None,
    *,
    partitions: int = 2,
) -> WriteContent:
    return write_content(
        {TopicPartition(*at): count for at, count in records.items()},
        unplaced or {},
        partitions={topic: partitions for topic, _ in records},
        inputs=UNKNOWN_INPUTS,
    )


KEYED = content({("t", 0): 3, ("t", 1): 4, ("u", 1): 1})


def test_the_order_of_partitions_says_nothing() -> None:
    assert content({("u", 1): 1, ("t", 1): 4, ("t", 0): 3}) == KEYED
    assert KEYED.records == 8


@pytest.mark.parametrize(
    ("records", "topics", "partitions"),
    [
        ({("t", 0): 4, ("t", 1): 3, ("u", 1): 1}, True, False),
        ({("t", 0): 3, ("t", 1): 3, ("u", 1): 2}, False, False),
        ({("t", 0): 3, ("t", 1): 4, ("v", 1): 1}, False, False),
    ],
)
def test_what_lies_elsewhere_is_another_write(
    records: Mapping[tuple[str, int], int], topics: bool, partitions: bool
) -> None:
    other = content(records)
    assert (other.topics == KEYED.topics, other.partitions == KEYED.partitions) == (
        topics,
        partitions,
    )


def test_rows_that_lie_anywhere_are_counted_by_topic_alone() -> None:
    one = content({("t", 0): 7, ("u", 0): 1}, {"t": 7})
    assert content({("t", 1): 7, ("u", 0): 1}, {"t": 7}) == one
    assert content({("t", 1): 7, ("u", 1): 1}, {"t": 7}) != one
    # One of seven has no key: no partition's number is sure, but how many have none is.
    assert content({("t", 1): 7, ("u", 0): 1}, {"t": 6}) != one


def test_more_partitions_are_another_layout() -> None:
    other = content({("t", 0): 3, ("t", 1): 4, ("u", 1): 1}, partitions=3)
    assert (other.topics, other.layout == KEYED.layout) == (KEYED.topics, False)


def test_nothing_has_a_content_as_well() -> None:
    assert content({}).records == 0
