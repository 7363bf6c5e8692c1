"""Changes of who is in sync, as a leader asks for them again when it has not heard of the first."""

from __future__ import annotations

import pytest

from spark_logbus.coordination.cluster.leader_rules import (
    MembersChange,
    changed_by_leader,
    joins_by_move,
    leaves_lead,
    members_changed,
)
from spark_logbus.coordination.cluster.topic_records import LeadershipClaim
from spark_logbus.coordination.payloads import MovePayload, PartitionState, TopicPayload
from spark_logbus.errors import InvalidRequestError, NotLeaderError
from spark_logbus.model import TopicPartition

T0 = TopicPartition("t", 0)
NOW = PartitionState(1, 5, [1, 2, 4], replicas={1: "a", 2: "b", 4: "d"})


def test_a_leader_hears_of_a_member_that_is_assigned_no_more() -> None:
    """Its request was carried out and the reply lost; then the move to that broker was ended."""
    again = members_changed(T0, NOW, add={4: "d"}, remove=[], eligible=[1, 2])
    assert again == NOW


def test_a_broker_that_is_assigned_no_more_is_not_taken_in() -> None:
    with pytest.raises(InvalidRequestError, match="Brokers 4 cannot be in sync of t-0"):
        members_changed(T0, NOW, add={4: "another"}, remove=[], eligible=[1, 2])


def test_a_leader_leaves_those_in_sync_where_another_of_them_runs() -> None:
    claim = LeadershipClaim(T0, "a" * 32)
    left = leaves_lead(1, live=[1, 4])(claim, NOW).state
    assert left == PartitionState(1, 5, [2, 4], replicas={2: "b", 4: "d"})
    for now, live in (
        (NOW, [1, 3]),
        (PartitionState(1, 5, [1]), [1, 2, 4]),
        (PartitionState(2, 6, [1, 2]), [1, 2]),
        (None, [1, 2]),
    ):
        ruling = leaves_lead(1, live=live)(claim, now)
        assert ruling.state is None
        assert isinstance(ruling.refusal, NotLeaderError)


@pytest.mark.parametrize(
    ("assigned", "to", "in_sync", "live", "after"),
    [
        ([1, 2], [1, 4], [1, 4], [4], [1, 4]),  # 2 is gone, and was to leave
        ([1, 2], [1, 4], [1, 4], [2, 4], [1, 2, 4]),  # it may catch up
        ([1, 2], [1, 4], [1, 2, 4], [4], [1, 2, 4]),  # it has what was acknowledged
        ([1, 2], [1, 2, 4], [1, 4], [4], [1, 2, 4]),
        ([1], [4, 5], [1, 4], [4], [1, 4]),
        ([2, 3, 1], [1, 4], [1, 4], [4], [4, 3, 1]),  # of two that are gone one
    ],
)
def test_a_broker_that_is_elected_while_a_partition_moves_to_it_has_it_assigned(
    assigned: list[int], to: list[int], in_sync: list[int], live: list[int], after: list[int]
) -> None:
    moves = {0: MovePayload(to=to, since_us=7), 1: MovePayload(to=[4], since_us=8)}
    payload = TopicPayload(id="a" * 32, partitions={0: assigned, 1: [1]}, config={}, moves=moves)
    joined = joins_by_move(4, live)(payload, 0, PartitionState(1, 5, in_sync))
    assert joined == TopicPayload(
        id="a" * 32, partitions={0: after, 1: [1]}, config={}, moves=moves
    )


def test_a_leader_that_has_left_drops_nobody_after_it() -> None:
    """The change would leave nobody in sync, and so nobody to be elected."""
    left = leaves_lead(1, live=[1, 2])(LeadershipClaim(T0, "a" * 32), NOW).state
    assert left is not None
    payload = TopicPayload(id="a" * 32, partitions={0: [1, 2, 4]}, config={})
    change = MembersChange(T0, "a" * 32, 5, add={}, remove=[2, 4])
    with pytest.raises(NotLeaderError, match="it has left those in sync, 2, 4"):
        changed_by_leader(left, change, leader=1, payload=payload)


def test_nobody_is_taken_in_by_another_move_than_the_one_in_which_it_told_of_its_log() -> None:
    """The target may have deleted that log, of whose new move the leader has not heard yet."""
    now = PartitionState(1, 5, [1, 2], replicas={1: "a", 2: "b"})
    move = MovePayload(to=[1, 4], since_us=7)
    payload = TopicPayload(id="a" * 32, partitions={0: [1, 2]}, config={}, moves={0: move})
    for since_us in (0, 6):
        change = MembersChange(T0, "a" * 32, 5, add={4: "d"}, remove=[], since_us=since_us)
        with pytest.raises(InvalidRequestError, match="Brokers 4 cannot be in sync of t-0"):
            changed_by_leader(now, change, leader=1, payload=payload)
    changed = changed_by_leader(now, change._replace(since_us=7), leader=1, payload=payload)
    assert changed.in_sync == [1, 2, 4]
