"""A follower's log: record batches as the leader stamped them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    LogbusError,
    PartitionOfflineError,
)
from spark_logbus.log import LogConfig, PartitionLog
from spark_logbus.record import HEADER_SIZE, checksum, stamp
from spark_logbus.record import format as fmt
from tests.builders.producers import A, B, batch
from tests.builders.record_batches import joined, record_batch
from tests.fakes.clock import NOW_US
from tests.fakes.log_directory import Broker, batches_from, offsets_from

CONFIG = LogConfig(segment_bytes=2048, index_interval_bytes=256, retention_ms=None)


@pytest.fixture
def leader(tmp_path: Path) -> Broker:
    """Leader's log of several segments and epochs, with records of two producers."""
    leader = Broker(tmp_path / "leader", config=CONFIG)
    for number in range(60):
        data = batch(number // 2, producer=A if number % 2 else B)
        leader.log().append_as_leader(data, leader_epoch=2 + number // 20)
        leader.clock.advance(1)
    leader.log().flush()
    return leader


@pytest.fixture
def follower(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "follower", config=CONFIG)


def stamped(data: memoryview, base_offset: int, *, epoch: int = 5) -> memoryview:
    stamp(data, base_offset=base_offset, leader_epoch=epoch, append_time_us=NOW_US)
    return data


def follow(log: PartitionLog, leader: PartitionLog) -> None:
    for _, data in batches_from(leader, 0):
        log.append_as_follower(memoryview(bytearray(data)))


def files_of(broker: Broker) -> dict[str, bytes]:
    kinds = (".log", ".index", ".producers")
    paths = (path for path in broker.log_path().iterdir() if path.suffix in kinds)
    return {path.name: path.read_bytes() for path in paths}


def test_all_files_are_as_the_leaders(leader: Broker, follower: Broker) -> None:
    follower.clock.jump(-3600)  # its own clock does not count
    follow(follower.log(), leader.log())
    leader.directory.close()
    follower.directory.close()
    expected = files_of(leader)
    assert len(expected) > 6
    assert files_of(follower) == expected


def test_slices_of_many_record_batches_are_taken_as_a_whole(
    leader: Broker, follower: Broker
) -> None:
    offset, log = 0, follower.log()
    while (found := leader.log().read(offset, max_bytes=700)) is not None:
        appended = log.append_as_follower(memoryview(found.read()))
        assert appended.base_offset == offset
        assert appended.append_time_us == NOW_US + (appended.end_offset - 1) * 1_000_000
        offset = appended.end_offset
    assert log.ends().log_end_offset == 60
    log.flush()
    assert offsets_from(log, 0) == list(range(60))


def test_producers_are_known_when_the_follower_leads(leader: Broker, follower: Broker) -> None:
    log = follower.log()
    follow(log, leader.log())
    again = joined(batch(28, producer=A), batch(29, producer=A))
    assert log.append_as_leader(again, leader_epoch=5).base_offsets == (57, 59)
    assert log.append_as_leader(batch(30, producer=A), leader_epoch=5).base_offset == 60


def test_an_append_is_flushed_and_seen_as_the_leaders(follower: Broker) -> None:
    log, answers = follower.log(), list[LogbusError | None]()
    appended = log.append_as_follower(stamped(record_batch(3), 0))
    log.when_flushed(appended.end_offset, answers.append)
    assert (answers, log.ends().high_watermark) == ([], 0)
    follower.flusher.run()
    assert (answers, log.ends().high_watermark) == ([None], 3)


@pytest.mark.parametrize("base_offsets", [(1,), (99,), (0, 3), (0, 1), (0, 0), (0, 2, 5)])
def test_gaps_and_overlaps_are_refused(follower: Broker, base_offsets: tuple[int, ...]) -> None:
    log = follower.log()
    data = joined(*(stamped(record_batch(2), offset) for offset in base_offsets))
    with pytest.raises(InvalidRequestError, match="does not continue it: expected base offset"):
        log.append_as_follower(data)
    assert (log.ends().log_end_offset, log.ends().size_bytes) == (0, 0)
    log.append_as_follower(stamped(record_batch(2), 0))
    with pytest.raises(InvalidRequestError, match="expected base offset 2, got 0; fetch from 2"):
        log.append_as_follower(stamped(record_batch(2), 0))


def test_epochs_that_go_back_within_an_append_are_refused(follower: Broker) -> None:
    data = joined(stamped(record_batch(), 0, epoch=4), stamped(record_batch(), 1, epoch=3))
    with pytest.raises(InvalidRequestError, match="has leader epoch 3, and the one before it 4"):
        follower.log().append_as_follower(data)
    assert follower.log().ends().log_end_offset == 0


@pytest.mark.parametrize("how", ["live", "led", "clean", "crash", "rolled"])
def test_epochs_before_the_logs_last_are_refused(follower: Broker, how: str) -> None:
    first = joined(*(stamped(record_batch(payload=bytes(80)), n, epoch=n // 4) for n in range(9)))
    follower.log().append_as_follower(first)  # the last has epoch 2
    end = 9
    if how == "led":
        end = follower.log().append_as_leader(record_batch(), leader_epoch=3).end_offset
    if how == "rolled":
        follower.clock.advance(8 * 24 * 3600)
        follower.directory.maintain()
    follower.log().flush()
    if how in ("clean", "rolled"):
        follower.restart()
    if how == "crash":
        follower.directory._lock_file = None
        follower.start()
    log = follower.log()
    with pytest.raises(InvalidRequestError, match="a leader that was replaced"):
        log.append_as_follower(stamped(record_batch(), end, epoch=2 if how == "led" else 1))
    assert log.append_as_follower(stamped(record_batch(), end, epoch=3)).base_offset == end


def test_damage_before_the_end_does_not_hold_up_a_follower(follower: Broker) -> None:
    first = joined(*(stamped(record_batch(payload=bytes(80)), n) for n in range(3)))
    follower.log().append_as_follower(first)
    follower.restart()
    path = next(follower.log_path().glob("*.log"))
    with path.open("r+b") as file:
        file.seek(2 * (HEADER_SIZE + 80))
        file.write(b"\xff" * HEADER_SIZE)
    log = follower.log()
    assert log.append_as_follower(stamped(record_batch(), 3)).base_offset == 3


def with_gaps(base_offset: int) -> memoryview:
    """A record batch of two records and ten offsets, as compaction leaves them."""
    data = record_batch(2)
    fields = list(fmt.HEADER.unpack_from(data))
    fields[6], fields[9] = fmt.HAS_OFFSET_DELTA, 9
    fmt.HEADER.pack_into(data, 0, *fields)
    fmt.CRC.pack_into(data, fmt.CRC_AT, checksum(data))
    return stamped(data, base_offset)


def test_what_the_leader_has_compacted_is_taken(follower: Broker) -> None:
    log = follower.log()
    data = joined(with_gaps(0), stamped(record_batch(), 10), with_gaps(11))
    assert log.append_as_follower(data).end_offset == 21
    log.flush()
    assert offsets_from(log, 0) == [0, 10, 11]


def test_the_topics_limits_were_the_leaders_to_check(tmp_path: Path) -> None:
    config = LogConfig(max_record_batch_bytes=128, cleanup_policy="compact")
    log = Broker(tmp_path / "data", config=config).log()
    assert log.append_as_follower(stamped(record_batch(payload=bytes(900)), 0)).end_offset == 1


@pytest.mark.parametrize("at", [HEADER_SIZE, 24, -1])
def test_damaged_record_batches_are_refused(follower: Broker, at: int) -> None:
    data = joined(stamped(record_batch(), 0), stamped(record_batch(), 1))
    data[len(data) // 2 + at if at > 0 else at] ^= 0x55
    with pytest.raises(LogbusError):
        follower.log().append_as_follower(data)
    assert follower.log().ends().log_end_offset == 0


def test_parts_of_record_batches_and_nothing_are_refused(follower: Broker) -> None:
    data = joined(stamped(record_batch(), 0), stamped(record_batch(), 1))
    for cut in (5, HEADER_SIZE, len(data) - 1):
        with pytest.raises(CorruptRecordBatchError):
            follower.log().append_as_follower(data[:cut])
    with pytest.raises(InvalidRequestError, match="no record batch"):
        follower.log().append_as_follower(data[:0])
    assert follower.log().ends().log_end_offset == 0


def test_a_log_that_is_offline_takes_nothing(follower: Broker) -> None:
    log = follower.log()
    log.abandon(PartitionOfflineError("gone"))
    with pytest.raises(PartitionOfflineError, match="gone"):
        log.append_as_follower(stamped(record_batch(), 0))


def test_a_log_that_starts_late_goes_on_from_there(follower: Broker) -> None:
    log = follower.directory.go_on(
        follower.log().topic_partition,
        topic_id=follower.log().topic_id,
        config={},
        base_offset=40,
        keep=False,
    )
    assert log.append_as_follower(stamped(record_batch(2), 40)).end_offset == 42
    log.flush()
    assert offsets_from(log, 40) == [40]
