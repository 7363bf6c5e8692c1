from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_logbus.broker.replica.watermark import sole_replica
from spark_logbus.errors import LogbusError
from spark_logbus.log import LogConfig, LogDirectory
from spark_logbus.log.config import FlushPolicy
from spark_logbus.log.disk.flusher import Flusher
from tests.builders.record_batches import record_batch
from tests.fakes.clock import ManualClock
from tests.fakes.disk import NOTHING, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, ensure_one, offsets_from


def syncs(broker: Broker) -> int:
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    return sum(op == "sync" and path.suffix == ".log" for op, path in disk.operations)


def broker_with(config: LogConfig) -> Broker:
    broker = Broker(files=SimulatedDisk(), config=config)
    broker.log()
    return broker


def test_one_flush_serves_all_appends_that_wait() -> None:
    broker = broker_with(LogConfig())
    before = syncs(broker)
    answered: list[int] = []
    for number in range(10):
        end = broker.append(record_batch(1), flush=False)
        broker.log().when_flushed(end, lambda error, n=number: answered.append(n))  # type: ignore[misc]
    assert len(broker.flusher.requested) == 1
    broker.flusher.run()
    assert answered == list(range(10))
    assert syncs(broker) == before + 1


def test_with_nothing_new_there_is_no_fsync() -> None:
    broker = broker_with(LogConfig())
    broker.append(record_batch(1))
    before = syncs(broker)
    broker.log().flush()
    broker.flusher.run()
    assert syncs(broker) == before


def test_by_count() -> None:
    broker = broker_with(LogConfig(flush_records=5))
    broker.flusher.run()
    broker.append(record_batch(4), flush=False)
    assert broker.flusher.requested == []
    broker.append(record_batch(1), flush=False)
    broker.flusher.run()
    assert broker.log().ends().high_watermark == 5


def test_by_time_in_maintain() -> None:
    broker = broker_with(LogConfig(flush_ms=500))
    broker.append(record_batch(4), flush=False)
    assert broker.flusher.requested == []
    assert [due for due, _ in broker.flusher.timers] == [1000.5]
    broker.clock.advance(0.4)
    broker.directory.maintain()
    assert broker.log().ends().high_watermark == 0
    broker.clock.advance(0.1)
    broker.directory.maintain()
    assert broker.log().ends().high_watermark == 4


@pytest.mark.parametrize("config", [LogConfig(flush_ms=10**6), LogConfig(flush_records=10**6)])
def test_who_waits_for_a_flush_forces_one(config: LogConfig) -> None:
    broker = broker_with(config)
    answers: list[LogbusError | None] = []
    end = broker.append(record_batch(4), flush=False)
    broker.log().when_flushed(end, answers.append)
    broker.flusher.run()
    assert answers == [None]
    broker.log().when_flushed(end, answers.append)  # known: at once
    assert answers == [None, None]


def test_a_roll_tells_those_who_wait() -> None:
    broker = broker_with(LogConfig(segment_bytes=1024, flush_ms=10**6))
    heard: list[int] = []
    broker.log().add_listener(lambda: heard.append(broker.log().ends().high_watermark))
    broker.append(record_batch(1, payload=bytes(800)), flush=False)
    assert broker.flusher.requested == []
    broker.append(record_batch(1, payload=bytes(800)), flush=False)
    assert broker.log().ends().high_watermark == 1
    broker.flusher.run()
    assert heard == [2]


def test_a_failing_listener_stops_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = broker_with(LogConfig())
    heard: list[int] = []

    def fail() -> None:
        raise ValueError("a listener's own fault")

    broker.log().add_listener(fail)
    broker.log().add_listener(lambda: heard.append(broker.log().ends().high_watermark))
    broker.append(record_batch(2), flush=False)
    broker.append(record_batch(2))
    broker.log().flush()
    broker.append(record_batch(1))
    assert heard == [4, 5]
    assert "A listener for the high watermark failed." in caplog.text


def test_close_answers_everybody() -> None:
    broker = broker_with(LogConfig(flush_ms=10**6))
    answers: list[LogbusError | None] = []
    end = broker.append(record_batch(4), flush=False)
    log = broker.log()
    log.when_flushed(end, answers.append)
    log.when_flushed(end + 1, answers.append)
    broker.directory.close()
    assert answers[0] is None
    assert isinstance(answers[1], LogbusError)
    assert answers[1].retriable


