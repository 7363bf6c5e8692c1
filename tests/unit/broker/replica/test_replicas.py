"""Partitions with several replicas: followed, led and left, as their states in ZooKeeper say."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from spark_logbus.broker.metadata_cache import TopicsImage
from spark_logbus.broker.replica import following as following_module
from spark_logbus.broker.replica import manager as manager_module
from spark_logbus.broker.replica.states import LeaderPartition, ReplicaState
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.errors import CoordinationError, NotLeaderError, StorageError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff
from tests.fakes.broker_parts import T0, logs_in, record_batch
from tests.fakes.log_directory import ensure_one
from tests.helpers import wait_until
from tests.unit.broker.replica.test_manager import OLD, Following


class Replicated(Following):
    """Broker 1 of three, to which all partitions of topic t are assigned."""

    def tell_assigned(
        self,
        *partitions: list[int],
        topic_id: str = OLD,
        config: Mapping[str, str] | None = None,
        moves: Mapping[int, MovePayload] | None = None,
    ) -> None:
        assigned = dict(enumerate(partitions))
        record = TopicRecord("t", topic_id, assigned, dict(config or {}), moves=dict(moves or {}))
        self.topics.records = {"t": record}
        self.replica_manager.update(TopicsImage({"t": record}, self.session_id))

    def tell_state(self, state: PartitionState, where: TopicPartition = T0) -> None:
        self.topics.known[where] = state
        self.topics.epochs[where] = state.leader_epoch
        self.replica_manager.states_changed({"t"})

    def live(self, *brokers: int) -> None:
        self.replica_manager.brokers_changed(brokers)

    def log_id(self) -> str:
        log = self.logs.directory.get(T0)
        assert log is not None
        return log.log_id or ""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicated]:
    monkeypatch.setattr(manager_module, "_RETRY", Backoff(first_ms=10, max_ms=20))
    monkeypatch.setattr(following_module, "_ASSIGNED_RETRY", Backoff(first_ms=5, max_ms=10))
    with logs_in(tmp_path / "data") as logs:
        world = Replicated(logs)
        world.live(1, 2, 3)
        yield world
        world.stop()


def led_by(leader: int, epoch: int, *in_sync: int) -> PartitionState:
    return PartitionState(leader, epoch, list(in_sync), end=0)


def test_the_first_broker_leads_what_was_never_led(here: Replicated) -> None:
    here.tell_assigned([1, 2, 3])
    wait_until(here.leads)
    assert here.replica_manager.leader_of(T0).leader_epoch == 0


def test_the_next_leads_what_was_never_led_when_the_first_is_gone(here: Replicated) -> None:
    here.tell_assigned([2, 1, 3])
    wait_until(lambda: here.topics.looks)
    assert not here.leads()
    here.live(1, 3)
    wait_until(here.leads)


def test_what_another_leads_is_followed(here: Replicated) -> None:
    here.topics.known[T0] = led_by(2, 5, 2)
    here.tell_assigned([1, 2, 3])
    wait_until(lambda: here.state() is ReplicaState.FOLLOWING)
    with pytest.raises(NotLeaderError):
        here.replica_manager.leader_of(T0)
    assert here.topics.asked.is_set() is False, "it has claimed nothing"


def test_who_is_in_sync_is_elected_when_the_leader_is_gone(here: Replicated) -> None:
    here.topics.known[T0] = led_by(2, 5, 1, 2)
    here.topics.epochs[T0] = 5
    here.tell_assigned([2, 1, 3])
    wait_until(lambda: here.state() is ReplicaState.FOLLOWING)
    here.live(1, 3)
    wait_until(here.leads)
    assert here.topics.elected == [(T0, {1, 3})]
    assert here.replica_manager.leader_of(T0).leader_epoch == 6
    assert here.promises_ended == [2], "what it prepared is to be prepared anew"
    assert here.replica_manager.elections.won.value == 1
    assert not here.following.has(T0)
    # ZooKeeper's notice of that is late, and something else happens.
    here.logs.clock.advance(60)
    here.topics.known[T0] = led_by(2, 5, 1, 2)
    rule = here.watermarks._led.get(T0)
    here.live(1)
    here.live(1, 3)
    here.tell_assigned([2, 1, 3], [1])
    wait_until(lambda: here.replica_manager.find(TopicPartition("t", 1)) is not None)
    assert here.leads()
    assert len(here.topics.elected) == 1
    assert here.watermarks._led.get(T0) is rule is not None, "it is not a sole replica's"


def test_who_is_not_in_sync_is_not_elected(here: Replicated) -> None:
    here.topics.known[T0] = led_by(2, 5, 2, 3)
    here.tell_assigned([2, 1, 3])
    wait_until(lambda: here.state() is ReplicaState.FOLLOWING)
    here.live(1)
    here.tell_state(led_by(2, 5, 2))
    wait_until(lambda: here.topics.looks >= 2)
    assert not here.leads()
    assert here.topics.elected == []


def test_one_that_was_not_elected_follows_on(here: Replicated) -> None:
    here.topics.known[T0] = led_by(2, 5, 1, 2, 3)
    here.tell_assigned([2, 1, 3])
    wait_until(lambda: here.state() is ReplicaState.FOLLOWING)
    here.topics.failures = [NotLeaderError("Broker 3 was faster.")]
    here.live(1, 3)
    wait_until(lambda: here.replica_manager.elections.lost.value)
    here.tell_state(led_by(3, 6, 1, 3))
    wait_until(lambda: here.following.has(T0))
    assert not here.leads()


HERE_TOO = {0: MovePayload(to=[2, 1], since_us=7)}


@pytest.fixture
def moving(here: Replicated) -> Replicated:
    """A partition that broker 2 leads is about to move here too: this broker is in sync."""
    here.topics.known[T0] = led_by(2, 5, 1, 2)
    here.topics.epochs[T0] = 5
    here.tell_assigned([2], moves=HERE_TOO)
    wait_until(lambda: here.state() is ReplicaState.FOLLOWING)
    return here


def test_who_is_in_sync_in_a_move_is_elected_when_the_leader_is_gone(moving: Replicated) -> None:
    log = moving.logs.directory.get(T0)
    assert log is not None
    assert log.is_copy
    moving.live(1, 3)
    wait_until(moving.leads)
    assert moving.topics.elected == [(T0, {1, 3})]
    assert moving.replica_manager.leader_of(T0).leader_epoch == 6
    assert moving.logs.directory.get(T0) is log
    assert not log.is_copy, "it leads, and may be the only one soon"
    # That it is assigned here is news that is late, and something else happens.
    moving.tell_assigned([2], [1], moves=HERE_TOO)
    wait_until(lambda: moving.replica_manager.find(TopicPartition("t", 1)) is not None)
    assert moving.leads()
    moving.tell_assigned([2, 1], [1], [1], moves=HERE_TOO)
    wait_until(lambda: moving.replica_manager.find(TopicPartition("t", 2)) is not None)
    assert moving.leads()
    assert len(moving.topics.elected) == 1
    # The move is cancelled, and another takes the partition away.
    moving.tell_assigned([2], [1], [1])
    wait_until(lambda: not moving.leads())


def test_a_copy_that_was_not_elected_goes_on_as_one(
    moving: Replicated, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy that began anew would take a log from those that have what was acknowledged."""
    log = moving.logs.directory.get(T0)
    moving.topics.failures = [NotLeaderError("Broker 3 was faster.")]
    moving.live(1, 3)
    wait_until(lambda: moving.replica_manager.elections.lost.value)
    with caplog.at_level(logging.INFO):
        moving.tell_state(led_by(3, 6, 1, 3))
        wait_until(lambda: "moves here from broker 3, in epoch 6" in caplog.text)
    assert not moving.leads()
    assert log is not None
    assert moving.logs.directory.get(T0) is log
    assert log.is_copy


