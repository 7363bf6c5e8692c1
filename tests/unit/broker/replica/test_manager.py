"""A broker follows the topics in ZooKeeper, which the test plays."""

from __future__ import annotations

import errno
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest

from spark_logbus.broker.metadata_cache import TopicsImage
from spark_logbus.broker.replica import manager as module
from spark_logbus.broker.replica.followers import Followers
from spark_logbus.broker.replica.following import Following as FollowingLeaders
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.old_logs import OldLogs
from spark_logbus.broker.replica.states import Replicas, ReplicaState
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.clock import SystemClock
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.leader_rules import (
    is_elected_unclean,
    is_refused,
    leaves_lead,
)
from spark_logbus.coordination.cluster.moves import PartitionMoves
from spark_logbus.coordination.cluster.partition_states import LeadResult, PartitionStates
from spark_logbus.coordination.cluster.topic_records import (
    LeadershipClaim,
    TopicRecord,
)
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.coordination.writes.decisions import WriterState
from spark_logbus.coordination.writes.writers import PendingWrites, WriterRegistry
from spark_logbus.errors import (
    CoordinationError,
    LogbusError,
    LogMissingError,
    NotLeaderError,
    UnknownTopicError,
)
from spark_logbus.log import PartitionLog
from spark_logbus.log.disk.filesystem import OSFileSystem
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.retry import Backoff
from spark_logbus.wire.config import ConnectionConfig
from spark_logbus.zookeeper import CorruptNodeError, Session, SessionState
from tests.fakes.broker_parts import T0, T1, Logs, logs_in, record_batch
from tests.fakes.log_directory import ensure_one
from tests.helpers import wait_until

OLD, NEW = "a" * 32, "b" * 32


def _end(state: PartitionState | CorruptNodeError | None) -> int | None:
    return state.end if isinstance(state, PartitionState) else None


