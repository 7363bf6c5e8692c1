"""The move of a partition, explored in all its states; each rule of it is there for a reason."""

from __future__ import annotations

import pytest

from tests.model.rules import (
    SLOW,
    Broken,
    assert_each_rule_is_broken,
    assert_found,
    assert_holds,
    broken,
)

pytestmark = pytest.mark.long

THREE = "{a, b, c}"

RULES = [
    broken("the target tells what it wrote", "AcknowledgedStands"),
    broken("the hand-over does not wait for the end", "AcknowledgedStands", Faults=0),
    broken("the hand-over leaves staged bytes behind", "PromisedStands",
           Records=0, Faults=0, Staging=True),
    broken("staging goes on during the hand-over", "PromisedStands",
           Records=0, Faults=0, Staging=True),
    broken("appends go on during the hand-over", "AcknowledgedStands", Faults=0),
    broken("the leader acknowledges after the request", "AcknowledgedIsKept", Brokers=THREE),
    broken("the old leader goes on after a lost reply", "AcknowledgedStands", Faults=0),
    broken("a lost reply is settled by a read alone", "AcknowledgedStands", Faults=0),
    broken("the assignment is written before the hand-over", "LeaderIsAssigned",
           Records=0, Faults=0),
    broken("the hand-over does not compare the topic's node", "LeaderIsAssigned",
           Records=0, Faults=0),
    broken("a cancel does not compare", "LeaderIsAssigned", Records=0, Faults=0),
    broken("what was told in an earlier move counts", "LogIsThere",
           Records=0, Faults=0, Moves=3),
    broken("the hand-over names a broker and no log id", "AcknowledgedStands",
           Faults=2, Moves=1),
    broken("a restarted leader goes on in its epoch", "AcknowledgedStands", Moves=1),
    broken("a restarted broker leads what is assigned to it", "AcknowledgedStands", Moves=1),
    broken("a leader wakes without reading the partition's state", "AcknowledgedStands"),
    # No rule of the protocol: what an operator has to see to. See the decision's limits.
    broken("forced while the old leader serves, cut off", "AcknowledgedStands"),
    # The assignment alone tells enough, as the leader always is assigned. Logs are not deleted
    # upon one node's word all the same.
    broken("a log is set aside by the assignment alone", "", Faults=0, Moves=3),
]  # fmt: skip


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.rule)
def test_a_broken_rule_of_moves_is_found(case: Broken) -> None:
    assert_found("Moves", case)


def test_each_rule_of_moves_is_broken_in_turn() -> None:
    assert_each_rule_is_broken("Moves", RULES)


@pytest.mark.parametrize(
    ("bounds", "at_least"),
    [
        ({"Moves": 2}, 5_000),
        ({"Moves": 1, "Faults": 2}, 5_000),
        ({"Records": 0, "Staging": True, "Brokers": THREE}, 5_000),
        pytest.param({"Records": 2, "Faults": 2}, 50_000, marks=SLOW),
        pytest.param({"Faults": 2, "Moves": 3, "Staging": True}, 50_000, marks=SLOW),
        pytest.param({"Brokers": THREE, "Faults": 2}, 50_000, marks=SLOW),
    ],
    ids=str,
)
def test_moves_hold_in_all_states(bounds: dict[str, object], at_least: int) -> None:
    assert_holds("Moves", bounds, at_least=at_least)
