"""Logs of partitions that move to a broker, and of those that have moved away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import msgspec
import pytest

from spark_logbus.broker.replica import following as module
from spark_logbus.broker.replica import manager as manager_module
from spark_logbus.broker.replica import opening
from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.assignments import WantedReplica
from spark_logbus.broker.replica.following import AT_A_TIME
from spark_logbus.broker.replica.opening import NoRoomError
from spark_logbus.broker.replica.states import ReplicaState
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.errors import BrokerUnavailableError, LogbusError
from spark_logbus.log import PartitionLog
from spark_logbus.log_ids import renewed_log_id
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff
from tests.fakes.broker_parts import T0, logs_in, record_batch
from tests.fakes.log_directory import ensure_one
from tests.helpers import wait_until
from tests.unit.broker.replica.test_manager import OLD, Following

HERE = MovePayload(to=[1], since_us=1)
LED_THERE = PartitionState(leader=2, leader_epoch=5, in_sync=[2], end=10)


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    monkeypatch.setattr(manager_module, "_RETRY", Backoff(first_ms=10, max_ms=20))
    monkeypatch.setattr(module, "_RETRY", Backoff(first_ms=5, max_ms=10))
    with logs_in(tmp_path / "data") as logs:
        world = Following(logs)
        world.topics.told = OLD
        world.topics.known[T0] = LED_THERE
        yield world
        world.stop()


def log_here(following: Following, *, epoch: int = 4, records: int = 10) -> PartitionLog:
    log = ensure_one(following.logs.directory, T0, topic_id=OLD, config={})
    log.append_as_leader(record_batch(records), leader_epoch=epoch)
    log.flush()
    return log


def handed_over_by(log: PartitionLog, *, epoch: int = 5, end: int = 10) -> PartitionState:
    """The state of a partition that moved away from here, in that epoch."""
    return msgspec.structs.replace(
        LED_THERE, leader_epoch=epoch, end=end, handed_over={log.log_id or "": epoch}
    )


def test_a_log_that_is_another_brokers_is_set_aside_at_the_start(following: Following) -> None:
    following.topics.known[T0] = handed_over_by(log_here(following))
    following.tell(brokers=(2,))
    wait_until(lambda: following.logs.directory.moved.find())
    wait_until(lambda: following.state() is ReplicaState.ABSENT)
    assert following.logs.directory.logs() == []


@pytest.mark.parametrize(
    ("epoch", "records", "state"),
    [
        (6, 10, LED_THERE),
        (4, 11, LED_THERE),
        (4, 10, msgspec.structs.replace(LED_THERE, refused="Its log is gone.")),
        (4, 10, msgspec.structs.replace(LED_THERE, leader=1)),
        (4, 10, None),
        # ZooKeeper went back to before a move to here, and the old leader has come further.
        (4, 10, msgspec.structs.replace(LED_THERE, leader_epoch=50, end=1_000)),
    ],
)
def test_a_log_that_may_be_the_only_one_stays_in_its_place(
    following: Following,
    caplog: pytest.LogCaptureFixture,
    epoch: int,
    records: int,
    state: PartitionState | None,
) -> None:
    """ZooKeeper was restored from an older state, say, or the other broker has lost its disk."""
    log = log_here(following, epoch=epoch, records=records)
    following.topics.known[T0] = state
    with caplog.at_level(logging.WARNING):
        following.tell(brokers=(2,))
        wait_until(lambda: "is kept, though the partition is not this broker's" in caplog.text)
    assert following.state() is ReplicaState.MOVED
    assert following.logs.directory.get(T0) is log
    assert log.deletion_paused
    following.topics.known[T0] = handed_over_by(log, epoch=9, end=20)
    wait_until(lambda: following.logs.directory.moved.find())


def test_a_partition_whose_log_may_be_the_only_one_does_not_move_here(
    following: Following,
) -> None:
    """A move that cannot begin says so, and is not waited for."""
    log = log_here(following, epoch=6)
    following.tell(brokers=(2,))
    wait_until(lambda: following.state() is ReplicaState.MOVED)
    following.tell(brokers=(2,), moves={0: HERE})
    wait_until(lambda: following.topics.failed)
    assert (
        "may be the only one: it reaches offset 10 in leader epoch 6"
        in (following.topics.failed[T0])
    )
    assert following.logs.directory.get(T0) is log
    following.tell(brokers=(2,))
    following.topics.known[T0] = handed_over_by(log, epoch=9, end=20)
    following.tell(brokers=(2,), moves={0: MovePayload(to=[1], since_us=2)})
    wait_until(lambda: following.state() is ReplicaState.FOLLOWING)
    assert following.logs.directory.get(T0) is not log


def test_a_log_that_has_led_is_let_go_before_its_partition_comes_back(
    following: Following,
) -> None:
    """The broker died when it had handed over the lead, and is to get it again."""
    log = log_here(following)
    following.topics.known[T0] = handed_over_by(log)
    following.tell(brokers=(2,), moves={0: HERE})
    wait_until(lambda: following.state() is ReplicaState.FOLLOWING)
    assert following.logs.directory.get(T0) is not log
    (moved,) = following.logs.directory.moved.find()
    assert moved.log_id == log.log_id


def test_only_a_copy_is_copied_into(following: Following) -> None:
    """Keeps a log that has led in another history, and the partition stays where it is."""
    log = log_here(following)
    following.topics.known[T0] = msgspec.structs.replace(LED_THERE, leader_epoch=50, end=1_000)
    following.tell(brokers=(2,), moves={0: HERE})
    wait_until(lambda: following.topics.failed)
    assert "knows of no hand-over by it" in following.topics.failed[T0]
    assert following.logs.directory.get(T0) is log
    assert log.ends().log_end_offset == 10


def test_a_copy_is_one_after_a_restart_too(following: Following) -> None:
    following.tell(brokers=(2,), moves={0: HERE})
    wait_until(lambda: following.state() is ReplicaState.FOLLOWING)
    log = following.logs.directory.get(T0)
    assert log is not None
    following.stop()
    following.logs.restart()
    again = following.logs.directory.get(T0)
    assert again is not None
    assert again is not log
    assert again.is_copy
    ensure_one(following.logs.directory, T0, topic_id=OLD, config={})  # it is to lead
    following.logs.restart()
    led = following.logs.directory.get(T0)
    assert led is not None
    assert not led.is_copy
    assert led.log_id == log.log_id


def test_a_log_that_never_was_the_one_that_led_is_refused(following: Following) -> None:
    """The disk was emptied and has a copy of something else, say."""
    log = log_here(following)
    other = PartitionState(1, 5, [1], end=10, replicas={1: "0f" * 16})
    following.topics.known[T0] = other
    following.tell(brokers=(1,))
    wait_until(lambda: following.state() is ReplicaState.REFUSED)
    error = following.replica_manager.refused()[T0]
    assert f"has the id {log.log_id}, and never was the log with the id {'0f' * 16}" in str(error)
    before = renewed_log_id(log.log_id)  # a crash came since, under flush.policy=os
    following.topics.known[T0] = msgspec.structs.replace(other, replicas={1: before})
    following.tell(brokers=(1,))
    wait_until(following.leads)


def test_a_partition_that_moved_away_is_led_no_more(following: Following) -> None:
    following.topics.known.clear()
    following.tell(brokers=(1,))
    wait_until(following.leads)
    log = following.replica_manager.leader_of(T0).log
    log.append_as_leader(record_batch(10), leader_epoch=0)
    log.flush()
    following.moved.clear()
    following.topics.known[T0] = handed_over_by(log)
    following.tell(brokers=(2,))
    wait_until(lambda: following.logs.directory.moved.find())
    assert not following.leads()
    assert T0 in following.moved, "who waits for its records has to learn of it"


def test_a_partition_that_moves_here_is_followed_then_led(following: Following) -> None:
    following.tell(brokers=(2,), moves={0: HERE})
    wait_until(lambda: following.state() is ReplicaState.FOLLOWING)
    assert not following.leads()
    log = following.logs.directory.get(T0)
    assert log is not None
    following.topics.known[T0] = PartitionState(1, 6, [1], end=0, replicas={1: log.log_id or ""})
    following.topics.epochs[T0] = 6
    following.tell(brokers=(1,))
    wait_until(following.leads)
    assert following.replica_manager.leader_of(T0).log is log
    assert following.replica_manager.leader_of(T0).leader_epoch == 7
    assert following.watermarks(T0, 10) == 10, "it is the sole replica now"
    assert not following.following.has(T0)


def test_a_leader_that_is_away_holds_up_no_other_partition(following: Following) -> None:
    """Partitions whose leaders are away have their turns again and again."""
    several = 2 * AT_A_TIME
    for number in range(several):
        following.topics.known[TopicPartition("t", number)] = LED_THERE
    following.tell(brokers=(2,) * several, moves=dict.fromkeys(range(several), HERE))
    most = 0

    def all_were_tried() -> bool:
        nonlocal most
        most = max(most, len(following.following.followed()))
        return len(following.logs.directory.logs()) == several

    wait_until(all_were_tried)
    assert most <= AT_A_TIME
    assert following.topics.failed == {}


def test_a_leader_that_hangs_holds_up_no_other_partition(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions of a leader that takes long to fail come first, and again as soon as they may."""
    hanging: list[tuple[HangingFetcher, FollowedLog]] = []
    monkeypatch.setattr(HangingFetcher, "hanging", hanging)
    monkeypatch.setattr(module, "LeaderFetcher", HangingFetcher)
    several = 4 * AT_A_TIME
    for number in range(several):
        following.topics.known[TopicPartition("t", number)] = LED_THERE
    last = TopicPartition("t", several)
    following.topics.known[last] = msgspec.structs.replace(LED_THERE, leader=3)
    moves = {number: MovePayload(to=[1], since_us=number) for number in range(several + 1)}
    following.tell(brokers=(*(2,) * several, 3), moves=moves)

    def has_its_turn() -> bool:
        if len(hanging) == AT_A_TIME:
            fetcher, followed = hanging.pop(0)
            fetcher.fail(followed)
        return last in following.following.followed()

    wait_until(has_its_turn)


