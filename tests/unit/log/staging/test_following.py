"""Copies of what is staged at a leader, in a follower's log."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    LogbusError,
    OutOfOrderSequenceError,
    StorageError,
)
from spark_logbus.log import DecidedShare, LogConfig, PartitionLog, StagedBy, StagedPosition
from spark_logbus.record import split
from spark_logbus.record.stage_id import StageIds
from tests.builders.producers import batch
from tests.builders.record_batches import joined, record_batch
from tests.builders.staged import WRITE, attempt, producers_in, publish, share, stage
from tests.fakes.disk import AllSurvives, PowerCutError, RandomSurvival, SimulatedDisk
from tests.fakes.log_directory import Broker, offsets_from

CONFIG = LogConfig(segment_bytes=4096, index_interval_bytes=256)
BY = StagedBy("query-1", "run-1")


@pytest.fixture
def leader(tmp_path: Path) -> PartitionLog:
    return Broker(tmp_path / "leader", config=CONFIG).log()


@pytest.fixture
def follower(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "follower", config=CONFIG)


def place(log: PartitionLog, write: int = WRITE) -> StagedPosition:
    found = log.staging.position_of(write)
    return found if found is not None else StagedPosition(write, 0, 0, 0)


def pull(leader: PartitionLog, log: PartitionLog, *, max_bytes: int = 1) -> None:
    """Copies all that the leader has; drops first what it does not agree with."""
    listed = {each.write for each in leader.staging.replica_state()}
    for each in log.staging.replica_state():
        if each.write not in listed or not leader.staging.agrees(
            each.write, each.size_bytes, each.digest
        ):
            assert log.staging.drop_as_follower(each.write)
    for write in listed:
        at = place(log, write).size_bytes
        while (piece := leader.staging.read_as_replica(write, at, max_bytes=max_bytes)) is not None:
            at = log.staging.append_as_follower(write, at, memoryview(piece.read())).end


def files(log: PartitionLog) -> list[bytes]:
    return [path.read_bytes() for path in sorted(log.directory.glob("*.staged"))]


@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_it_is_the_same_file(leader: PartitionLog, follower: Broker, max_bytes: int) -> None:
    stage(leader, attempt(1), 3, 1, by=BY)
    stage(leader, attempt(2), 2, by=BY)
    log = follower.log()
    pull(leader, log, max_bytes=max_bytes)
    stage(leader, attempt(1), 5, start=4, flush=False, by=BY)
    assert place(log) != place(leader)
    pull(leader, log, max_bytes=max_bytes)
    assert files(log) == files(leader)
    assert place(log)._replace(flushed_bytes=0) == place(leader)._replace(flushed_bytes=0)
    assert place(log).flushed_bytes == 0
    log.staging.flush_as_follower()
    assert place(log).flushed_bytes == place(log).size_bytes == place(leader).size_bytes
    follower.restart()
    assert place(follower.log()) == place(log)
    assert follower.log().staging.agrees(WRITE, place(leader).size_bytes, place(leader).digest)


@pytest.mark.parametrize("restarts", [False, True])
def test_it_is_published_as_if_it_was_staged_there(
    leader: PartitionLog, follower: Broker, restarts: bool
) -> None:
    stage(leader, attempt(1), 1, 1, by=BY)
    stage(leader, attempt(2), 1, by=BY)
    pull(leader, follower.log())
    if restarts:
        follower.restart()  # which flushes nothing that is staged, but recovers it
    log = follower.log()
    log.staging.flush_as_follower()
    stage(log, attempt(2), 1, 1, start=1, by=BY)  # the write goes on at the new leader
    with pytest.raises(OutOfOrderSequenceError, match="expected its record 3"):
        stage(log, attempt(2), 1, start=5, by=BY)
    decided = share(5, 2, 1)
    log.publishing.check(decided, 1, leader_epoch=1)
    publish(log, decided)
    assert producers_in(log) == [(2, 0), (2, 1), (2, 2), (1, 0), (1, 1)]
    assert log.staging.totals == (0, 0)


def test_it_does_not_expire_before_its_decision_is_looked_up(
    leader: PartitionLog, follower: Broker
) -> None:
    stage(leader, attempt(1), 1)
    log = follower.log()
    pull(leader, log)
    follower.clock.advance(30 * 24 * 3600)
    now_us = follower.clock.now_us()
    log.staging.expire(now_us, keep=lambda *_: False, promise=None, leader_epoch=1)
    assert log.staging.holds(WRITE)
    log.staging.expire(now_us, keep=lambda *_: False, promise=1, leader_epoch=1)
    assert not log.staging.holds(WRITE)


def test_a_repeat_is_passed_over(leader: PartitionLog, follower: Broker) -> None:
    stage(leader, attempt(1), 1, 1, 1)
    log = follower.log()
    piece = leader.staging.read_as_replica(WRITE, 0, max_bytes=1 << 20)
    assert piece is not None
    data = piece.read()
    first = next(len(each) for _, each in split(data, allow_tail=False))
    append = log.staging.append_as_follower
    assert append(WRITE, 0, memoryview(data[: 2 * first])).end == 2 * first
    assert append(WRITE, 0, memoryview(data[:first])).end == 2 * first
    assert append(WRITE, first, memoryview(data[first:])).end == 3 * first
    assert append(WRITE, 0, memoryview(data)).end == 3 * first
    assert files(log) == files(leader)
    heard: list[LogbusError | None] = []
    append(WRITE, 0, memoryview(data)).when_flushed(heard.append)
    follower.flusher.run()
    assert heard == [None]


def test_what_does_not_go_on_is_refused(leader: PartitionLog, follower: Broker) -> None:
    stage(leader, attempt(1), 1, 1, 1)
    stage(leader, attempt(1, write=5), 1)
    log = follower.log()
    piece = leader.staging.read_as_replica(WRITE, 0, max_bytes=1 << 20)
    other = leader.staging.read_as_replica(5, 0, max_bytes=1 << 20)
    assert piece is not None
    assert other is not None
    data = piece.read()
    size = len(data) // 3
    append = log.staging.append_as_follower

    def refused(kind: type[LogbusError], match: str, position: int, sent: bytes) -> None:
        before = place(log)
        with pytest.raises(kind, match=match):
            append(WRITE, position, memoryview(sent))
        assert place(log) == before

    refused(InvalidRequestError, r"has 0 bytes.*go on at 0", size, data[:size])
    assert log.staging.position_of(WRITE) is None
    append(WRITE, 0, memoryview(data[:size]))
    refused(InvalidRequestError, f"go on at {size}", 2 * size, data[2 * size :])
    refused(InvalidRequestError, "differs from what is to be", 0, data[size : 2 * size])
    refused(InvalidRequestError, "differs from what is to be", 8, data[size : 2 * size])
    refused(OutOfOrderSequenceError, "expected its record 1", size, data[2 * size :])
    refused(InvalidRequestError, "is not of the write 77", size, other.read())
    refused(InvalidRequestError, "no record batch", size, b"")
    torn = bytearray(data[size : 2 * size])
    torn[-1] ^= 1
    refused(CorruptRecordBatchError, "checksum", size, bytes(torn))
    refused(CorruptRecordBatchError, "bytes", size, data[size : 2 * size - 8])
    appended = batch(1, producer=attempt(1))
    appended[0:8] = (7).to_bytes(8, "little")
    refused(InvalidRequestError, "not as staged: it has offset 7", size, bytes(appended))
    append(WRITE, size, memoryview(data[size:]))
    assert place(log).digest == place(leader).digest


def test_a_write_without_a_writer_that_went_on_under_another_leader_is_copied_from_its_beginning(
    leader: PartitionLog, follower: Broker
) -> None:
    """The epoch of whoever led is in the place of the writer's mark."""
    stage(leader, attempt(1), 1)
    leader.staging.stage(joined(batch(1, 1, producer=attempt(1))), leader_epoch=2)
    log = follower.log()
    pull(leader, log, max_bytes=1 << 20)
    assert files(log) == files(leader)
    follower.restart()
    log = follower.log()
    assert place(log).digest == place(leader).digest
    stage(log, attempt(1), 1, start=2)
    publish(log, share(3, 1))
    assert offsets_from(log, 0) == [0, 1, 2]