def test_nobody_is_elected_for_a_move_that_has_ended(moving: Replicated) -> None:
    """A log that came by a move that failed, or of which the leader stays, is a copy as well."""
    moving.tell_assigned([2])
    wait_until(lambda: moving.state() is not ReplicaState.FOLLOWING)
    moving.live(1, 3)
    moving.tell_assigned([2], [1])
    wait_until(lambda: moving.replica_manager.find(TopicPartition("t", 1)) is not None)
    assert not moving.leads()
    assert moving.topics.elected == []


def test_what_the_operating_system_has_not_flushed_yet_is_not_missing(here: Replicated) -> None:
    """Replicated is what is written, where the topic leaves flushing to the operating system."""
    here.topics.known[T0] = PartitionState(2, 5, [1, 2], end=0, committed=3)
    here.topics.epochs[T0] = 5
    here.tell_assigned([2, 1, 3], config={"flush.policy": "os"})
    wait_until(lambda: here.state() is ReplicaState.FOLLOWING)
    log = here.logs.directory.get(T0)
    assert log is not None
    log.append_as_leader(record_batch(3), leader_epoch=5)
    assert log.flushed_end == 0
    here.live(1, 3)
    wait_until(here.leads)
    assert here.replica_manager.leader_of(T0).log.flushed_end == 3


