"""A log that is cut off at its end while it is served."""

from __future__ import annotations

import errno
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import pytest

from spark_logbus.errors import (
    BelowWatermarkError,
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionOfflineError,
    StorageError,
)
from spark_logbus.log import LogConfig
from spark_logbus.log.checkpoint import read_checkpoint
from spark_logbus.log.disk import names
from tests.builders.producers import B, append, batch
from tests.builders.record_batches import record_batch
from tests.builders.staged import attempt, producers_in, publish, share, stage
from tests.fakes.clock import NOW_US
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import TP, Broker, SlowFollower, batches_from, offsets_from

# 512 bytes each, of two records: 4 to a segment, and an index entry at every second one.
PER_SEGMENT = 4
CONFIG = LogConfig(segment_bytes=2048, index_interval_bytes=1024, retention_ms=None)


def data(number: int) -> memoryview:
    return record_batch(2, payload=b"%08d" % number + bytes(424), timestamps=(number, number))


class Log:
    """Log of ``count`` record batches, with its high watermark at ``visible``."""

    def __init__(self, broker: Broker, rule: SlowFollower, *, count: int, visible: int) -> None:
        self.broker, self.rule = broker, rule
        rule.end = visible
        for number in range(count):
            broker.append(data(number))
        self.log = broker.log()
        assert self.log.ends().high_watermark == visible

    def files(self) -> list[str]:
        found = self.broker.files.names(self.broker.log_path())
        return [name for name in found if names.parse_segment(name) is not None]

    def numbers(self) -> list[int]:
        """The numbers of all record batches, once all of them are visible."""
        self.rule.end = None
        self.log.flush()
        self.log.advance_high_watermark()
        return numbers_in(self.broker)

    def path(self, base_offset: int) -> Path:
        return self.broker.log_path() / names.segment(base_offset)


def numbers_in(broker: Broker) -> list[int]:
    log = broker.log()
    return [int(each[80:88]) for _, each in batches_from(log, log.ends().log_start_offset)]


def made(path: Path, *, count: int = 14, visible: int = 0) -> Log:
    rule = SlowFollower()
    broker = Broker(path / "data", config=CONFIG, watermark=rule)
    return Log(broker, rule, count=count, visible=visible)


def simulated(*, count: int = 14, visible: int = 0) -> tuple[Log, SimulatedDisk]:
    rule, disk = SlowFollower(), SimulatedDisk()
    broker = Broker(files=disk, config=CONFIG, watermark=rule)
    return Log(broker, rule, count=count, visible=visible), disk


# -- the place of the cut -----------------------------------------------------------------


