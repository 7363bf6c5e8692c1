"""A leader whose disk fails leaves its lead to others that are in sync, and comes back."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from spark_logbus.broker.replica import following as following_module
from spark_logbus.broker.replica import manager as manager_module
from spark_logbus.broker.replica.states import ReplicaState
from spark_logbus.coordination.cluster.partition_states import MAX_CLAIMS
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import LogbusError, NotLeaderError, PartitionOfflineError
from spark_logbus.log import PartitionLog
from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import OSFileSystem
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff
from tests.fakes.broker_parts import T0, logs_in, record_batch
from tests.fakes.log_directory import ensure_one
from tests.helpers import wait_until
from tests.unit.broker.replica.test_manager import OLD
from tests.unit.broker.replica.test_replicas import Replicated

LOG_ID = "b" * 32


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicated]:
    monkeypatch.setattr(manager_module, "_RETRY", Backoff(first_ms=10, max_ms=20))
    monkeypatch.setattr(following_module, "_ASSIGNED_RETRY", Backoff(first_ms=5, max_ms=10))
    with logs_in(tmp_path / "data") as logs:
        world = Replicated(logs)
        world.live(1, 2, 3)
        yield world
        world.stop()


def led_here(here: Replicated, *in_sync: int, partitions: int = 1) -> None:
    """Broker 1 leads all partitions of the topic, of which the log has five records."""
    for number in range(partitions):
        where = TopicPartition("t", number)
        ensure_one(here.logs.directory, where, topic_id=OLD, config={})
        state = PartitionState(1, 5, list(in_sync), end=0)
        here.topics.known[where], here.topics.epochs[where] = state, 5
    here.tell_assigned(*([1, 2, 3] for _ in range(partitions)))
    wait_until(lambda: len(here.replica_manager.led()) == partitions)
    for where, led in here.replica_manager.led().items():
        led.log.append_as_leader(record_batch(5), leader_epoch=led.leader_epoch)
        now = here.topics.known[where]
        assert isinstance(now, PartitionState)
        here.tell_state(msgspec.structs.replace(now, in_sync=list(in_sync)), where)
    here.logs.flush()


def goes_offline(log: PartitionLog) -> None:
    log._writer.go_offline("Could not flush it.")
    log.flush()


def in_sync(here: Replicated, where: TopicPartition = T0) -> list[int]:
    state = here.topics.known[where]
    assert isinstance(state, PartitionState)
    return state.in_sync


def log_of(here: Replicated) -> PartitionLog:
    log = here.logs.directory.get(T0)
    assert log is not None
    return log


def test_a_leader_whose_log_goes_offline_leaves_its_lead_to_another(here: Replicated) -> None:
    led_here(here, 1, 2, 3)
    log = log_of(here)
    here.moved.clear()
    goes_offline(log)
    wait_until(lambda: not here.leads())
    assert in_sync(here) == [2, 3]
    assert here.state() is ReplicaState.FOLLOWING
    assert T0 in here.moved, "who waits for its records has to learn of it"
    with pytest.raises(NotLeaderError):
        here.replica_manager.leader_of(T0)


def test_it_comes_back_as_a_follower_with_its_log_opened_anew(here: Replicated) -> None:
    led_here(here, 1, 2, 3)
    before = log_of(here)
    goes_offline(before)
    wait_until(lambda: not here.leads())
    here.tell_state(PartitionState(2, 9, [2, 3], end=5))
    wait_until(lambda: here.following.followed())
    assert log_of(here) is not before
    assert (log_of(here).log_id, log_of(here).flushed_end) == (before.log_id, 5)
    assert log_of(here).offline is None


@pytest.mark.parametrize("case", ["alone", "others are away", "one replica"])
def test_a_leader_with_nobody_to_lead_in_its_place_stays(here: Replicated, case: str) -> None:
    """Records that it has can be read as long as it leads."""
    if case == "one replica":
        here.tell_assigned([1])
        wait_until(here.leads)
    else:
        led_here(here, *([1] if case == "alone" else [1, 2]))
    if case == "others are away":
        here.live(1, 3)
    log = log_of(here)
    looks = here.topics.looks
    goes_offline(log)
    here.tell_assigned([1] if case == "one replica" else [1, 2, 3], [1])
    wait_until(lambda: here.replica_manager.find(TopicPartition("t", 1)))
    assert here.leads()
    assert here.replica_manager.leader_of(T0).log is log
    assert here.topics.left == []
    if case == "others are away":
        here.live(1, 2)
        wait_until(lambda: not here.leads())
        assert in_sync(here) == [2]
    assert here.topics.looks >= looks


def test_a_leader_stays_where_the_only_other_in_sync_is_a_moves_target(here: Replicated) -> None:
    """The move may be cancelled before that broker is elected, and then nobody could be."""
    led_here(here, 1, 3)
    here.tell_assigned([1, 2], [1])
    wait_until(lambda: here.replica_manager.find(TopicPartition("t", 1)))
    goes_offline(log_of(here))
    here.tell_assigned([1, 2], [1], [1])
    wait_until(lambda: here.replica_manager.find(TopicPartition("t", 2)))
    assert here.leads()
    assert here.topics.left == []
    here.tell_assigned([1, 3], [1], [1])  # the move has ended
    wait_until(lambda: not here.leads())
    assert in_sync(here) == [3]


def test_a_disk_that_dies_under_many_partitions_costs_few_transactions(here: Replicated) -> None:
    count = MAX_CLAIMS + 50
    led_here(here, 1, 2, partitions=count)
    hold = threading.Event()
    states_of = here.topics.states_of

    def held(*args: object, **kwargs: object) -> object:
        assert hold.wait(60)
        return states_of(*args, **kwargs)  # type: ignore[arg-type]

    here.topics.states_of = held  # type: ignore[method-assign, assignment]
    for led in list(here.replica_manager.led().values()):
        led.log._writer.go_offline("Could not flush it.")
        led.log.flush()
    hold.set()
    wait_until(lambda: not here.replica_manager.led())
    assert sum(len(each) for each in here.topics.left) <= count + MAX_CLAIMS
    assert len(here.topics.left) <= 4
    assert all(in_sync(here, TopicPartition("t", each)) == [2] for each in range(count))


def refuse_marks(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The disk does not take away the mark of a log that was copied, which thus may not lead."""
    remove = OSFileSystem.remove

    def refused(files: OSFileSystem, path: Path) -> None:
        if path.name == names.COPY:
            raise OSError(errno.EIO, "Input/output error")
        remove(files, path)

    monkeypatch.setattr(OSFileSystem, "remove", refused)
    return monkeypatch