class HangingFetcher:
    """Stands in for ``LeaderFetcher``: the leader with the id 2 does not answer until the test says
    that it failed; others have nothing to send."""

    hanging: ClassVar[list[tuple[HangingFetcher, FollowedLog]]] = []

    def __init__(
        self,
        leader: int,
        *,
        failed: Callable[[FollowedLog, LogbusError, bool], None],
        **_: object,
    ) -> None:
        self.thread = SimpleNamespace(start=lambda: None)
        self._leader = leader
        self._failed = failed

    def add(self, some: Iterable[FollowedLog]) -> None:
        if self._leader == 2:
            self.hanging.extend((self, followed) for followed in some)

    def fail(self, followed: FollowedLog) -> None:
        self._failed(followed, BrokerUnavailableError("Broker 2 does not answer."), True)

    def remove(self, followed: FollowedLog) -> None:
        pass

    def stop(self) -> None:
        pass


def test_a_leader_that_does_not_serve_ends_the_move(following: Following) -> None:
    following.topics.known[T0] = msgspec.structs.replace(LED_THERE, refused="Its log is missing.")
    following.tell(brokers=(2,), moves={0: HERE})
    wait_until(lambda: following.topics.failed)
    assert following.topics.failed[T0] == "Broker 2 does not serve t-0: Its log is missing."
    assert following.logs.directory.logs() == []


