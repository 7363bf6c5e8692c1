"""A log of a partition that another broker leads is deleted only if it is not the only one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from spark_logbus.broker.replica.old_logs import OldLog, OldLogs, why_kept
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import CoordinationError, StorageError
from spark_logbus.log import Extent, MovedLog
from spark_logbus.log_ids import renewed_log_id
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.zookeeper import CorruptNodeError, Session, SessionState
from tests.builders.record_batches import record_batch
from tests.fakes.broker_parts import TOPIC_ID, Logs, logs_in

HERE, THERE = 1, 2
T0 = TopicPartition("t", 0)
RECORD = TopicRecord("t", TOPIC_ID, {0: [THERE]}, {})
ID, OTHER_ID = "1d" * 16, "0e" * 16
STATE = PartitionState(
    leader=THERE, leader_epoch=8, in_sync=[THERE], end=10, handed_over={OTHER_ID: 5, ID: 8}
)
LOG = OldLog(T0, TOPIC_ID, Extent(leader_epoch=7, end=10), ID, is_copy=False)


def test_a_log_that_the_leader_has_as_a_whole_is_not_kept() -> None:
    assert why_kept(LOG, RECORD, STATE, broker_id=HERE) is None
    copy = LOG._replace(extent=Extent(8, 10), log_id=OTHER_ID, is_copy=True)
    assert why_kept(copy, RECORD, STATE, broker_id=HERE) is None
    without_records = LOG._replace(extent=Extent(-1, 0), log_id="")
    assert why_kept(without_records, RECORD, STATE, broker_id=HERE) is None


def test_a_copy_that_is_in_sync_is_kept_until_the_leader_has_dropped_it() -> None:
    """Its move was cancelled. What was acknowledged since may be on the leader's disk and here."""
    copy = LOG._replace(extent=Extent(8, 10), log_id=OTHER_ID, is_copy=True)
    state = msgspec.structs.replace(
        STATE, in_sync=[THERE, HERE], replicas={THERE: ID, HERE: OTHER_ID}
    )
    assert "in sync until broker 2 drops it" in (
        why_kept(copy, RECORD, state, broker_id=HERE) or ""
    )
    another = copy._replace(log_id="ab" * 16)
    assert why_kept(another, RECORD, state, broker_id=HERE) is None
    assert why_kept(copy, RECORD, STATE, broker_id=HERE) is None


def test_a_log_that_may_have_lost_records_since_is_known_for_the_one_before() -> None:
    renewed = LOG._replace(log_id=renewed_log_id(ID))
    assert why_kept(renewed, RECORD, STATE, broker_id=HERE) is None
    lost = LOG._replace(log_id=renewed_log_id(None))
    assert why_kept(lost, RECORD, STATE, broker_id=HERE) is not None


@pytest.mark.parametrize(
    ("log", "handed_over"),
    [
        (LOG, {}),  # also a state that an earlier release wrote
        (LOG, {OTHER_ID: 8}),
        (LOG, {ID: 7}),  # it has led again since, in a history that ZooKeeper knows no more
        (LOG._replace(log_id=""), {ID: 8}),
    ],
)
def test_a_log_that_led_in_another_history_is_kept(
    log: OldLog, handed_over: dict[str, int]
) -> None:
    """ZooKeeper went back to before a move, and its old leader has come further since."""
    state = msgspec.structs.replace(STATE, leader_epoch=50, end=1_000, handed_over=handed_over)
    assert "knows of no hand-over by it" in (why_kept(log, RECORD, state, broker_id=HERE) or "")
    assert why_kept(log, RECORD, state, broker_id=HERE, aside=True) is not None
    assert why_kept(log, RECORD, state, broker_id=HERE, was_handed_over=True) is None


