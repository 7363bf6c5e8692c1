"""The power goes and unsynced writes are lost: what was acknowledged as flushed is there."""

from __future__ import annotations

import pytest

from spark_logbus.errors import LogbusError
from spark_logbus.log import LogConfig
from tests.builders.record_batches import record_batch
from tests.fakes.disk import NOTHING, RandomSurvival, SimulatedDisk, Survival
from tests.fakes.log_directory import Broker, batches_from


def numbered(number: int) -> memoryview:
    return record_batch(1 + number % 3, payload=b"record batch %d" % number)


def payloads(broker: Broker, start: int = 0) -> list[bytes]:
    return [data[80:].rstrip(b"\0") for _, data in batches_from(broker.log(), start)]


def test_acknowledged_appends_survive() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=LogConfig(flush_ms=60_000))
    answers: list[LogbusError | None] = []
    for number in range(3):
        broker.log().append_as_leader(numbered(number), leader_epoch=1)
    broker.log().when_flushed(broker.log().ends().log_end_offset, answers.append)
    assert answers == []
    broker.flusher.run()
    assert answers == [None]
    broker.log().append_as_leader(numbered(3), leader_epoch=1)
    disk.crash(NOTHING)
    broker.start()
    assert payloads(broker) == [b"record batch 0", b"record batch 1", b"record batch 2"]


def test_nothing_unflushed_is_visible() -> None:
    broker = Broker(files=SimulatedDisk())
    log = broker.log()
    appended = log.append_as_leader(record_batch(2), leader_epoch=1)
    assert log.flushed_end < appended.end_offset
    assert log.read(0, max_bytes=1000) is None
    assert (log.ends().high_watermark, log.ends().log_end_offset) == (0, 2)
    broker.flusher.run()
    assert log.flushed_end >= appended.end_offset
    assert log.read(0, max_bytes=1000) is not None


@pytest.mark.parametrize("seed", range(60))
def test_acknowledged_records_survive_whole_and_in_place(seed: int) -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=LogConfig(segment_bytes=1024, flush_ms=60_000))
    for number in range(25):
        broker.append(numbered(number), flush=number % 7 == seed % 7)
    flushed = broker.log().ends().high_watermark
    expected = dict(_by_offset(25))
    disk.crash(RandomSurvival(seed))
    broker.start()
    log = broker.log()
    assert log.ends().high_watermark >= flushed
    assert all(damaged.start >= flushed for damaged in log.damaged)
    offset = 0
    for damaged in (*log.damaged, None):
        stop = damaged.start if damaged else log.ends().high_watermark
        for header, data in batches_from(log, offset, end=stop):
            assert data[80:].rstrip(b"\0") == expected[header.base_offset]
            assert header.base_offset == offset
            offset = header.next_offset
        assert offset == stop
        offset = damaged.end if damaged else offset


def _by_offset(count: int) -> list[tuple[int, bytes]]:
    found, offset = [], 0
    for number in range(count):
        found.append((offset, b"record batch %d" % number))
        offset += 1 + number % 3
    return found


@pytest.mark.parametrize("survival", [NOTHING, *map(RandomSurvival, range(20))])
def test_a_periodic_flush_loses_its_window_at_most(
    survival: Survival,
) -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=LogConfig(flush_ms=1000, segment_bytes=4096))
    appended_at: list[float] = []
    for number in range(100):
        broker.append(record_batch(1, payload=b"record batch %d" % number), flush=False)
        appended_at.append(broker.clock.seconds)
        broker.clock.advance(0.1)
        for due, flushable in list(broker.flusher.timers):
            if due <= broker.clock.seconds:
                broker.flusher.timers.remove((due, flushable))
                flushable.flush_if_due()
    seen = broker.log().ends().high_watermark
    assert seen > 50
    cut_at = broker.clock.seconds
    disk.crash(survival)
    broker.start()
    log = broker.log()
    assert log.ends().high_watermark >= seen, "what a reader was served stays"
    whole = log.damaged[0].start if log.damaged else log.ends().high_watermark
    expected = [b"record batch %d" % number for number in range(whole)]
    found = [data[80:].rstrip(b"\0") for _, data in batches_from(log, 0, end=whole)]
    assert found == expected, "a prefix survives"
    assert all(cut_at - at <= 1.0 for at in appended_at[whole:]), "and the window bounds the rest"


def test_flushing_by_count_loses_fewer_records_than_the_count() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=LogConfig(flush_records=10))
    for number in range(57):
        broker.append(record_batch(1, payload=b"record batch %d" % number), flush=False)
        broker.flusher.run()
    disk.crash(NOTHING)
    broker.start()
    assert payloads(broker) == [b"record batch %d" % number for number in range(50)]