def test_a_lead_that_cannot_be_taken_is_left_to_another(
    here: Replicated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lead was handed over to a copy whose mark the disk does not let go."""
    here.topics.known[T0] = PartitionState(2, 5, [1, 2, 3], end=0)
    here.tell_assigned([1, 2, 3])
    wait_until(lambda: here.following.followed())
    refuse_marks(monkeypatch)
    here.tell_state(PartitionState(1, 6, [1, 2, 3], end=0))
    wait_until(lambda: in_sync(here) == [2, 3])
    assert not here.leads()
    assert "Cannot serve t-0" in caplog.text
    assert here.topics.left == [[T0]]


def test_one_that_nobody_else_can_take_is_tried_on(
    here: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.topics.known[T0] = PartitionState(2, 5, [1, 2, 3], end=0)
    here.tell_assigned([1, 2, 3])
    wait_until(lambda: here.following.followed())
    with monkeypatch.context() as context:
        refuse_marks(context)
        here.live(1)
        here.tell_state(PartitionState(1, 6, [1, 2, 3], end=0))
        looks = here.topics.looks
        wait_until(lambda: here.topics.looks > looks + 5)
        assert in_sync(here) == [1, 2, 3]
    wait_until(here.leads)


def test_a_log_without_an_id_leaves_its_lead_to_others_in_sync(
    here: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaders without an id may not lead, and nobody else would while they live and are in sync."""
    log = ensure_one(here.logs.directory, T0, topic_id=OLD, config={})
    log.log_id = None

    def refused(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(OSFileSystem, "rename", refused)
    here.topics.known[T0] = PartitionState(1, 5, [1, 2, 3], end=0)
    here.tell_assigned([1, 2, 3])
    wait_until(lambda: in_sync(here) == [2, 3])
    assert not here.leads()


def test_a_log_that_is_offline_is_not_elected(
    here: Replicated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers whose logs are open again can be elected, as the other one that is in sync can."""
    caplog.set_level(logging.INFO)
    here.topics.known[T0] = PartitionState(2, 5, [1, 2, 3], end=0)
    here.topics.epochs[T0] = 5
    here.tell_assigned([2, 1, 3])
    wait_until(lambda: here.following.followed())
    with monkeypatch.context() as context:
        context.setattr(OSFileSystem, "open", _refused)
        goes_offline(log_of(here))
        here.live(1, 3)
        wait_until(lambda: "Not elected leader of t-0" in caplog.text)
        assert here.topics.elected == []

    def comes_back() -> bool:
        here.logs.clock.advance(10)
        here.live(1, 3)
        return here.leads()

    wait_until(comes_back)
    assert here.replica_manager.leader_of(T0).log.offline is None


def _refused(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_the_lead_that_is_handed_to_a_log_that_is_offline_goes_on_to_another(
    here: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.topics.known[T0] = PartitionState(2, 5, [1, 2, 3], end=0)
    here.tell_assigned([1, 2, 3])
    wait_until(lambda: here.following.followed())
    monkeypatch.setattr(OSFileSystem, "open", _refused)
    goes_offline(log_of(here))
    here.tell_state(PartitionState(1, 6, [1, 2, 3], end=0))
    wait_until(lambda: in_sync(here) == [2, 3])
    assert not here.leads()


def test_nothing_more_comes_into_the_log_of_a_lead_that_was_left(here: Replicated) -> None:
    led_here(here, 1, 2)
    led = here.replica_manager.leader_of(T0)
    answers: list[LogbusError | None] = []
    led.log.replication.when_replicated(99, answers.append)
    goes_offline(led.log)
    wait_until(lambda: not here.leads())
    assert [type(each) for each in answers] == [PartitionOfflineError]
    with pytest.raises(LogbusError):
        led.log.append_as_leader(record_batch(1), leader_epoch=led.leader_epoch)
