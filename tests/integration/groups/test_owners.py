"""Claims of a group's topics, and commits that depend on them, in a real ZooKeeper."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_logbus.coordination import paths
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.topic_owners import GroupOwnership, NoOwnership
from spark_logbus.errors import (
    ClaimLostError,
    CoordinationError,
    GroupHeldError,
    InvalidRequestError,
)
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.nodes import Nodes
from tests.helpers import freeze, process_is_gone, wait_until
from tests.servers.zookeeper import MULTI, Proxy, expire, session

A0 = TopicPartition("a", 0)
B0 = TopicPartition("b", 0)


@pytest.fixture
def opened(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


def claims(on: Session, *, pid: int = 7) -> GroupOwnership:
    return GroupOwnership(on, "g", pid=pid, application="nightly")


def quick(on: GroupOwnership, monkeypatch: pytest.MonkeyPatch) -> GroupOwnership:
    """Does not wait long for a holder that is alive."""
    monkeypatch.setattr("spark_logbus.zookeeper.ephemeral._EXPIRY_MARGIN_MS", -9_900)
    return on


def commit(
    on: Session, mine: GroupOwnership, offset: int, *topic_partitions: TopicPartition
) -> None:
    GroupOffsets(on).commit(
        "g", dict.fromkeys(topic_partitions or (A0,), offset), actor="x", ownership=mine
    )


def remove(on: Session, path: str) -> None:
    absolute = Nodes(on)._absolute(path)
    on.call("remove a node", lambda client: client.delete_async(absolute), on.deadline())


def offset_of(on: Session) -> int:
    return GroupOffsets(on).committed("g")[A0].offset


def test_one_holds_and_the_second_is_told_who(
    chroot: str, opened: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = claims(opened)
    mine.acquire(["a", "b"])
    mine.acquire(["a"])
    with session(chroot) as other:
        holders = GroupOffsets(other).owners("g")
        assert sorted(holders) == ["a", "b"]
        assert (holders["a"].pid, holders["a"].application) == (7, "nightly")
        second = quick(claims(other, pid=8), monkeypatch)
        with pytest.raises(GroupHeldError, match=r"'g' is in use for topic a .*nightly.*process 7"):
            second.acquire(["c", "a"])
        assert sorted(GroupOffsets(other).owners("g")) == ["a", "b"]  # nor was c claimed
        second.acquire(["c"])  # another topic is another matter
        other_group = GroupOwnership(other, "h", pid=9)
        other_group.acquire(["a"])
    commit(opened, mine, 5)
    assert offset_of(opened) == 5


def test_the_second_gets_it_as_soon_as_the_first_has_ended(chroot: str, opened: Session) -> None:
    with session(chroot, session_timeout_ms=60_000) as first, ThreadPoolExecutor(1) as pool:
        claims(first).acquire(["a"])
        mine = claims(opened)
        waiting = pool.submit(mine.acquire, ["a"])
        watched = Nodes(opened)
        assert not waiting.done()
        first.close()
        waiting.result(60)  # before the 65 s that a dead holder would be waited for
        assert watched.exists(paths.topic_owner("g", "a"))
    commit(opened, mine, 1)


OWNER = """
import sys
from spark_logbus.coordination.groups.topic_owners import GroupOwnership
from spark_logbus.zookeeper import Session

with Session(sys.argv[1], client_name="holder") as session:
    GroupOwnership(session, "g", pid=7, application="nightly").acquire(["a"])
    sys.stdout.write("held\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def test_a_killed_owner_is_followed_at_once(
    chroot: str, opened: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the session of either has expired."""
    command = [sys.executable, "-c", OWNER, chroot]
    mine = quick(claims(opened, pid=8), monkeypatch)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            freeze(holder.pid)
            with pytest.raises(GroupHeldError, match="nightly, process 7"):
                mine.acquire(["a"])
        finally:
            holder.kill()
        wait_until(lambda: process_is_gone(holder.pid))  # and yet to be reaped
        mine.acquire(["a"])
    assert GroupOffsets(opened).owners("g")["a"].pid == 8
    commit(opened, mine, 1)
    assert offset_of(opened) == 1


def test_a_process_killed_while_it_is_waited_for_is_followed(
    chroot: str, opened: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No watch says that it ended; its node stays for as long as its session."""
    monkeypatch.setattr("spark_logbus.zookeeper.ephemeral._LOOK_AGAIN_S", 0.05)
    command = [sys.executable, "-c", OWNER, chroot]
    mine = claims(opened, pid=8)
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder,
        ThreadPoolExecutor(1) as pool,
    ):
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            waiting = pool.submit(mine.acquire, ["a"])
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
        finally:
            holder.kill()
        waiting.result(60)
    assert GroupOffsets(opened).owners("g")["a"].pid == 8


def test_an_expired_session_alone_changes_nothing(opened: Session) -> None:
    mine = claims(opened)
    mine.acquire(["a"])
    commit(opened, mine, 1)
    before = opened.session_id
    expire(opened)
    wait_until(lambda: opened.session_id != before, message="the new session")
    # Claimed again although nobody asks, so that no other query can slip in.
    wait_until(lambda: GroupOffsets(opened).owners("g"), message="the claim")
    mine.acquire(["a"])
    commit(opened, mine, 2)
    assert offset_of(opened) == 2


