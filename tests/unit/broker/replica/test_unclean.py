"""Elections of this broker though it is not in sync, on an operator's word."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import msgspec
import pytest

from spark_logbus.broker.replica import following as following_module
from spark_logbus.broker.replica import manager as manager_module
from spark_logbus.broker.replica.states import ReplicaState
from spark_logbus.broker.replica.unclean import UncleanElections
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import (
    CoordinationError,
    InvalidRequestError,
    LogbusError,
    LogMissingError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PartitionOfflineError,
    UnknownTopicError,
)
from spark_logbus.log import PartitionLog
from spark_logbus.lost_ends import go_on_at
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff
from tests.fakes.broker_parts import T0, Logs, logs_in, record_batch
from tests.helpers import wait_until
from tests.unit.broker.replica.test_manager import OLD
from tests.unit.broker.replica.test_replicas import Replicated

#: Brokers 2 and 3 were in sync, of a partition that had reached offset 10.
LED = PartitionState(2, 5, [2, 3], end=10, committed=9, replicas={2: "a" * 32, 3: "b" * 32})
BEHIND = go_on_at(10)


class World(Replicated):
    """Broker 1, which follows a partition whose other brokers are gone."""

    def __init__(self, logs: Logs) -> None:
        super().__init__(logs)
        self.registered = {1}
        self.unclean = UncleanElections(
            1,
            replica_manager=self.replica_manager,
            logs=logs.directory,
            states=cast(PartitionStates, self.topics),
            following=self.following,
            topic=lambda name: self.topics.records.get(name),
            live=lambda: self.registered,
            end_promises=self.promises_ended.append,
        )

    def begin(self, *, records: int = 4, assigned: tuple[int, ...] = (2, 1, 3)) -> PartitionLog:
        self.topics.known[T0] = LED
        self.topics.epochs[T0] = LED.leader_epoch
        self.live(1)
        self.tell_assigned([*assigned])
        wait_until(lambda: self.state() is ReplicaState.FOLLOWING)
        log = self.logs.directory.get(T0)
        assert log is not None
        if records:
            log.append_as_leader(record_batch(records), leader_epoch=5)
        return log

    def ask(self, leader_epoch: int = 5) -> Future[PartitionState]:
        return self.unclean.ask(T0, OLD, leader_epoch)

    def problem(self) -> LogbusError | None:
        return self.unclean.look("t", [0], OLD)[0].problem


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(manager_module, "_RETRY", Backoff(first_ms=10, max_ms=20))
    monkeypatch.setattr(following_module, "_ASSIGNED_RETRY", Backoff(first_ms=5, max_ms=10))
    with logs_in(tmp_path / "data") as logs:
        world = World(logs)
        yield world
        world.stop()


def test_it_leads_what_it_has_and_goes_on_behind_what_is_lost(
    here: World, caplog: pytest.LogCaptureFixture
) -> None:
    log = here.begin()
    standing = here.unclean.look("t", [0])[0].standing
    assert standing is not None
    assert (standing.known_end, standing.committed) == (10, 9)
    assert (standing.log_start, standing.log_end, standing.last_epoch) == (0, 4, 5)
    assert standing.go_on_at == BEHIND
    elected = here.ask().result(60)
    assert (elected.leader, elected.in_sync, elected.given_up) == (1, [1], 5)
    assert elected.go_on_at == BEHIND
    assert here.promises_ended == [2], "what it prepared may be missing here"
    wait_until(here.leads)
    led = here.replica_manager.leader_of(T0)
    assert led.log is log
    assert led.leader_epoch > elected.leader_epoch > 5
    ends = log.ends()
    assert (ends.high_watermark, ends.log_end_offset) == (BEHIND, BEHIND)
    assert log.read(0, max_bytes=1 << 20) is not None
    with pytest.raises(OffsetOutOfRangeError, match="from 4 on were lost"):
        log.read(7, max_bytes=1 << 20)
    log.append_as_leader(record_batch(2), leader_epoch=led.leader_epoch)
    assert log.ends().log_end_offset == BEHIND + 2
    assert here.replica_manager.elections.unclean.value == 1
    assert "Its log ends at 4" in caplog.text
    assert "those up to 10 at least" in caplog.text


def test_who_dies_between_the_election_and_its_log_goes_on_as_elected(here: World) -> None:
    """The state says where the log is to go on, also to a broker that is started again."""
    log = here.begin()
    log.flush()
    here.replica_manager.resign()
    wait_until(lambda: here.state() is not ReplicaState.FOLLOWING)
    here.topics.known[T0] = msgspec.structs.replace(
        LED, leader=1, leader_epoch=6, in_sync=[1], replicas={1: here.log_id()}, end=BEHIND,
        go_on_at=BEHIND, keep=True, given_up=5,
    )  # fmt: skip
    here.topics.epochs[T0] = 6
    here.replica_manager.lead_again()
    wait_until(here.leads)
    assert here.replica_manager.leader_of(T0).log.ends().log_end_offset == BEHIND
    with pytest.raises(OffsetOutOfRangeError):
        log.read(4, max_bytes=1 << 20)


def test_not_with_a_log_that_goes_offline_as_it_is_flushed_for_that(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker would be in sync alone then, and lead nothing."""
    log = here.begin()

    def fails() -> None:
        log._writer.go_offline("Could not flush it.")

    assert log.flushed_end < log.ends().log_end_offset
    monkeypatch.setattr(log, "flush", fails)
    with pytest.raises(PartitionOfflineError, match="Could not flush"):
        here.ask().result(60)
    assert here.topics.known[T0] == LED