@pytest.mark.parametrize("visible", [0, 4, 8])
@pytest.mark.parametrize("batches", range(4, 15))
def test_it_ends_there_and_goes_on_from_there(tmp_path: Path, batches: int, visible: int) -> None:
    made_log = made(tmp_path, visible=visible)
    log, end = made_log.log, 2 * batches
    assert log.truncate_to(end) == end
    ends = log.ends()
    assert (ends.log_end_offset, ends.high_watermark) == (end, visible)
    assert ends.size_bytes == 512 * batches
    assert log.flushed_end == end
    made_log.broker.append(data(77), data(78))
    assert made_log.numbers() == [*range(batches), 77, 78]
    expected = [0, 8, 16, 24][: (batches + 2 + PER_SEGMENT - 1) // PER_SEGMENT]
    assert made_log.files() == [names.segment(base) for base in expected]
    made_log.broker.directory.close()
    made_log.broker.start()
    assert made_log.broker.directory.recovery.bytes_scanned == 0
    assert numbers_in(made_log.broker) == [*range(batches), 77, 78]


def test_it_is_cut_where_the_record_batch_that_holds_the_offset_begins(tmp_path: Path) -> None:
    made_log = made(tmp_path)
    assert made_log.log.truncate_to(19) == 18
    assert made_log.log.truncate_to(9) == 8
    assert made_log.numbers() == [0, 1, 2, 3]


def test_what_is_not_written_cannot_be_cut(tmp_path: Path) -> None:
    made_log = made(tmp_path)
    assert made_log.log.truncate_to(28) == 28
    assert made_log.log.truncate_to(1 << 62) == 28
    assert made_log.numbers() == list(range(14))


def test_the_log_keeps_its_start(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", config=LogConfig(segment_bytes=2048, retention_bytes=2048))
    broker.append(*map(data, range(14)))
    broker.directory.maintain()
    start = broker.log().ends().log_start_offset
    assert start > 0
    with pytest.raises(OffsetOutOfRangeError, match=f"offset {start - 1}: it starts at {start}"):
        broker.log().truncate_to(start - 1, below_watermark=True)
    with pytest.raises(OffsetOutOfRangeError):
        broker.log().truncate_to(-1)
    assert broker.log().truncate_to(start, below_watermark=True) == start
    broker.append(data(99))
    assert numbers_in(broker) == [99]
    broker.restart()
    assert numbers_in(broker) == [99]


def test_an_unflushed_tail_goes_and_what_is_kept_of_it_is_on_disk() -> None:
    made_log, disk = simulated(count=5)
    made_log.broker.append(data(5), data(6), flush=False)
    assert made_log.log.truncate_to(12) == 12
    disk.crash()
    made_log.broker.start()
    assert numbers_in(made_log.broker) == [0, 1, 2, 3, 4, 5] or made_log.rule.end == 0
    assert made_log.broker.log().ends().log_end_offset == 12


def test_times_are_found_in_what_is_left(tmp_path: Path) -> None:
    made_log = made(tmp_path)
    made_log.log.truncate_to(12)
    made_log.numbers()
    log = made_log.log
    assert [log.offset_at(time) for time in (0, 3, 4, 5, 6)] == [0, 6, 8, 10, None]
    made_log.broker.append(record_batch(2, payload=bytes(432), timestamps=(1, 1)))
    assert log.offset_at(6) is None
    made_log.broker.restart()
    assert made_log.broker.log().offset_at(5) == 10
    assert made_log.broker.log().offset_at(6) is None


# -- the high watermark, and who reads ----------------------------------------------------


def test_what_consumers_may_have_seen_goes_only_if_that_is_said(tmp_path: Path) -> None:
    made_log = made(tmp_path, visible=12)
    for offset in (11, 10, 0):
        with pytest.raises(BelowWatermarkError, match="its high watermark is 12"):
            made_log.log.truncate_to(offset)
    assert made_log.log.ends().log_end_offset == 28
    told: list[int] = []
    made_log.log.add_listener(lambda: told.append(made_log.log.ends().high_watermark))
    assert made_log.log.truncate_to(11, below_watermark=True) == 10
    assert told == [10]
    assert made_log.log.ends().high_watermark == 10
    with pytest.raises(OffsetOutOfRangeError):
        made_log.log.read(11, max_bytes=100)
    assert made_log.numbers() == [0, 1, 2, 3, 4]


def test_a_file_is_cut_in_place_behind_all_that_was_given_out(tmp_path: Path) -> None:
    made_log = made(tmp_path, visible=10)
    before = made_log.path(8).stat().st_ino
    made_log.log.truncate_to(12)
    assert made_log.path(8).stat().st_ino == before
    assert made_log.path(8).stat().st_size == 2 * 512


@pytest.mark.parametrize("at", [0, 2, 8, 10, 14])
def test_mapped_files_and_slices_stay_as_they_are(tmp_path: Path, at: int) -> None:
    made_log = made(tmp_path, count=8, visible=16)
    found = made_log.log.read(8, max_bytes=1 << 20), made_log.log.read(0, max_bytes=1 << 20)
    slices = [each for each in found if each is not None]
    before = [each.read() for each in slices]
    maps = []
    for each in slices:
        descriptor = each.file.open_again()
        maps.append(mmap.mmap(descriptor, each.position + each.length, prot=mmap.PROT_READ))
        os.close(descriptor)
    assert made_log.log.truncate_to(at, below_watermark=True) == at
    made_log.broker.append(*map(data, range(50, 60)))
    assert [each.read() for each in slices] == before
    mapped = [m[s.position : s.position + s.length] for m, s in zip(maps, slices, strict=True)]
    assert mapped == before
    assert made_log.numbers() == [*range(at // 2), *range(50, 60)]


@pytest.mark.parametrize("at", [10, 14, 16])
def test_what_a_replica_was_given_stays_too(tmp_path: Path, at: int) -> None:
    made_log = made(tmp_path, count=10, visible=0)
    log = made_log.log
    slices = [log.read_as_replica(offset, max_bytes=1 << 20) for offset in (8, 16)]
    given = [each for each in slices if each is not None]
    before = [each.read() for each in given]
    assert len(b"".join(before)) == 6 * 512
    assert log.truncate_to(at) == at
    made_log.broker.append(*map(data, range(50, 60)))
    assert [each.read() for each in given] == before
    assert made_log.numbers() == [*range(at // 2), *range(50, 60)]


# -- who waits ----------------------------------------------------------------------------


def test_who_waits_for_what_is_cut_is_told(tmp_path: Path) -> None:
    made_log = made(tmp_path, count=4)
    made_log.broker.append(data(4), data(5), flush=False)
    log = made_log.log
    heard: dict[int, LogbusError | None] = {}
    for end in (9, 10, 11, 12):
        log.when_flushed(end, partial(heard.__setitem__, end))
    assert not heard
    assert log.truncate_to(10) == 10
    assert heard[9] is heard[10] is None
    for end in (11, 12):
        assert isinstance(heard[end], NotLeaderError)
        assert "from offset 10 on were cut off" in str(heard[end])


def test_other_records_at_its_offsets_are_no_answer_to_who_asks_late(tmp_path: Path) -> None:
    made_log = made(tmp_path, count=4)
    log = made_log.log
    cut, kept = (log.append_as_leader(data(n), leader_epoch=1) for n in (4, 5))
    assert log.truncate_to(cut.base_offset) == cut.base_offset
    other = log.append_as_leader(data(6), leader_epoch=2)
    assert other.end_offset == cut.end_offset
    log.flush()
    heard: list[LogbusError | None] = []
    for each in (cut, kept, other):
        log.when_flushed(each.end_offset, heard.append, truncations=each.truncations)
    assert [type(error) for error in heard] == [NotLeaderError, NotLeaderError, type(None)]


# -- producers ----------------------------------------------------------------------------


def test_producers_are_taken_back_with_the_log(tmp_path: Path) -> None:
    rule = SlowFollower()
    rule.end = 0
    broker = Broker(tmp_path / "data", config=CONFIG, watermark=rule)
    log = broker.log()
    for sequence in range(20):
        append(log, batch(sequence), batch(sequence, producer=B))
    append(log, batch(0, epoch=1))
    log.flush()
    assert log.truncate_to(21) == 21  # A has 0 to 10, B 0 to 9
    for _ in range(2):
        log = broker.log()
        assert append(log, batch(10), batch(9, producer=B)) == (20, 19)
        with pytest.raises(OutOfOrderSequenceError, match="expected sequence 11"):
            append(log, batch(12))
        log.flush()
        broker.directory.close()
        broker.start()
    assert append(broker.log(), batch(11), batch(10, producer=B)) == (21,)


@pytest.mark.parametrize("end", [1, 5, 12, 30])
def test_a_producer_of_which_only_older_appends_are_left_is_looked_up(
    tmp_path: Path, end: int
) -> None:
    rule = SlowFollower()
    rule.end = 0
    broker = Broker(tmp_path / "data", config=CONFIG, watermark=rule)
    log = broker.log()
    for number in range(40):  # a run of its own each
        append(log, batch(number))
        append(log, batch(0, producer=number + 10))
    log.flush()
    assert log.truncate_to(2 * end) == 2 * end
    assert append(log, batch(end - 1)) == (2 * end - 2,)
    assert append(log, batch(0, producer=end + 9)) == (2 * end - 1,)
    assert append(log, batch(end)) == (2 * end,)
    assert append(log, batch(0, producer=end + 10)) == (2 * end + 1,)


def test_no_snapshot_of_producers_outlives_what_it_knows() -> None:
    made_log, disk = simulated(count=0)
    log = made_log.log
    for number in range(30):
        append(log, batch(number))
    log.flush()
    log.truncate_to(11)
    append(log, *(record_batch(1) for _ in range(30)))
    log.flush()
    disk.crash()
    made_log.broker.start()
    log = made_log.broker.log()
    assert log.ends().log_end_offset == 41
    assert append(log, batch(11)) == (41,)


# -- what is staged and published ---------------------------------------------------------


def test_a_write_that_was_cut_in_half_is_published_whole(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", config=CONFIG)
    log = broker.log()
    append(log, record_batch(1))
    log.flush()
    decided = share(30, 1, 2)
    stage(log, attempt(1), *[1] * 15)
    stage(log, attempt(2), *[1] * 15)
    end = log.publishing.publish(decided, leader_epoch=1).end
    assert log.ends().high_watermark == 1
    assert log.truncate_to(20) == 20
    with pytest.raises(NotLeaderError, match="19 are left"):
        log.publishing.finish(decided.write)
    heard: list[LogbusError | None] = []
    log.when_flushed(end, heard.append)
    log.flush()
    assert log.ends().high_watermark == 1, "what is left of the write is not to be seen yet"
    append(log, record_batch(1))
    publish(log, decided)
    places = producers_in(log)
    mask = (1 << 20) - 1
    assert [each for each in places if each[0] != mask] == [
        *((1, sequence) for sequence in range(15)),
        *((2, sequence) for sequence in range(15)),
    ]
    assert log.ends().high_watermark == log.ends().log_end_offset == 32


def test_publishing_and_truncations_take_turns(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=1024, index_interval_bytes=256, retention_ms=None)
    log = Broker(tmp_path / "data", config=config).log()  # a chunk is as long as a segment
    decided = share(120, 1, 2)
    for task in (1, 2):
        stage(log, attempt(task), *[1] * 60)
    with ThreadPoolExecutor(1) as pool:
        cuts: list[Future[int]] = []

        def cut() -> None:
            if len(cuts) < 2:
                cuts.append(pool.submit(log.truncate_to, 2))
                wait(cuts, timeout=0.2)  # it comes in between here, if it may

        log.when_written(cut)
        end = log.publishing.publish(decided, leader_epoch=1).end
        assert end == 120
        assert [each.result() for each in cuts] == [2, 2]
        log.when_written(None)
    with pytest.raises(NotLeaderError, match="2 are left"):
        log.publishing.finish(decided.write)
    publish(log, decided)
    assert producers_in(log) == [(task, number) for task in (1, 2) for number in range(60)]


def test_a_write_all_of_which_was_cut_conceals_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", config=CONFIG)
    log = broker.log()
    append(log, record_batch(1), record_batch(1))
    log.flush()
    decided = share(4, 1, 2)
    stage(log, attempt(1), 1, 1)
    stage(log, attempt(2), 1, 1)
    log.publishing.publish(decided, leader_epoch=1)
    assert log.truncate_to(2) == 2
    append(log, record_batch(1))
    log.flush()
    assert offsets_from(log, 0) == [0, 1, 2]
    publish(log, decided)
    assert offsets_from(log, 0) == list(range(7))


# -- lost and damaged offsets -------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "end", "lost"),
    [(106, 106, True), (104, 104, True), (103, 12, False), (12, 12, False), (11, 10, False)],
)
def test_ranges_that_were_given_up(tmp_path: Path, offset: int, end: int, lost: bool) -> None:
    broker = Broker(tmp_path / "data", config=CONFIG)
    broker.append(*map(data, range(6)))
    broker.log().go_on_at(104)  # where a segment begins later
    broker.append(data(50), data(51))
    log = broker.log()
    assert log.truncate_to(offset, below_watermark=True) == end
    assert bool(log.ends().lost) is lost
    broker.append(*map(data, range(60, 110)))  # past the end of the range that was lost
    for _ in range(2):
        assert broker.log().ends().log_end_offset == end + 100
        assert bool(broker.log().ends().lost) is lost
        if not lost:
            assert numbers_in(broker) == [*range(end // 2), *range(60, 110)]
        broker.directory.close()
        broker.start()


def test_what_is_damaged_goes_with_what_follows_it() -> None:
    made_log, disk = simulated(count=10, visible=0)
    broker = made_log.broker
    broker.directory.close()
    path = made_log.path(8)
    disk.flip(path, 512 + 100)  # the record batch of 10 and 11
    disk.remove(broker.path / names.CHECKPOINT)
    disk.remove(path.with_suffix(".index"))
    broker.start()
    log = broker.log()
    assert [(each.start, each.end) for each in log.damaged] == [(10, 12)]
    assert log.truncate_to(14, below_watermark=True) == 14
    assert [(each.start, each.end) for each in log.damaged] == [(10, 12)]
    assert log.truncate_to(12, below_watermark=True) == 10
    assert log.damaged == ()
    broker.append(data(60))
    made_log.log = broker.log()
    assert made_log.numbers() == [0, 1, 2, 3, 4, 60]


def test_damage_that_is_met_by_the_cut(tmp_path: Path) -> None:
    made_log, disk = simulated(count=10, visible=0)
    broker = made_log.broker
    broker.directory.close()
    disk.flip(made_log.path(8), 512)  # the base offset of the second record batch
    broker.start()
    log = broker.log()
    assert not log.damaged
    assert log.truncate_to(13, below_watermark=True) == 12
    assert [(each.start, each.end) for each in log.damaged] == [(10, 12)]


# -- the disk -----------------------------------------------------------------------------


def test_the_recovery_point_is_lowered(tmp_path: Path) -> None:
    made_log = made(tmp_path)
    broker = made_log.broker
    broker.clock.advance(60)
    broker.directory.maintain()
    assert read_checkpoint(broker.files, broker.path)[TP].recovery_point == 28
    made_log.log.truncate_to(12)
    assert read_checkpoint(broker.files, broker.path)[TP].recovery_point == 12


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "sync_directory", "rename"])
def test_a_disk_that_refuses_early_has_cut_nothing(operation: str) -> None:
    for failing in range(1, 50):
        made_log, disk = simulated(visible=20)
        calls = 0

        def refuse(done: str, _: Path, failing: int = failing) -> int | None:
            nonlocal calls
            calls += done == operation
            return errno.EIO if calls == failing else None

        disk.refuse = refuse
        try:
            made_log.log.truncate_to(11, below_watermark=True)
        except StorageError:
            disk.refuse = lambda *_: None
            if made_log.log.offline is None:
                assert made_log.log.ends().log_end_offset == 28
                assert made_log.log.ends().high_watermark == 20
                assert made_log.log.truncate_to(11, below_watermark=True) == 10
            else:
                with pytest.raises(PartitionOfflineError):
                    made_log.log.truncate_to(11, below_watermark=True)
                made_log.rule.end = None
                made_log.broker.restart()
                assert made_log.broker.log().ends().log_end_offset >= 10
                assert made_log.broker.log().truncate_to(11, below_watermark=True) == 10
            made_log.log = made_log.broker.log()
        else:
            disk.refuse = lambda *_: None
            assert failing > 1
            break
        finally:
            assert made_log.numbers() == [0, 1, 2, 3, 4]
        assert "00000000000000000008.log.tmp" not in disk.names(made_log.broker.log_path())


def test_a_full_disk_has_cut_nothing() -> None:
    made_log, disk = simulated(visible=20)
    disk.capacity = disk.used() + 100
    with pytest.raises(StorageError, match="free space"):
        made_log.log.truncate_to(14, below_watermark=True)
    assert made_log.log.ends().log_end_offset == 28
    disk.capacity = None
    assert made_log.log.truncate_to(14, below_watermark=True) == 14
    assert made_log.numbers() == list(range(7))


def test_ages_are_those_of_what_is_left(tmp_path: Path) -> None:
    rule = SlowFollower()
    rule.end = 0
    config = LogConfig(segment_bytes=1 << 20, retention_ms=3_600_000, segment_ms=3_600_000)
    broker = Broker(tmp_path / "data", config=config, watermark=rule)
    for number in range(6):
        broker.append(data(number))
        broker.clock.advance(1000)
    broker.log().truncate_to(6)
    summary = broker.log()._state.view.active.summary
    assert summary.first_append_us == NOW_US
    assert summary.last_append_us == NOW_US + 2_000_000_000
    assert summary.max_timestamp_us == 2
    broker.log().truncate_to(0)
    assert broker.log()._state.view.active.summary.last_append_us < 0