def test_a_file_of_one_writer_is_not_gone_on_with_by_nobody(
    leader: PartitionLog, follower: Broker
) -> None:
    stage(leader, attempt(1), 1, by=BY)
    marked = leader.staging.read_as_replica(WRITE, 0, max_bytes=1 << 20)
    assert marked is not None
    first, second = bytes(marked.read()), bytes(batch(1, 1, producer=attempt(1)))
    for both in (first + second, second + first):
        with pytest.raises(InvalidRequestError, match="not as staged: it has offset 0 and mark"):
            follower.log().staging.append_as_follower(WRITE, 0, memoryview(both))


def test_a_file_that_takes_the_place_of_a_failed_one_takes_no_other_files_name(
    leader: PartitionLog, follower: Broker
) -> None:
    stage(leader, attempt(1, write=5), 1)
    stage(leader, attempt(1), 1)
    log = follower.log()
    pull(leader, log)
    leader.staging.discard(5)
    pull(leader, log)  # its file is free for another write
    log.staging.flush_as_follower()
    renew(leader, log)
    stage(leader, attempt(1, write=6), 1)
    pull(leader, log)
    log.staging.flush_as_follower()
    follower.restart()
    for write in (WRITE, 6):
        assert place(follower.log(), write).digest == place(leader, write).digest != 0


