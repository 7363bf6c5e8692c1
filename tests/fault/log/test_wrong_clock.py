"""The clock is days or years off, at the start or later: nothing goes early, and it is told."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest

from spark_logbus.log import LogConfig
from spark_logbus.log.clock_file import read_clock, write_accepted, write_clock
from spark_logbus.log.disk import names
from tests.builders.record_batches import record_batch
from tests.fakes.clock import NOW_US, SECOND
from tests.fakes.disk import AllSurvives, SimulatedDisk
from tests.fakes.log_directory import Broker

HOUR = 3600
DAY = 24 * HOUR
YEAR = 365 * DAY
CONFIG = LogConfig(segment_bytes=1024, retention_ms=7 * DAY * 1000)


def broker_with(config: LogConfig = CONFIG) -> Broker:
    """Four segments, all appended just now."""
    broker = Broker(files=SimulatedDisk(), config=config)
    append(broker, 4)
    broker.directory.maintain()
    return broker


def append(broker: Broker, count: int) -> None:
    broker.append(*(record_batch(1, payload=bytes(900)) for _ in range(count)))


def disk_of(broker: Broker) -> SimulatedDisk:
    assert isinstance(broker.files, SimulatedDisk)
    return broker.files


def stop(broker: Broker) -> None:
    broker.directory.close()


def crash(broker: Broker) -> None:
    disk_of(broker).crash(AllSurvives())


def cut_power(broker: Broker) -> None:
    disk_of(broker).crash()


ENDS = pytest.mark.parametrize("end", [stop, crash, cut_power])


def start_offset(broker: Broker) -> int:
    broker.directory.maintain()
    return broker.log().ends().log_start_offset


def run_for(broker: Broker, seconds: int, *, step: int = HOUR) -> int:
    """Upkeep goes on; the log start offset at the end."""
    for _ in range(seconds // step):
        broker.clock.advance(step)
        broker.directory.maintain()
    return start_offset(broker)


def accept(broker: Broker) -> None:
    write_accepted(broker.files, broker.path, broker.clock.now_us())


@ENDS
@pytest.mark.parametrize("jump", [YEAR, 73 * YEAR, 8 * DAY], ids=["a year", "2099", "8 days"])
def test_a_wrong_clock_at_start_deletes_nothing_early(
    end: Callable[[Broker], None], jump: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_with()
    end(broker)
    broker.clock.jump(jump)
    with caplog.at_level(logging.WARNING):
        broker.start()
    assert caplog.text.count("is not believed") == 1
    assert "logbus accept-clock /data --execute" in caplog.text
    assert "is not believed" in (broker.directory.clock.problem() or "")
    assert run_for(broker, 6 * DAY) == 0
    broker.clock.jump(-jump)
    assert start_offset(broker) == 0
    assert broker.directory.clock.problem() is None
    assert run_for(broker, DAY + HOUR) == 4


@ENDS
def test_another_restart_does_not_make_it_believed(end: Callable[[Broker], None]) -> None:
    broker = broker_with()
    end(broker)
    broker.clock.jump(YEAR)
    for _ in range(3):
        broker.start()
        assert broker.directory.clock.problem() is not None
        assert run_for(broker, 2 * HOUR) == 0
        end(broker)


def test_an_operator_s_word_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    broker = broker_with()
    stop(broker)
    broker.clock.advance(30 * DAY)
    broker.start()
    assert start_offset(broker) == 0
    with caplog.at_level(logging.INFO):
        accept(broker)
        assert start_offset(broker) == 4
    assert "accepted by an operator" in caplog.text
    assert broker.directory.clock.problem() is None
    assert names.CLOCK_ACCEPTED not in disk_of(broker).names(broker.path)
    crash(broker)
    broker.start()
    assert broker.directory.clock.problem() is None


def test_an_accepted_clock_is_heard_at_the_next_start() -> None:
    broker = broker_with()
    stop(broker)
    broker.clock.advance(30 * DAY)
    accept(broker)
    broker.clock.advance(HOUR)
    broker.start()
    assert broker.directory.clock.problem() is None
    assert start_offset(broker) == 4


@pytest.mark.parametrize("later", [2 * DAY, -HOUR], ids=["old", "of the future"])
def test_an_operator_s_word_is_about_the_clock_of_that_day(later: int) -> None:
    broker = broker_with()
    stop(broker)
    broker.clock.jump(30 * DAY)
    accept(broker)
    broker.clock.jump(later)
    broker.start()
    assert start_offset(broker) == 0
    assert broker.directory.clock.problem() is not None


def test_a_broker_that_was_off_for_a_week_deletes_late() -> None:
    """Deletion is late by the week that it was off, if nobody says a word; no disk fills."""
    broker = broker_with()
    assert run_for(broker, 3 * DAY) == 0
    stop(broker)
    broker.clock.advance(7 * DAY)
    broker.start()
    assert run_for(broker, 3 * DAY) == 0
    append(broker, 2)
    assert run_for(broker, DAY + 2 * HOUR) == 4, "what was there counts on from the stop"
    assert run_for(broker, 13 * DAY - 6 * HOUR) == 4
    assert run_for(broker, 12 * HOUR) == 6, "and what came since is kept for longer"


def test_a_broker_off_for_hours_believes_the_clock() -> None:
    broker = broker_with()
    run_for(broker, 6 * DAY + 12 * HOUR)
    stop(broker)
    broker.clock.advance(23 * HOUR)
    broker.start()
    assert broker.directory.clock.problem() is None
    assert start_offset(broker) == 4


def test_size_counts_whatever_the_clock_says() -> None:
    broker = broker_with(LogConfig(segment_bytes=1024, retention_bytes=3000))
    stop(broker)
    broker.clock.jump(YEAR)
    broker.start()
    append(broker, 4)
    assert start_offset(broker) == 4


def test_a_clock_that_goes_wrong_by_years_while_the_broker_runs() -> None:
    broker = broker_with()
    broker.clock.jump(10 * YEAR)
    assert run_for(broker, 6 * DAY) == 0
    append(broker, 1)
    broker.clock.jump(-10 * YEAR)
    assert run_for(broker, 2 * DAY) == 4


@pytest.mark.parametrize("for_s", [60, 2 * HOUR, 3 * DAY], ids=["a minute", "hours", "days"])
def test_what_is_appended_under_a_clock_of_1970_is_kept(for_s: int) -> None:
    """A machine that starts without a battery shows 1970, until somebody sets its clock."""
    broker = Broker(files=SimulatedDisk(), config=CONFIG)
    stop(broker)
    back = NOW_US // SECOND - 60
    broker.clock.jump(-back)
    broker.start()
    assert broker.directory.clock.problem() is not None
    made = broker.clock.now_us()
    broker.append(*(record_batch(1, payload=bytes(900), timestamps=(made, made)) for _ in range(3)))
    assert run_for(broker, for_s, step=60) == 0
    broker.clock.jump(back)
    assert start_offset(broker) == 0
    assert broker.directory.clock.problem() is None
    assert run_for(broker, 7 * DAY - for_s - HOUR) == 0
    assert run_for(broker, 2 * HOUR) == 3


def test_tombstones_and_lags_go_by_the_same_time() -> None:
    broker = broker_with()
    stop(broker)
    broker.clock.jump(YEAR)
    broker.start()
    time = broker.directory.clock.time
    broker.directory.maintain()
    assert time.now_us() == broker.clock.now_us() - YEAR * SECOND
    assert time.stamp_us() == broker.clock.now_us()


def test_the_time_is_kept_every_half_minute_and_at_the_end() -> None:
    broker = broker_with()
    broker.clock.advance(29)
    broker.directory.maintain()
    assert read_clock(broker.files, broker.path) == NOW_US
    broker.clock.advance(1)
    broker.directory.maintain()
    assert read_clock(broker.files, broker.path) == NOW_US + 30 * SECOND
    broker.clock.advance(5)
    stop(broker)
    assert read_clock(broker.files, broker.path) == NOW_US + 35 * SECOND


@pytest.mark.long
def test_the_time_is_kept_under_constant_retention() -> None:
    """Retention has the checkpoint written before it is due, each time."""
    broker = broker_with(LogConfig(segment_bytes=1024, retention_bytes=1, retention_ms=None))
    for _ in range(2 * DAY // 20):
        broker.clock.advance(20)
        append(broker, 1)
        broker.directory.maintain()
    seen_us = read_clock(broker.files, broker.path)
    assert seen_us is not None
    assert broker.clock.now_us() - seen_us <= 30 * SECOND
    crash(broker)
    broker.start()
    assert broker.directory.clock.problem() is None


@pytest.mark.parametrize("doing", ["create", "open"])
def test_a_disk_that_refuses_the_file_stops_nothing(
    doing: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_with()
    stop(broker)
    disk_of(broker).refuse = lambda done, path: (
        errno.EIO if done == doing and path.name.startswith(names.CLOCK) else None
    )
    with caplog.at_level(logging.WARNING):
        broker.start()
    assert str(broker.path / names.CLOCK) in caplog.text
    append(broker, 1)
    assert run_for(broker, 8 * DAY) == 5


def test_an_earlier_releases_directory_believes_the_clock() -> None:
    broker = broker_with()
    stop(broker)
    disk_of(broker).remove(broker.path / names.CLOCK)
    broker.clock.advance(8 * DAY)
    broker.start()
    assert broker.directory.clock.problem() is None
    assert start_offset(broker) == 4


@pytest.mark.parametrize("seen_us", [-1, (1 << 63) - 1, 1 << 63])
def test_a_time_that_no_clock_shows_is_passed_over(seen_us: int) -> None:
    broker = broker_with()
    stop(broker)
    write_clock(broker.files, broker.path, seen_us)
    broker.start()
    append(broker, 1)
    assert broker.directory.clock.problem() is None
