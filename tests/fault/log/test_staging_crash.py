"""The power goes at each operation of staging and publishing, and what may survive of it does."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from spark_logbus.errors import (
    CorruptRecordBatchError,
    LogbusError,
    StagedDataLostError,
    StorageError,
)
from spark_logbus.log import LogConfig, PartitionLog
from spark_logbus.record import RecordBatchHeader
from spark_logbus.record.stage_id import MAX_ATTEMPT
from tests.builders.producers import batch
from tests.builders.record_batches import record_batch
from tests.builders.staged import attempt, publish, share, stage
from tests.fakes.disk import (
    AllSurvives,
    DisorderedSurvival,
    PowerCutError,
    RandomSurvival,
    SimulatedDisk,
    Survival,
)
from tests.fakes.log_directory import Broker, batches_from

LARGE = 900  # records that take more than one chunk of what is published at a time
CONFIG = LogConfig(segment_bytes=4096, index_interval_bytes=256)
WRITTEN = [(2, 0), (2, 300), (1, 0), (1, 450)]


class Run:
    """One life of the broker, up to the cut: what was acknowledged when it came."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.staged = self.published = self.appended = False
        self.disk = disk
        with suppress(PowerCutError):
            self.broker = Broker(files=disk, config=CONFIG)
            self.live(self.broker.log())

    def live(self, log: PartitionLog) -> None:
        self.broker.append(record_batch(2))
        stage(log, attempt(3), 100)  # of a task that failed
        stage(log, attempt(1), 450, 450)
        stage(log, attempt(2), 300, 600)
        self.staged = True
        log.publishing.check(DECIDED, 1, leader_epoch=0)
        log.publishing.publish(DECIDED, leader_epoch=1)
        self.broker.append(record_batch(1))
        self.appended = True
        log.publishing.finish(DECIDED.write)
        self.published = True
        stage(log, attempt(1, write=5), 10)


DECIDED = share(2 * LARGE, 2, 1)


def operations() -> int:
    disk = SimulatedDisk()
    Run(disk)
    return len(disk.operations)


def of_the_write(log: PartitionLog) -> list[tuple[int, int]]:
    """Attempt and sequence of the write's record batches that can be read, in their order."""
    seen: list[RecordBatchHeader] = []
    visible = log.ends().high_watermark
    starts = [0, *(hole.end for hole in log.damaged if hole.end < visible)]
    for start in starts:
        with suppress(CorruptRecordBatchError):
            seen.extend(header for header, _ in batches_from(log, start))
    return [
        (header.producer_id & MAX_ATTEMPT, header.base_sequence)
        for header in seen
        if header.producer_id >= 0
    ]


def check(log: PartitionLog) -> None:
    """Checks that all of the write is there once; in its order, unless the disk kept a later
    unflushed write and not an earlier one: that is taken for damage, and the order is lost with
    it."""
    seen = of_the_write(log)
    assert sorted(seen) == sorted(WRITTEN)
    assert seen == WRITTEN or log.damaged


@pytest.mark.parametrize(
    "survival",
    [Survival(), AllSurvives(), *map(RandomSurvival, range(6)), *map(DisorderedSurvival, range(4))],
    ids=lambda one: type(one).__name__,
)
def test_a_decided_write_is_published_once_whenever_the_power_goes(survival: Survival) -> None:
    for cut in range(3, operations()):
        disk = SimulatedDisk()
        disk.cut_power_at = cut
        run = Run(disk)
        disk.crash(survival)
        broker = Broker(files=disk, config=CONFIG)
        log = broker.log()
        if not run.staged:
            assert of_the_write(log) == []
            continue
        log.publishing.expect(DECIDED)
        if of_the_write(log):
            check(log)
        publish(log, DECIDED)
        check(log)
        publish(log, DECIDED)
        check(log)
        if run.published:
            assert log.ends().log_end_offset >= 2 * LARGE + 3


def test_a_disk_that_is_full_while_publishing_shows_nothing_until_all_is_there() -> None:
    for room in range(0, 6000, 500):
        disk = SimulatedDisk()
        broker = Broker(files=disk, config=CONFIG)
        log = broker.log()
        stage(log, attempt(1), 450, 450)
        stage(log, attempt(2), 300, 600)
        disk.capacity = disk.used() + room
        with suppress(LogbusError):
            log.publishing.publish(DECIDED, leader_epoch=1)
        log.flush()
        assert of_the_write(log) == [] or log.ends().log_end_offset == 2 * LARGE
        disk.capacity = None
        broker.append(record_batch(1))
        publish(log, DECIDED)
        check(log)
        assert len(list(batches_from(log, 0))) == 5


def test_what_a_recovery_found_in_memory_is_put_on_disk() -> None:
    disk = SimulatedDisk()
    stage(Broker(files=disk, config=CONFIG).log(), attempt(1), 10, flush=False)
    disk.kill()
    Broker(files=disk, config=CONFIG).log().publishing.check(share(10, 1), 1, leader_epoch=0)
    disk.crash()
    Broker(files=disk, config=CONFIG).log().publishing.check(share(10, 1), 1, leader_epoch=0)


def test_a_failed_flush_loses_what_it_was_to_flush_and_nothing_before() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=CONFIG)
    log = broker.log()
    stage(log, attempt(1), 10)
    stage(log, attempt(2), 10, flush=False)
    disk.refuse = lambda operation, path: (
        errno.EIO if operation == "sync" and path.suffix == ".staged" else None
    )
    broker.flusher.run()
    staged = log.staging.stage(batch(0, 1, producer=attempt(3)), leader_epoch=1)
    told: list[LogbusError | None] = []
    staged.when_flushed(told.append)
    broker.flusher.run()
    disk.refuse = lambda _operation, _path: None
    assert isinstance(told[0], StorageError)
    log.publishing.check(share(10, 1), 1, leader_epoch=0)
    for lost in (share(10, 2), share(20, 1, 2)):
        with pytest.raises(StagedDataLostError):
            log.publishing.check(lost, 1, leader_epoch=0)
    with pytest.raises(StorageError):
        stage(log, attempt(2), 10, start=10)
    log.staging.discard(share(1).write)
    stage(log, attempt(4), 10)
    log.publishing.check(share(10, 4), 1, leader_epoch=0)


@pytest.mark.parametrize("survival", [Survival(), AllSurvives(), *map(RandomSurvival, range(8))])
def test_a_file_that_is_used_again_holds_one_write_after_a_crash(survival: Survival) -> None:
    for flushed in (False, True):
        disk = SimulatedDisk()
        log = Broker(files=disk, config=CONFIG).log()
        stage(log, attempt(1, write=1), *[10] * 5)
        log.staging.discard(1)
        stage(log, attempt(1, write=2), 10, 10, flush=flushed)
        disk.crash(survival)
        log = Broker(files=disk, config=CONFIG).log()
        staged = {
            write: sum(one.records for one in file.shares.values())
            for write, file in log.staging._files.items()
        }
        if flushed:
            assert staged == {2: 20}
        else:
            assert staged in ({}, {1: 50}, {2: 10}, {2: 20})
