"""Members of a group, their assignment and the partitions that they own, in a real ZooKeeper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.groups.assignment import Assignor
from spark_logbus.coordination.groups.membership import (
    GroupMembership,
    Subscribed,
    check_subscribed,
)
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.partition_owners import PartitionOwnership
from spark_logbus.coordination.groups.topic_owners import GroupOwnership, NoOwnership
from spark_logbus.errors import (
    ClaimLostError,
    GroupHeldError,
    InvalidRequestError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.selection import Pattern, Topics
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.nodes import ConflictError, Nodes
from spark_logbus.zookeeper.transactions import Check
from tests.helpers import process_is_gone, wait_until
from tests.servers.zookeeper import expire, put, session

A = [TopicPartition("a", number) for number in range(4)]


@pytest.fixture
def opened(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


@pytest.fixture
def other(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


def create(on: Session, name: str, *, partitions: int) -> None:
    TopicRegistry(on).create(name, partitions=partitions, brokers=[1], config={})


class Member:
    """A member that has joined, and what it was told."""

    def __init__(
        self, on: Session, name: str, topics: Subscribed, assignor: Assignor = Assignor.RANGE
    ) -> None:
        self.told = 0
        self.membership = GroupMembership(
            on, "g", member=name, topics=topics, assignor=assignor, on_change=self._tell
        )
        self.membership.join()

    def _tell(self) -> None:
        self.told += 1

    def is_to_read(self, expected: Iterable[TopicPartition]) -> None:
        wanted = frozenset(expected)
        wait_until(
            lambda: self.membership.assigned == wanted,
            message=f"{self.membership.assigned} to become {wanted}",
        )


@pytest.fixture
def condition(opened: Session) -> Check:
    """Condition that an assignment still is what it was."""
    Nodes(opened).ensure(paths.assignment("g"))
    return Check(paths.assignment("g"), 0)


def ignore(_: object) -> None: ...


def claim(
    mine: PartitionOwnership, condition: Check, *partitions: TopicPartition
) -> frozenset[TopicPartition]:
    return mine.claim(partitions, on_condition=condition, watch=ignore).owned


def commit(on: Session, mine: PartitionOwnership, offset: int, at: TopicPartition) -> None:
    GroupOffsets(on).commit("g", {at: offset}, actor="x", ownership=mine)


# -- the assignment -------------------------------------------------------------------------


def test_members_share_as_they_come_and_go(chroot: str, opened: Session, other: Session) -> None:
    create(opened, "a", partitions=4)
    first = Member(opened, "one", Topics(("a",)))
    assert first.membership.assigned == set(A)
    second = Member(other, "two", Topics(("a",)))
    second.is_to_read(A[2:])
    first.is_to_read(A[:2])
    with session(chroot) as third_session:
        third = Member(third_session, "three", Topics(("a",)))
        third.is_to_read([A[2]])  # by name it is the second of three
        second.is_to_read([A[3]])
    first.is_to_read(A[:2])
    second.is_to_read(A[2:])
    first.membership.leave()
    second.is_to_read(A)


def test_topics_that_grow_come_and_go(opened: Session, other: Session) -> None:
    create(opened, "a", partitions=1)
    registry = TopicRegistry(opened)
    every = Member(opened, "one", Pattern("a.*"))
    named = Member(other, "two", Topics(("b",)))
    every.is_to_read(A[:1])
    named.is_to_read([])
    registry.alter("a", lambda record: replace(record, partitions={0: [1], 1: [1]}))
    every.is_to_read(A[:2])
    create(opened, "b", partitions=2)
    named.is_to_read([TopicPartition("b", 0), TopicPartition("b", 1)])
    create(opened, "ab", partitions=1)
    every.is_to_read([*A[:2], TopicPartition("ab", 0)])
    registry.delete("a")
    every.is_to_read([TopicPartition("ab", 0)])


def test_sticky_moves_little_while_all_want_it(
    chroot: str, opened: Session, other: Session
) -> None:
    create(opened, "a", partitions=4)
    first = Member(opened, "one", Topics(("a",)), Assignor.STICKY)
    second = Member(other, "two", Topics(("a",)), Assignor.STICKY)
    wait_until(lambda: len(first.membership.assigned) == len(second.membership.assigned) == 2)
    had = first.membership.assigned, second.membership.assigned
    with session(chroot) as another:
        third = Member(another, "a-third", Topics(("a",)), Assignor.STICKY)
        wait_until(lambda: len(third.membership.assigned) == 1)
        wait_until(lambda: len(first.membership.assigned) + len(second.membership.assigned) == 3)
        assert first.membership.assigned <= had[0]
        assert second.membership.assigned <= had[1]
    with session(chroot) as another:
        Member(another, "a-third", Topics(("a",))).is_to_read(A[:2])  # the first by name


def test_a_member_whose_session_expired_is_told_and_is_one_again(
    opened: Session, other: Session
) -> None:
    create(opened, "a", partitions=4)
    first = Member(opened, "one", Topics(("a",)))
    Member(other, "two", Topics(("a",))).is_to_read(A[2:])
    first.is_to_read(A[:2])
    assert first.membership.holds(10)
    told = first.told
    expire(opened)
    wait_until(lambda: first.told > told)
    wait_until(lambda: first.membership.holds(10))
    first.is_to_read(A[:2])


def test_a_topic_that_is_not_there_is_waited_for(
    opened: Session, caplog: pytest.LogCaptureFixture
) -> None:
    create(opened, "a", partitions=1)
    Member(opened, "one", Topics(("a", "b"))).is_to_read(A[:1])
    assert "there is no topic b; it is read as soon as there is" in caplog.text


def test_a_name_is_one_members(opened: Session, other: Session) -> None:
    Member(opened, "one", Topics(("a",)))
    with pytest.raises(InvalidRequestError, match="live member 'one' already"):
        Member(other, "one", Topics(("a",)))


def test_nodes_that_are_no_members_are_passed_over(
    chroot: str, opened: Session, other: Session
) -> None:
    create(opened, "a", partitions=4)
    put(chroot, paths.member("g", "by-hand"), b"{")
    Member(opened, "one", Topics(("a",))).is_to_read(A)


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        (Topics(()), "at least one topic"),
        (Pattern("a("), r"'a\(' is no regular expression"),
        (Topics(("a/b",)), "'a/b' cannot name a topic"),
    ],
)
def test_what_cannot_be_subscribed_to(topics: Subscribed, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_subscribed(topics)


# -- owned partitions -----------------------------------------------------------------------


def test_a_partition_is_owned_by_one(opened: Session, other: Session, condition: Check) -> None:
    mine = PartitionOwnership(opened, "g", member="one")
    theirs = PartitionOwnership(other, "g", member="two")
    assert claim(mine, condition, A[0], A[1]) == {A[0], A[1]}
    found = theirs.claim([A[1], A[2]], on_condition=condition, watch=ignore)
    assert found.owned == {A[2]}
    assert found.taken[A[1]].consumer == "one"
    commit(opened, mine, 1, A[0])
    with pytest.raises(
        ClaimLostError, match=r"does not own a-1 .*consumer one, process \d+ .* owns"
    ):
        commit(other, theirs, 1, A[1])
    mine.release([A[1], A[3]])
    assert mine.owned == {A[0]}
    assert claim(theirs, condition, A[1]) == {A[1]}
    commit(other, theirs, 1, A[1])
    with pytest.raises(ClaimLostError, match="consumer two"):
        commit(opened, mine, 7, A[1])
    offsets = GroupOffsets(opened).committed("g")
    assert {at: one.offset for at, one in offsets.items()} == {A[0]: 1, A[1]: 1}


def test_a_group_whose_partitions_are_owned_is_not_deleted(
    opened: Session, other: Session, condition: Check
) -> None:
    """The owner may also be no member, as while it leaves."""
    offsets = GroupOffsets(opened)
    offsets.commit("g", {A[0]: 1, TopicPartition("b", 0): 1}, actor="x")
    mine = PartitionOwnership(other, "g", member="one")
    claim(mine, condition, A[0])
    held = r"in use for topic a \(consumer one, .*; stop that consumer before "
    with pytest.raises(InvalidRequestError, match=held + "deleting the group"):
        offsets.delete("g")
    with pytest.raises(InvalidRequestError, match=held + "its offsets for b, a are forgotten"):
        offsets.forget("g", ["b", "a"])
    assert len(offsets.committed("g")) == 2
    assert offsets.forget("g", ["b"]) == ["b"]
    mine.release([A[0]])
    offsets.delete("g")
    assert offsets.groups() == []


def test_a_session_that_expired_owns_nothing(
    opened: Session, other: Session, condition: Check
) -> None:
    mine = PartitionOwnership(opened, "g", member="one")
    theirs = PartitionOwnership(other, "g", member="two")
    claim(mine, condition, A[0], A[1])
    before = opened.session_id
    expire(opened)
    wait_until(lambda: opened.session_id != before)
    assert mine.owned == set()
    with pytest.raises(ClaimLostError, match="nobody owns it now"):
        commit(opened, mine, 1, A[0])
    assert claim(theirs, condition, A[0]) == {A[0]}
    assert claim(mine, condition, A[0], A[1]) == {A[1]}


def test_a_commit_that_was_overtaken_by_a_claim_is_refused(
    opened: Session, other: Session, condition: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session expires, and another consumer claims, between its check and its write."""
    mine = PartitionOwnership(opened, "g", member="one")
    theirs = PartitionOwnership(other, "g", member="two")
    claim(mine, condition, A[0])
    real = mine.checks

    def checks_then_lose(*args: object, **how: object) -> object:
        found = real(*args, **how)  # type: ignore[arg-type]
        monkeypatch.setattr(mine, "checks", real)
        before = opened.session_id
        expire(opened)
        wait_until(lambda: opened.session_id != before)
        assert claim(theirs, condition, A[0]) == {A[0]}
        return found

    monkeypatch.setattr(mine, "checks", checks_then_lose)
    with pytest.raises(ClaimLostError, match="consumer two"):
        commit(opened, mine, 1, A[0])
    assert GroupOffsets(opened).committed("g") == {}


