"""The move of a partition of several replicas, explored in all its states; each rule of how it ends
is there for a reason."""

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

TWO = "{a, b}"
FOUR = "{a, b, c, d}"

RULES = [
    broken("the new list is written though one on it is not in sync", "LogsAreThere", Faults=0),
    broken("those that lose it stay in sync", "MembersAreAssigned", Records=0, Faults=0),
    broken("the watermark goes by the new list before ZooKeeper does", "AcknowledgedStands"),
    broken("a target is taken in before it has what is acknowledged", "AcknowledgedStands",
           Brokers=TWO, From=1),
    broken("what was told in an earlier move counts", "LogsAreThere",
           Brokers=TWO, From=1, Records=0, Faults=0, Moves=3),
    broken("a log is set aside while it is in sync", "LogsAreThere",
           Brokers=TWO, From=1, Records=0, Faults=0, Moves=2),
    broken("a target that is not in sync is elected", "AcknowledgedStands"),
    broken("an elected target is not assigned", "LeaderIsAssigned", Records=0),
]  # fmt: skip


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.rule)
def test_a_broken_rule_of_the_end_of_a_move_is_found(case: Broken) -> None:
    assert_found("Reassignment", case)


def test_each_rule_of_the_end_of_a_move_is_broken_in_turn() -> None:
    assert_each_rule_is_broken("Reassignment", RULES)


@pytest.mark.parametrize(
    ("bounds", "at_least"),
    [
        ({}, 20_000),
        ({"From": 1}, 5_000),
        pytest.param({"Moves": 2}, 100_000, marks=SLOW),
        pytest.param({"Faults": 2}, 100_000, marks=SLOW),
        pytest.param({"Brokers": FOUR, "Faults": 0}, 10_000, marks=SLOW),
        pytest.param({"From": 1, "Brokers": TWO, "Records": 2, "Faults": 2, "Leads": 2, "Moves": 2},
                     50_000, marks=SLOW),
    ],
    ids=str,
)  # fmt: skip
def test_moves_of_several_replicas_hold_in_all_states(
    bounds: dict[str, object], at_least: int
) -> None:
    assert_holds("Reassignment", bounds, at_least=at_least)