def test_the_only_one_in_sync_that_has_lost_its_log_refuses_the_partition(
    here: Replicated, caplog: pytest.LogCaptureFixture
) -> None:
    """Broker 2 led, and has left those in sync: nobody else says that nobody can lead."""
    here.topics.known[T0] = PartitionState(2, 5, [1], end=2, committed=3)
    here.tell_assigned([2, 1, 3])

    def noted() -> PartitionState:
        now = here.topics.known[T0]
        assert isinstance(now, PartitionState)
        return now

    def is_refused() -> bool:
        here.replica_manager.states_changed({"t"})
        error = here.replica_manager.refused().get(T0)
        return error is not None and error.message == noted().refused

    wait_until(is_refused)
    now = noted()
    assert (now.leader, now.leader_epoch, now.in_sync, now.end) == (1, 6, [1], 3)
    assert "logbus topics elect t --partition 0 --unclean" in (now.refused or "")
    assert now.refused in [each.message for each in caplog.records if each.levelname == "ERROR"]
    assert not here.leads()
    # Another is elected, unclean, and this one follows that.
    here.tell_state(PartitionState(3, 7, [3], end=1))
    wait_until(lambda: here.state() is ReplicaState.FOLLOWING)
    assert here.replica_manager.refused() == {}


def test_a_write_that_was_published_by_half_hides_nothing_at_a_follower(here: Replicated) -> None:
    """Its new leader publishes the rest, and gives a watermark that lies in no write."""
    here.tell_assigned([1, 2, 3])
    wait_until(here.leads)
    led = here.replica_manager.leader_of(T0)
    led.log._state.cap_high_watermark(7, 0)
    led.log.append_as_leader(record_batch(3), leader_epoch=led.leader_epoch)
    led.log.flush()
    assert led.log.ends().high_watermark == 0
    here.tell_state(led_by(2, led.leader_epoch + 1, 1, 2))
    wait_until(lambda: T0 in here.following.followed())
    here.watermarks.follow(T0, 3)
    led.log.advance_high_watermark()
    assert led.log.ends().high_watermark == 3


def test_nothing_that_a_leader_began_comes_into_its_log_once_that_follows(here: Replicated) -> None:
    """An append that waits for the disk, say, while the broker loses its id and gets it again."""
    here.tell_assigned([1, 2, 3])
    wait_until(here.leads)
    led = here.replica_manager.leader_of(T0)
    here.replica_manager.resign()
    here.topics.known[T0] = led_by(2, led.leader_epoch + 1, 1, 2)
    here.replica_manager.lead_again()
    wait_until(lambda: T0 in here.following.followed())
    with pytest.raises(NotLeaderError, match="broker 2 does"):
        led.log.append_as_leader(record_batch(3), leader_epoch=led.leader_epoch)
    assert led.log.ends().log_end_offset == 0


def test_nothing_of_an_earlier_epoch_comes_behind_a_later_one(here: Replicated) -> None:
    """Followers refuse what is of an epoch before, and could not follow any more."""
    here.tell_assigned([1, 2, 3])
    wait_until(here.leads)
    led = here.replica_manager.leader_of(T0)
    here.replica_manager.resign()
    here.replica_manager.lead_again()
    wait_until(here.leads)
    assert here.replica_manager.leader_of(T0).leader_epoch > led.leader_epoch
    with pytest.raises(NotLeaderError, match="leads t-0 in epoch"):
        led.log.append_as_leader(record_batch(3), leader_epoch=led.leader_epoch)


