"""A disk that is full when the broker starts after a crash, at whatever moment that came."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spark_logbus.errors import StorageError
from spark_logbus.model import TopicPartition
from tests.builders.record_batches import record_batch
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker
from tests.fault.log.test_crash_points import (
    Act,
    append_more,
    broker_with,
    check_whole,
    every_crash,
)

OTHER = TopicPartition("other", 0)


def no_space(operation: str, _path: Path) -> int | None:
    return errno.ENOSPC if operation in ("create", "pwrite", "make_directory") else None


def disk_of(broker: Broker) -> SimulatedDisk:
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    return disk


def start_without_space(broker: Broker) -> None:
    disk_of(broker).refuse = no_space
    broker.start()


def prepared(count: int) -> Broker:
    broker = broker_with(count)
    broker.log(OTHER).append_as_leader(record_batch(2, payload=bytes(400)), leader_epoch=1)
    broker.log(OTHER).flush()
    return broker


def retention(broker: Broker) -> None:
    broker.directory.maintain()


def close(broker: Broker) -> None:
    broker.directory.close()


def removal(broker: Broker) -> None:
    broker.remove(OTHER, topic_id=TOPIC_ID)


@pytest.mark.parametrize(
    ("count", "act"),
    [
        pytest.param(3, append_more, marks=pytest.mark.long),
        pytest.param(12, retention, marks=pytest.mark.long),
        pytest.param(5, close, marks=pytest.mark.long),
        (3, removal),
    ],
)
def test_it_starts_and_serves_all_that_needs_no_space(count: int, act: Act) -> None:
    for broker, _, flushed in every_crash(lambda: prepared(count), act, start=start_without_space):
        check_whole(broker, flushed=flushed)
        end = broker.log().ends().log_end_offset
        for _ in range(2):
            with pytest.raises(StorageError, match="free space"):
                broker.append(record_batch(2, payload=b"%03d" % (end // 2)))
        broker.directory.maintain()
        assert broker.log().ends().size_bytes < 2500 + 1024, "retention goes on"
        check_whole(broker, flushed=flushed)
        before = disk_of(broker).used()
        if broker.directory.get(OTHER) is not None:
            broker.remove(OTHER, topic_id=TOPIC_ID)
            assert disk_of(broker).used() < before
        disk_of(broker).refuse = lambda _operation, _path: None
        assert broker.append(record_batch(2, payload=b"%03d" % (end // 2))) == end + 2
        disk_of(broker).crash()
        broker.start()
        check_whole(broker, flushed=end + 2)
        assert [log.topic_partition for log in broker.directory.logs()] == [TP]


def test_a_refused_checkpoint_is_not_tried_at_every_pass(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = prepared(3)
    disk_of(broker).refuse = no_space
    for _ in range(120):
        broker.clock.advance(0.5)
        broker.directory.maintain()
    said = [record for record in caplog.records if "recovery would take longer" in record.message]
    assert len(said) == 2


@pytest.mark.parametrize(
    ("at", "refused"), [(append_more, "pwrite"), (append_more, "sync"), (close, "pwrite")]
)
def test_a_failed_write_leaves_no_half_of_a_file(at: Act, refused: str) -> None:
    """Files that are rebuilt: snapshots of producers, indexes and the checkpoint."""
    broker = prepared(3)
    known = set(all_names(broker))
    disk_of(broker).refuse = lambda operation, path: (
        errno.ENOSPC if operation == refused and path.suffix != ".log" else None
    )
    at(broker)
    new = {path.name for path in all_names(broker) if path not in known}
    assert not [name for name in new if not name.endswith((".log", ".index"))]
    assert refused == "sync" or not [name for name in new if name.endswith(".index")]
    broker.log().flush()
    check_whole(broker, flushed=6)


def all_names(broker: Broker) -> list[Path]:
    top = [broker.path / name for name in broker.files.names(broker.path)]
    logs = [path for path in top if broker.files.is_directory(path)]
    return top + [log / name for log in logs for name in broker.files.names(log)]
