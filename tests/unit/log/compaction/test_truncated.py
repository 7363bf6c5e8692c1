"""Compactions of a log that is truncated meanwhile."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spark_logbus.errors import StorageError
from spark_logbus.log.checkpoint import CleanedUpTo, read_cleanings
from tests.fakes.clock import NOW_US
from tests.fakes.compaction import broker_with, planned, write_cleaned
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import Broker, offsets_from


def cleanings(broker: Broker) -> tuple[CleanedUpTo, ...]:
    return read_cleanings(broker.files, broker.log_path())


def test_what_is_cut_off_is_not_clean_any_more() -> None:
    broker = broker_with(12)
    plan = planned(broker)
    for group in plan.groups:
        write_cleaned(broker, group)
        assert broker.log().compaction.swap(group)
    broker.log().compaction.finished(plan, end_offset=20, now_us=NOW_US)
    assert cleanings(broker) == (CleanedUpTo(20, NOW_US),)
    end = broker.log().truncate_to(14, below_watermark=True)
    assert cleanings(broker) == (CleanedUpTo(end, NOW_US),)
    assert broker.log().truncate_to(4, below_watermark=True) == 0, "one record batch holds them"
    assert cleanings(broker) == (CleanedUpTo(0, NOW_US),)
    broker.restart()
    assert offsets_from(broker.log(), 0) == []


def test_a_segment_that_was_cut_is_not_replaced() -> None:
    broker = broker_with(12)
    plan = planned(broker)
    first, second = plan.groups
    write_cleaned(broker, first)
    write_cleaned(broker, second)
    end = broker.log().truncate_to(14, below_watermark=True)
    assert not broker.log().compaction.fits([second])
    assert not broker.log().compaction.swap(second)
    write_cleaned(broker, first)
    assert broker.log().compaction.swap(first)
    broker.log().compaction.finished(plan, end_offset=20, now_us=NOW_US)
    assert cleanings(broker) == (), "the plan knew nothing of what comes now"
    assert broker.log().ends().log_end_offset == end
    broker.directory.close()
    broker.files.remove(broker.path / "checkpoint")
    broker.start()
    assert broker.log().damaged == ()
    assert broker.log().ends().log_end_offset == end


def test_a_swap_that_is_not_finished_is_completed_first() -> None:
    broker = broker_with(12)
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    plan = planned(broker)
    write_cleaned(broker, plan.groups[1])

    def refuse(operation: str, path: Path) -> int | None:
        return errno.EIO if operation == "remove" and path.name.endswith(".deleted") else None

    disk.refuse = refuse
    with pytest.raises(StorageError):
        broker.log().compaction.swap(plan.groups[1])
    disk.refuse = lambda *_: None
    end = broker.log().ends().log_end_offset
    with pytest.raises(StorageError, match="restart the broker, which completes it"):
        broker.log().truncate_to(14, below_watermark=True)
    assert broker.log().truncate_to(end - 1, below_watermark=True) == end - 2
    broker.restart()
    cut = broker.log().truncate_to(14, below_watermark=True)
    assert cut == broker.log().ends().log_end_offset == 12
    broker.restart()
    assert broker.log().ends().log_end_offset == 12
