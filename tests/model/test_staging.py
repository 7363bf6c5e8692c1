"""A staged write while the lead changes, in all states; each rule of it has its reason."""

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

ONE_REPLICA = "{a}"

RULES = [
    broken("the leader promises for itself alone", "DecidedIsThere"),
    broken("the decision does not check the token", "DecidedIsThere"),
    broken("a promise outlives the lead", "DecidedIsThere", First=ONE_REPLICA, Faults=0),
    broken("a follower lets a share go by itself", "DecidedIsThere"),
    broken("a share is let go once the leader has published", "DecidedIsThere"),
    broken("who joins or gets the lead may lack staged bytes", "DecidedIsThere",
           First=ONE_REPLICA, Faults=0),
    broken("publishing goes by what this life has copied", "PublishedOnce"),
    broken("a new leader conceals nothing", "SeenWhole"),
    broken("a write is concealed until the leader has all of it", "SeenWhole"),
    broken("a follower's watermark stands where its copy does", "CopiesWhole"),
]  # fmt: skip


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.rule)
def test_a_broken_rule_of_staging_is_found(case: Broken) -> None:
    assert_found("Staging", case)


def test_each_rule_of_staging_is_broken_in_turn() -> None:
    assert_each_rule_is_broken("Staging", RULES)


@pytest.mark.parametrize(
    ("bounds", "at_least"),
    [
        ({}, 10_000),
        ({"First": ONE_REPLICA}, 1_000),
        pytest.param({"First": ONE_REPLICA, "Leads": 2}, 30_000, marks=SLOW),
        pytest.param({"Records": 1, "Leads": 2}, 500_000, marks=SLOW),
    ],
    ids=str,
)
def test_staging_holds_in_all_states(bounds: dict[str, object], at_least: int) -> None:
    assert_holds("Staging", bounds, at_least=at_least)
