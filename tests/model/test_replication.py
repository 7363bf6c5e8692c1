"""Replication, explored in all its states; each rule of it is there for a reason."""

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

RULES = [
    broken("a follower cuts back to its watermark", "AcknowledgedStands", Brokers=TWO, Faults=2),
    broken("a follower never cuts back", "LogsAgree", Brokers=TWO, Records=2),
    broken("in-sync names brokers and no log ids", "AcknowledgedStands", Brokers=TWO, Faults=2),
    broken("a joiner is taken in by what it told in an earlier life", "AcknowledgedStands",
           Brokers=TWO, Faults=3),
    broken("the leader drops a member for itself before ZooKeeper", "AcknowledgedStands",
           Brokers=TWO),
    broken("a broker that is not in sync is elected", "AcknowledgedStands", Brokers=TWO),
    broken("a joiner counts only when its write is heard", "AcknowledgedStands", Brokers=TWO),
    broken("a joiner is taken in before it has what is acknowledged", "AcknowledgedStands",
           Brokers=TWO),
    broken("a joiner is taken in by the watermark of a new leader alone", "AcknowledgedStands",
           Brokers=TWO, Records=2, Faults=3, Elections=2),
    broken("a member tells what it wrote", "AcknowledgedStands",
           Brokers=TWO, Faults=2, FlushApart=True),
    broken("the leader counts what it wrote", "AcknowledgedStands",
           Brokers=TWO, Faults=2, FlushApart=True),
    broken("a log keeps its id after an unclean stop", "AcknowledgedStands",
           Brokers=TWO, PageCache=True),
    broken("a restored log takes part in elections", "AcknowledgedStands",
           Brokers=TWO, Faults=2, Restores=True),
    broken("the hand-over does not wait for the end", "FlushedStands",
           Brokers=TWO, Faults=0, FlushApart=True),
    broken("a restarted leader goes on in its epoch", "LogsAgree",
           Brokers=TWO, Records=2, FlushApart=True),
    # Each fetch compares the epochs of the logs, which is enough at these bounds. It is fenced all
    # the same: what a leader of an older epoch was told is of no use to it.
    broken("a fetch is not fenced by the epoch", "", Brokers=TWO, Records=2, Elections=2),
]  # fmt: skip


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.rule)
def test_a_broken_rule_of_replication_is_found(case: Broken) -> None:
    assert_found("Replication", case)


def test_each_rule_of_replication_is_broken_in_turn() -> None:
    assert_each_rule_is_broken("Replication", RULES)


@pytest.mark.parametrize(
    ("bounds", "at_least"),
    [
        ({}, 10_000),
        ({"Brokers": TWO, "Faults": 2, "Elections": 2, "FlushApart": True}, 10_000),
        ({"Brokers": TWO, "PageCache": True, "Restores": True}, 1_000),
        pytest.param({"Faults": 2}, 50_000, marks=SLOW),
        pytest.param({"Records": 2}, 50_000, marks=SLOW),
        pytest.param({"FlushApart": True}, 20_000, marks=SLOW),
        pytest.param({"Faults": 2, "Elections": 2}, 200_000, marks=SLOW),
        pytest.param(
            {"Brokers": TWO, "Records": 2, "Faults": 2, "Elections": 2, "FlushApart": True},
            100_000,
            marks=SLOW,
        ),
    ],
    ids=str,
)
def test_replication_holds_in_all_states(bounds: dict[str, object], at_least: int) -> None:
    assert_holds("Replication", bounds, at_least=at_least)