@pytest.mark.parametrize(
    ("log", "record", "state", "reason"),
    [
        (LOG, None, STATE, "no topic t with the id"),
        (LOG, replace(RECORD, topic_id="b" * 32), STATE, "no topic t with the id"),
        (LOG, replace(RECORD, readable=False), STATE, "that can be read"),
        (LOG, replace(RECORD, partitions={}), STATE, "assigned to another broker"),
        (LOG, replace(RECORD, partitions={0: [HERE]}), STATE, "assigned to another broker"),
        (LOG, RECORD, None, "does not know that a broker leads"),
        (LOG, RECORD, CorruptNodeError("garbage"), "does not know that a broker leads"),
        (LOG, RECORD, msgspec.structs.replace(STATE, leader=HERE), "does not know that"),
        (LOG, RECORD, msgspec.structs.replace(STATE, leader=3), "does not know that"),
        (LOG, RECORD, msgspec.structs.replace(STATE, refused="It is gone."), "It is gone."),
        # ZooKeeper was restored from an older state.
        (LOG, RECORD, msgspec.structs.replace(STATE, leader_epoch=6), "only known to reach 10 in"),
        (LOG, RECORD, msgspec.structs.replace(STATE, end=9), "only known to reach 9 in epoch 8"),
        (LOG, RECORD, msgspec.structs.replace(STATE, end=None), "only known to reach 0 in epoch 8"),
        (LOG._replace(extent=None), RECORD, STATE, "does not say how far it reaches"),
    ],
)
def test_what_may_be_the_only_log_is_kept(
    log: OldLog,
    record: TopicRecord | None,
    state: PartitionState | CorruptNodeError | None,
    reason: str,
) -> None:
    assert reason in (why_kept(log, record, state, broker_id=HERE) or "")


def test_a_partition_that_came_back_needs_no_log_that_was_set_aside() -> None:
    record = replace(RECORD, partitions={0: [HERE]})
    state = msgspec.structs.replace(STATE, leader=HERE)
    assert why_kept(LOG, record, state, broker_id=HERE, aside=True) is None
    assert why_kept(LOG, record, state, broker_id=HERE) is not None
    assert why_kept(LOG, record, STATE, broker_id=HERE, aside=True) is not None


def test_what_was_set_aside_before_its_leaders_log_was_given_up_is_kept() -> None:
    """Records that were lost may be there: the new leader's disk failed after the move, say."""
    handed_over = {ID: 8}
    state = msgspec.structs.replace(
        STATE, leader_epoch=9, end=1_000, given_up=8, handed_over=handed_over
    )
    assert "was given up" in (why_kept(LOG, RECORD, state, broker_id=HERE, aside=True) or "")
    later = LOG._replace(extent=Extent(leader_epoch=9, end=1_000))
    state.handed_over[ID] = 10
    state = msgspec.structs.replace(state, leader_epoch=10)
    assert why_kept(later, RECORD, state, broker_id=HERE, aside=True) is None
    assert why_kept(LOG, RECORD, state, broker_id=HERE) is None, "it may be set aside"


