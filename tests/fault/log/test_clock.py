"""The wall clock jumps, or records come from the future; timers and retention hold."""

from __future__ import annotations

import pytest

from spark_logbus.log import LogConfig
from tests.builders.record_batches import record_batch
from tests.fakes.clock import NOW_US, SECOND
from tests.fakes.disk import AllSurvives, SimulatedDisk
from tests.fakes.log_directory import Broker

HOUR = 3600
YEAR_2099_US = 4_070_908_800 * SECOND
JUMPS = pytest.mark.parametrize("jump", [-HOUR, HOUR], ids=["back", "ahead"])


def broker_with(config: LogConfig) -> Broker:
    return Broker(files=SimulatedDisk(), config=config)


def starts(broker: Broker) -> int:
    broker.directory.maintain()
    return broker.log().ends().log_start_offset


@JUMPS
def test_a_clock_jump_does_not_move_a_flush(jump: int) -> None:
    broker = broker_with(LogConfig(flush_ms=60_000))
    broker.append(record_batch(2), flush=False)
    broker.clock.jump(jump)
    broker.directory.maintain()
    assert broker.log().ends().high_watermark == 0
    broker.clock.advance(60)
    broker.directory.maintain()
    assert broker.log().ends().high_watermark == 2


@JUMPS
def test_a_clock_jump_does_not_move_a_roll(jump: int) -> None:
    broker = broker_with(LogConfig(segment_ms=600_000, retention_ms=None))
    broker.append(record_batch(1))
    broker.clock.jump(jump)
    broker.directory.maintain()
    assert segments(broker) == 1
    broker.clock.advance(600)
    broker.directory.maintain()
    assert segments(broker) == 2


@JUMPS
def test_a_clock_jump_while_stopped_delays_no_roll(jump: int) -> None:
    broker = broker_with(LogConfig(segment_ms=600_000, retention_ms=None))
    broker.append(record_batch(1))
    broker.directory.close()
    broker.clock.jump(jump)
    broker.start()
    broker.clock.advance(600)
    broker.directory.maintain()
    assert segments(broker) == 2


def segments(broker: Broker) -> int:
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    return sum(name.endswith(".log") for name in disk.names(broker.log_path()))


def test_a_clock_that_jumps_ahead_an_hour_deletes_nothing_early() -> None:
    broker = broker_with(LogConfig(retention_ms=1_800_000))
    broker.append(record_batch(4))
    broker.clock.jump(HOUR)
    for _ in range(17):
        assert starts(broker) == 0
        broker.clock.advance(100)
    broker.clock.advance(200)
    assert starts(broker) == 4


def test_a_clock_set_back_delays_retention_by_no_more() -> None:
    broker = broker_with(LogConfig(retention_ms=1_800_000))
    broker.append(record_batch(4))
    broker.clock.jump(-HOUR)
    broker.append(record_batch(3))
    broker.clock.advance(1700)
    assert starts(broker) == 0
    broker.clock.advance(HOUR + 200)
    assert starts(broker) == 7


@pytest.mark.parametrize("newest", [YEAR_2099_US, (1 << 63) - 1], ids=["2099", "largest"])
def test_a_record_stamped_2099_goes_by_when_it_was_appended(newest: int) -> None:
    broker = broker_with(LogConfig(retention_ms=1_800_000))
    broker.append(record_batch(4, timestamps=(NOW_US, newest)))
    broker.clock.advance(1700)
    assert starts(broker) == 0
    assert broker.log().offset_at(newest) == 0
    broker.clock.advance(200)
    assert starts(broker) == 4


PAST = pytest.mark.parametrize(
    "stamped",
    [NOW_US - 400 * 86_400 * SECOND, NOW_US // 1000, 0, -SECOND, -(1 << 63) + 1],
    ids=["a year ago", "milliseconds", "1970", "1969", "smallest"],
)


@PAST
def test_a_record_of_the_past_is_kept_as_long(stamped: int) -> None:
    broker = broker_with(LogConfig(segment_bytes=1024, retention_ms=1_800_000))
    for _ in range(6):
        broker.append(record_batch(2, payload=bytes(500), timestamps=(stamped, stamped)))
        assert starts(broker) == 0
        broker.clock.advance(200)
    broker.clock.advance(590)
    assert starts(broker) == 0
    broker.clock.advance(20)
    assert starts(broker) == 2
    broker.clock.advance(1000)
    assert starts(broker) == 12


@PAST
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("indexes", [True, False], ids=["indexed", "scanned"])
def test_append_times_are_known_after_a_restart(stamped: int, clean: bool, indexes: bool) -> None:
    broker = broker_with(LogConfig(segment_bytes=1024, retention_ms=1_800_000))
    past = record_batch(2, payload=bytes(500), timestamps=(stamped, stamped))
    broker.append(past, record_batch(2, payload=bytes(500)), past)
    broker.clock.advance(1700)
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    if clean:
        broker.directory.close()
    else:
        disk.crash(AllSurvives())
    for name in () if indexes else disk.names(broker.log_path()):
        if name.endswith(".index"):
            disk.remove(broker.log_path() / name)
    broker.start()
    assert starts(broker) == 0
    broker.clock.advance(200)
    assert starts(broker) == 6


def test_a_record_s_own_time_lengthens_its_stay() -> None:
    """The record was made while its append was under way, by a clock ahead of the broker's."""
    broker = broker_with(LogConfig(retention_ms=1_800_000))
    later = NOW_US + 600 * SECOND
    broker.append(record_batch(4, timestamps=(NOW_US, later)))
    broker.clock.advance(2300)
    assert starts(broker) == 0
    broker.clock.advance(200)
    assert starts(broker) == 4


def test_a_record_stamped_1970_takes_no_younger_one_with_it() -> None:
    broker = broker_with(LogConfig(retention_ms=1_800_000))
    broker.append(record_batch(1, timestamps=(0, 0)), record_batch(1))
    assert starts(broker) == 0
    broker.clock.advance(1900)
    assert starts(broker) == 2