class Topics:
    """The topics in ZooKeeper, and the states of their partitions: ``PartitionStates``."""

    def __init__(self) -> None:
        self.told: str | None = None
        self.looks = 0
        self.failures: list[LogbusError] = []
        self.epochs: dict[TopicPartition, int] = {}
        self.leader = 1
        self.elected: list[tuple[TopicPartition, Collection[int]]] = []
        self.left: list[list[TopicPartition]] = []
        self.before_lead: Callable[[], None] = lambda: None
        self.asked = threading.Event()
        self.answering = threading.Event()
        self.answering.set()
        self.readable = threading.Event()
        self.readable.set()
        self.known: dict[TopicPartition, PartitionState | CorruptNodeError | None] = {}
        #: The topics as they can be read, and why moves have failed.
        self.records: dict[str, TopicRecord] = {}
        self.failed: dict[TopicPartition, str] = {}
        self.has_failed = True
        self.session_id, self.state = 1, SessionState.CONNECTED

    def each_of(self, names: Iterable[str]) -> dict[str, TopicRecord | None]:
        return {name: self.records.get(name) for name in names}

    def live(self) -> list[BrokerAddress]:
        return [BrokerAddress(2, "host", 1)]

    def fail(
        self, topic_partition: TopicPartition, *, topic_id: str, move: MovePayload, error: str
    ) -> bool:
        assert topic_id
        self.failed[topic_partition] = error
        return self.has_failed

    def states(self, topic: str) -> dict[int, PartitionState]:
        return {
            topic_partition.partition: PartitionState(
                self.leader, epoch, [1], end=_end(self.known.get(topic_partition))
            )
            for topic_partition, epoch in self.epochs.copy().items()
            if topic_partition.topic == topic
        }

    def states_of(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionState | CorruptNodeError | None]:
        self.looks += 1
        assert self.readable.wait(60)
        return {
            topic_partition: self.known.get(topic_partition) for topic_partition in topic_partitions
        }

    def lead(
        self, topic_partition: TopicPartition, *, broker_id: int, topic_id: str, end: int
    ) -> PartitionState:
        claim = LeadershipClaim(topic_partition, topic_id, end)
        state = self.lead_all([claim], broker_id=broker_id)[topic_partition]
        assert isinstance(state, PartitionState)
        return state

    def lead_all(
        self, claims: Sequence[LeadershipClaim], *, broker_id: int
    ) -> dict[TopicPartition, LeadResult]:
        self.asked.set()
        assert self.answering.wait(60)
        found: dict[TopicPartition, LeadResult] = {}
        for claim in claims:
            if self.failures:
                failure = self.failures.pop()
                if not isinstance(failure, UnknownTopicError | NotLeaderError):
                    raise failure
                found[claim.topic_partition] = failure
                continue
            self.before_lead()
            epoch = self.epochs.get(claim.topic_partition, -1) + 1
            self.epochs[claim.topic_partition] = epoch
            state = PartitionState(broker_id, epoch, [broker_id], claim.end)
            found[claim.topic_partition] = self.known[claim.topic_partition] = state
        return found

    def elect_all(
        self, claims: Sequence[LeadershipClaim], *, broker_id: int, live: Collection[int]
    ) -> dict[TopicPartition, LeadResult]:
        found = self.lead_all(claims, broker_id=broker_id)
        self.elected += [
            (where, {*live}) for where, state in found.items() if isinstance(state, PartitionState)
        ]
        return found

    def leave_all(
        self, claims: Sequence[LeadershipClaim], *, broker_id: int, live: Collection[int]
    ) -> dict[TopicPartition, LeadResult]:
        """Has the broker leave by the rule that holds in ZooKeeper, all in one transaction."""
        self.left.append([claim.topic_partition for claim in claims])
        found: dict[TopicPartition, LeadResult] = {}
        for claim in claims:
            now = self.known.get(claim.topic_partition)
            assert isinstance(now, PartitionState)
            ruling = leaves_lead(broker_id, live)(claim, now)
            if ruling.state is not None:
                self.known[claim.topic_partition] = ruling.state
            answer = ruling.refusal or ruling.state
            assert answer is not None
            found[claim.topic_partition] = answer
        return found

    def elect_unclean(
        self,
        claim: LeadershipClaim,
        *,
        broker_id: int,
        leader_epoch: int,
        live: Callable[[], Collection[int]],
    ) -> PartitionState:
        now = self.known.get(claim.topic_partition)
        assert not isinstance(now, CorruptNodeError)
        ruling = is_elected_unclean(broker_id, live, leader_epoch=leader_epoch)(claim, now)
        if ruling.refusal is not None:
            raise ruling.refusal
        assert ruling.state is not None
        self.known[claim.topic_partition] = ruling.state
        self.epochs[claim.topic_partition] = ruling.state.leader_epoch
        return ruling.state

    def refuse(
        self,
        topic_partition: TopicPartition,
        *,
        broker_id: int,
        topic_id: str,
        why: str,
        end: int,
        kept_end: int | None,
    ) -> None:
        now = self.known.get(topic_partition) or PartitionState(broker_id, 0, [broker_id])
        assert isinstance(now, PartitionState)
        claim = LeadershipClaim(topic_partition, topic_id, end)
        ruling = is_refused(broker_id, now, claim, why, kept_end)
        if ruling.state is not None:
            self.known[topic_partition] = ruling.state
        if ruling.refusal is not None:
            raise ruling.refusal


class Writers:
    """Decided writes that are not published everywhere."""

    def __init__(self) -> None:
        self.states: dict[str, WriterState] = {}

    def pending(self) -> PendingWrites:
        return PendingWrites(self.states, {})