def test_a_write_under_the_same_number_is_another(leader: PartitionLog, follower: Broker) -> None:
    stage(leader, attempt(1), 1, 1)
    log = follower.log()
    pull(leader, log)
    old = place(log)
    assert leader.staging.agrees(*old[:2], old.digest)
    leader.staging.discard(WRITE)
    assert not leader.staging.agrees(*old[:2], old.digest)
    assert leader.staging.replica_state() == []
    assert leader.staging.read_as_replica(WRITE, 0, max_bytes=99) is None
    stage(leader, attempt(2), 1, 1, 1)
    assert not leader.staging.agrees(*old[:2], old.digest)
    assert leader.staging.agrees(WRITE, 0, 0)
    pull(leader, log)
    assert place(log).digest == place(leader).digest
    leader.staging.discard(WRITE)
    pull(leader, log)
    assert log.staging.replica_state() == []
    stage(log, attempt(3), 1)  # it was dropped, and is not over


def test_a_file_with_more_than_the_leader_has_agrees_with_no_part_of_it(
    leader: PartitionLog, follower: Broker
) -> None:
    stage(leader, attempt(1), 1)
    log = follower.log()
    pull(leader, log)
    stage(log, attempt(1), 1, start=1)
    position = place(log)
    assert not leader.staging.agrees(WRITE, position.size_bytes, position.digest)
    assert log.staging.agrees(WRITE, place(leader).size_bytes, place(leader).digest)
    with pytest.raises(InvalidRequestError, match="No record batch of the write 77"):
        log.staging.read_as_replica(WRITE, 8, max_bytes=99)


@pytest.mark.parametrize(
    "survival", [AllSurvives, *(lambda n=n: RandomSurvival(n) for n in (1, 2, 3))]
)
def test_after_a_crash_it_goes_on_with_what_is_left(
    leader: PartitionLog, survival: Callable[[], RandomSurvival]
) -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=CONFIG)
    stage(leader, attempt(1), *[1] * 10)
    pull(leader, broker.log())
    broker.log().staging.flush_as_follower()
    stage(leader, attempt(2), *[1] * 10)
    pull(leader, broker.log())
    flushed = place(broker.log()).flushed_bytes
    disk.crash(survival())
    broker.start()
    assert flushed <= place(broker.log()).size_bytes <= place(leader).size_bytes
    pull(leader, broker.log())
    assert place(broker.log()).digest == place(leader).digest
    broker.log().staging.flush_as_follower()
    publish(broker.log(), share(20, 1, 2))
    assert offsets_from(broker.log(), 0) == list(range(20))