def test_not_while_one_that_is_in_sync_lives(here: World) -> None:
    log = here.begin()
    here.registered = {1, 3}
    assert "in sync, 3 run" in str(here.problem())
    with pytest.raises(InvalidRequestError, match="needs no unclean election"):
        here.ask().result(60)
    assert here.topics.known[T0] == LED
    assert log.ends().log_end_offset == 4
    wait_until(lambda: here.following.has(T0), message="it follows on")


def test_not_in_another_epoch_than_was_looked_at(here: World) -> None:
    here.begin()
    with pytest.raises(NotLeaderError, match="broker 2 leads it in epoch 5"):
        here.ask(leader_epoch=4).result(60)
    assert here.topics.known[T0] == LED
    assert not here.leads()
    wait_until(lambda: here.following.has(T0), message="it follows on")


def test_one_that_was_let_go_of_is_not_begun_with(here: World) -> None:
    here.begin()
    here.replica_manager.thread.stop()
    done = here.ask()
    assert done.cancel()
    here.replica_manager._apply_newest()
    assert here.topics.known[T0] == LED


def test_not_without_zookeeper(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    here.begin()

    def away(_: int) -> None:
        raise CoordinationError("ZooKeeper does not answer.")

    monkeypatch.setattr(here.unclean, "_end_promises", away)
    with pytest.raises(CoordinationError):
        here.ask().result(60)
    assert here.topics.known[T0] == LED
    assert not here.leads()


def test_what_nobody_could_want(here: World) -> None:
    """A stranger has this broker lead nothing of which it has no log, or that needs it not."""
    here.begin(records=0)
    assert isinstance(here.problem(), LogMissingError)
    assert "everything would be lost" in str(here.problem())
    with pytest.raises(UnknownTopicError):
        here.unclean.look("u", [0])
    with pytest.raises(UnknownTopicError):
        here.unclean.look("t", [0], "another")
    found = here.unclean.look("t", [-1, 7, 2**70])
    assert {type(each.problem) for each in found.values()} == {UnknownTopicError}
    for assigned, why in (
        ([1], "has one replica"),
        ([2, 3], "assigned to the brokers 2, 3"),
    ):
        record = here.topics.records["t"]
        record.partitions[0] = assigned
        assert why in str(here.problem())
    record.partitions[0] = [2, 1, 3]
    here.topics.known[T0] = None
    assert "Nobody has led t-0 yet" in str(here.problem())
    assert here.unclean.look("t", [0])[0].standing is None
    here.topics.known[T0] = msgspec.structs.replace(
        LED, leader=1, in_sync=[1], refused="Its log is not there."
    )
    assert "refuses t-0" in str(here.problem())
    here.tell_assigned([2, 1, 3], [2, 1, 3])
    here.topics.known[TopicPartition("t", 1)] = LED
    assert isinstance(here.unclean.look("t", [1])[1].problem, LogMissingError)


def test_the_others_logs_are_better_than_that_of_a_leader_that_has_lost_its_own(
    here: World,
) -> None:
    here.begin()
    here.registered = {1, 2}
    here.topics.known[T0] = msgspec.structs.replace(LED, in_sync=[2], refused="It is not there.")
    assert here.problem() is None
    here.ask().result(60)
    wait_until(here.leads)
