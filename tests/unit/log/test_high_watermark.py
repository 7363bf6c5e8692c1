"""A high watermark that trails the flushed end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spark_logbus.errors import LogbusError, OffsetOutOfRangeError
from spark_logbus.log import LogConfig
from spark_logbus.log.config import FlushPolicy
from spark_logbus.record import split
from tests.builders.compaction import Keyed, keyed_batch
from tests.builders.record_batches import record_batch
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import Broker, SlowFollower, batches_from, offsets_from

# 512 bytes each: 4 to a segment, and an index entry at every second one.
COUNT, PER_SEGMENT = 14, 4
CONFIG = LogConfig(segment_bytes=2048, index_interval_bytes=1024)


@dataclass
class Trailing:
    """A log of record batches of two records; its high watermark is to be moved by ``to``."""

    path: Path
    config: LogConfig = CONFIG
    rule: SlowFollower = field(default_factory=SlowFollower)

    def __post_init__(self) -> None:
        self.rule.end = 0
        self.broker = Broker(self.path, config=self.config, watermark=self.rule)
        self.log = self.broker.log()

    def fill(self, count: int = COUNT, *, flush: bool = True) -> None:
        for number in range(count):
            at = (number, number)
            batch = record_batch(2, payload=bytes(432), timestamps=at)
            self.broker.append(batch, flush=flush)

    def to(self, end: int) -> None:
        self.rule.end = end
        self.log.advance_high_watermark()

    @property
    def high_watermark(self) -> int:
        return self.log.ends().high_watermark


@pytest.fixture
def trailing(tmp_path: Path) -> Trailing:
    return Trailing(tmp_path / "data")


def test_what_is_flushed_is_not_yet_visible(trailing: Trailing) -> None:
    trailing.fill(3)
    ends = trailing.log.ends()
    assert (ends.high_watermark, trailing.log.flushed_end, ends.log_end_offset) == (0, 6, 6)
    assert ends.size_bytes == 3 * 512
    assert trailing.log.read(0, max_bytes=1 << 20) is None
    assert trailing.log.offset_at(0) is None
    assert trailing.log.split(0, 6, target_bytes=1) == ([], 0)
    with pytest.raises(OffsetOutOfRangeError, match="expected 0 to 0"):
        trailing.log.read(1, max_bytes=1 << 20)


@pytest.mark.parametrize("visible", range(COUNT + 1))
def test_readers_see_what_lies_before_it_in_any_segment(trailing: Trailing, visible: int) -> None:
    trailing.fill()
    trailing.to(2 * visible)
    log, end = trailing.log, 2 * visible
    assert trailing.high_watermark == end
    assert offsets_from(log, 0) == list(range(0, end, 2))
    assert offsets_from(log, 0, max_bytes=1100) == list(range(0, end, 2))
    assert offsets_from(log, 0, end=end - 1) == list(range(0, end, 2))
    for offset in range(0, end, 2):
        found = log.read(offset + 1, max_bytes=1 << 20)
        assert found is not None
        headers = [header for header, _ in split(found.read(), allow_tail=False)]
        assert headers[0].base_offset == offset
        assert headers[-1].next_offset <= end
    assert log.read(end, max_bytes=100) is None
    with pytest.raises(OffsetOutOfRangeError, match=f"expected 0 to {end}"):
        log.read(end + 1, max_bytes=100)
    found_at = [log.offset_at(number) for number in range(COUNT + 1)]
    assert found_at == [2 * n if n < visible else None for n in range(COUNT + 1)]
    # Cuts are as exact as the index: at every second record batch, and between segments.
    cuts, size = log.split(0, 2 * COUNT, target_bytes=1)
    assert (cuts, size) == (list(range(4, end, 4)), 512 * visible)


def test_it_trails_across_rolls_as_they_happen(trailing: Trailing) -> None:
    for number in range(COUNT):
        trailing.rule.end = max(0, 2 * number - 5)  # between two record batches, and within one
        trailing.fill(1)
        assert trailing.high_watermark == trailing.rule.end // 2 * 2
        assert offsets_from(trailing.log, 0) == list(range(0, trailing.high_watermark, 2))


def test_it_rests_between_two_record_batches(trailing: Trailing) -> None:
    trailing.fill()
    for number in range(COUNT):
        trailing.to(2 * number + 1)
        assert trailing.high_watermark == 2 * number


def test_it_does_not_move_back_nor_beyond_the_flushed_end(trailing: Trailing) -> None:
    trailing.fill(5)
    trailing.to(6)
    trailing.to(2)
    assert trailing.high_watermark == 6
    trailing.fill(1, flush=False)
    trailing.to(99)
    assert trailing.high_watermark == 10
    trailing.log.flush()
    assert trailing.high_watermark == 12


def test_an_append_waits_for_its_flush_only(trailing: Trailing) -> None:
    answers: list[LogbusError | None] = []
    end = trailing.broker.append(record_batch(2), flush=False)
    trailing.log.when_flushed(end, answers.append)
    trailing.broker.flusher.run()
    assert answers == [None]
    assert trailing.log.flushed_end >= end
    assert trailing.high_watermark == 0


def test_listeners_hear_of_its_moves_and_not_of_flushes(trailing: Trailing) -> None:
    heard: list[int] = []
    trailing.log.add_listener(lambda: heard.append(trailing.high_watermark))
    trailing.fill(3)
    assert heard == []
    trailing.to(4)
    trailing.to(5)  # it stays where it is
    trailing.to(6)
    assert heard == [4, 6]


def test_left_to_the_os_it_follows_what_is_written(tmp_path: Path) -> None:
    left = LogConfig(segment_bytes=2048, flush_policy=FlushPolicy.OS)
    trailing = Trailing(tmp_path / "data", left)
    trailing.fill(COUNT - 1, flush=False)
    flushed = trailing.log.flushed_end
    assert flushed < 2 * COUNT - 2
    for end in (6, 2 * COUNT - 4, 2 * COUNT - 2):
        trailing.to(end)
        assert offsets_from(trailing.log, 0) == list(range(0, end, 2))
    assert trailing.log.flushed_end == flushed


def test_retention_keeps_what_consumers_are_still_to_see(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=2048, retention_ms=1000)
    trailing = Trailing(tmp_path / "data", config)
    trailing.fill()
    trailing.broker.clock.advance(2)
    for end, start in ((7, 0), (8, 8), (15, 8), (2 * COUNT - 1, 24), (2 * COUNT, 2 * COUNT)):
        trailing.to(end)
        trailing.broker.directory.maintain()
        assert trailing.log.ends().log_start_offset == start


def test_compaction_takes_what_consumers_may_see(tmp_path: Path) -> None:
    config = LogConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    trailing = Trailing(tmp_path / "data", config)
    for _ in range(4):
        trailing.broker.append(keyed_batch(Keyed(b"k", b"v")))
        trailing.broker.clock.advance(10 * 24 * 3600)
        trailing.broker.directory.maintain()  # rolls
    now_us = trailing.broker.clock.now_us()
    assert trailing.log.compaction.plan(now_us) is None
    trailing.to(2)
    plan = trailing.log.compaction.plan(now_us)
    assert plan is not None
    assert (plan.groups[-1].end_offset, plan.selection.count) == (2, 2)


def test_after_a_start_all_that_is_there_is_visible(trailing: Trailing) -> None:
    trailing.fill()
    trailing.to(6)
    trailing.broker.restart()
    log = trailing.broker.log()
    assert log.ends().high_watermark == log.flushed_end == 2 * COUNT
    assert [header.base_offset for header, _ in batches_from(log, 0)] == list(range(0, 28, 2))


def test_damage_that_hides_a_boundary_keeps_it_back_until_the_next(trailing: Trailing) -> None:
    trailing.fill(4)
    path = next(trailing.broker.log_path().glob("*.log"))
    with path.open("r+b") as file:
        file.seek(512)
        file.write(b"\xff" * 80)  # the second record batch's header
    trailing.to(3)
    assert trailing.high_watermark == 0
    trailing.to(4)  # the index knows where it is
    assert trailing.high_watermark == 4


def test_a_crash_of_the_power_takes_nothing_that_was_visible() -> None:
    disk = SimulatedDisk()
    rule = SlowFollower()
    broker = Broker(files=disk, config=CONFIG, watermark=rule)
    rule.end = 4
    broker.append(*(record_batch(2) for _ in range(3)))
    broker.append(record_batch(2), flush=False)
    seen = broker.log().ends().high_watermark
    assert seen == 4
    disk.crash()
    broker.start()
    assert broker.log().ends().high_watermark >= seen
