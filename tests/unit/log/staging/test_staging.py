"""Staged records: kept, published, discarded and expired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_logbus.errors import (
    InvalidRequestError,
    LimitExceededError,
    NotLeaderError,
    OutOfOrderSequenceError,
    StagedDataLostError,
    StorageError,
    WriteFencedError,
)
from spark_logbus.log import LogConfig
from spark_logbus.log.closed_writes import ClosedWrites
from spark_logbus.log.staged_batches import StagedBatches
from spark_logbus.log.staging.staging import MAX_WRITES
from spark_logbus.record import HEADER_SIZE, stamp, stamp_producer
from spark_logbus.record.stage_id import write_of
from tests.builders.expiring import expire
from tests.builders.producers import batch
from tests.builders.record_batches import record_batch
from tests.builders.staged import WRITE, attempt, producers_in, publish, share, stage
from tests.fakes.clock import NOW_US, SECOND
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import Broker, batches_from, offsets_from


def test_staged_records_are_seen_when_they_are_published(broker: Broker) -> None:
    log = broker.log()
    broker.append(record_batch(2))
    stage(log, attempt(1), 3, 1)
    assert offsets_from(log, 0) == [0]
    assert log.ends().log_end_offset == 2
    publish(log, share(4, 1))
    assert offsets_from(log, 0) == [0, 2, 5]
    assert log.staging.totals == (0, 0)
    broker.append(record_batch(1))
    assert offsets_from(log, 0) == [0, 2, 5, 6]


def test_attempts_are_published_in_the_order_of_their_tasks(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), 1)
    stage(log, attempt(2), 1)
    stage(log, attempt(1), 1, start=1)
    stage(log, attempt(3), 1)
    stage(log, attempt(2), 1, start=1)
    publish(log, share(4, 2, 1))
    assert producers_in(log) == [(2, 0), (2, 1), (1, 0), (1, 1)]


def test_what_was_published_is_not_published_again(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), 1, 1)
    publish(log, share(2, 1))
    publish(log, share(2, 1))
    broker.restart()
    log = broker.log()
    log.publishing.expect(share(2, 1))
    publish(log, share(2, 1))
    assert offsets_from(log, 0) == [0, 1]


def test_a_repeated_staging_stages_nothing_twice(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), 2, 1)
    stage(log, attempt(1), 2, 1)
    stage(log, attempt(1), 1, 1, start=2)
    publish(log, share(4, 1))
    assert offsets_from(log, 0) == [0, 2, 3]


def test_a_gap_in_an_attempt_is_refused(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), 2)
    with pytest.raises(OutOfOrderSequenceError, match="expected its record 2, got 3"):
        stage(log, attempt(1), 1, start=3)
    with pytest.raises(OutOfOrderSequenceError, match="expected its record 0, got 1"):
        stage(log, attempt(2), 1, start=1)


def test_only_attempts_stage(broker: Broker) -> None:
    with pytest.raises(InvalidRequestError, match="producer id"):
        broker.log().staging.stage(record_batch(1), leader_epoch=1)
    with pytest.raises(InvalidRequestError, match="one attempt"):
        broker.log().staging.stage(batch(0, producer=attempt(1), epoch=1), leader_epoch=1)


def test_a_share_that_is_not_there_is_not_decided(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), 2)
    log.publishing.check(share(2, 1), 1, leader_epoch=0)
    for other in (share(3, 1), share(1, 1), share(2, 2), share(2, 1, write=1)):
        with pytest.raises(StagedDataLostError):
            log.publishing.check(other, 1, leader_epoch=0)
        with pytest.raises(StagedDataLostError):
            log.publishing.publish(other, leader_epoch=1)
    assert offsets_from(log, 0) == []


def test_staged_records_outlive_a_restart(broker: Broker) -> None:
    stage(broker.log(), attempt(1), 2)
    stage(broker.log(), attempt(2), 1)
    broker.restart()
    stage(broker.log(), attempt(2), 1, start=1)
    publish(broker.log(), share(4, 1, 2))
    assert producers_in(broker.log()) == [(1, 0), (2, 0), (2, 1)]


def test_writes_do_not_meet(broker: Broker) -> None:
    log = broker.log()
    for write in (1, 2, 3):
        stage(log, attempt(1, write=write), write)
    assert log.staging.discard(2)
    assert not log.staging.discard(2)
    publish(log, share(3, 1, write=3))
    publish(log, share(1, 1, write=1))
    assert offsets_from(log, 0) == [0, 3]
    assert log.staging.totals == (0, 0)


def test_what_was_discarded_cannot_be_gone_on_with(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), 1)
    log.staging.discard(attempt(1) >> 20)
    with pytest.raises(OutOfOrderSequenceError, match="discarded"):
        stage(log, attempt(1), 1, start=1)


def test_late_attempts_of_a_write_that_has_ended_stage_nothing(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), 1)
    stage(log, attempt(7, write=2), 1)
    broker.directory.closed_writes.add(write_of(attempt(1)))
    with pytest.raises(WriteFencedError, match="is over: it was committed without this attempt"):
        stage(log, attempt(1), 1, start=1)
    with pytest.raises(WriteFencedError):
        stage(log, attempt(3), 1)
    publish(log, share(1, 1))  # what was there before counts
    assert log.staging.totals.writes == 1
    stage(log, attempt(7, write=2), 1, start=1)


def test_of_writes_that_ended_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_logbus.log.closed_writes._REMEMBERED", 2)
    ended = ClosedWrites()
    for write in (1, 2, 1, 3):
        ended.add(write)
    assert [ended.is_closed(write, None) for write in (1, 2, 3)] == [True, False, True]


def test_what_nobody_commits_expires(broker: Broker) -> None:
    log = broker.log()
    log.configure(LogConfig(staging_retention_ms=60_000))
    stage(log, attempt(1), 1)
    broker.clock.advance(50)
    stage(log, attempt(1, write=2), 1)
    broker.clock.advance(20)
    expire(broker)
    assert log.staging.totals.writes == 1
    assert broker.directory.stats.staged_expired.value == 1
    log.publishing.check(
        share(1, 1, write=2), 1, leader_epoch=0
    )  # which keeps it for another while
    broker.clock.advance(50)
    expire(broker)
    assert log.staging.totals.writes == 1
    broker.clock.advance(20)
    expire(broker)
    assert log.staging.totals.writes == 0


@pytest.mark.parametrize("days", [-20_000, 400])
def test_what_is_prepared_under_a_wrong_clock_is_kept_for_as_long(
    broker: Broker, days: int
) -> None:
    log, time = broker.log(), broker.directory.clock.time
    log.configure(LogConfig(staging_retention_ms=60_000))
    stage(log, attempt(1), 1)
    broker.clock.advance(50)
    broker.clock.jump(days * 86_400)
    time.now_us()
    log.publishing.check(share(1, 1), 1, leader_epoch=0)
    broker.clock.jump(-days * 86_400)
    broker.clock.advance(20)
    log.staging.expire(time.now_us(), keep=lambda *_: False, promise=99, leader_epoch=1)
    assert log.staging.totals.writes == 1


def test_a_decided_write_does_not_expire(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), 1)
    stage(log, attempt(1, write=2), 1)
    log.publishing.expect(share(1, 1))
    broker.clock.advance(10 * 86_400)
    expire(broker, share(1, write=2).write)
    publish(log, share(1, 1, write=2))
    publish(log, share(1, 1))
    assert offsets_from(log, 0) == [0, 1]


def test_a_full_disk_keeps_what_is_staged_for_minutes_only() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    log = broker.log()
    broker.append(record_batch(1))  # its leader epoch needs no more room from here on
    stage(log, attempt(1, write=1), 10)
    broker.clock.advance(601)
    stage(log, attempt(1, write=2), 10)
    expire(broker)
    assert log.staging.totals.writes == 2
    disk.capacity = disk.used()
    with pytest.raises(StorageError):
        broker.append(record_batch(1))
    expire(broker)
    assert log.staging.totals.writes == 1
    broker.append(record_batch(1))
    log.publishing.check(share(10, 1, write=2), 1, leader_epoch=0)
    broker.clock.advance(700)
    expire(broker)
    assert log.staging.totals.writes == 1  # it was not full of late


def test_the_writes_of_a_partition_are_bounded(broker: Broker) -> None:
    log = broker.log()
    for write in range(MAX_WRITES):
        stage(log, attempt(1, write=write), 1, flush=False)
    with pytest.raises(LimitExceededError, match="500 writes"):
        stage(log, attempt(1, write=MAX_WRITES), 1)
    stage(log, attempt(2, write=3), 1)
    log.staging.discard(7)
    stage(log, attempt(1, write=MAX_WRITES), 1)


def test_a_file_that_was_just_taken_does_not_expire(broker: Broker) -> None:
    """Its first record batch is being written: there is nothing in it, and it is not old."""
    log = broker.log()
    file = log.staging._file_for(share(1).write)
    expire(broker)
    assert file.write == share(1).write
    stage(log, attempt(1), 1)
    log.publishing.check(share(1, 1), 1, leader_epoch=0)


def test_an_append_that_comes_first_keeps_its_file(broker: Broker) -> None:
    """The file goes with an attempt's records only if there are no others by then."""
    log = broker.log()
    stage(log, attempt(1), 1)
    stage(log, attempt(2), 1)
    log.staging.discard_attempt(attempt(1), None, leader_epoch=1)
    log.publishing.check(share(1, 2), 1, leader_epoch=0)
    assert not log.staging.discard(share(1).write, lambda file: not file.shares)
    log.publishing.check(share(1, 2), 1, leader_epoch=0)
    log.staging.discard_attempt(attempt(2), 99, leader_epoch=1)
    assert log.staging.totals == (0, 0)


