"""A log that follows: what it reads from its leader, where it starts, what it passes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RecordBatchOverlapError,
)
from spark_logbus.log import LogConfig, PartitionLog, WantedLog
from spark_logbus.model import LostOffsets
from spark_logbus.record import split, stamp
from tests.builders.compaction import Keyed, compact_here, keyed_batch, records_in
from tests.builders.record_batches import joined, record_batch
from tests.fakes.clock import NOW_US
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, SlowFollower, ensure_one, offsets_from

# 512 bytes each: 4 to a segment, and an index entry at every second one.
CONFIG = LogConfig(segment_bytes=2048, index_interval_bytes=1024, retention_ms=None)
COMPACTED = LogConfig(
    segment_bytes=1024, cleanup_policy="compact", min_cleanable_dirty_ratio=0, retention_ms=None
)


def two_records(fill: int = 0) -> memoryview:
    return record_batch(2, payload=bytes([fill]) * 432)


@pytest.fixture
def leader(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "leader", config=CONFIG)


@pytest.fixture
def follower(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "follower", config=CONFIG)


def as_replica(log: PartitionLog, offset: int, *, max_bytes: int = 1100) -> list[int]:
    """Base offsets of all that a replica gets from ``offset`` on."""
    found = []
    while (piece := log.read_as_replica(offset, max_bytes=max_bytes)) is not None:
        for header, _ in split(piece.read(), allow_tail=False):
            found.append(header.base_offset)
            offset = header.next_offset
    return found


def catch_up(log: PartitionLog, leader: PartitionLog) -> None:
    """Follows as a broker does, but for the cutting back."""
    while True:
        end = log.ends().log_end_offset
        lost = leader.lost_at(end)
        if lost is not None:
            log.pass_over(lost.end)
            continue
        found = leader.read_as_replica(end, max_bytes=700)
        if found is None:
            break
        log.append_as_follower(memoryview(bytearray(found.read())))
    log.flush()
    log.start_from(leader.first_offset)


# -- what a replica reads -----------------------------------------------------------------


def test_a_replica_reads_up_to_what_is_written(tmp_path: Path) -> None:
    rule = SlowFollower()
    broker = Broker(tmp_path / "data", config=CONFIG, watermark=rule)
    rule.end, log = 6, broker.log()
    for number in range(14):
        broker.append(two_records(), flush=number < 9)
        assert as_replica(log, 0) == list(range(0, 2 * number + 2, 2))
        assert log.read_as_replica(2 * number + 2, max_bytes=100) is None
    assert log.ends().high_watermark == 6 < log.flushed_end < log.ends().log_end_offset
    assert as_replica(log, 21) == [20, 22, 24, 26]  # the one that holds it, and on
    assert as_replica(log, 0, max_bytes=1) == list(range(0, 28, 2))


@pytest.mark.parametrize("offset", [-1, 0, 7, 29, 1 << 62])
def test_it_is_told_the_range_that_there_is(leader: Broker, offset: int) -> None:
    leader.append(*(two_records() for _ in range(14)), flush=False)
    leader.directory.maintain()
    assert leader.log().start_from(8)
    with pytest.raises(OffsetOutOfRangeError, match="for a replica: expected 8 to 28"):
        leader.log().read_as_replica(offset, max_bytes=100)


def test_a_replica_begins_with_the_record_batch_that_holds_the_start(leader: Broker) -> None:
    leader.append(*(two_records() for _ in range(14)), flush=False)
    log = leader.log()
    leader.directory.maintain()
    assert log.first_offset == 0
    for start, first in ((8, 8), (9, 8), (11, 10), (12, 12), (24, 24)):
        log.start_from(start)
        assert log.ends().log_start_offset == start
        assert log.first_offset == first
        assert as_replica(log, first)[0] == first
    log.flush()
    log.go_on_at(100)
    log.start_from(50)  # within what was lost
    assert log.first_offset == 50
    assert log.lost_at(50) == LostOffsets(28, 100)
    log.start_from(100)
    assert log.first_offset == 100


def test_a_start_within_what_is_damaged_is_passed_over(leader: Broker) -> None:
    leader.append(*(two_records() for _ in range(6)))
    with (leader.log_path() / f"{0:020d}.log").open("r+b") as file:
        file.seek(512)
        file.write(b"\xff" * 80)
    log = leader.log()
    log.start_from(3)
    assert log.first_offset == 3
    assert log.lost_at(3) == LostOffsets(2, 4)


def test_records_of_a_write_that_is_being_published_are_sent(leader: Broker) -> None:
    """The high watermark rests before them, and the replica's with it."""
    leader.append(two_records())
    log = leader.log()
    log._state.cap_high_watermark(1, 2)
    leader.append(two_records(), two_records())
    assert log.ends().high_watermark == 2
    assert offsets_from(log, 0) == [0]
    assert as_replica(log, 0) == [0, 2, 4]
    log._state.uncap_high_watermark(1)
    assert offsets_from(log, 0) == [0, 2, 4]


