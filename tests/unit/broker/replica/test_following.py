"""Replicas that are assigned to a broker follow their leaders, whatever happens."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_logbus.broker.replica import following as module
from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.assignments import WantedReplica
from spark_logbus.broker.replica.following import AT_A_TIME
from spark_logbus.broker.replica.opening import NoRoomError
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.errors import (
    CorruptRecordBatchError,
    LogbusError,
    NotLeaderError,
    StorageError,
)
from spark_logbus.log import OS_FILES, PartitionLog
from spark_logbus.log.checkpoint import read_partition_metadata
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.retry import Backoff
from tests.fakes.broker_parts import T0, logs_in, record_batch
from tests.fakes.log_directory import ensure_one
from tests.helpers import wait_until
from tests.unit.broker.replica.test_manager import OLD, Following

COUNT = 3 * AT_A_TIME
RECORD = TopicRecord("t", OLD, {each: [2, 1] for each in range(COUNT)}, {})


class Fetcher:
    """Stands in for ``LeaderFetcher``: notes what it is to copy."""

    made: dict[int, Fetcher]  # by leader

    def __init__(
        self,
        leader: int,
        *,
        failed: Callable[[FollowedLog, LogbusError, bool], None],
        got_on: Callable[[FollowedLog], None],
        **_: object,
    ) -> None:
        self.thread = SimpleNamespace(start=lambda: None)
        self.failed, self.got_on = failed, got_on
        self.lock = threading.Lock()
        self.copies: dict[TopicPartition, FollowedLog] = {}
        self.batches: list[int] = []
        self.made[leader] = self

    def add(self, some: Iterable[FollowedLog]) -> None:
        with self.lock:
            added = {each.topic_partition: each for each in some if not each.ended}
            self.copies.update(added)
            self.batches.append(len(added))

    def remove(self, followed: FollowedLog) -> None:
        with self.lock:
            self.copies.pop(followed.topic_partition, None)

    def fail(self, where: TopicPartition, error: LogbusError, *, by_leader: bool = False) -> None:
        followed = self.copies.pop(where)
        self.failed(followed, error, by_leader)

    def stop(self) -> None:
        pass


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    monkeypatch.setattr(module, "_ASSIGNED_RETRY", Backoff(first_ms=5, max_ms=10))
    monkeypatch.setattr(module, "LeaderFetcher", Fetcher)
    monkeypatch.setattr(Fetcher, "made", {}, raising=False)
    with logs_in(tmp_path / "data") as logs:
        world = Following(logs)
        yield world
        world.stop()


def led_by(leader: int, epoch: int = 5) -> PartitionState:
    return PartitionState(leader, epoch, [leader, 1])


def replica(partition: int, state: PartitionState, record: TopicRecord = RECORD) -> WantedReplica:
    return WantedReplica(TopicPartition("t", partition), record, state=state)


def want(world: Following, *wanted: WantedReplica) -> None:
    world.following.want({each.topic_partition: each for each in wanted})


def copied_from(leader: int) -> dict[TopicPartition, FollowedLog]:
    fetcher = Fetcher.made.get(leader)
    return {} if fetcher is None else dict(fetcher.copies)


def test_all_replicas_are_followed_at_once_and_reach_their_fetcher_together(
    world: Following,
) -> None:
    """Ends no request that waits, as each of them would if it came alone."""
    want(world, *[replica(each, led_by(2)) for each in range(COUNT)])
    wait_until(lambda: len(copied_from(2)) == COUNT)
    assert len(Fetcher.made[2].batches) < COUNT


def test_replicas_take_no_place_of_a_move(world: Following) -> None:
    moves = {
        TopicPartition("m", each): WantedReplica(
            TopicPartition("m", each),
            TopicRecord("m", "m" * 32, {each: [2]}, {}),
            MovePayload(to=[1], since_us=1),
            led_by(2),
        )
        for each in range(2 * AT_A_TIME)
    }
    replicas = {each.topic_partition: each for each in [replica(n, led_by(2)) for n in range(9)]}
    world.following.want({**moves, **replicas})
    wait_until(lambda: replicas.keys() <= copied_from(2).keys())
    wait_until(lambda: len(copied_from(2)) == 9 + AT_A_TIME)


def test_a_replica_follows_the_leader_of_its_state(world: Following) -> None:
    want(world, replica(0, led_by(2)))
    wait_until(lambda: T0 in copied_from(2))
    before = copied_from(2)[T0]
    want(world, replica(0, led_by(2)))
    assert copied_from(2)[T0] is before, "nothing has changed"
    want(world, replica(0, led_by(3, epoch=6)))
    wait_until(lambda: T0 in copied_from(3))
    assert before.ended
    assert T0 not in copied_from(2)
    assert (copied_from(3)[T0].leader, copied_from(3)[T0].leader_epoch) == (3, 6)
    want(world, replica(0, led_by(3, epoch=7)))
    wait_until(lambda: (now := copied_from(3).get(T0)) is not None and now.leader_epoch == 7)


def test_no_error_ends_the_following_of_a_replica(
    world: Following, caplog: pytest.LogCaptureFixture
) -> None:
    want(world, replica(0, led_by(2)))
    errors = [
        NotLeaderError("Another one leads it."),
        StorageError("The disk is slow."),
        NoRoomError("No room."),
    ]
    with caplog.at_level(logging.ERROR):
        for error in errors * 7:
            wait_until(lambda: T0 in copied_from(2))
            Fetcher.made[2].fail(T0, error, by_leader=isinstance(error, NotLeaderError))
        wait_until(lambda: T0 in copied_from(2))
    assert world.topics.failed == {}, "no move has failed"
    assert world.following.troubles() == {T0: "No room."}
    assert caplog.text.count("The disk is slow.") <= 7
    Fetcher.made[2].got_on(copied_from(2)[T0])
    assert world.following.troubles() == {}


def test_a_fault_that_stays_is_told_once(
    world: Following, caplog: pytest.LogCaptureFixture
) -> None:
    want(world, replica(0, led_by(2)))
    with caplog.at_level(logging.ERROR):
        for _ in range(20):
            wait_until(lambda: T0 in copied_from(2))
            Fetcher.made[2].fail(T0, StorageError("The disk is slow."))
    assert caplog.text.count("The disk is slow.") == 1


def test_news_of_the_leader_end_a_pause(world: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ASSIGNED_RETRY", Backoff(first_ms=3_600_000, max_ms=3_600_000))
    want(world, replica(0, led_by(2)))
    wait_until(lambda: T0 in copied_from(2))
    Fetcher.made[2].fail(T0, NotLeaderError("Another one leads it."), by_leader=True)
    want(world, replica(0, led_by(3, epoch=6)))
    wait_until(lambda: T0 in copied_from(3))


def test_a_log_of_a_later_epoch_than_the_state_is_left_alone(world: Following) -> None:
    """ZooKeeper was restored from an older state, say."""
    log = ensure_one(world.logs.directory, T0, topic_id=OLD, config={})
    log.append_as_leader(record_batch(10), leader_epoch=9)
    log.flush()
    want(world, replica(0, led_by(2)), replica(1, led_by(2)))
    wait_until(lambda: T0 in world.following.troubles())
    assert (
        "was led in epoch 9, and ZooKeeper knows of none after 5"
        in (world.following.troubles()[T0])
    )
    wait_until(lambda: TopicPartition("t", 1) in copied_from(2))
    assert log.ends().log_end_offset == 10
    want(world, replica(0, led_by(2, epoch=10)))
    wait_until(lambda: T0 in copied_from(2))
    assert copied_from(2)[T0].log is log


def test_what_is_released_is_not_copied_into(world: Following) -> None:
    want(world, *[replica(each, led_by(2)) for each in range(COUNT)])
    for each in range(COUNT):
        where = TopicPartition("t", each)
        world.following.release(where)
        assert not world.following.has(where)
    wait_until(lambda: not copied_from(2))
    want(world)
    assert list(world.following.followed()) == []


def damaged_log(world: Following) -> PartitionLog:
    """Three record batches of ten records, the second of them damaged."""
    log = ensure_one(world.logs.directory, T0, topic_id=OLD, config={})
    for _ in range(3):
        log.append_as_leader(record_batch(10), leader_epoch=5)
    log.flush()
    with (log.directory / f"{0:020d}.log").open("r+b") as file:
        file.seek(len(record_batch(10)))
        file.write(b"\xff" * 80)
    with pytest.raises(CorruptRecordBatchError):
        log.read(10, max_bytes=100)
    return log


def test_a_damaged_log_is_cut_back_under_another_id(world: Following) -> None:
    """The leader may have been told that what is cut off is on its disk."""
    log_id = damaged_log(world).log_id
    world.addresses[2] = BrokerAddress(2, "host", 1)
    want(world, replica(0, led_by(2)))
    wait_until(lambda: T0 in copied_from(2))
    copy = copied_from(2)[T0].log
    assert (copy.damaged, copy.ends().log_end_offset) == ((), 10)
    assert copy.log_id is not None
    assert copy.log_id != log_id
    metadata = read_partition_metadata(OS_FILES, copy.directory)
    assert metadata is not None
    assert metadata.log_id == copy.log_id


def test_a_damaged_log_is_left_as_it_is_while_its_leader_is_gone(world: Following) -> None:
    """Records behind the damage may be nowhere else, if the leader never comes back."""
    log = damaged_log(world)
    log_id = log.log_id
    want(world, replica(0, led_by(2)))
    wait_until(lambda: T0 in world.following.troubles())
    assert "until its leader, broker 2, is registered" in world.following.troubles()[T0]
    assert world.logs.directory.get(T0) is log
    assert (log.ends().log_end_offset, log.log_id) == (30, log_id)
    world.addresses[2] = BrokerAddress(2, "host", 1)
    wait_until(lambda: T0 in copied_from(2))
    assert copied_from(2)[T0].log.ends().log_end_offset == 10
