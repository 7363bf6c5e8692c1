"""Locks: one holder at a time, gone with its session, and found out when lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from spark_logbus.coordination import locks, paths
from spark_logbus.coordination.locks import Lock
from spark_logbus.errors import LockHeldError
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.nodes import Nodes
from spark_logbus.zookeeper.transactions import Create
from tests.helpers import wait_until
from tests.servers.zookeeper import expire

NAME = "load file:/data/warehouse/clicks"


@pytest.fixture
def sessions(chroot: str) -> Iterator[tuple[Session, Session]]:
    with Session(chroot, client_name="one") as one, Session(chroot, client_name="two") as two:
        yield one, two


def test_the_second_is_told_who_holds_it(sessions: tuple[Session, Session]) -> None:
    one, two = sessions
    told = f"'{NAME}' is locked by the nightly load. Wait"
    with (
        Lock(one, NAME, holder="the nightly load"),
        pytest.raises(LockHeldError, match=told),
    ):
        Lock(two, NAME, holder="another").acquire()
    with Lock(two, NAME, holder="another") as lock:
        lock.check()


def test_other_names_are_other_locks(sessions: tuple[Session, Session]) -> None:
    one, two = sessions
    with Lock(one, NAME, holder="a"), Lock(two, NAME + "2", holder="b") as lock:
        lock.check()


def test_two_locks_of_one_session_exclude_each_other(sessions: tuple[Session, Session]) -> None:
    one, _ = sessions
    with Lock(one, NAME, holder="a") as lock, pytest.raises(LockHeldError, match="locked by a"):
        Lock(one, NAME, holder="b").acquire()
    with pytest.raises(LockHeldError):
        lock.check()


def test_it_is_let_go_when_the_work_fails(sessions: tuple[Session, Session]) -> None:
    one, two = sessions
    with pytest.raises(ZeroDivisionError), Lock(one, NAME, holder="a"):
        raise ZeroDivisionError
    with Lock(two, NAME, holder="b"):
        pass


def test_releasing_twice_does_not_free_the_next_holders(
    sessions: tuple[Session, Session],
) -> None:
    one, two = sessions
    first = Lock(one, NAME, holder="a")
    first.acquire()
    first.release()
    with Lock(two, NAME, holder="b") as second:
        first.release()
        second.check()


def test_a_holder_whose_session_ended_lets_go(chroot: str) -> None:
    with Session(chroot, client_name="one") as one:
        Lock(one, NAME, holder="a").acquire()
    with Session(chroot, client_name="two") as two, Lock(two, NAME, holder="b") as lock:
        lock.check()


def test_the_lock_of_a_killed_process_is_free_at_once(
    sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session has not expired, and it is seen to be gone."""
    one, two = sessions
    tell = "from spark_logbus.coordination import process_identity as p; print(p.this_process())"
    ended = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True)
    monkeypatch.setattr(locks, "this_process", ended.stdout.strip)
    killed = Lock(one, NAME, holder="a")
    killed.acquire()
    monkeypatch.undo()
    with Lock(two, NAME, holder="b") as lock:
        lock.check()
        with pytest.raises(LockHeldError):
            killed.check()


def test_a_lock_of_the_same_holder_in_its_session_before_is_its_own(
    sessions: tuple[Session, Session],
) -> None:
    """A server that is behind, or was silent, still has the node of the session that expired."""
    one, behind = sessions
    lock = Lock(one, NAME, holder="a mirror")
    lock.acquire()
    path = paths.lock(NAME)
    node = Nodes(one).get(path)
    assert node is not None
    expire(one)
    wait_until(lambda: not Nodes(behind).exists(path))
    left = [Create(path, node.data, ephemeral=True)]
    Nodes(behind).transact("leave the node", left, deadline=behind.deadline())
    with pytest.raises(LockHeldError):
        lock.check()
    lock.release()
    lock.acquire()
    lock.check()
    with pytest.raises(LockHeldError, match="locked by a mirror"):
        Lock(behind, NAME, holder="another").acquire()


def test_a_holder_whose_session_expired_finds_out(
    sessions: tuple[Session, Session],
) -> None:
    """A load asks this before it commits: it may have slept through its session."""
    one, two = sessions
    lock = Lock(one, NAME, holder="the sleeper")
    lock.acquire()
    expire(one)
    wait_until(lambda: _acquired(two), message="the lock to be free")
    with pytest.raises(LockHeldError, match="locked by another"):
        lock.check()
    lock.release()  # takes nothing from the new holder
    with pytest.raises(LockHeldError):
        Lock(one, NAME, holder="x").acquire()


def _acquired(session: Session) -> bool:
    try:
        Lock(session, NAME, holder="another").acquire()
    except LockHeldError:
        return False
    return True
