"""A file system turns read-only under one partition, or was so before the start."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spark_logbus.errors import PartitionOfflineError, StorageError
from spark_logbus.log import LogConfig
from spark_logbus.model import TopicPartition
from tests.builders.record_batches import record_batch
from tests.fakes.disk import AllSurvives, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, ensure_one, offsets_from

OTHER = TopicPartition("other", 3)
WRITES = {
    "create", "pwrite", "truncate", "make_directory", "rename", "remove", "remove_directory",
    "open for writing",
}  # fmt: skip


def read_only(disk: SimulatedDisk, part: str) -> None:
    disk.refuse = lambda done, path: errno.EROFS if done in WRITES and part in str(path) else None


def writable(disk: SimulatedDisk) -> None:
    disk.refuse = lambda _done, _path: None


def brokers_two_logs() -> tuple[Broker, SimulatedDisk]:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=LogConfig(segment_bytes=1024, retention_bytes=1))
    broker.append(record_batch(2, payload=bytes(600)), record_batch(3, payload=bytes(600)))
    broker.log(OTHER).append_as_leader(record_batch(4), leader_epoch=1)
    broker.log(OTHER).flush()
    return broker, disk


def test_a_directory_turned_read_only_is_still_read() -> None:
    broker, disk = brokers_two_logs()
    read_only(disk, "flights-0")
    for payload in (8, 800):  # one for the active segment, and one that would roll
        with pytest.raises((StorageError, PartitionOfflineError), match="read-only"):
            broker.append(record_batch(1, payload=bytes(payload)))
    broker.directory.maintain()  # retention fails here as well
    assert offsets_from(broker.log(), broker.log().ends().log_start_offset) == [2]
    other = broker.log(OTHER)
    other.append_as_leader(record_batch(1), leader_epoch=1)
    other.flush()
    assert offsets_from(other, 0) == [0, 4]


def test_failing_upkeep_of_one_partition_spares_others() -> None:
    broker, disk = brokers_two_logs()
    for log in (broker.log(), broker.log(OTHER)):
        log.configure(LogConfig(segment_ms=1000, retention_ms=None))
    read_only(disk, "flights-0")
    broker.clock.advance(2)
    broker.directory.maintain()
    assert broker.log(OTHER).segment_count == 2
    assert broker.log().segment_count == 2  # as before


def test_a_read_only_directory_at_start_costs_its_partition_only() -> None:
    broker, disk = brokers_two_logs()
    disk.crash(AllSurvives())
    read_only(disk, "flights-0")
    broker.start()
    assert broker.directory.get(TP) is None
    with pytest.raises(PartitionOfflineError, match="read-only"):
        ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={})
    assert offsets_from(broker.log(OTHER), 0) == [0]
    writable(disk)
    broker.restart()
    assert offsets_from(broker.log(), 0) == [0, 2]


def test_a_data_directory_that_is_read_only_says_so_at_the_start() -> None:
    broker, disk = brokers_two_logs()
    broker.directory.close()
    read_only(disk, "data")
    with pytest.raises(StorageError, match=r"/data.*read-only: check the disk"):
        broker.start()
    writable(disk)
    broker.start()
    assert offsets_from(broker.log(), 0) == [0, 2]


def test_the_remedy_names_the_read_only_file_system() -> None:
    broker, disk = brokers_two_logs()
    disk.refuse = lambda done, _path: errno.EROFS if done == "pwrite" else None
    with pytest.raises(StorageError, match="remount it for writing") as caught:
        broker.append(record_batch(1))
    assert str(Path("/data/flights-0")) in caught.value.message
