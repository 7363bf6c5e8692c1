from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.errors import LogbusError, NotLeaderError, StorageError
from spark_logbus.log import LogAppendInfo, LogConfig, PartitionLog
from tests.builders.record_batches import record_batch
from tests.fakes.log_directory import Broker, offsets_from


class Replicated:
    """A log of which another replica has so much as the test says."""

    def __init__(self, path: Path) -> None:
        self.other = 0
        config = LogConfig(segment_bytes=1024, index_interval_bytes=128)
        self.broker = Broker(path, config=config, watermark=lambda _, end: min(end, self.other))
        self.outcomes: list[LogbusError | None] = []
        self.log.replication.begin(0)

    @property
    def log(self) -> PartitionLog:
        return self.broker.log()

    def append(self) -> LogAppendInfo:
        data = memoryview(bytearray(record_batch(2)))
        return self.log.append_as_leader(data, leader_epoch=1)

    def wait(self, appended: LogAppendInfo) -> None:
        self.log.replication.when_replicated(
            appended.end_offset, self.outcomes.append, truncations=appended.truncations
        )

    def tell(self, other: int) -> None:
        self.other = other
        self.log.advance_high_watermark()


@pytest.fixture
def replicated(tmp_path: Path) -> Replicated:
    return Replicated(tmp_path / "data")


def test_who_waits_hears_when_others_have_it(replicated: Replicated) -> None:
    first, second = replicated.append(), replicated.append()
    replicated.wait(second)
    replicated.wait(first)
    replicated.log.flush()
    replicated.tell(first.end_offset - 1)
    assert replicated.outcomes == []
    replicated.tell(first.end_offset)
    assert replicated.outcomes == [None]
    replicated.tell(second.end_offset + 5)
    assert replicated.outcomes == [None, None]
    replicated.wait(first)
    assert replicated.outcomes == [None] * 3, "what is known is said at once"


def test_what_others_have_is_flushed_here_too(replicated: Replicated) -> None:
    appended = replicated.append()
    replicated.wait(appended)
    replicated.tell(appended.end_offset)
    assert replicated.outcomes == []
    replicated.log.flush()
    assert replicated.outcomes == [None]


def test_what_a_write_hides_is_replicated_all_the_same(replicated: Replicated) -> None:
    replicated.log._state.cap_high_watermark(7, 0)
    appended = replicated.append()
    replicated.wait(appended)
    replicated.log.flush()
    replicated.tell(appended.end_offset)
    assert replicated.outcomes == [None]
    assert replicated.log.ends().high_watermark == 0


def test_who_waits_is_told_when_the_lead_is_lost(replicated: Replicated) -> None:
    appended = replicated.append()
    replicated.wait(appended)
    replicated.log.flush()
    lost = NotLeaderError("It may become visible.")
    replicated.log.replication.end_waiting(lost)
    replicated.wait(appended)
    assert [str(each) for each in replicated.outcomes] == [str(lost)] * 2
    replicated.log.replication.begin(None)
    replicated.wait(appended)
    assert len(replicated.outcomes) == 2
    replicated.tell(appended.end_offset)
    assert replicated.outcomes[2] is None


def test_a_log_that_goes_offline_says_so(replicated: Replicated) -> None:
    appended = replicated.append()
    replicated.wait(appended)
    replicated.log.flush()
    replicated.log.stop(StorageError("The disk is gone."))
    (error,) = replicated.outcomes
    assert isinstance(error, StorageError)


@pytest.mark.parametrize("waits_before", [True, False])
def test_what_was_cut_off_is_not_taken_for_what_came_instead(
    replicated: Replicated, waits_before: bool
) -> None:
    kept, lost = replicated.append(), replicated.append()
    replicated.log.flush()
    if waits_before:
        replicated.wait(lost)
    replicated.tell(kept.end_offset)
    replicated.log.truncate_to(kept.end_offset)
    if not waits_before:
        replicated.wait(lost)
    assert replicated.append().end_offset == lost.end_offset
    replicated.log.flush()
    replicated.tell(lost.end_offset)
    (error,) = replicated.outcomes
    assert isinstance(error, NotLeaderError)


def test_a_log_that_was_opened_shows_what_is_known_to_be_replicated(
    replicated: Replicated,
) -> None:
    ends = [replicated.append().end_offset for _ in range(40)]
    replicated.log.flush()
    replicated.broker.restart()
    log = replicated.log
    assert log.ends().high_watermark == ends[-1]
    assert log.segment_count > 2
    log.replication.begin(ends[20] + 1)  # within a record batch
    assert (log.ends().high_watermark, log.replication.end) == (ends[20], ends[20])
    assert offsets_from(log, 0) == [end - 2 for end in ends[:21]]
    log.replication.begin(0)
    assert log.ends().high_watermark == ends[20], "by then the log itself knows better"
    replicated.tell(ends[30])
    assert offsets_from(log, 0) == [end - 2 for end in ends[:31]]


def test_what_is_known_may_lie_before_the_start_or_behind_the_end(
    replicated: Replicated,
) -> None:
    ends = [replicated.append().end_offset for _ in range(40)]
    replicated.tell(ends[-1])
    replicated.log.flush()
    replicated.log.start_from(ends[25])
    replicated.broker.directory.maintain()
    replicated.broker.restart()
    replicated.log.replication.begin(ends[-1] + 100)
    assert replicated.log.ends().high_watermark == ends[-1]
    replicated.broker.restart()
    log = replicated.log
    log.replication.begin(3)
    start = log.ends().log_start_offset
    assert (log.ends().high_watermark, log.replication.end) == (start, start)
    assert start > 3
    replicated.tell(ends[30])
    assert log.ends().high_watermark == ends[30]
    assert offsets_from(log, start)[-1] == ends[30] - 2


def test_an_empty_log_has_nothing_to_hide(replicated: Replicated) -> None:
    replicated.broker.restart()
    replicated.append()
    replicated.broker.restart()
    replicated.log.replication.begin(0)
    assert replicated.log.ends().high_watermark == 0