def test_what_comes_late_of_a_discarded_attempt_costs_no_other_anything(broker: Broker) -> None:
    """A recovery takes a file up to where an attempt does not go on."""
    log = broker.log()
    stage(log, attempt(1), 1)
    stage(log, attempt(2), 1)
    log.staging.discard_attempt(attempt(1), 1, leader_epoch=1)
    with pytest.raises(WriteFencedError, match="was discarded"):
        stage(log, attempt(1), 1)
    stage(log, attempt(2), 1, start=1)
    log.publishing.check(share(2, 2), 1, leader_epoch=1)
    broker.restart()
    log = broker.log()
    publish(log, share(2, 2))
    assert producers_in(log) == [(2, 0), (2, 1)]


def test_a_lost_write_hides_no_later_records(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = broker.log()
    stage(log, attempt(1), *[30] * 60)
    stage(log, attempt(2), *[30] * 60)
    copy = log._writer.append_copied

    def only_the_first(staged: StagedBatches, leader_epoch: int) -> None:
        if staged.producer_id == attempt(2):
            raise StorageError("The disk is full.")
        copy(staged, leader_epoch)

    monkeypatch.setattr(log._writer, "append_copied", only_the_first)
    with pytest.raises(StorageError):
        log.publishing.publish(share(3600, 1, 2), leader_epoch=1)
    broker.append(record_batch(1))
    assert log.ends().high_watermark == 0
    log.publishing.settle({share(1).write: share(1)})
    assert log.ends().high_watermark == 1801


def test_files_are_used_again_and_removed_when_idle(broker: Broker) -> None:
    log = broker.log()

    def files() -> list[str]:
        return [path.name for path in broker.log_path().glob("*.staged")]

    for write in range(5):
        stage(log, attempt(1, write=write), 1)
        publish(log, share(1, 1, write=write))
    assert files() == ["0000000000000000.staged"]
    broker.clock.advance(61)
    expire(broker)
    assert files() == []
    stage(log, attempt(1, write=9), 1)
    assert files() == ["0000000000000000.staged"]


def test_large_record_batches_are_copied_as_they_are(broker: Broker) -> None:
    log = broker.log()
    log.configure(LogConfig(segment_bytes=1 << 20, max_record_batch_bytes=1 << 20))
    broker.append(record_batch(2))
    payloads = [bytes([number]) * 300_000 for number in range(5)]
    for number, payload in enumerate(payloads):
        data = record_batch(1, payload=payload)
        stamp_producer(data, producer_id=attempt(1), producer_epoch=0, base_sequence=number)
        log.staging.stage(data, leader_epoch=1).file.flush()
    publish(log, share(5, 1))
    seen = list(batches_from(log, 2, max_bytes=1))
    assert [header.base_offset for header, _ in seen] == [2, 3, 4, 5, 6]
    assert [data[HEADER_SIZE:][:300_000] for _, data in seen] == payloads
    assert {(header.leader_epoch, header.append_time_us) for header, _ in seen} == {(1, NOW_US)}
    assert log.segment_count > 1
    broker.restart()
    assert offsets_from(broker.log(), 0) == [0, 2, 3, 4, 5, 6]


def test_published_records_are_as_any_others(broker: Broker) -> None:
    log = broker.log()
    late = record_batch(2, timestamps=(NOW_US, NOW_US + 5 * SECOND))
    stamp_producer(late, producer_id=attempt(1), producer_epoch=0, base_sequence=0)
    broker.append(record_batch(2))
    log.staging.stage(late, leader_epoch=1).file.flush()
    before = log.appended
    publish(log, share(2, 1))
    assert log.offset_at(NOW_US + SECOND) == 2
    assert log.appended == (before.record_batches + 1, before.records + 2,
                            before.size_bytes + len(late))  # fmt: skip
    broker.clock.advance(8 * 86_400)
    broker.directory.maintain()
    assert log.ends().log_start_offset == 4


def test_a_published_share_may_fill_several_segments(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), *[30] * 60)
    stage(log, attempt(2), *[30] * 60)
    before = log.segment_count
    publish(log, share(3600, 1, 2))
    assert log.segment_count > before + 1
    assert offsets_from(log, 0) == list(range(0, 3600, 30))