def test_claims_are_of_one_assignment(opened: Session, condition: Check, chroot: str) -> None:
    mine = PartitionOwnership(opened, "g", member="one")
    put(chroot, paths.assignment("g"), b"another")
    with pytest.raises(ConflictError, match="another assignment"):
        claim(mine, condition, A[0])
    assert mine.owned == set()


def test_partitions_of_a_process_that_was_killed_here_are_free(
    opened: Session, condition: Check, chroot: str
) -> None:
    program = f"""
from spark_logbus.coordination.groups.partition_owners import PartitionOwnership
from spark_logbus.selection import Pattern, Topics
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.transactions import Check
from spark_logbus.model import TopicPartition
session = Session({chroot!r}, client_name="killed", session_timeout_ms=40_000)
session.start()
PartitionOwnership(session, "g", member="killed").claim(
    [TopicPartition("a", 0)], on_condition=Check({condition.path!r}, 0), watch=print)
print("ready", flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        mine = PartitionOwnership(opened, "g", member="one")
        assert claim(mine, condition, A[0]) == set()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    wait_until(lambda: process_is_gone(process.pid))
    assert claim(mine, condition, A[0]) == {A[0]}


def test_consumers_and_queries_keep_each_other_out(
    opened: Session, other: Session, condition: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_logbus.zookeeper.ephemeral._EXPIRY_MARGIN_MS", -9_900)
    mine = PartitionOwnership(opened, "g", member="one")
    claim(mine, condition, A[0])
    query = GroupOwnership(other, "g", pid=7, application="nightly")
    with pytest.raises(GroupHeldError, match=r"in use for topic a by a consumer \(consumer one"):
        query.acquire(["a"])
    no_owner = NoOwnership(other, "g")
    with pytest.raises(GroupHeldError, match=r"share topic a .*consumer one"):
        no_owner.require_no_owner(["a"])
    with pytest.raises(GroupHeldError, match=r"share topic a .*consumer one"):
        GroupOffsets(other).commit("g", {A[1]: 1}, actor="x", ownership=no_owner)
    mine.release([A[0]])
    query.acquire(["a"])
    with pytest.raises(GroupHeldError, match=r"by a query or load \(application nightly"):
        claim(mine, condition, A[0])