def cut_back(leader: PartitionLog, log: PartitionLog) -> None:
    """Cuts the follower's file back to what the leader has too, and goes on from there."""
    log.staging.cut_back_as_follower(WRITE, leader.staging.points(WRITE))
    pull(leader, log)


def renew(_: PartitionLog, log: PartitionLog) -> None:
    """Has the follower go on in a new file, as after a failed flush."""
    file = log.staging.file_of(WRITE)
    assert file is not None
    file.fail(StorageError("The disk is failing."))
    log.staging.renew_as_follower()
    assert log.staging.file_of(WRITE) is not file


@pytest.mark.parametrize("change", [cut_back, renew])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_prepared_outlives_a_power_cut_at_each_step_of_a_change(
    leader: PartitionLog,
    tmp_path: Path,
    change: Callable[[PartitionLog, PartitionLog], None],
    seed: int,
) -> None:
    stage(leader, attempt(1), 2, 1, 1)
    prepared = place(leader)
    elected = Broker(tmp_path / "elected", config=CONFIG).log()
    pull(leader, elected)
    stage(elected, attempt(3), 1, 1)
    for number in count():
        disk = SimulatedDisk()
        broker = Broker(files=disk, config=CONFIG)
        pull(leader, broker.log())
        stage(broker.log(), attempt(2), 1, 1)  # which the leader has not
        broker.log().staging.flush_as_follower()
        disk.cut_power_at = len(disk.operations) + number
        was_cut = False
        try:
            change(elected, broker.log())
        except PowerCutError:
            was_cut = True
        disk.crash(RandomSurvival(seed) if seed else AllSurvives())
        broker.start()
        assert broker.log().staging.totals.writes == 1
        assert broker.log().staging.agrees(WRITE, prepared.size_bytes, prepared.digest)
        cut_back(elected, broker.log())
        assert place(broker.log()).digest == place(elected).digest
        broker.log().staging.flush_as_follower()
        broker.restart()
        assert place(broker.log()).digest == place(elected).digest
        publish(broker.log(), share(4, 1))
        assert offsets_from(broker.log(), 0) == [0, 2, 3]
        if not was_cut:
            break
    assert number >= 4, "the power was cut at each of some steps"


@pytest.mark.parametrize("dies", ["half way", "at the end"])
def test_an_elected_follower_knows_all_that_it_has_of_a_write_of_many_tasks(
    leader: PartitionLog, follower: Broker, dies: str
) -> None:
    """A log that has led before forgets producers of which there are too many. Whoever leads next
    would append what it has forgotten for the second time."""
    tasks = 1_500
    follower.append(record_batch(1))
    leader.append_as_leader(record_batch(1), leader_epoch=0)
    for task in range(tasks):
        stage(leader, attempt(task), 1, flush=False)
    leader.staging.flush_as_follower()
    log = follower.log()
    pull(leader, log, max_bytes=1 << 20)
    log.staging.flush_as_follower()
    decided = DecidedShare(StageIds(WRITE, [(0, tasks - 1)]), tasks)
    leader.publishing.publish(decided, leader_epoch=1)
    end = 1 + tasks if dies == "at the end" else 1 + 1_200
    while (offset := log.ends().log_end_offset) < end:
        piece = leader.read_as_replica(offset, max_bytes=1)
        assert piece is not None
        log.append_as_follower(memoryview(bytearray(piece.read())))
    if dies == "at the end":
        log.staging.drop_as_follower(WRITE)  # which the leader has no more
    log.publishing.expect(decided)
    publish(log, decided)
    assert log.ends().log_end_offset == 1 + tasks
    assert offsets_from(log, 0) == list(range(1 + tasks))


def test_a_full_disk_takes_nothing(leader: PartitionLog) -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=CONFIG)
    stage(leader, attempt(1), 1)
    pull(leader, broker.log())
    before = place(broker.log())
    stage(leader, attempt(1), 1, start=1)
    disk.capacity = disk.used() + 10
    with pytest.raises(StorageError):
        pull(leader, broker.log())
    assert place(broker.log()) == before
    disk.capacity = None
    pull(leader, broker.log())
    assert place(broker.log()).digest == place(leader).digest