def test_who_was_taken_over_can_neither_commit_nor_hold(
    zookeeper: EmbeddedZooKeeper, chroot: str
) -> None:
    """The first is cut off while its session expires and another one claims the group, which
    then ends. Nobody holds it any more, and still the first has lost it."""
    target = chroot.partition("/")[0]
    with (
        Proxy(target) as proxy,
        session(chroot) as other,
        session(proxy.connect_string(chroot)) as zombie,
    ):
        old = claims(zombie)
        old.acquire(["a", "b"])
        commit(zombie, old, 3, A0, B0)
        proxy.refuse.set()
        expire(zombie, through=target)
        proxy.cut()
        with session(chroot) as successor:
            new = claims(successor, pid=8)
            new.acquire(["a"])
            commit(successor, new, 9)
        proxy.refuse.clear()
        with pytest.raises(ClaimLostError, match=r"no longer holds .*topic a.*process 8"):
            commit(zombie, old, 4, A0, B0)
        with pytest.raises(ClaimLostError):
            old.acquire(["a"])
        assert GroupOffsets(other).owners("g") == {}
        found = GroupOffsets(other).committed("g")
        assert (found[A0].offset, found[B0].offset) == (9, 3)


def test_a_takeover_between_a_commits_check_and_its_write(
    chroot: str, opened: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = claims(opened)
    mine.acquire(["a"])
    commit(opened, mine, 1)  # makes the nodes: the next one reads, and then writes
    with session(chroot) as other:
        real = mine.checks

        def checks_then_takeover(*args: object, **how: object) -> object:
            found = real(*args, **how)  # type: ignore[arg-type]
            monkeypatch.setattr(mine, "checks", real)
            opened.call(
                "remove the claim",
                lambda client: client.delete_async(
                    Nodes(opened)._absolute(paths.topic_owner("g", "a"))
                ),
                opened.deadline(),
            )
            claims(other, pid=8).acquire(["a"])
            return found

        monkeypatch.setattr(mine, "checks", checks_then_takeover)
        with pytest.raises(ClaimLostError, match="process 8"):
            commit(opened, mine, 5)
    assert offset_of(opened) == 1


def test_a_lost_reply_to_a_claim(chroot: str) -> None:
    with (
        Proxy(chroot.partition("/")[0]) as proxy,
        session(proxy.connect_string(chroot)) as unlucky,
    ):
        mine = claims(unlucky)
        proxy.lose_reply(MULTI)
        mine.acquire(["a"])
        assert proxy.lost == 1
        commit(unlucky, mine, 5)
        assert offset_of(unlucky) == 5


def test_of_many_that_want_it_one_gets_it(chroot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_logbus.zookeeper.ephemeral._EXPIRY_MARGIN_MS", -9_900)
    start = threading.Barrier(4)

    def run(pid: int) -> int | None:
        with session(chroot, name=str(pid)) as own:
            mine = claims(own, pid=pid)
            start.wait(60)
            try:
                mine.acquire(["a", "b"])
            except GroupHeldError:
                return None
            finally:
                start.wait(60)
            return pid

    with ThreadPoolExecutor(4) as pool:
        assert len([pid for pid in pool.map(run, range(4)) if pid is not None]) == 1


def test_claims_removed_by_hand_are_taken_again(opened: Session) -> None:
    mine = claims(opened)
    mine.acquire(["a"])
    for path in (paths.topic_owner("g", "a"), paths.owner_fence("g", "a")):
        remove(opened, path)
    with pytest.raises(CoordinationError, match="removed from ZooKeeper by hand"):
        commit(opened, mine, 1)
    mine.acquire(["a"])
    commit(opened, mine, 2)
    assert offset_of(opened) == 2


def test_a_group_in_use_is_not_deleted(chroot: str, opened: Session) -> None:
    offsets = GroupOffsets(opened)
    with session(chroot) as other:
        mine = claims(other)
        mine.acquire(["a"])
        commit(other, mine, 1)
        with pytest.raises(InvalidRequestError, match=r"in use for topic a .*process 7"):
            offsets.delete("g")
    offsets.delete("g")
    assert offsets.groups() == []


def test_without_ownership_commits_need_a_free_group(
    chroot: str, opened: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = GroupOffsets(opened)
    no_owner = NoOwnership(opened, "g")
    no_owner.require_no_owner(["a"])  # of a group that is not there yet
    offsets.commit("g", {A0: 1}, actor="x", ownership=no_owner)
    offsets.commit("g", {A0: 2}, actor="another consumer", ownership=NoOwnership(opened, "g"))
    with session(chroot) as other:
        query = claims(other)
        real = no_owner.checks

        def checks_then_claim(*args: object, **how: object) -> object:
            """A query starts between a commit's check and its write."""
            found = real(*args, **how)  # type: ignore[arg-type]
            monkeypatch.setattr(no_owner, "checks", real)
            query.acquire(["a"])
            return found

        monkeypatch.setattr(no_owner, "checks", checks_then_claim)
        held = r"'g' is held for topic a by a query or load \(.*nightly, process 7"
        with pytest.raises(GroupHeldError, match=held):
            offsets.commit("g", {A0: 3}, actor="x", ownership=no_owner)
        with pytest.raises(GroupHeldError, match=held):
            no_owner.require_no_owner(["b", "a"])
        offsets.commit("g", {B0: 3}, actor="x", ownership=no_owner)  # another topic
        commit(other, query, 7)
    assert offset_of(opened) == 7
    offsets.commit("g", {A0: 8}, actor="x", ownership=no_owner)
    assert offset_of(opened) == 8
