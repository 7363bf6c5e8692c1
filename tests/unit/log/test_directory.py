from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from spark_logbus.broker.replica.watermark import sole_replica
from spark_logbus.errors import (
    BrokerShuttingDownError,
    ConfigError,
    DataDirectoryLockedError,
    InvalidNameError,
    OffsetOutOfRangeError,
    StorageError,
)
from spark_logbus.log import LogConfig, LogDirectory
from spark_logbus.model import TopicPartition
from tests.builders.record_batches import record_batch
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, ensure_one, offsets_from
from tests.helpers import open_files


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(
        tmp_path / "data",
        config=LogConfig(segment_bytes=1024, retention_bytes=2500, retention_ms=None),
    )


def test_one_process_at_a_time(broker: Broker) -> None:
    second = LogDirectory(broker.path, defaults=LogConfig(), watermark=sole_replica)
    with pytest.raises(DataDirectoryLockedError, match="in use by another process"):
        second.open()
    broker.directory.close()
    second.open()
    second.close()


def test_a_path_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError, match="data directory"):
        LogDirectory(
            tmp_path / "file" / "data", defaults=LogConfig(), watermark=sole_replica
        ).open()


def test_ensure_creates_configures_and_finds(broker: Broker) -> None:
    assert broker.directory.get(TP) is None
    log = ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={"retention.ms": "5"})
    assert log.config.retention_ms == 5
    assert log.config.segment_bytes == 1024
    assert ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={}) is log
    assert log.config == broker.config
    assert broker.directory.get(TP) is log
    assert broker.directory.logs() == [log]


@pytest.mark.parametrize("topic", ["..", "a/b", "", "x" * 300])
def test_names_that_are_no_names(broker: Broker, topic: str) -> None:
    with pytest.raises(InvalidNameError):
        ensure_one(broker.directory, TopicPartition(topic, 0), topic_id=TOPIC_ID, config={})
    with pytest.raises(InvalidNameError):
        ensure_one(broker.directory, TP, topic_id=topic, config={})


def test_a_bad_configuration_creates_nothing(broker: Broker) -> None:
    with pytest.raises(ConfigError):
        ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={"retention.ms": "soon"})
    assert not broker.log_path().exists()


def test_the_longest_topic_name_works_throughout(broker: Broker) -> None:
    longest = TopicPartition("t" * 249, 0)
    ensure_one(broker.directory, longest, topic_id=TOPIC_ID, config={})
    ensure_one(broker.directory, longest, topic_id="b" * 32, config={})
    broker.remove(longest, topic_id="b" * 32)
    assert broker.directory.get(longest) is None


def test_logs_of_two_earlier_topics_of_that_name_are_both_kept(broker: Broker) -> None:
    for topic_id in (TOPIC_ID, "b" * 32, TOPIC_ID, "b" * 32):
        ensure_one(broker.directory, TP, topic_id=topic_id, config={})
    strays = sorted(path.name for path in broker.path.glob("*.stray"))
    assert strays == [f"{TOPIC_ID}-0.1.stray", f"{TOPIC_ID}-0.stray", f"{'b' * 32}-0.stray"]
    broker.restart()
    assert sorted(path.name for path in broker.path.glob("*.stray")) == strays


def test_remove_is_for_the_named_topic_only(broker: Broker) -> None:
    broker.append(record_batch(1))
    broker.remove(TP, topic_id="b" * 32)
    broker.remove(TopicPartition("unknown", 0), topic_id=TOPIC_ID)
    assert offsets_from(broker.log(), 0) == [0]
    broker.remove(TP, topic_id=TOPIC_ID)
    assert sorted(os.listdir(broker.path)) == [".lock", "checkpoint", "clock"]


def test_after_close_appends_are_refused_and_reads_still_work(broker: Broker) -> None:
    broker.append(record_batch(2))
    log = broker.log()
    broker.directory.close()
    with pytest.raises(BrokerShuttingDownError):
        log.append_as_leader(record_batch(1), leader_epoch=1)
    assert offsets_from(log, 0) == [0]
    broker.directory.close()  # twice is fine


