"""State that follows from each event in each state of a partition."""

from __future__ import annotations

from itertools import product
from typing import cast

import pytest

from spark_logbus.broker.replica.states import (
    TRANSITIONS,
    LeaderPartition,
    ReplicaEvent,
    Replicas,
    ReplicaState,
)
from spark_logbus.errors import LogMissingError
from spark_logbus.log import PartitionLog
from tests.fakes.broker_parts import T0, T1

ABSENT, LEADING, REFUSED, HELD, REMOVING, FOLLOWING, MOVED = ReplicaState
(LEAD, REFUSE, RESIGN, OVERTAKE, KEEP, DELETE, REMOVE, RETURN, FOLLOW,
 HAND_OVER) = ReplicaEvent  # fmt: skip

LED = LeaderPartition(cast(PartitionLog, "a log"), leader_epoch=3)
ERROR = LogMissingError("It is missing.")

#: The events that bring a partition into a state.
PATHS = {
    ABSENT: [],
    LEADING: [LEAD],
    REFUSED: [REFUSE],
    HELD: [LEAD, RESIGN],
    REMOVING: [LEAD, DELETE],
    FOLLOWING: [FOLLOW],
    MOVED: [LEAD, HAND_OVER],
}
#: The state that follows; None where the event cannot come.
#: state:  LEAD     REFUSE   RESIGN    OVERTAKE  KEEP      DELETE    REMOVE  RETURN  FOLLOW
#:         HAND_OVER
TABLE = {
    ABSENT: [LEADING, REFUSED, ABSENT, None, HELD, REMOVING, None, None, FOLLOWING, MOVED],
    LEADING: [LEADING, REFUSED, HELD, HELD, HELD, REMOVING, None, None, FOLLOWING, MOVED],
    REFUSED: [LEADING, REFUSED, REFUSED, None, HELD, REMOVING, None, None, FOLLOWING, MOVED],
    HELD: [LEADING, REFUSED, HELD, None, HELD, REMOVING, None, None, FOLLOWING, MOVED],
    REMOVING: [
        LEADING, REFUSED, REMOVING, None, REMOVING, REMOVING, ABSENT, ABSENT, FOLLOWING, None,
    ],
    FOLLOWING: [LEADING, REFUSED, HELD, None, HELD, REMOVING, None, None, FOLLOWING, MOVED],
    MOVED: [LEADING, REFUSED, MOVED, None, HELD, REMOVING, ABSENT, None, FOLLOWING, MOVED],
}  # fmt: skip


def happen(replicas: Replicas, event: ReplicaEvent, *, topic_id: str | None = None) -> None:
    leader = LED if event is LEAD else None
    error = ERROR if event is REFUSE else None
    replicas.change(T0, event, topic_id=topic_id, leader=leader, error=error)


def in_state(state: ReplicaState) -> Replicas:
    replicas = Replicas()
    for event in PATHS[state]:
        happen(replicas, event, topic_id="one")
    assert replicas.get(T0).state is state
    return replicas


@pytest.mark.parametrize(("state", "event"), list(product(ReplicaState, ReplicaEvent)))
def test_each_event_brings_each_state_into_the_next(
    state: ReplicaState, event: ReplicaEvent
) -> None:
    replicas = in_state(state)
    expected = TABLE[state][list(ReplicaEvent).index(event)]
    if expected is None:
        with pytest.raises(KeyError):
            happen(replicas, event)
        assert replicas.get(T0).state is state
        return
    happen(replicas, event)
    replica = replicas.get(T0)
    assert replica.state is expected
    assert (replicas.leader(T0) is not None) == (expected is LEADING)
    assert (replica.error is not None) == (expected is REFUSED)
    assert [s for s in ReplicaState if T0 in replicas.in_state(s)] == (
        [] if expected is ABSENT else [expected]
    )


def test_the_table_knows_every_state_and_uses_every_event() -> None:
    assert set(TRANSITIONS) == set(ReplicaState)
    assert {event for row in TRANSITIONS.values() for event in row} == set(ReplicaEvent)


@pytest.mark.parametrize(
    "path", [[RESIGN], [OVERTAKE], [OVERTAKE, REFUSE], [KEEP], [HAND_OVER], [HAND_OVER, KEEP]]
)
def test_the_log_that_was_led_is_known_while_it_may_be_led_again(path: list[ReplicaEvent]) -> None:
    """The log would get its listener twice otherwise."""
    replicas = in_state(LEADING)
    for event in path:
        happen(replicas, event)
    assert replicas.get(T0).leader is LED
    happen(replicas, DELETE)
    assert replicas.get(T0).leader is None


def test_the_topic_to_remove_is_the_last_that_was_deleted() -> None:
    replicas = in_state(REMOVING)
    happen(replicas, KEEP, topic_id="two")
    assert replicas.get(T0).topic_id == "one"
    happen(replicas, DELETE, topic_id="two")
    assert replicas.get(T0).topic_id == "two"


def test_resigning_gives_up_all_that_is_led_and_nothing_else() -> None:
    replicas = in_state(LEADING)
    replicas.change(T1, REFUSE, topic_id="one", error=ERROR)
    assert replicas.leading() == {T0: LED}
    assert replicas.resign() == [T0]
    assert replicas.leading() == {}
    assert replicas.get(T1).error is ERROR
    assert replicas.resign() == []
