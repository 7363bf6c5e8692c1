"""A log that went offline is opened anew in the process that goes on, where that is wanted."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spark_logbus.errors import LogbusError, NotLeaderError, PartitionOfflineError, StorageError
from spark_logbus.log import PartitionLog, WantedLog
from spark_logbus.log.disk import names
from tests.builders.record_batches import record_batch
from tests.builders.staged import WRITE, attempt, stage
from tests.fakes.disk import NOTHING, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, SlowFollower, offsets_from

SEGMENT = Path("/data/flights-0") / names.segment(0)


def failing(broker: Broker, disk: SimulatedDisk) -> PartitionLog:
    """A log of five records, of which the last three could not be flushed."""
    broker.append(record_batch(2))
    refuse_flushes(disk)
    broker.append(record_batch(3))
    log = broker.log()
    assert isinstance(log.offline, PartitionOfflineError)
    return log


def refuse_flushes(disk: SimulatedDisk) -> None:
    disk.refuse = lambda done, path: errno.EIO if done == "sync" and path == SEGMENT else None


def works_again(disk: SimulatedDisk) -> None:
    disk.refuse = lambda _done, _path: None
    disk.forget_pending(SEGMENT)  # the kernel takes them for written


def wanted(broker: Broker, *, reopens: bool = True) -> PartitionLog | LogbusError:
    each = WantedLog(TP, TOPIC_ID, {}, follows=True, reopens=reopens)
    return broker.directory.ensure_all([each])[TP]


def reopened(broker: Broker) -> PartitionLog:
    log = wanted(broker)
    assert isinstance(log, PartitionLog)
    return log


def test_a_log_that_went_offline_is_opened_anew_where_others_have_its_records() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    before = failing(broker, disk)
    works_again(disk)
    assert wanted(broker, reopens=False) is before, "of a sole replica nobody has a copy"
    log = reopened(broker)
    assert log is not before
    assert (log.log_id, log.offline) == (before.log_id, None)
    assert log.flushed_end == 5, "what the kernel took for written is written again"
    assert log.ends().high_watermark == 2, "nobody knows yet whether more is replicated"
    assert broker.directory.get(TP) is log
    assert reopened(broker) is log
    log.append_as_leader(record_batch(1), leader_epoch=2)
    log.flush()
    with pytest.raises(PartitionOfflineError):
        before.append_as_leader(record_batch(1), leader_epoch=9)
    disk.crash(NOTHING)
    broker.start()
    assert offsets_from(broker.log(), 0) == [0, 2, 5]


def test_a_disk_that_goes_on_failing_is_tried_less_and_less_often() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    before = failing(broker, disk)
    tries = []
    for _ in range(600):
        syncs = disk.operations.count(("sync", SEGMENT))
        error = wanted(broker)
        assert isinstance(error, StorageError)
        assert not isinstance(error, PartitionOfflineError), "its files would be set aside"
        tries.append(disk.operations.count(("sync", SEGMENT)) > syncs)
        broker.clock.advance(1)
    assert broker.directory.get(TP) is before
    assert tries[0]
    assert 10 <= sum(tries) <= 30
    works_again(disk)
    broker.clock.advance(60)
    assert reopened(broker).flushed_end == 5


def test_one_that_is_open_again_and_fails_anew_waits_for_its_next_turn() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    failing(broker, disk)
    works_again(disk)
    log = reopened(broker)
    refuse_flushes(disk)
    log.append_as_leader(record_batch(1), leader_epoch=2)
    log.flush()
    works_again(disk)
    assert isinstance(wanted(broker), StorageError)
    broker.clock.advance(2)
    assert reopened(broker).flushed_end == 6


def test_what_was_staged_and_where_the_log_starts_are_kept() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    stage(broker.log(), attempt(1), 4)
    broker.log().staging.flush_as_follower()
    before = failing(broker, disk)
    works_again(disk)
    (staged,) = before.staging.replica_state()
    (there,) = reopened(broker).staging.replica_state()
    assert staged.write == WRITE
    assert (there.write, there.size_bytes, there.digest) == (
        staged.write, staged.size_bytes, staged.digest,
    )  # fmt: skip


def test_who_waits_for_what_was_replicated_before_is_not_answered_by_the_new_log() -> None:
    disk, rule = SimulatedDisk(), SlowFollower()
    broker = Broker(files=disk, watermark=rule)
    rule.end = 0
    log = broker.log()
    answers: list[LogbusError | None] = []
    appended = log.append_as_leader(record_batch(2), leader_epoch=1)
    log.flush()
    log.replication.when_replicated(appended.end_offset, answers.append)
    refuse_flushes(disk)
    broker.append(record_batch(3))
    log.replication.end_waiting(NotLeaderError("gone"))
    assert [type(each) for each in answers] == [PartitionOfflineError]
    works_again(disk)
    assert reopened(broker).ends().high_watermark == 0
