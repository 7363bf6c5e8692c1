"""The id that tells a log from every other of its partition, and from itself before a loss."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from spark_logbus.errors import StorageError
from spark_logbus.log import LogConfig, WantedLog
from spark_logbus.log.checkpoint import read_partition_metadata
from spark_logbus.log.config import FlushPolicy
from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import checksummed_file
from spark_logbus.log_ids import is_same_log
from spark_logbus.model import TopicPartition
from tests.builders.record_batches import record_batch
from tests.fakes.disk import PowerCutError, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, ensure_one

HOME = Path("/data/flights-0")
LEFT_TO_THE_OS = LogConfig(flush_policy=FlushPolicy.OS)


def new_broker(config: LogConfig | None = None) -> Broker:
    broker = Broker(files=SimulatedDisk(), config=config)
    broker.append(record_batch(2))
    return broker


def disk_of(broker: Broker) -> SimulatedDisk:
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    return disk


def id_of(broker: Broker) -> str:
    """The id, which is on disk."""
    log_id = broker.log().log_id
    assert log_id is not None
    assert int(log_id, 16) < 1 << 128
    assert len(log_id) == 32
    metadata = read_partition_metadata(disk_of(broker), HOME)
    assert metadata is not None
    assert metadata.log_id == log_id
    return log_id


def crash(broker: Broker) -> None:
    disk_of(broker).crash()
    broker.start()


def test_it_stays_through_stops_and_crashes() -> None:
    broker = new_broker()
    log_id = id_of(broker)
    broker.restart()
    assert id_of(broker) == log_id
    crash(broker)
    assert id_of(broker) == log_id


def test_each_log_has_its_own() -> None:
    broker = new_broker()
    wanted = [WantedLog(TopicPartition("many", number), TOPIC_ID, {}) for number in range(50)]
    broker.directory.ensure_all(wanted)
    assert len({log.log_id for log in broker.directory.logs()}) == 51


def test_a_log_left_to_the_os_gets_another_when_it_was_not_stopped() -> None:
    broker = new_broker(LEFT_TO_THE_OS)
    log_id = id_of(broker)
    broker.restart()
    assert id_of(broker) == log_id
    crash(broker)
    assert id_of(broker) != log_id


def test_a_log_that_is_found_damaged_gets_another() -> None:
    """Brokers were told that all of it was on its disk."""
    broker = new_broker()
    broker.append(record_batch(2), record_batch(2))
    log_id = id_of(broker)
    disk_of(broker).flip(HOME / names.segment(0), len(record_batch(2)) + 30)
    crash(broker)
    assert broker.log().damaged != ()
    assert id_of(broker) != log_id
    assert is_same_log(id_of(broker), log_id)


def test_it_is_the_topics_own_policy_that_counts() -> None:
    broker = new_broker()
    log_id = id_of(broker)
    ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={"flush.policy": "os"})
    crash(broker)
    assert id_of(broker) != log_id


def test_a_policy_that_ends_is_kept_once_all_is_flushed() -> None:
    """A crash that comes sooner takes records that others were told of, so the id changes."""
    cut, same = 0, False
    while not same:
        broker = new_broker()
        ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={"flush.policy": "os"})
        broker.append(record_batch(2), flush=False)
        log_id, disk = id_of(broker), disk_of(broker)
        disk.cut_power_at = len(disk.operations) + cut
        with suppress(PowerCutError):
            ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={})
        crash(broker)
        same = id_of(broker) == log_id
        assert broker.log().flushed_end == 4 or not same
        cut += 1
    assert cut > 2


def test_a_policy_that_begins_counts_once_it_is_kept() -> None:
    """A log that goes by it before keeps its id in a crash that takes what others were told of."""
    cut, begun = 0, False
    while not begun:
        broker = new_broker()
        log, log_id, disk = broker.log(), id_of(broker), disk_of(broker)
        disk.cut_power_at = len(disk.operations) + cut
        with suppress(PowerCutError):
            ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={"flush.policy": "os"})
        begun = log.config.flush_policy is FlushPolicy.OS
        crash(broker)
        assert id_of(broker) != log_id or not begun
        cut += 1
    assert cut > 2


def test_a_disk_that_does_not_keep_the_policy_has_the_log_flushed() -> None:
    broker = new_broker()
    log, disk = broker.log(), disk_of(broker)
    disk.refuse = lambda done, path: (
        errno.ENOSPC if done == "pwrite" and names.TOPIC_CONFIG in path.name else None
    )
    wanted = {"flush.policy": "os", "retention.ms": "60000"}
    ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config=wanted)
    assert log.config == replace(LogConfig(), retention_ms=60_000), "it flushes"
    disk.refuse = lambda _done, _path: None
    ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config=wanted)
    assert log.config.flush_policy is FlushPolicy.OS
    assert log.kept_config == wanted


def test_a_log_of_a_release_without_ids_gets_one_that_stays() -> None:
    broker = new_broker()
    broker.directory.close()
    lines = [TP.topic, str(TP.partition), TOPIC_ID]
    old = checksummed_file("logbus-partition 1", lines)
    disk_of(broker).overwrite(HOME / names.PARTITION_METADATA, old)
    broker.start()
    log_id = id_of(broker)
    crash(broker)
    assert id_of(broker) == log_id


def test_a_damaged_file_costs_the_id_and_not_the_topic() -> None:
    broker = new_broker()
    broker.directory.maintain()
    log_id = id_of(broker)
    broker.directory.close()
    disk_of(broker).flip(HOME / names.PARTITION_METADATA, 30)
    broker.start()
    assert broker.log().topic_id == TOPIC_ID
    assert id_of(broker) != log_id


def test_without_room_there_is_none_until_there_is() -> None:
    broker = new_broker(LEFT_TO_THE_OS)
    log_id, disk = id_of(broker), disk_of(broker)
    disk.crash()
    disk.refuse = lambda did, path: (
        errno.ENOSPC if did == "pwrite" and path.name.startswith(names.PARTITION_METADATA) else None
    )
    broker.start()
    assert broker.log().log_id is None
    assert broker.log().ends().log_end_offset == 2  # it is served all the same
    disk.refuse = lambda *_: None
    ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={})
    assert id_of(broker) != log_id


@pytest.mark.parametrize("keep", [True, False])
def test_a_log_that_was_given_up_gets_another(keep: bool) -> None:
    broker = new_broker()
    log_id = id_of(broker)
    broker.directory.go_on(TP, topic_id=TOPIC_ID, config={}, base_offset=50, keep=keep)
    assert broker.log().ends().log_start_offset == (0 if keep else 50)
    assert id_of(broker) != log_id


def test_nothing_is_given_up_before_the_new_one_is_on_disk() -> None:
    broker = new_broker()
    disk_of(broker).refuse = lambda did, path: (
        errno.EIO if path.name.startswith(names.PARTITION_METADATA) else None
    )
    with pytest.raises(StorageError):
        broker.directory.go_on(TP, topic_id=TOPIC_ID, config={}, base_offset=50, keep=True)
    assert broker.log().ends().log_end_offset == 2
    assert broker.log().log_id is None