def test_nothing_is_seen_before_all_is(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    log = broker.log()
    stage(log, attempt(1), *[30] * 60)
    stage(log, attempt(2), *[30] * 60)
    copy = log._writer.append_copied
    seen: list[int] = []

    def with_others_between(staged: StagedBatches, leader_epoch: int) -> None:
        copy(staged, leader_epoch)
        broker.append(record_batch(1))
        seen.append(log.ends().high_watermark)
        assert log.flushed_end == log.ends().log_end_offset

    monkeypatch.setattr(log._writer, "append_copied", with_others_between)
    end = log.publishing.publish(share(3600, 1, 2), leader_epoch=1).end
    assert seen == [0] * len(seen)
    assert len(seen) > 1
    assert log.ends().high_watermark == end == 3600 + len(seen)


@pytest.mark.parametrize("counts", [(30,) * 60, (10, 10)])
def test_a_published_write_is_seen_when_all_replicas_have_it(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    others = [0]
    broker = Broker(tmp_path / "data", watermark=lambda _, end: min(end, *others))
    broker.append(record_batch(1))
    others[0] = 1
    broker.log().advance_high_watermark()
    log, records = broker.log(), sum(counts)
    stage(log, attempt(1), *counts)
    assert log.publishing.publish(share(records, 1), leader_epoch=1).end == 1 + records
    broker.append(record_batch(1))
    assert log.flushed_end == records + 2
    for others[0] in (1, 1 + counts[0], records):
        log.advance_high_watermark()
        assert log.ends().high_watermark == 1
        assert log.replication.end == others[0]
    log.publishing.settle({share(1).write: share(1)})  # which is over for all others
    assert log.ends().high_watermark == 1
    for others[0] in (1 + records, 2 + records):
        log.advance_high_watermark()
        assert log.ends().high_watermark == others[0]


@pytest.mark.parametrize("has_all", [True, False])
def test_a_leader_shows_all_or_nothing_of_a_write_that_it_has_copied(
    tmp_path: Path, has_all: bool
) -> None:
    """A new leader's watermark lags, and other replicas have less of the log than it has."""
    others = [1]
    broker = Broker(tmp_path / "data", watermark=lambda _, end: min(end, *others))
    batches = [batch(10 * n, 10, producer=attempt(1)) for n in range(3)]
    log, offset = broker.log(), 1
    broker.append(record_batch(1))
    for each in batches if has_all else batches[:2]:
        copied = memoryview(bytearray(each))
        stamp(copied, base_offset=offset, leader_epoch=1, append_time_us=1)
        log.append_as_follower(copied)
        offset += 10
    log.flush()
    log.publishing.expect(share(30, 1))
    for others[0] in (11, 21):
        log.advance_high_watermark()
        assert log.ends().high_watermark == 1
    others[0] = 31
    log.advance_high_watermark()
    assert log.ends().high_watermark == (31 if has_all else 1)


def test_many_later_producers_do_not_make_the_log_forget(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), 1)
    publish(log, share(1, 1))
    for producer in range(1, 1500):
        broker.append(batch(0, producer=producer), flush=False)
    broker.restart()
    log = broker.log()
    log.publishing.expect(share(1, 1))
    for producer in range(2000, 3500):
        broker.append(batch(0, producer=producer), flush=False)
    publish(log, share(1, 1))
    assert log.ends().log_end_offset == 1 + 1499 + 1500
    log.publishing.settle({share(1).write: share(1)})
    with pytest.raises(StagedDataLostError):
        log.publishing.publish(share(1, 1), leader_epoch=1)


def test_what_was_prepared_is_dropped_only_when_the_promise_was_let_go(broker: Broker) -> None:
    log = broker.log()
    log.configure(LogConfig(staging_retention_ms=60_000))
    stage(log, attempt(1), 1)
    log.publishing.check(share(1, 1), 1, leader_epoch=0)
    broker.clock.advance(10 * 86_400)
    now_us = broker.clock.now_us()
    assert log.staging.has_expired_promises(now_us, 1)
    assert not log.staging.has_expired_promises(now_us, 2)
    for promise in (None, 1):
        log.staging.expire(now_us, keep=lambda *_: False, promise=promise, leader_epoch=1)
        log.staging.discard_undecided(share(1).write, promise, leader_epoch=1)
        log.staging.discard_attempt(attempt(1), promise, leader_epoch=1)
        log.publishing.check(share(1, 1), 1, leader_epoch=0)
        broker.clock.advance(10 * 86_400)
    log.staging.expire(broker.clock.now_us(), keep=lambda *_: False, promise=2, leader_epoch=1)
    assert log.staging.totals.writes == 0


def test_what_is_staged_stays_when_the_lead_was_given_away(broker: Broker) -> None:
    """Loses the lead between a look at what is led and the drop. The next leader may have promised
    it."""
    log = broker.log()
    stage(log, attempt(1), 1)
    broker.clock.advance(10 * 86_400)
    assert log.fence(3, NotLeaderError("Another broker leads."))
    for epoch in (1, 3):
        log.staging.expire(
            broker.clock.now_us(), keep=lambda *_: False, promise=1, leader_epoch=epoch
        )
        log.staging.discard_undecided(share(1).write, 1, leader_epoch=epoch)
        log.staging.discard_attempt(attempt(1), 1, leader_epoch=epoch)
    assert log.staging.holds(WRITE, attempt(1))
    log.staging.discard_undecided(share(1).write, 1, leader_epoch=4)
    assert not log.staging.holds(WRITE)


def test_what_is_prepared_again_while_it_expires_stays(broker: Broker) -> None:
    """Preparing comes between a new promise and the dropping, long after the staging."""
    log = broker.log()
    stage(log, attempt(1), 1)
    log.publishing.check(share(1, 1), 1, leader_epoch=0)
    broker.clock.advance(10 * 86_400)
    old = broker.clock.now_us()
    assert log.staging.has_expired_promises(old, 1)
    log.publishing.check(share(1, 1), 2, leader_epoch=0)
    log.staging.expire(old + (1 << 50), keep=lambda *_: False, promise=2, leader_epoch=1)
    log.publishing.check(share(1, 1), 2, leader_epoch=0)


def test_what_a_recovery_found_may_have_been_prepared(broker: Broker) -> None:
    stage(broker.log(), attempt(1), 1)
    broker.restart()
    log = broker.log()
    broker.clock.advance(10 * 86_400)
    log.staging.expire(broker.clock.now_us(), keep=lambda *_: False, promise=None, leader_epoch=1)
    log.publishing.check(share(1, 1), 1, leader_epoch=0)


@pytest.mark.parametrize("writer", ["", "unreadable", "another"])
def test_what_may_be_decided_for_all_that_can_be_read_stays(broker: Broker, writer: str) -> None:
    log = broker.log()
    stage(log, attempt(1), 1)
    log.publishing.check(replace(share(1, 1), writer=writer), 1, leader_epoch=0)
    broker.clock.advance(10 * 86_400)
    log.staging.expire(
        broker.clock.now_us(),
        keep=lambda _, whose: whose in ("", "unreadable"),
        promise=2,
        leader_epoch=1,
    )
    assert log.staging.totals.writes == (writer != "another")


def test_what_is_prepared_under_a_later_promise_stays(broker: Broker) -> None:
    """A broker let go of the first promise, and looked up decisions before it was prepared."""
    log = broker.log()
    stage(log, attempt(1), 1)
    log.publishing.check(share(1, 1), 3, leader_epoch=0)
    log.staging.discard_undecided(share(1).write, 2, leader_epoch=1)
    log.staging.discard_attempt(attempt(1), 3, leader_epoch=1)
    assert log.staging.holds(share(1).write, attempt(1))
    log.staging.discard_undecided(share(1).write, 4, leader_epoch=1)
    assert not log.staging.holds(share(1).write)