def test_the_flusher_s_thread_flushes_appends_of_many_threads(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path / "data", defaults=LogConfig(), watermark=sole_replica)
    directory.open()
    log = ensure_one(directory, TP, topic_id=TOPIC_ID, config={})
    done = threading.Semaphore(0)
    errors: list[LogbusError] = []

    def answered(error: LogbusError | None) -> None:
        if error is not None:
            errors.append(error)
        done.release()

    def append() -> None:
        for _ in range(25):
            appended = log.append_as_leader(record_batch(2), leader_epoch=1)
            log.when_flushed(appended.end_offset, answered)

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(100):
        assert done.acquire(timeout=60)
    assert errors == []
    assert offsets_from(log, 0) == list(range(0, 200, 2))
    directory.close()


def test_the_flusher_s_thread_serves_timers() -> None:
    clock = ManualClock()
    flusher = Flusher(clock)
    served = threading.Event()

    class Log:
        def flush(self) -> None:
            raise AssertionError("it was not asked to")

        def flush_if_due(self) -> float | None:
            served.set()
            return None

    flusher.request_at(clock.monotonic(), Log())
    flusher.start()
    assert served.wait(timeout=60)
    flusher.stop()


def test_an_uncountable_timer_does_not_end_the_thread() -> None:
    clock = ManualClock()
    flusher = Flusher(clock)
    served = threading.Event()

    class Log:
        def flush(self) -> None:
            served.set()

        def flush_if_due(self) -> float | None:
            raise AssertionError("it is not due")

    flusher.request_at(clock.monotonic() + 1e17, Log())
    flusher.start()
    flusher.request(Log())
    assert served.wait(timeout=60)
    flusher.stop()


LEFT_TO_OS = LogConfig(flush_policy=FlushPolicy.OS)


def test_left_to_the_os_records_are_visible_unflushed() -> None:
    broker = broker_with(LEFT_TO_OS)
    log, before = broker.log(), syncs(broker)
    heard: list[int] = []
    log.add_listener(lambda: heard.append(log.ends().high_watermark))
    end = broker.append(record_batch(3), flush=False)
    assert offsets_from(log, 0) == [0]
    assert heard == [3]
    assert log.flushed_end < end
    assert broker.flusher.requested == []
    assert syncs(broker) == before
    answered: list[LogbusError | None] = []
    log.when_flushed(end, answered.append)
    assert answered == []
    broker.flusher.run()
    assert answered == [None]
    assert syncs(broker) == before + 1
    assert log.flushed_end >= end


def test_left_to_the_os_a_power_failure_loses_the_unflushed() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=LEFT_TO_OS)
    broker.append(record_batch(3))
    broker.append(record_batch(2), flush=False)
    assert broker.log().ends().high_watermark == 5
    disk.crash(NOTHING)
    broker.start()
    assert broker.log().ends().high_watermark == 3


def test_left_to_the_os_the_recovery_point_stays() -> None:
    broker = broker_with(LEFT_TO_OS)
    broker.append(record_batch(3))
    broker.append(record_batch(2), flush=False)
    assert broker.log().checkpoint().recovery_point == 3


def test_left_to_the_os_a_roll_flushes_and_goes_on() -> None:
    broker = broker_with(LogConfig(flush_policy=FlushPolicy.OS, segment_bytes=1024))
    for _ in range(30):
        broker.append(record_batch(1, payload=bytes(100)), flush=False)
    log = broker.log()
    assert offsets_from(log, 0) == list(range(30))
    assert log.flushed_end >= log.checkpoint().recovery_point
    assert 0 < log.checkpoint().recovery_point < 30


def test_the_policy_changes_on_a_live_log() -> None:
    broker = broker_with(LEFT_TO_OS)
    broker.append(record_batch(3), flush=False)
    broker.log().configure(LogConfig())
    broker.append(record_batch(1), flush=False)
    assert broker.log().ends().high_watermark == 3
    broker.flusher.run()
    assert broker.log().ends().high_watermark == 4
    assert broker.log().flushed_end >= 4