class Following:
    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.topics = Topics()
        self.writers = Writers()
        self.session_id = 1
        self.moved: list[TopicPartition] = []
        self.watermarks = HighWatermarks()
        in_sync = InSync(
            1,
            states=cast(PartitionStates, self.topics),
            followers=Followers(clock=SystemClock(), written=lambda _: None),
            watermarks=self.watermarks,
            topic=lambda name: self.topics.records.get(name),
            live=lambda: (),
            is_certain=lambda: True,
            lag_max_ms=10_000,
            clock=SystemClock(),
        )
        self.replicas = replicas = Replicas(ended=in_sync.end)
        self.promises_ended: list[int] = []
        states = cast(PartitionStates, self.topics)
        self.addresses: dict[int, BrokerAddress] = {}  # of those that are registered
        self.following = FollowingLeaders(
            1,
            logs=logs.directory,
            states=states,
            moves=cast(PartitionMoves, self.topics),
            replicas=replicas,
            watermarks=self.watermarks,
            address=lambda each: self.addresses.get(each),
            free_bytes=lambda: 1 << 40,
            reserve_bytes=0,
            connections=ConnectionConfig(client_id="broker-1"),
            clock=SystemClock(),
        )
        self.old_logs = OldLogs(
            1,
            logs=logs.directory,
            topics=cast(TopicRegistry, self.topics),
            states=states,
            brokers=cast(BrokerRegistry, self.topics),
            session=cast(Session, self.topics),
            clock=logs.clock,
            retention_ms=3_600_000,
        )
        self.replica_manager = ReplicaManager(
            1,
            logs=logs.directory,
            states=states,
            writers=cast(WriterRegistry, self.writers),
            replicas=replicas,
            following=self.following,
            old_logs=self.old_logs,
            leads=in_sync,
            end_promises=self.promises_ended.append,
            clock=logs.clock,
            partition_changed=self.moved.append,
        )
        self.replica_manager.thread.start()
        self.following.thread.start()

    def tell(
        self,
        topic_id: str | None = OLD,
        *,
        config: dict[str, str] | None = None,
        brokers: tuple[int, ...] = (1, 2),
        readable: bool = True,
        moves: Mapping[int, MovePayload] | None = None,
    ) -> None:
        """ZooKeeper has topic t, with its first partition assigned here; or (None) not."""
        assigned = {number: [broker] for number, broker in enumerate(brokers)}
        record = topic_id and TopicRecord(
            "t", topic_id, assigned, config or {}, readable, dict(moves or {})
        )
        if topic_id != self.topics.told:
            self.topics.known.clear()  # they are below the topic's node
        self.topics.told = topic_id
        self.topics.records = {"t": record} if record else {}
        self.replica_manager.update(TopicsImage({"t": record} if record else {}, self.session_id))

    def stop(self) -> None:
        self.replica_manager.thread.stop()
        self.following.stop()

    def state(self) -> ReplicaState:
        return self.replicas.get(T0).state

    def leads(self) -> bool:
        return self.replica_manager.find(T0) is not None

    def directories(self) -> set[str]:
        names = (path.name for path in self.logs.directory._path.iterdir() if path.is_dir())
        return {name.split(".")[0] if "." in name else name for name in names}


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    monkeypatch.setattr(module, "_RETRY", Backoff(first_ms=10, max_ms=30_000))
    monkeypatch.setattr(module, "_REFUSED_RETRY_S", 0.01)
    with logs_in(tmp_path / "data") as logs:
        following = Following(logs)
        yield following
        following.stop()


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns every few instructions."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_what_is_assigned_here_is_led(following: Following) -> None:
    with pytest.raises(NotLeaderError, match="Broker 1 does not lead t-0"):
        following.replica_manager.leader_of(T0)
    following.tell()
    wait_until(following.leads)
    led = following.replica_manager.leader_of(T0)
    assert (led.log.topic_id, led.leader_epoch) == (OLD, 0)
    assert following.replica_manager.find(T1) is None


def test_the_listener_is_told_of_flushed_records(following: Following) -> None:
    following.tell()
    wait_until(following.leads)
    following.replica_manager.leader_of(T0).log.append_as_leader(record_batch(), leader_epoch=0)
    following.logs.flush()
    assert following.moved == [T0]