def test_a_log_of_a_later_epoch_than_zookeeper_knows_is_not_written_over(
    following: Following,
) -> None:
    log = log_here(following, epoch=9)
    following.tell(brokers=(2,), moves={0: HERE})
    wait_until(lambda: following.topics.failed)
    assert "it reaches offset 10 in leader epoch 9" in following.topics.failed[T0]
    assert log.ends().log_end_offset == 10


def test_a_copy_goes_when_its_move_has_ended(following: Following) -> None:
    following.tell(brokers=(2,), moves={0: HERE})
    wait_until(lambda: following.state() is ReplicaState.FOLLOWING)
    log = following.logs.directory.get(T0)
    assert log is not None
    following.tell(brokers=(2,))
    wait_until(lambda: following.logs.directory.logs() == [])
    wait_until(lambda: following.state() is ReplicaState.ABSENT)
    assert following.logs.directory.moved.find() == [], "it never led, and the leader has it all"
    assert following.directories() == set()


def test_a_broker_that_lost_its_id_follows_nothing(following: Following) -> None:
    following.tell(brokers=(2,), moves={0: HERE})
    wait_until(lambda: following.state() is ReplicaState.FOLLOWING)
    following.replica_manager.resign()
    wait_until(lambda: not following.following.has(T0) and following.state() is ReplicaState.HELD)
    following.replica_manager.lead_again()
    wait_until(lambda: following.state() is ReplicaState.FOLLOWING)


