"""Decisions of atomic writers in a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_logbus.coordination.writes.decisions import DecidedWrite, Proposal, TopicRecords
from spark_logbus.coordination.writes.writers import WriterRegistry
from spark_logbus.errors import InvalidRequestError, WriteFencedError
from spark_logbus.zookeeper import Session

TOPICS = {"t": TopicRecords("id", {0: 5, 1: 7})}


@pytest.fixture
def registry(chroot: str) -> Iterator[WriterRegistry]:
    with Session(chroot, client_name="test") as session:
        yield WriterRegistry(session)


def proposal(version: int, write: int, *, once: bool = False, attempts: str = "0-1") -> Proposal:
    return Proposal(DecidedWrite(version, write, attempts, TOPICS), run="a", once=once)


def test_a_decision_is_pending_until_all_of_it_is_published(registry: WriterRegistry) -> None:
    assert registry.pending().states == {}
    registry.decide("me/ü.", proposal(1, 10))
    (state,) = registry.pending().states.values()
    assert state.last == proposal(1, 10).decision
    assert registry.published("me/ü.", 10, {"t": [0]}) is not None
    assert list(registry.pending().states) == ["me/ü."]
    assert registry.published("me/ü.", 9, {"t": [1]}) is not None
    assert registry.published("me/ü.", 10, {"t": [1]}) is None
    assert registry.pending().states == {}
    assert registry.peek("me/ü.", proposal(1, 11)).already


def test_a_decision_is_listed_though_the_entry_of_an_empty_one_before_is_taken_away(
    registry: WriterRegistry,
) -> None:
    empty = DecidedWrite(1, 10, "", {})
    registry.decide("me", Proposal(empty, run="a"))
    assert list(registry.pending().states) == ["me"]
    times = 0

    def publish_in_between() -> None:
        nonlocal times
        times += 1
        if times == 1:  # a broker, between what is read and what is written
            assert registry.published("me", 10, {}) is None
            assert registry.pending().states == {}

    registry.decide("me", proposal(2, 11), admit=publish_in_between)
    assert [each.last for each in registry.pending().states.values()] == [proposal(2, 11).decision]
    assert times == 2


def test_what_is_decided_last_is_forgotten_when_it_is_old(registry: WriterRegistry) -> None:
    for writer, once in (("once", True), ("often", False), ("pending", True)):
        registry.decide(writer, proposal(1, 10, once=once))
        if writer != "pending":
            registry.published(writer, 10, {"t": [0, 1]})
    later, times = 1 << 61, {"keep_us": 1 << 60, "keep_once_us": 1}
    assert registry.forget(now_us=0, **times) == 0
    assert registry.forget(now_us=1 << 59, **times) == 0  # one is found old
    assert registry.forget(now_us=(1 << 59) + 1, **times) == 1
    assert registry.peek("often", proposal(1, 11)).already
    assert not registry.peek("once", proposal(1, 11)).already
    assert registry.forget(now_us=later, **times) == 0
    assert registry.peek("often", proposal(1, 11)).already
    assert registry.forget(now_us=2 * later, **times) == 1
    assert list(registry.pending().states) == ["pending"]


def test_an_aborted_write_needs_nobody_to_look_after_it(registry: WriterRegistry) -> None:
    registry.abort("me", proposal(1, 10))
    assert registry.pending().states == {}
    with pytest.raises(WriteFencedError):
        registry.decide("me", proposal(1, 10))


def test_a_decision_that_no_node_holds_is_refused(registry: WriterRegistry) -> None:
    scattered = ",".join(str(number) for number in range(0, 300_000, 2))
    with pytest.raises(InvalidRequestError, match="coalesce"):
        registry.decide("me", proposal(1, 10, attempts=scattered))
    assert registry.pending().states == {}