def test_after_close_the_directory_is_left_alone(broker: Broker) -> None:
    broker.append(*(record_batch(1, payload=bytes(600)) for _ in range(9)))
    broker.directory.close()
    before = sorted(os.listdir(broker.log_path()))
    broker.directory.maintain()
    assert sorted(os.listdir(broker.log_path())) == before
    with pytest.raises(BrokerShuttingDownError):
        ensure_one(broker.directory, TopicPartition("new", 0), topic_id=TOPIC_ID, config={})
    with pytest.raises(BrokerShuttingDownError):
        broker.remove(TP, topic_id=TOPIC_ID)


def test_a_slice_outlives_the_segment_that_retention_deletes(broker: Broker) -> None:
    broker.append(*(record_batch(1, payload=b"%03d" % n + bytes(597)) for n in range(9)))
    log = broker.log()
    held = log.read(0, max_bytes=1 << 20)
    assert held is not None
    before = held.read()
    broker.directory.maintain()
    assert log.ends().log_start_offset > 0
    assert not (broker.log_path() / f"{0:020d}.log").exists()
    assert os.fstat(held.file.fileno()).st_nlink == 0
    assert held.read() == before
    with pytest.raises(OffsetOutOfRangeError):
        log.read(0, max_bytes=100)
    fd = held.file.fileno()
    del held
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_segment_deleted_while_a_reader_opens_it() -> None:
    config = LogConfig(segment_bytes=1024, retention_bytes=2500, retention_ms=None)
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=config)
    broker.append(*(record_batch(1, payload=bytes(600)) for _ in range(9)))
    broker.restart()  # nothing is open

    def maintain_first(operation: str, _path: Path) -> None:
        if operation == "open":
            disk.refuse = lambda _operation, _path: None
            broker.directory.maintain()

    disk.refuse = maintain_first
    with pytest.raises(OffsetOutOfRangeError, match="Offset 0 of"):
        broker.log().read(0, max_bytes=100)
    assert broker.log().ends().log_start_offset > 0


def test_readers_under_rolls_and_retention_see_whole_batches() -> None:
    config = LogConfig(segment_bytes=1024, retention_bytes=2500, retention_ms=None)
    broker = Broker(files=SimulatedDisk(), config=config)
    log = broker.log()
    stop = threading.Event()
    problems: list[str] = []

    def read() -> None:
        offset = 0
        while not stop.is_set():
            try:
                found = offsets_from(log, offset)
            except OffsetOutOfRangeError:
                offset = log.ends().log_start_offset
                continue
            if found and found != list(range(offset, offset + len(found))):
                problems.append(f"read {found} from {offset}")
            offset = found[-1] + 1 if found else offset

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(150):
        broker.append(record_batch(1, payload=b"%08d" % number + bytes(300)))
        if number % 5 == 0:
            broker.directory.maintain()
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []


def test_sealed_segments_are_opened_at_need_and_let_go(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_logbus.log.directory._OPEN_SEALED_SEGMENTS", 3)
    broker.config = LogConfig(segment_bytes=1024, retention_ms=None)
    broker.restart()
    broker.append(*(record_batch(1, payload=bytes(600)) for _ in range(40)))

    gc.collect()
    assert len(open_files(broker.log_path())) <= 4
    assert offsets_from(broker.log(), 0) == list(range(40))
    gc.collect()
    assert len(open_files(broker.log_path())) <= 4


def test_recovery_tells_how_far_it_is(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.append(record_batch(1))
    progress = broker.directory.recovery
    assert (progress.logs_total, progress.logs_done) == (0, 0)
    broker.restart()
    progress = broker.directory.recovery
    assert (progress.logs_total, progress.logs_done, progress.bytes_scanned) == (1, 1, 0)
    caplog.set_level("INFO")
    broker.clock.advance(6)
    progress.scanned(3_000_000)
    assert "opened 1 of 1 logs and scanned 3 MB" in caplog.text