def test_a_topic_that_is_deleted_while_it_moves_here(following: Following) -> None:
    following.tell(brokers=(2,), moves={0: HERE})
    wait_until(lambda: following.state() is ReplicaState.FOLLOWING)
    following.tell(None)
    wait_until(lambda: following.directories() == set())
    assert not following.following.has(T0)


class FetcherWithoutRoom:
    """Stands in for ``LeaderFetcher``: the disk has no room for what is added, once."""

    def __init__(
        self,
        leader: int,
        *,
        failed: Callable[[FollowedLog, LogbusError, bool], None],
        **_: object,
    ) -> None:
        self.thread = SimpleNamespace(start=lambda: None)
        self._failed = failed

    def add(self, some: Iterable[FollowedLog]) -> None:
        for followed in some:
            self._failed(followed, NoRoomError("No room."), False)

    def remove(self, followed: FollowedLog) -> None:
        pass

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("handed_over", [True, False])
def test_a_copy_without_room_goes_only_if_its_move_cannot_be_handed_over(
    following: Following, monkeypatch: pytest.MonkeyPatch, handed_over: bool
) -> None:
    """The leader may be giving the lead away just then, by what it was told before."""
    monkeypatch.setattr(module, "LeaderFetcher", FetcherWithoutRoom)
    following.topics.has_failed = not handed_over
    following.tell(brokers=(2,), moves={0: HERE})
    wait_until(lambda: following.topics.failed)
    if not handed_over:
        wait_until(lambda: following.directories() == set())
        return
    log = following.logs.directory.get(T0)
    assert log is not None
    following.topics.known[T0] = PartitionState(1, 6, [1], end=0, replicas={1: log.log_id or ""})
    following.tell(brokers=(1,))
    wait_until(following.leads)
    assert following.replica_manager.leader_of(T0).log is log


def test_what_was_not_foreseen_of_one_partition_holds_up_no_other(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(wanted: WantedReplica, *args: object, **fields: object) -> FollowedLog:
        if wanted.topic_partition == T0:
            raise ValueError("Nobody thought of that.")
        return FollowedLog(wanted, *args, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "FollowedLog", fail)
    other = TopicPartition("t", 1)
    following.topics.known[other] = LED_THERE
    following.tell(brokers=(2, 2), moves={0: HERE, 1: HERE})
    wait_until(lambda: following.replicas.get(other).state is ReplicaState.FOLLOWING)
    wait_until(lambda: following.topics.failed)
    assert following.topics.failed == {
        T0: "t-0 cannot be copied: ValueError: Nobody thought of that."
    }