def test_who_finds_a_partition_led_finds_its_listener_set(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_led: list[bool] = []
    add_listener = PartitionLog.add_listener

    def added(log: PartitionLog, listener: Callable[[], None]) -> None:
        was_led.append(following.leads())
        add_listener(log, listener)

    monkeypatch.setattr(PartitionLog, "add_listener", added)
    following.tell()
    wait_until(following.leads)
    assert was_led == [False]


def test_being_told_the_same_again_changes_nothing(following: Following) -> None:
    following.tell()
    wait_until(following.leads)
    following.tell(config={"retention.ms": "7"})
    log = following.replica_manager.leader_of(T0).log
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


def test_retention_waits_for_a_zookeeper_that_stands_still(tmp_path: Path) -> None:
    """ZooKeeper told the topics, and answers nothing from the first partition on."""
    forever = {"retention.ms": "-1"}
    with logs_in(tmp_path / "data") as logs:
        log = ensure_one(logs.directory, T1, topic_id=OLD, config=forever)
        log.append_as_leader(record_batch(3), leader_epoch=0)
        log.flush()
        logs.clock.advance(10**9)
        logs.restart()
        following = Following(logs)
        following.topics.readable.clear()
        following.tell(config=forever, brokers=(1, 1))
        wait_until(lambda: following.topics.looks)
        found = logs.directory.get(T1)
        assert found is not None
        logs.directory.maintain()
        assert (found.deletion_paused, found.ends().log_start_offset) == (True, 0)
        following.topics.readable.set()
        wait_until(lambda: following.replica_manager.find(T1))
        logs.directory.maintain()
        assert (found.deletion_paused, found.ends().log_start_offset) == (False, 0)
        following.tell(brokers=(1, 1))
        wait_until(lambda: found.config.retention_ms)
        logs.directory.maintain()
        assert found.ends().log_start_offset == 3
        following.stop()


def test_logs_that_zookeeper_does_not_know_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with logs_in(tmp_path / "data") as logs:
        for number in range(13):
            ensure_one(logs.directory, TopicPartition("lost", number), topic_id=NEW, config={})
        logs.restart()
        following = Following(logs)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                following.tell()
                wait_until(following.leads)
        wait_until(lambda: "for 13 of the logs here (lost-0, lost-1, " in caplog.text)
        following.stop()
        assert caplog.text.count("all their records are kept") == 1
        assert all(log.deletion_paused for log in logs.directory.logs() if log.topic_id == NEW)


def test_a_deleted_topic_is_given_up_and_its_log_removed(following: Following) -> None:
    following.tell()
    wait_until(following.leads)
    following.tell(None)
    wait_until(lambda: following.directories() == set())
    assert not following.leads()
    assert T0 in following.moved, "who waits for its records has to learn of it"


def test_a_deleted_log_the_disk_holds_is_removed_later(
    following: Following, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    following.tell()
    wait_until(following.leads)
    rename = OSFileSystem.rename

    def refuse(files: OSFileSystem, source: Path, target: Path) -> None:
        if source.name == "t-0":
            raise OSError(errno.EIO, "Input/output error")
        rename(files, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(OSFileSystem, "rename", refuse)
        following.tell(None)
        wait_until(lambda: "Cannot remove t-0" in caplog.text)
        assert following.directories() == {"t-0"}
    wait_until(lambda: following.directories() == set())


def test_a_topic_that_goes_while_it_is_taken_leaves_nothing(following: Following) -> None:
    following.topics.failures = [UnknownTopicError("deleted just now")]
    following.tell()
    wait_until(lambda: following.directories() == {"t-0"})
    following.tell(None)
    wait_until(lambda: following.directories() == set())


def test_a_partition_that_moves_while_it_is_taken_is_no_error(
    following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    following.topics.failures = [NotLeaderError("moved to broker 2")]
    following.tell()
    wait_until(lambda: "it is another broker's: moved to broker 2" in caplog.text)
    assert not following.leads()
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_topic_that_was_created_again_is_led_anew(following: Following) -> None:
    following.tell()
    wait_until(following.leads)
    first = following.replica_manager.leader_of(T0).log
    first.append_as_leader(record_batch(), leader_epoch=0)
    following.tell(NEW)

    def is_led_anew() -> bool:
        led = following.replica_manager.find(T0)
        return led is not None and led.log is not first

    wait_until(is_led_anew)
    assert following.replica_manager.leader_of(T0).log.ends().log_end_offset == 0
    with pytest.raises(LogbusError):
        first.append_as_leader(record_batch(), leader_epoch=0)


def test_a_broker_that_stepped_back_leads_in_a_new_epoch(
    following: Following,
) -> None:
    following.tell()
    wait_until(following.leads)
    log = following.replica_manager.leader_of(T0).log
    following.moved.clear()
    following.replica_manager.resign()
    assert following.moved == [T0], "who waits for its records has to learn of it"
    with pytest.raises(NotLeaderError):
        following.replica_manager.leader_of(T0)
    wait_until(
        lambda: log.deletion_paused, message="what another broker may know better to be left alone"
    )
    following.tell(config={"retention.ms": "7"})
    following.replica_manager.lead_again()
    wait_until(following.leads)
    led = following.replica_manager.leader_of(T0)
    assert not log.deletion_paused
    assert (led.log, led.leader_epoch) == (log, 1)
    assert log.config.retention_ms == 7
    following.moved.clear()
    log.append_as_leader(record_batch(), leader_epoch=1)
    following.logs.flush()
    assert following.moved == [T0], "the listener was not added twice"


def test_a_partition_led_by_another_is_led_anew(following: Following) -> None:
    following.tell()
    wait_until(following.leads)
    log = following.replica_manager.leader_of(T0).log
    following.replica_manager.check_epochs()
    assert following.replica_manager.leader_of(T0).leader_epoch == 0
    following.topics.epochs[T0] = 4
    following.replica_manager.check_epochs()
    led = following.replica_manager.leader_of(T0)
    assert (led.log, led.leader_epoch) == (log, 5)
    with pytest.raises(NotLeaderError, match="in epoch 5 by now"):
        log.append_as_leader(record_batch(), leader_epoch=0)  # which was begun before
    log.append_as_leader(record_batch(), leader_epoch=5)


def test_a_log_another_broker_took_further_is_refused(
    following: Following,
) -> None:
    following.tell()
    wait_until(following.leads)
    following.topics.epochs[T0] = 4
    following.topics.known[T0] = PartitionState(1, 4, [1], end=9)
    following.replica_manager.check_epochs()
    wait_until(lambda: T0 in following.replica_manager.refused())
    assert not following.leads()


def test_epochs_are_checked_while_partitions_are_taken(
    following: Following, hasty_threads: None
) -> None:
    """A session may expire before all partitions were taken at the start."""
    count = 400
    following.tell(brokers=(1,) * count)
    while len(following.replica_manager.led()) < count:
        following.replica_manager.check_epochs()


@pytest.mark.parametrize("again", ["at once", "later"])
def test_an_epoch_that_is_had_after_stepping_back_is_not_used(
    following: Following, again: str
) -> None:
    def step_back() -> None:
        following.topics.before_lead = lambda: None
        following.replica_manager.resign()
        if again == "at once":
            following.replica_manager.lead_again()

    following.topics.before_lead = step_back
    following.tell()
    wait_until(lambda: T0 in following.topics.epochs)
    if again == "later":
        following.replica_manager.lead_again()
    wait_until(following.leads)
    assert following.replica_manager.leader_of(T0).leader_epoch == 1


def test_a_zookeeper_that_lost_everything_costs_no_records(following: Following) -> None:
    """An empty ZooKeeper in a new session looks as if all topics had been deleted."""
    following.tell()
    wait_until(following.leads)
    log = following.replica_manager.leader_of(T0).log
    log.append_as_leader(record_batch(3), leader_epoch=0)
    following.logs.flush()
    following.session_id = 2
    following.tell(None)
    wait_until(lambda: not following.leads())
    assert following.directories() == {"t-0"}
    wait_until(lambda: log.deletion_paused)
    following.logs.clock.advance(10**9)
    following.logs.directory.maintain()
    assert log.ends().log_start_offset == 0, "its retention does not count either"
    following.tell()
    wait_until(following.leads)
    assert following.replica_manager.leader_of(T0).log.ends().high_watermark == 3
    assert not log.deletion_paused


@pytest.mark.parametrize("then", [None, NEW])
def test_clearing_an_unreadable_topic_node_costs_no_records(
    following: Following, then: str | None
) -> None:
    following.tell()
    wait_until(following.leads)
    log = following.replica_manager.leader_of(T0).log
    log.append_as_leader(record_batch(3), leader_epoch=0)
    following.logs.flush()
    following.tell(readable=False)
    wait_until(lambda: not following.replica_manager._applied.topics["t"].readable)
    assert following.leads()
    following.tell(then)
    wait_until(lambda: log.deletion_paused)
    wait_until(lambda: following.leads() == bool(then))
    assert following.directories() == ({f"{OLD}-0", "t-0"} if then else {"t-0"})


def test_a_topic_deleted_in_the_new_session_is_removed(following: Following) -> None:
    following.tell()
    wait_until(following.leads)
    following.session_id = 2
    following.tell()
    wait_until(lambda: following.replica_manager._applied.session_id == 2)
    following.tell(None)
    wait_until(lambda: following.directories() == set())


def test_stop_does_not_wait_for_zookeeper_to_come_back(following: Following) -> None:
    following.topics.failures = [CoordinationError("away")] * 1_000_000
    following.tell()
    wait_until(lambda: len(following.topics.failures) < 1_000_000)
    following.replica_manager.thread.stop()
    assert not following.replica_manager.thread._thread.is_alive()


def test_a_missing_log_is_refused_until_given_up(
    following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    following.topics.told = OLD
    following.topics.known[T0] = PartitionState(1, 4, [1], end=70)
    following.tell()
    wait_until(lambda: T0 in following.replica_manager.refused())
    with pytest.raises(LogMissingError, match="reached offset 70 at least"):
        following.replica_manager.leader_of(T0)
    refused = following.topics.known[T0]
    assert isinstance(refused, PartitionState)
    assert refused.refused
    looks = following.topics.looks
    wait_until(lambda: following.topics.looks > looks + 3)
    assert following.directories() == set()
    assert caplog.text.count("is not served") == 1
    following.topics.known[T0] = msgspec.structs.replace(refused, go_on_at=1_000)
    wait_until(following.leads)
    assert following.replica_manager.refused() == {}
    assert following.replica_manager.leader_of(T0).log.ends().log_start_offset == 1_000


def test_a_state_that_cannot_be_read_costs_its_own_partition(following: Following) -> None:
    following.topics.told = OLD
    following.topics.known[T0] = CorruptNodeError("not ours")
    following.tell(brokers=(1, 2, 1))
    wait_until(lambda: following.replica_manager.find(TopicPartition("t", 2)))
    assert not following.leads()


def test_a_refused_partition_of_a_deleted_topic_is_forgotten(following: Following) -> None:
    following.topics.told = OLD
    following.topics.known[T0] = PartitionState(1, 4, [1], end=70)
    following.tell()
    wait_until(lambda: T0 in following.replica_manager.refused())
    following.tell(None)
    wait_until(lambda: following.replica_manager.refused() == {})
    following.tell(NEW)
    wait_until(following.leads)


def test_one_partition_that_fails_costs_no_other(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_directory = OSFileSystem.make_directory

    def refuse(files: OSFileSystem, path: Path) -> None:
        if path.name == f"{OLD}-3.creating":
            raise OSError(errno.ENOSPC, "No space left on device")
        make_directory(files, path)

    broken = [TopicPartition("t", 3)]
    others = [TopicPartition("t", number) for number in (0, 1, 2, 4, 5)]
    monkeypatch.setattr(OSFileSystem, "make_directory", refuse)
    following.tell(brokers=(1,) * 6)
    wait_until(lambda: sorted(following.replica_manager.led()) == others)
    monkeypatch.undo()
    following.tell(brokers=(1,) * 6)
    wait_until(lambda: sorted(following.replica_manager.led()) == sorted(others + broken))
    assert set(following.topics.epochs.values()) == {0}
