"""Changes of who is in sync, as a leader asks for them again when it has not heard of the first."""

from __future__ import annotations

import pytest

from spark_logbus.coordination.cluster.leader_rules import members_changed
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import InvalidRequestError
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
