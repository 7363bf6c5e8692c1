"""Decisions by access rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_logbus.security import acls
from spark_logbus.security.acls import AccessRules, Operation, Resource, Rule
from spark_logbus.security.principals import Principal

ANNA, BERT = Principal("user", "anna"), Principal("user", "bert")
NAMES = ["", "a", "ab", "abc", "b"]
RULES = st.builds(
    Rule,
    st.sampled_from(["topic", "subject"]),
    st.sampled_from(["a", "ab", "a*", "ab*", "*", "b"]),
    st.sampled_from(["user:anna", "user:bert", "*", "certificate:anna"]),
    st.sampled_from(["read", "write", "describe", "all"]),
    st.booleans(),
)


def named(rule: Rule, name: str) -> bool:
    return name.startswith(rule.name[:-1]) if rule.name.endswith("*") else name == rule.name


def expected(rules: list[Rule], who: Principal, operation: Operation, name: str) -> bool:
    """Decides rule by rule, as it is meant."""
    about = [
        rule
        for rule in rules
        if rule.resource == "topic"
        and named(rule, name)
        and rule.principal in (str(who), "*")
        and (
            rule.operation in (operation.value, "all")
            or (operation is Operation.DESCRIBE and rule.allow and rule.operation != "describe")
        )
    ]
    return bool(about) and all(rule.allow for rule in about)


@given(st.lists(RULES, max_size=8))
def test_what_is_denied_is_denied_and_what_nothing_allows(rules: list[Rule]) -> None:
    made = AccessRules(rules)
    for _ in range(2):  # the second time it is remembered
        for who in (ANNA, BERT):
            for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE):
                for name in NAMES:
                    found = made.allows(who, operation, Resource.TOPIC, name)
                    assert found == expected(rules, who, operation, name)
                    reasons = made.reasons(who, operation, Resource.TOPIC, name)
                    assert found == (bool(reasons) and reasons[0].allow)


def test_no_more_than_some_decisions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "_MAX_DECIDED", 10)
    rules = AccessRules([Rule("topic", "a*", str(ANNA), "read")])
    for number in range(1_000):
        assert rules.allows(ANNA, Operation.READ, Resource.TOPIC, f"a{number}")
        assert not rules.allows(BERT, Operation.READ, Resource.TOPIC, f"a{number}")
        assert len(rules._decided) <= 10
    assert not rules.allows(ANNA, Operation.READ, Resource.TOPIC, "b" * 501)
    assert all(len(name) < 500 for *_, name in rules._decided)
