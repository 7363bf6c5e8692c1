"""Tokens: what they are good for, how many topics they name, and what a broker refuses."""

from __future__ import annotations

import random

import pytest

from spark_logbus.errors import AuthenticationError, InvalidRequestError
from spark_logbus.security.acls import Operation, Resource
from spark_logbus.security.principals import Principal
from spark_logbus.security.tokens import (
    MAX_TOKEN_BYTES,
    Claims,
    Grant,
    Scope,
    grants_on_topics,
    new_key,
    scope_id,
    sign,
    verify,
)

KEY = new_key()
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def test_a_scope_covers_what_its_grants_name() -> None:
    scope = Scope(
        1,
        [
            Grant("topic", "t", ("read",)),
            Grant("topic", "logs.*", ("write",)),
            Grant("writer", "t", ("write",)),
        ],
    )

    def covers(operation: Operation, name: str, resource: Resource = Resource.TOPIC) -> bool:
        return scope.covers(operation, resource, name)

    assert covers(READ, "t")
    assert covers(DESCRIBE, "t"), "who reads it may describe it"
    assert not covers(WRITE, "t")
    assert not covers(READ, "tt")
    assert covers(WRITE, "logs.a")
    assert not covers(WRITE, "logs")
    assert not covers(READ, "logs.a")
    assert covers(WRITE, "t", Resource.WRITER)
    assert not covers(READ, "t", Resource.GROUP)
    assert not Scope(1, []).covers(DESCRIBE, Resource.TOPIC, "t"), "no grants, nothing"
    assert Scope(1, None).covers(WRITE, Resource.TOPIC, "t"), "not bounded"


@pytest.mark.parametrize("count", [1, 60, 500])
def test_topics_fit_into_a_token_by_name(count: int) -> None:
    names = [f"tenant-{number % 7}.clicks.{number:04}" for number in range(count)]
    grants = grants_on_topics(names, ("read",))
    assert sorted(each.name for each in grants) == sorted(names)
    assert len(sign(Claims(1, "user:" + "n" * 200, 1 << 60, list(grants)), KEY)) <= MAX_TOKEN_BYTES


@pytest.mark.parametrize("length", [10, 200])
def test_more_topics_than_fit_are_named_by_prefixes(length: int) -> None:
    letters = random.Random(5)
    names = {
        "".join(letters.choices("abcdefghijklmnopqrstuvwxyz.-_", k=length)) for _ in range(3_000)
    } | {"a", "zz"}
    grants = grants_on_topics(names, ("read",))
    token = sign(Claims(1, "user:" + "n" * 200, 1 << 60, list(grants)), KEY)
    _, scope, _ = verify(token, {1: KEY}, now_us=5)
    assert all(scope.covers(READ, Resource.TOPIC, name) for name in names)
    assert any(each.name.endswith("*") for each in grants)
    assert Grant("topic", "*", ("read",)) not in grants
    assert not scope.covers(WRITE, Resource.TOPIC, "a")


def test_a_token_of_all_topics_stays_one() -> None:
    assert grants_on_topics(["*"], ("write",)) == (Grant("topic", "*", ("write",)),)
    assert grants_on_topics([], ("write",)) == ()


def test_a_token_is_verified() -> None:
    claims = Claims(1, "user:anna", 1_000, [Grant("topic", "t", ("read",))])
    token = sign(claims, KEY)
    principal, scope, _ = verify(token, {7: new_key(), 1: KEY}, now_us=999)
    assert (principal, scope.expires_us) == (Principal("user", "anna"), 1_000)
    with pytest.raises(AuthenticationError, match=r"has expired.*token_max_ms"):
        verify(token, {1: KEY}, now_us=1_000)
    with pytest.raises(AuthenticationError, match="not one that brokers"):
        verify(token, {1: new_key()}, now_us=1)
    for bad in (b"", token[:31], token[:-1], token + b"x", bytes(3_001), token[:32]):
        with pytest.raises(AuthenticationError):
            verify(bad, {1: KEY}, now_us=1)


def test_a_token_that_would_be_too_large_is_refused() -> None:
    letters = random.Random(5)
    grants = [Grant("topic", letters.randbytes(60).hex(), ("read",)) for _ in range(100)]
    with pytest.raises(InvalidRequestError, match="the limit is 3000"):
        sign(Claims(1, "user:anna", 1_000, grants), KEY)


@pytest.mark.parametrize(
    "grants",
    [
        [Grant("topic", "a*", ("read",))] * 50_000,
        [Grant("topic", "a" * 2_000_000, ("read",))],
        [Grant("topic", "a", ("read",) * 300_000)],
    ],
    ids=["many", "long", "operations"],
)
def test_a_small_token_that_unpacks_to_much_is_refused(grants: list[Grant]) -> None:
    """Each connection that is begun with it would keep that."""
    with pytest.raises(InvalidRequestError, match="at most"):
        sign(Claims(1, "user:anna", 10, grants), KEY)


def test_scopes_tell_owners_and_grants_apart() -> None:
    one, other = Grant("topic", "a", ("read",)), Grant("topic", "b", ("read",))
    ids = [
        scope_id("user:anna", [one]),
        scope_id("user:bert", [one]),
        scope_id("user:anna", [other]),
        scope_id("user:anna", [one, other]),
        scope_id("user:anna", [Grant("topic", "a", ("write",))]),
    ]
    assert len({*ids}) == len(ids)
    assert scope_id("user:anna", [other, one]) == ids[3]
