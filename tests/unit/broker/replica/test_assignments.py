"""Role of a broker in a partition: by its assignment, its state, and who lives."""

from __future__ import annotations

import pytest

from spark_logbus.broker.replica.assignments import Assigned, Assignments
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.zookeeper import CorruptNodeError
from tests.fakes.broker_parts import T0, T1

ME = 2
HERE = Assignments(ME)


def assigned(brokers: list[int], state: PartitionState | CorruptNodeError | None) -> Assigned:
    return Assigned(T0, TopicRecord("t", "id", {0: brokers}, {}), state)


def led_by(leader: int, *in_sync: int) -> PartitionState:
    return PartitionState(leader, 3, list(in_sync))


@pytest.mark.parametrize(
    ("brokers", "state", "live", "leads"),
    [
        ([2], None, [], True),
        ([2], led_by(2, 2), [], True),
        ([2], led_by(1, 1), [1, 2], True),  # refused by ZooKeeper, which says why
        ([2, 1, 3], None, [1, 3], True),  # it lives, whether it has heard of itself or not
        ([1, 2, 3], None, [1, 2, 3], False),
        ([1, 2, 3], None, [2, 3], True),
        ([1, 3, 2], None, [2, 3], False),
        ([1, 2, 3], led_by(2, 2), [1, 2, 3], True),
        ([1, 2, 3], led_by(2, 1, 2, 3), [2], True),
        ([2, 1, 3], led_by(1, 1, 2, 3), [1, 2, 3], False),  # preferred, and another leads
        ([2, 1, 3], led_by(2, 1, 3), [1, 2, 3], False),  # its log was found wanting
    ],
)
def test_who_leads(
    brokers: list[int], state: PartitionState | None, live: list[int], leads: bool
) -> None:
    assert HERE.leads(assigned(brokers, state), live) is leads


@pytest.mark.parametrize(
    ("brokers", "state", "live", "rank"),
    [
        ([1, 2, 3], led_by(1, 1, 2, 3), [2, 3], 0),
        ([1, 3, 2], led_by(1, 1, 2, 3), [2, 3], 1),
        ([1, 3, 2], led_by(1, 1, 2, 3), [2], 0),  # the one before it is gone, too
        ([1, 3, 2], led_by(1, 1, 2), [2, 3], 0),  # or not in sync
        ([1, 2, 3], led_by(1, 1, 2, 3), [1, 2, 3], None),  # the leader lives
        ([1, 2, 3], led_by(1, 2, 3), [1, 2, 3], 0),  # and is not in sync
        ([3, 1, 2], led_by(1, 2, 3), [1, 2, 3], 1),
        ([1, 2, 3], led_by(1, 1, 3), [2, 3], None),  # not in sync
        ([1, 2, 3], led_by(2, 1, 2, 3), [1, 2, 3], None),  # it leads
        ([1, 2, 3], led_by(1, 1, 2, 3), [3], None),  # it has lost its own session
        ([1, 3], led_by(1, 1, 2, 3), [2, 3], 1),  # a target of a move comes last
        ([1, 3], led_by(1, 1, 2), [2, 3], 0),
    ],
)
def test_who_is_elected_when(
    brokers: list[int], state: PartitionState, live: list[int], rank: int | None
) -> None:
    assert HERE.rank(assigned(brokers, state), state, live) == rank


def test_no_two_members_have_the_same_rank() -> None:
    state = led_by(1, 1, 2, 3, 4, 5)
    ranks = [
        Assignments(each).rank(assigned([1, 4, 2, 3], state), state, [2, 3, 4, 5])
        for each in (4, 2, 3, 5)
    ]
    assert ranks == [0, 1, 2, 3]


def test_what_is_here_and_what_is_elsewhere() -> None:
    record = TopicRecord("t", "id", {0: [1, 2], 1: [1, 3]}, {})
    assert HERE.assigned_here(record) == [T0]
    assert HERE.assigned_elsewhere(record) == [T1]
    assert HERE.is_replicated_here(record)
    assert not HERE.is_replicated_here(TopicRecord("t", "id", {0: [2], 1: [1, 3]}, {}))


def test_what_may_be_led_here_by_an_election() -> None:
    """Replicas that move here are in sync before the move ends, but for a sole one."""

    def electable(assigned: list[int], *to: int, error: str = "") -> bool:
        moves = {0: MovePayload(to=[*to], since_us=5, error=error)}
        record = TopicRecord("t", "id", {0: assigned}, {}, moves=moves)
        found = HERE.electable_here(record)
        assert HERE.is_replicated_here(record) == (found == [T0] and assigned != [2])
        return found == [T0]

    assert electable([2], 1, 3)
    assert electable([1, 2], 1, 3)
    assert electable([1], 1, 2)
    assert electable([1, 3], 2)
    assert not electable([1], 2)
    assert not electable([1], 1, 3)
    assert not electable([1], 1, 2, error="Its disk is full.")


def test_a_broker_among_several_targets_of_a_move_follows() -> None:
    moves = {0: MovePayload(to=[3, 2], since_us=5), 1: MovePayload(to=[2, 1], since_us=4)}
    record = TopicRecord("t", "id", {0: [1, 3], 1: [1, 2]}, {}, moves=moves)
    assert [*HERE.moving_here([record])] == [T0], "the other has it already"
