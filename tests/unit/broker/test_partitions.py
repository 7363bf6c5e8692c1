"""How a broker follows the topics in ZooKeeper, with ZooKeeper played by the test."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from spark_logbus.broker import partitions as partitions_module
from spark_logbus.broker.partitions import Partitions
from spark_logbus.coordination import PartitionState, TopicRecord, TopicRegistry
from spark_logbus.errors import CoordinationError, LogbusError, NotLeaderError, UnknownTopicError
from spark_logbus.model import TopicPartition
from tests.helpers import wait_until
from tests.unit.broker.tools import T0, T1, Logs, logs_in, record_batch

OLD, NEW = "a" * 32, "b" * 32


class Topics:
    """In the place of ``TopicRegistry``."""

    def __init__(self) -> None:
        self.callback: Callable[[dict[str, TopicRecord]], None] = lambda _: None
        self.failures: list[LogbusError] = []
        self.epochs: dict[TopicPartition, int] = {}

    def watch(self, f: Callable[[dict[str, TopicRecord]], None]) -> None:
        self.callback = f

    def lead(self, tp: TopicPartition, *, broker_id: int) -> PartitionState:
        if self.failures:
            raise self.failures.pop()
        self.epochs[tp] = self.epochs.get(tp, -1) + 1
        return PartitionState(broker_id, self.epochs[tp], [broker_id])


class Following:
    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.topics = Topics()
        self.session_id = 1
        self.moved: list[TopicPartition] = []
        self.partitions = Partitions(
            1,
            logs=logs.directory,
            topics=cast(TopicRegistry, self.topics),
            session_id=lambda: self.session_id,
            moved=self.moved.append,
        )
        self.partitions.start()

    def tell(self, topic_id: str | None = OLD, *, config: dict[str, str] | None = None) -> None:
        """ZooKeeper has topic t, with its first partition assigned here; or (None) not."""
        assigned = {0: [1], 1: [2]}
        record = topic_id and TopicRecord("t", topic_id, assigned, config or {})
        self.topics.callback({"t": record} if record else {})

    def leads(self) -> bool:
        return self.partitions.find(T0) is not None

    def directories(self) -> set[str]:
        names = (path.name for path in self.logs.directory._path.iterdir() if path.is_dir())
        return {name.split(".")[0] if "." in name else name for name in names}


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    monkeypatch.setattr(partitions_module, "_FIRST_RETRY_S", 0.01)
    with logs_in(tmp_path / "data") as logs:
        following = Following(logs)
        yield following
        following.partitions.stop()


def test_what_is_assigned_here_is_led(following: Following) -> None:
    with pytest.raises(NotLeaderError, match="Broker 1 does not lead t-0"):
        following.partitions.leader_of(T0)
    following.tell()
    wait_until(following.leads)
    led = following.partitions.leader_of(T0)
    assert (led.log.topic_id, led.leader_epoch) == (OLD, 0)
    assert following.partitions.find(T1) is None


def test_the_listener_is_told_of_flushed_records(following: Following) -> None:
    following.tell()
    wait_until(following.leads)
    following.partitions.leader_of(T0).log.append(record_batch(), leader_epoch=0)
    following.logs.flush()
    assert following.moved == [T0]


def test_being_told_the_same_again_changes_nothing(following: Following) -> None:
    following.tell()
    wait_until(following.leads)
    following.tell(config={"retention.ms": "7"})
    log = following.partitions.leader_of(T0).log
    wait_until(lambda: log.config.retention_ms == 7)
    assert following.topics.epochs == {T0: 0}


def test_zookeeper_away_is_tried_again(following: Following) -> None:
    following.topics.failures = [CoordinationError("away"), CoordinationError("away")]
    following.tell()
    wait_until(following.leads)


def test_a_bug_is_logged_and_tried_again(
    following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    following.topics.failures = cast(list[LogbusError], [KeyError("a bug")])
    with caplog.at_level(logging.CRITICAL):
        following.tell()
        wait_until(following.leads)


def test_a_deleted_topic_is_given_up_and_its_log_removed(following: Following) -> None:
    following.tell()
    wait_until(following.leads)
    following.tell(None)
    wait_until(lambda: following.directories() == set())
    assert not following.leads()
    assert T0 in following.moved, "who waits for its records has to learn of it"


def test_a_topic_that_goes_while_it_is_taken_leaves_nothing(following: Following) -> None:
    following.topics.failures = [UnknownTopicError("deleted just now")]
    following.tell()
    wait_until(lambda: following.directories() == {"t-0"})
    following.tell(None)
    wait_until(lambda: following.directories() == set())


def test_a_topic_that_was_created_again_is_led_anew(following: Following) -> None:
    following.tell()
    wait_until(following.leads)
    first = following.partitions.leader_of(T0).log
    first.append(record_batch(), leader_epoch=0)
    following.tell(NEW)
    wait_until(lambda: following.leads() and following.partitions.leader_of(T0).log is not first)
    assert following.partitions.leader_of(T0).log.ends().log_end_offset == 0
    with pytest.raises(LogbusError):
        first.append(record_batch(), leader_epoch=0)


def test_a_zookeeper_that_lost_everything_costs_no_records(following: Following) -> None:
    """An empty ZooKeeper in a new session looks as if all topics had been deleted."""
    following.tell()
    wait_until(following.leads)
    log = following.partitions.leader_of(T0).log
    log.append(record_batch(3), leader_epoch=0)
    following.logs.flush()
    following.session_id = 2
    following.tell(None)
    wait_until(lambda: not following.leads())
    assert following.directories() == {"t-0"}
    following.tell()
    wait_until(following.leads)
    assert following.partitions.leader_of(T0).log.ends().high_watermark == 3


def test_a_topic_deleted_in_the_new_session_is_removed(following: Following) -> None:
    following.tell()
    wait_until(following.leads)
    following.session_id = 2
    following.tell()
    wait_until(lambda: following.partitions._seen_in == 2)
    following.tell(None)
    wait_until(lambda: following.directories() == set())


def test_stop_does_not_wait_for_zookeeper_to_come_back(following: Following) -> None:
    following.topics.failures = [CoordinationError("away")] * 1_000_000
    following.tell()
    wait_until(lambda: len(following.topics.failures) < 1_000_000)
    following.partitions.stop()
    assert not following.partitions._thread.is_alive()