def test_a_log_without_an_id_is_not_followed(
    here: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader could not note what it has, and would be asked again and again."""
    log = ensure_one(here.logs.directory, T0, topic_id=OLD, config={})
    log.log_id = None
    monkeypatch.setattr(here.logs.directory._directories, "renew_log_id", lambda _: None)
    here.topics.known[T0] = led_by(2, 5, 2)
    here.tell_assigned([2, 1, 3])
    wait_until(lambda: "refuses to keep an id" in here.following.troubles().get(T0, ""))
    assert not here.following.followed()


def test_a_log_that_cannot_be_read_holds_up_no_other(
    here: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    leads = here.replica_manager._leadership._leads
    begin, other, mended = leads.lead, TopicPartition("t", 1), threading.Event()

    def lead(led: LeaderPartition, state: PartitionState) -> None:
        if led.log.topic_partition == T0 and not mended.is_set():
            raise StorageError("Sector 7 cannot be read.")
        begin(led, state)

    monkeypatch.setattr(leads, "lead", lead)
    here.tell_assigned([1, 2, 3], [1, 2, 3])
    wait_until(lambda: here.replica_manager.find(other) is not None)
    assert not here.leads()
    mended.set()
    wait_until(here.leads)


def test_an_election_without_zookeeper_is_tried_again(here: Replicated) -> None:
    here.topics.known[T0] = led_by(2, 5, 1, 2)
    here.tell_assigned([2, 1, 3])
    wait_until(lambda: here.state() is ReplicaState.FOLLOWING)
    here.topics.failures = [CoordinationError("away")]

    def leads_a_second_later() -> bool:
        here.logs.clock.advance(1)
        here.live(1, 3)
        return here.leads()

    wait_until(leads_a_second_later)
    assert here.topics.failures == []


def test_a_leader_steps_down_when_another_leads(here: Replicated) -> None:
    here.tell_assigned([1, 2, 3])
    wait_until(here.leads)
    led = here.replica_manager.leader_of(T0)
    here.moved.clear()
    here.tell_state(led_by(2, 1, 1, 2))
    wait_until(lambda: here.state() is ReplicaState.FOLLOWING)
    wait_until(lambda: here.following.has(T0))
    assert T0 in here.moved, "who waits for its records has to learn of it"
    with pytest.raises(NotLeaderError, match=r"broker 2 does, in epoch 1"):
        led.log.append_as_leader(record_batch(), leader_epoch=led.leader_epoch)
    here.tell_state(led_by(1, 2, 1, 2))
    wait_until(here.leads)
    again = here.replica_manager.leader_of(T0)
    assert again.leader_epoch == 3
    again.log.append_as_leader(record_batch(), leader_epoch=3)


def test_old_news_deposes_nobody(here: Replicated) -> None:
    here.topics.epochs[T0] = 5
    here.tell_assigned([1, 2, 3])
    wait_until(here.leads)
    looks = here.topics.looks
    here.tell_state(led_by(2, 5, 1, 2))
    wait_until(lambda: here.topics.looks > looks)
    here.tell_state(led_by(2, 5, 2))
    wait_until(lambda: here.topics.looks > looks + 1)
    assert here.leads()


def test_a_leader_that_slept_steps_down_before_it_goes_on(here: Replicated) -> None:
    """A broker learns of the election in its new session, before it has its lease again."""
    here.tell_assigned([1, 2, 3])
    wait_until(here.leads)
    led = here.replica_manager.leader_of(T0)
    here.topics.known[T0] = led_by(2, 4, 1, 2)
    here.topics.epochs[T0], here.topics.leader = 4, 2
    here.replica_manager.check_epochs()
    assert not here.leads()
    with pytest.raises(NotLeaderError):
        led.log.append_as_leader(record_batch(), leader_epoch=led.leader_epoch)
    wait_until(lambda: here.following.has(T0))


def test_a_topic_with_one_replica_is_not_read_again(here: Replicated) -> None:
    here.tell_assigned([1])
    wait_until(here.leads)
    looks = here.topics.looks
    here.replica_manager.states_changed({"t"})
    here.tell_assigned([1], [1])
    wait_until(lambda: here.replica_manager.find(TopicPartition("t", 1)) is not None)
    assert here.topics.looks == looks + 1, "for the new partition alone"


def test_the_watermark_rests_while_another_may_lead(here: Replicated) -> None:
    """A follower that is to be elected does not take its own log for replicated."""
    log = ensure_one(here.logs.directory, T0, topic_id=OLD, config={})
    log.append_as_leader(record_batch(3), leader_epoch=0)
    here.topics.known[T0] = led_by(2, 5, 1, 2)
    here.tell_assigned([2, 1, 3])
    wait_until(lambda: here.state() is ReplicaState.FOLLOWING)
    here.following.release(T0)
    assert here.watermarks(T0, 10) == 0