@pytest.mark.parametrize("flush", [True, False])
def test_damage_is_told_of_with_its_end(leader: Broker, flush: bool) -> None:
    leader.append(*(two_records() for _ in range(6)), flush=flush)
    path = leader.log_path() / f"{8:020d}.log"
    with path.open("r+b") as file:
        file.write(b"\xff" * 80)
    log = leader.log()
    with pytest.raises(CorruptRecordBatchError, match="from offset 10 on, are readable"):
        log.read_as_replica(8, max_bytes=100)
    assert log.lost_at(9) == LostOffsets(8, 10)
    assert [log.lost_at(offset) for offset in (-5, 0, 7, 10, 12, 99)] == [None] * 6
    assert as_replica(log, 10) == [10]


def test_reads_as_replica_meet_rolls(leader: Broker) -> None:
    """The tail and the view change one after the other: whichever is seen, both fit."""
    log = leader.log()
    for _ in range(5):
        leader.append(two_records())
    old = log._writer.tail
    leader.append(*(two_records() for _ in range(3)))
    log._writer.roll_if_unchanged(16)
    now, log._writer.tail = log._writer.tail, old._replace(end_offset=16)
    assert as_replica(log, 0) == list(range(0, 16, 2))  # the view has rolled, the tail has not
    log._writer.tail = now
    assert as_replica(log, 0) == list(range(0, 16, 2))


# -- lost offsets -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 4, 5])
def test_what_the_leader_lost_is_passed_over(leader: Broker, follower: Broker, number: int) -> None:
    """The loss begins within a segment, at its end, or right after it began."""
    leader.append(*(two_records() for _ in range(number)))
    leader.log().go_on_at(100)
    leader.append(*(two_records() for _ in range(3)))
    log = follower.log()
    log_id = log.log_id
    catch_up(log, leader.log())
    for _ in range(2):
        assert log.ends().lost == leader.log().ends().lost
        assert log.ends().log_start_offset == leader.log().ends().log_start_offset
        assert log.damaged == ()
        assert offsets_from(log, 100) == [100, 102, 104]
        # A read stops before what was lost: the next one there is told of it.
        assert offsets_from(log, 0, end=2 * number) == list(range(0, 2 * number, 2))
        assert log.log_id == log_id
        follower.restart()
        log = follower.log()


def test_the_own_high_watermark_does_not_jump_over_them(tmp_path: Path) -> None:
    rule = SlowFollower()
    rule.end = 0
    broker = Broker(tmp_path / "data", config=CONFIG, watermark=rule)
    broker.append(*(two_records() for _ in range(4)))
    log = broker.log()
    rule.end = 8
    log.advance_high_watermark()
    log.pass_over(100)
    assert log.ends().high_watermark == 8
    assert offsets_from(log, 0) == [0, 2, 4, 6]
    log.pass_over(200)  # the segment that begins at 100 is empty, and goes
    assert log.ends().high_watermark == 8
    assert offsets_from(log, 0) == [0, 2, 4, 6]
    assert log.damaged == ()
    rule.end = 202
    broker.append(two_records())
    assert log.ends().high_watermark == 202
    assert offsets_from(log, 200) == [200]