class World:
    """A log that was set aside, and what ZooKeeper says of its partition."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.records: dict[str, TopicRecord | CorruptNodeError | None] = {"t": RECORD}
        self.brokers = [THERE]
        self.session = SimpleNamespace(session_id=1, state=SessionState.CONNECTED)
        self.old_logs = OldLogs(
            HERE,
            logs=logs.directory,
            topics=cast(TopicRegistry, self),
            states=cast(PartitionStates, self),
            brokers=cast(BrokerRegistry, self),
            session=cast(Session, self.session),
            clock=logs.clock,
            retention_ms=3_600_000,
        )
        self.state = STATE
        self.partition_states: dict[TopicPartition, PartitionState | CorruptNodeError | None] = {}
        self.set_aside(10, leader_epoch=7)

    def set_aside(self, records: int, *, leader_epoch: int) -> None:
        """Sets aside a log with records, which has handed over the lead as ZooKeeper knows."""
        log = self.logs.lead(T0)
        log.append_as_leader(record_batch(records), leader_epoch=leader_epoch)
        log.flush()
        handed_over = {**self.state.handed_over, log.log_id or "": leader_epoch + 1}
        self.state = msgspec.structs.replace(self.state, handed_over=handed_over)
        self.partition_states[T0] = self.state
        self.old_logs.set_aside(T0, TOPIC_ID)

    def each_of(self, names: Iterable[str]) -> dict[str, TopicRecord | CorruptNodeError | None]:
        return {name: self.records.get(name) for name in names}

    def states_of(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionState | CorruptNodeError | None]:
        if self.session.state is not SessionState.CONNECTED:
            raise CoordinationError("away")
        return {each: self.partition_states.get(each) for each in topic_partitions}

    def live(self) -> list[BrokerAddress]:
        return [BrokerAddress(each, "host", 1) for each in self.brokers]

    def is_there(self) -> bool:
        return bool(self.logs.directory.moved.find())

    def look_after(self, seconds: float) -> bool:
        """Looks when so much time has passed; returns whether the log is there still."""
        self.logs.clock.advance(seconds)
        self.old_logs.look()
        return self.is_there()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with logs_in(tmp_path / "data") as logs:
        yield World(logs)


def test_it_goes_when_it_was_seen_to_be_needless_for_an_hour(world: World) -> None:
    assert world.look_after(100_000)  # files may be as old as they like
    assert world.look_after(3_599)
    assert not world.look_after(1)


def test_another_session_with_zookeeper_begins_the_hour_anew(world: World) -> None:
    assert world.look_after(0)
    assert world.look_after(3_599)
    world.session.session_id = 2
    assert world.look_after(3_599)
    assert world.look_after(3_599)
    assert not world.look_after(1)


def test_what_zookeeper_says_otherwise_meanwhile_begins_the_hour_anew(world: World) -> None:
    assert world.look_after(0)
    world.partition_states[T0] = msgspec.structs.replace(
        world.state, end=9
    )  # restored from a backup
    assert world.look_after(3_600)
    assert world.look_after(36_000)
    world.partition_states[T0] = world.state
    assert world.look_after(3_600)
    assert not world.look_after(3_600)


def test_it_stays_while_its_leader_is_away(world: World) -> None:
    assert world.look_after(0)
    world.brokers = []
    assert world.look_after(3_600)
    world.brokers = [THERE]
    assert world.look_after(0)
    assert not world.look_after(3_600)


def test_it_stays_while_zookeeper_is_away(world: World) -> None:
    assert world.look_after(0)
    world.session.state = SessionState.SUSPENDED
    assert world.look_after(3_600)
    world.session.state = SessionState.CONNECTED
    assert not world.look_after(0)


def test_one_that_was_seen_stays_needless_when_later_hand_overs_take_its_place(
    world: World,
) -> None:
    """A partition may go to and fro often within the hour, and ZooKeeper knows the last few."""
    assert world.look_after(0)
    later = msgspec.structs.replace(world.state, handed_over={OTHER_ID: 30}, leader_epoch=30)
    world.partition_states[T0] = later
    world.session.session_id = 2
    assert world.look_after(3_600), "ZooKeeper may have gone back meanwhile"
    world.partition_states[T0] = world.state
    assert world.look_after(0)
    world.partition_states[T0] = later
    assert not world.look_after(3_600)


def test_a_restart_begins_the_hour_anew(world: World, tmp_path: Path) -> None:
    assert world.look_after(0)
    world.logs.restart()
    later = World.__new__(World)
    later.__dict__.update(world.__dict__)
    later.old_logs = OldLogs(
        HERE,
        logs=world.logs.directory,
        topics=cast(TopicRegistry, later),
        states=cast(PartitionStates, later),
        brokers=cast(BrokerRegistry, later),
        session=cast(Session, later.session),
        clock=world.logs.clock,
        retention_ms=3_600_000,
    )
    assert later.look_after(3_600)
    assert not later.look_after(3_600)


def test_logs_of_a_topic_that_was_deleted_go_at_once(world: World) -> None:
    world.records["t"] = None
    assert world.look_after(36_000), "it is not known that the topic was deleted"
    world.old_logs.topic_deleted("b" * 32)
    assert world.look_after(0)
    world.old_logs.topic_deleted(TOPIC_ID)
    assert not world.look_after(0)


def test_why_logs_are_kept_is_said_once_of_each(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Logs of one partition have reasons of their own."""
    world.set_aside(20, leader_epoch=8)
    directories = [each.directory for each in world.logs.directory.moved.find()]
    assert len(directories) == 2
    world.records["t"] = None
    for _ in range(3):
        world.look_after(36_000)
    said = [each.getMessage() for each in caplog.records if "is kept" in each.getMessage()]
    assert len(said) == 2
    assert all(any(f"{each} is kept" in one for one in said) for each in directories)


def test_one_that_the_disk_does_not_let_go_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.set_aside(10, leader_epoch=7)
    moved = world.logs.directory.moved
    stuck, _ = moved.find()
    delete = moved.delete

    def refuse(log: MovedLog) -> None:
        if log == stuck:
            raise StorageError("It is stuck.")
        delete(log)

    monkeypatch.setattr(moved, "delete", refuse)
    assert world.look_after(0)
    assert world.look_after(3_600)
    assert moved.find() == [stuck]
    world.old_logs.topic_deleted(TOPIC_ID)
    assert world.look_after(0)
    monkeypatch.undo()
    assert not world.look_after(0)
