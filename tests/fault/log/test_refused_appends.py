"""A disk that refuses appends is a state of the broker: said once, seen for as long as it lasts."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from spark_logbus.errors import StorageError
from spark_logbus.log.disk import names
from tests.builders.record_batches import record_batch
from tests.builders.staged import stage
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import TP, Broker

QUIET_S = 6


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def broker(disk: SimulatedDisk) -> Broker:
    broker = Broker(files=disk)
    broker.append(record_batch(2))
    return broker


def refuse_appends(broker: Broker, times: int = 3) -> None:
    for _ in range(times):
        with pytest.raises(StorageError):
            broker.append(record_batch(2))


def pass_by(broker: Broker, seconds: float = QUIET_S) -> None:
    broker.clock.advance(seconds)
    broker.directory.maintain()


def refused(broker: Broker) -> list[str]:
    return broker.directory.stats.refused.described()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_disk_that_refuses_appends_says_so_once_and_again_at_the_end(
    disk: SimulatedDisk, broker: Broker, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    caplog.set_level(logging.INFO)
    disk.refuse = lambda done, _path: number if done == "pwrite" else None
    refuse_appends(broker)
    pass_by(broker)
    refuse_appends(broker)
    [told] = refused(broker)
    assert f"Appends to {TP} are refused: {errno.errorcode[number]}" in told
    assert broker.log().refusing is not None
    assert broker.directory.stats.refused.count == 1
    assert caplog.text.count("Appends are refused") == 1
    for _ in range(3):  # nobody appends: it is full all the same
        pass_by(broker, 100)
        assert refused(broker) == [told]
    disk.refuse = lambda _done, _path: None
    pass_by(broker)
    assert refused(broker) == []
    assert broker.log().refusing is None
    assert caplog.text.count("Appends are taken again") == 1
    assert broker.append(record_batch(2)) == 4
    assert not any(name.endswith(".tmp") for name in disk.names(broker.log_path()))


def test_a_nearly_full_disk_does_not_say_so_with_every_append(
    disk: SimulatedDisk, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Small appends pass, large ones do not."""
    caplog.set_level(logging.INFO)
    for _ in range(20):
        disk.refuse = lambda done, _path: errno.ENOSPC if done == "pwrite" else None
        refuse_appends(broker, 1)
        disk.refuse = lambda _done, _path: None
        broker.append(record_batch(2))
        pass_by(broker, 1)
    assert caplog.text.count("Appends are refused") == 1
    assert "taken again" not in caplog.text
    pass_by(broker)
    assert caplog.text.count("taken again") == 1


def test_a_disk_without_inodes_is_told_of_by_the_segment_that_cannot_begin(
    disk: SimulatedDisk, broker: Broker
) -> None:
    disk.refuse = lambda done, _path: errno.ENOSPC if done == "create" else None
    with pytest.raises(StorageError, match="start a segment"):
        broker.log()._writer.roll_if_unchanged(2)
    assert len(refused(broker)) == 1
    pass_by(broker)
    assert len(refused(broker)) == 1
    disk.refuse = lambda _done, _path: None
    pass_by(broker)
    assert refused(broker) == []


def test_what_is_staged_and_refused_is_told_of_too(disk: SimulatedDisk, broker: Broker) -> None:
    stage(broker.log(), 0, 2)
    disk.refuse = lambda done, _path: errno.ENOSPC if done == "pwrite" else None
    with pytest.raises(StorageError):
        stage(broker.log(), 0, 2, start=2)
    assert len(refused(broker)) == 1


def test_a_log_that_was_deleted_meanwhile_refuses_nothing(
    disk: SimulatedDisk, broker: Broker
) -> None:
    disk.refuse = lambda done, _path: errno.ENOSPC if done == "pwrite" else None
    refuse_appends(broker)
    broker.remove(TP, topic_id=broker.log().topic_id)
    pass_by(broker)
    assert refused(broker) == []


def test_a_descriptor_that_lacks_is_not_the_disks_refusal(
    disk: SimulatedDisk, broker: Broker
) -> None:
    disk.refuse = lambda done, _path: errno.EMFILE if done == "create" else None
    with pytest.raises(StorageError):
        broker.log()._writer.roll_if_unchanged(2)
    assert refused(broker) == []


def test_a_leftover_of_a_probe_is_removed_at_the_next_start(
    disk: SimulatedDisk, broker: Broker
) -> None:
    left = Path(broker.log_path()) / names.temporary("refused-append")
    disk.open(left, create=True).pwrite(b"x", 0)
    broker.restart()
    assert not disk.exists(left)