@pytest.mark.parametrize("offset", [-1, 0, 3, 4, 1 << 63])
def test_nothing_is_passed_over_that_is_there(follower: Broker, offset: int) -> None:
    follower.append(two_records(), two_records())
    with pytest.raises(InvalidRequestError, match="it has come to 4,"):
        follower.log().pass_over(offset)
    assert offsets_from(follower.log(), 0) == [0, 2]


# -- the leader's start -------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(29))
def test_the_start_is_the_leaders_and_whole_segments_go(follower: Broker, offset: int) -> None:
    follower.append(*(two_records() for _ in range(14)))
    log = follower.log()
    assert log.start_from(offset) is (offset > 0)
    assert not log.start_from(offset)
    assert log.ends().log_start_offset == offset
    with pytest.raises(OffsetOutOfRangeError):
        log.read(offset - 1, max_bytes=100)
    left = offsets_from(log, offset)
    assert left == list(range(offset // 2 * 2, 28, 2))
    follower.directory.maintain()
    bases = sorted(int(path.stem) for path in follower.log_path().glob("*.log"))
    assert bases == ([28] if offset == 28 else list(range(offset // 8 * 8, 28, 8)))
    follower.restart()
    log = follower.log()
    assert log.ends().log_start_offset == offset
    assert offsets_from(log, offset) == left
    assert follower.append(two_records()) == 30


def test_it_moves_no_further_than_what_consumers_saw_and_is_flushed(tmp_path: Path) -> None:
    rule = SlowFollower()
    broker = Broker(tmp_path / "data", config=CONFIG, watermark=rule)
    rule.end = 10
    broker.append(*(two_records() for _ in range(9)))
    log = broker.log()
    assert log.start_from(14)
    assert log.ends().log_start_offset == 10
    assert not log.start_from(14)
    rule.end = 99
    log.advance_high_watermark()
    broker.append(two_records(), flush=False)
    assert log.start_from(20)
    assert log.ends().log_start_offset == 18
    assert not log.start_from(4)


def test_deletion_that_is_paused_stays_so(follower: Broker) -> None:
    follower.append(*(two_records() for _ in range(9)))
    follower.log().pause_deletion()
    assert not follower.log().start_from(10)
    assert follower.log().ends().log_start_offset == 0


def test_a_follower_deletes_nothing_by_its_own_clock(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=2048, retention_ms=1000, retention_bytes=1)
    broker = Broker(tmp_path / "data", config=config)
    wanted = WantedLog(TP, TOPIC_ID, {}, follows=True)
    log = broker.directory.ensure_all([wanted])[TP]
    assert isinstance(log, PartitionLog)
    broker.append(*(two_records() for _ in range(14)))
    broker.clock.advance(3600)
    broker.directory.maintain()
    assert log.follows
    assert log.ends().log_start_offset == 0
    assert log.start_from(9)
    broker.directory.maintain()
    assert sorted(path.name for path in broker.log_path().glob("*.log"))[0] == f"{8:020d}.log"
    ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={})  # it leads now
    assert not log.follows
    broker.directory.maintain()
    assert log.ends().log_start_offset == 28


def test_a_log_that_is_found_deletes_nothing_before_its_part_is_known(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=2048, retention_ms=1000)
    broker = Broker(tmp_path / "data", config=config)
    broker.append(*(two_records() for _ in range(14)))
    broker.directory.close()
    broker.clock.advance(3600)
    broker.start(told=False)
    broker.directory.maintain()
    broker.directory.ensure_all([WantedLog(TP, TOPIC_ID, {}, follows=True)])
    broker.directory.maintain()
    assert broker.log().ends().log_start_offset == 0


# -- logs that begin later, and over ------------------------------------------------------


def test_a_new_log_begins_where_its_leaders_does(follower: Broker) -> None:
    wanted = WantedLog(TP, TOPIC_ID, {}, follows=True, base_offset=42)
    log = follower.directory.ensure_all([wanted])[TP]
    assert isinstance(log, PartitionLog)
    data = two_records()
    stamp(data, base_offset=42, leader_epoch=3, append_time_us=NOW_US)
    assert log.append_as_follower(data).end_offset == 44
    log.flush()
    for _ in range(2):
        assert follower.log().ends().log_start_offset == 42
        assert offsets_from(follower.log(), 42) == [42]
        assert follower.log().epochs.entries == ((3, 42),)
        follower.restart()


@pytest.mark.parametrize("offset", [-1, 1 << 63])
def test_no_log_begins_at_what_is_no_offset(follower: Broker, offset: int) -> None:
    wanted = WantedLog(TP, TOPIC_ID, {}, base_offset=offset)
    found = follower.directory.ensure_all([wanted])[TP]
    assert isinstance(found, InvalidRequestError)
    with pytest.raises(InvalidRequestError, match=f"cannot begin at offset {offset}"):
        follower.directory.start_over(wanted, keep_files=False)
    assert follower.directory.get(TP) is None


@pytest.mark.parametrize("keep_files", [True, False])
@pytest.mark.parametrize("there", ["open", "missing", "short", "nothing"])
def test_a_log_starts_over(there: str, keep_files: bool) -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=CONFIG)
    if there != "nothing":
        broker.append(*(two_records() for _ in range(6)))
        log_id = broker.log().log_id
        broker.directory.close()
        for path in [broker.log_path() / name for name in disk.names(broker.log_path())]:
            if there == "missing" or (there == "short" and path.name.startswith(f"{8:020d}")):
                disk.remove(path)
        if there == "missing":
            disk.remove_directory(broker.log_path())
        broker.start(told=False)
    wanted = WantedLog(TP, TOPIC_ID, {}, follows=True, base_offset=70)
    log = broker.directory.start_over(wanted, keep_files=keep_files)
    assert broker.directory.get(TP) is log
    for _ in range(2):
        ends = log.ends()
        assert (ends.log_start_offset, ends.log_end_offset, log.epochs.entries) == (70, 70, ())
        assert there == "nothing" or log.log_id != log_id
        set_aside = [name for name in disk.names(broker.path) if ".stray" in name]
        assert len(set_aside) == (keep_files and there in ("open", "short"))
        assert not [name for name in disk.names(broker.path) if ".deleted" in name]
        broker.restart()
        log = broker.log()
    assert broker.append(two_records()) == 72


def test_the_log_of_another_topic_is_not_deleted(follower: Broker) -> None:
    follower.append(two_records())
    wanted = WantedLog(TP, "f" * 32, {}, base_offset=7)
    follower.directory.start_over(wanted, keep_files=False)
    assert follower.log().topic_id == "f" * 32
    assert (follower.path / f"{TOPIC_ID}-0.stray").is_dir()


# -- compaction ---------------------------------------------------------------------------


def keyed_leader(path: Path, *, epochs: int = 3) -> Broker:
    """A log of small record batches in several epochs; each key comes again and again."""
    leader = Broker(path, config=COMPACTED)
    for epoch in range(1, epochs + 1):
        for number in range(12):
            key = b"%d" % (number % 5)
            leader.log().append_as_leader(
                keyed_batch(Keyed(key, b"%d-%d" % (epoch, number))), leader_epoch=epoch
            )
            leader.clock.advance(1)
    leader.log().flush()
    return leader


def test_a_compacted_log_is_copied_with_its_gaps(tmp_path: Path) -> None:
    leader = keyed_leader(tmp_path / "leader")
    expected = leader.log().epochs
    assert compact_here(leader.log(), leader.clock.now_us()) is not None
    records = records_in(leader.log())
    assert len(records) < 20
    follower = Broker(tmp_path / "follower", config=COMPACTED)
    catch_up(follower.log(), leader.log())
    for _ in range(2):
        log = follower.log()
        assert records_in(log) == records
        assert log.damaged == ()
        end = log.ends().log_end_offset
        assert end == leader.log().ends().log_end_offset
        # No epoch ends earlier for the leader than its follower believes to have records of it.
        answer = expected.end_of(log.epochs.latest, end)
        assert (answer.epoch, answer.end_offset) == (log.epochs.latest, end)
        follower.restart()


def test_whatever_the_follower_has_by_then_it_does_not_seem_to_diverge(tmp_path: Path) -> None:
    """Epochs of which compaction left nothing are those of what stands in their place."""
    leader = Broker(tmp_path / "leader", config=COMPACTED)
    for epoch, key in ((1, b"a"), (2, b"b"), (3, b"b"), (4, b"b"), (7, b"c"), (8, b"c")):
        for number in range(4):
            value = bytes([number]) * 200
            leader.log().append_as_leader(keyed_batch(Keyed(key, value)), leader_epoch=epoch)
        leader.clock.advance(1)
    leader.log().flush()
    assert compact_here(leader.log(), leader.clock.now_us()) is not None
    assert len(records_in(leader.log())) < 8
    follower = Broker(tmp_path / "follower", config=COMPACTED)
    log, end = follower.log(), leader.log().ends().log_end_offset
    while (
        found := leader.log().read_as_replica(log.ends().log_end_offset, max_bytes=1)
    ) is not None:
        log.append_as_follower(memoryview(bytearray(found.read())))
        answer = leader.log().epochs.end_of(log.epochs.latest, end)
        assert answer.epoch == log.epochs.latest
        assert answer.end_offset >= log.ends().log_end_offset


def test_a_follower_within_what_was_joined_is_told_where_to_cut(tmp_path: Path) -> None:
    leader = keyed_leader(tmp_path / "leader")
    follower = Broker(tmp_path / "follower", config=COMPACTED)
    log = follower.log()
    while log.ends().log_end_offset < 9:
        found = leader.log().read_as_replica(log.ends().log_end_offset, max_bytes=1)
        assert found is not None
        log.append_as_follower(memoryview(bytearray(found.read())))
    assert compact_here(leader.log(), leader.clock.now_us()) is not None
    found = leader.log().read_as_replica(9, max_bytes=1)
    assert found is not None
    data = memoryview(bytearray(found.read()))
    (header, _), *_ = split(data, allow_tail=False)
    assert header.base_offset < 9 < header.next_offset
    with pytest.raises(RecordBatchOverlapError, match="ends at offset 9, within") as raised:
        log.append_as_follower(data)
    assert raised.value.base_offset == raised.value.again().base_offset == header.base_offset
    assert log.ends().log_end_offset == 9


def test_compaction_and_retention_stay_below_a_followers_high_watermark(tmp_path: Path) -> None:
    rule = SlowFollower()
    rule.end = 0
    follower = Broker(tmp_path / "follower", config=COMPACTED, watermark=rule)
    leader = keyed_leader(tmp_path / "leader")
    log = follower.directory.ensure_all([WantedLog(TP, TOPIC_ID, {}, follows=True)])[TP]
    assert isinstance(log, PartitionLog)
    catch_up(log, leader.log())
    now_us = follower.clock.now_us() + 3600 * 1_000_000
    assert log.compaction.plan(now_us) is None
    rule.end = 17
    log.advance_high_watermark()
    plan = log.compaction.plan(now_us)
    assert plan is not None
    assert 0 < plan.groups[-1].end_offset <= 17
    assert compact_here(log, now_us) is not None
    assert as_replica(log, 17)[0] <= 17


def test_a_joined_append_over_epochs_notes_each(follower: Broker) -> None:
    pieces = [two_records() for _ in range(4)]
    for number, (piece, epoch) in enumerate(zip(pieces, (1, 1, 2, 5), strict=True)):
        stamp(piece, base_offset=2 * number, leader_epoch=epoch, append_time_us=NOW_US)
    follower.log().append_as_follower(joined(*pieces))
    assert follower.log().epochs.entries == ((1, 0), (2, 4), (5, 6))
