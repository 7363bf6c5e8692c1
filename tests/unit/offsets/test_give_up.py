"""Which partitions are given up, and where they go on."""

from __future__ import annotations

import pytest

from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import InvalidRequestError
from spark_logbus.lost_ends import STEP, go_on_at
from spark_logbus.model import TopicPartition
from spark_logbus.offsets.give_up import plan

LED = PartitionState(1, 4, [1], end=70)
REFUSED = PartitionState(1, 4, [1], end=70, refused="away")
T2 = TopicPartition("t", 2)


@pytest.mark.parametrize(
    ("known_end", "expected"),
    [(0, STEP), (1, 2 * STEP), (STEP - 1, 2 * STEP), (STEP, 2 * STEP), (STEP + 1, 3 * STEP)],
)
def test_a_log_goes_on_at_a_round_number_far_behind_its_end(known_end: int, expected: int) -> None:
    assert go_on_at(known_end) == expected


def test_all_that_are_refused_or_those_that_are_named() -> None:
    states = {0: LED, 1: REFUSED, 2: REFUSED}
    made = plan("t", "id", states, {T2: 5 * STEP})
    assert [row.topic_partition.partition for row in made.rows] == [1, 2]
    assert [row.go_on_at for row in made.rows] == [2 * STEP, 6 * STEP]  # a group is further on
    assert [row.committed for row in made.rows] == [None, 5 * STEP]
    assert [row.topic_partition for row in plan("t", "id", states, {}, only=[2]).rows] == [T2]


@pytest.mark.parametrize(("states", "only"), [({0: LED}, []), ({}, []), ({0: LED}, [0]), ({}, [3])])
def test_what_is_served_or_was_never_led_is_not_given_up(
    states: dict[int, PartitionState], only: list[int]
) -> None:
    with pytest.raises(InvalidRequestError, match="refused by its broker"):
        plan("t", "id", states, {}, only=only)


def test_what_is_given_up_already_goes_on_where_that_said() -> None:
    state = PartitionState(1, 4, [1], end=70, refused="away", go_on_at=9_000)
    assert plan("t", "id", {2: state}, {}).rows[0].go_on_at == 9_000
