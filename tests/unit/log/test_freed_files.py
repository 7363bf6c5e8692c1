"""Files that are deleted are not held open: their space comes back at once."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.broker.replica.watermark import sole_replica
from spark_logbus.clock import SystemClock
from spark_logbus.errors import LogbusError, PartitionOfflineError, UnknownTopicError
from spark_logbus.log import LogConfig, LogDirectory, LogSlice, PartitionLog
from spark_logbus.log.disk.filesystem import File, OSFile, OSFileSystem
from tests.builders.record_batches import record_batch
from tests.fakes.clock import NOW_US
from tests.fakes.compaction import keyed, planned, write_cleaned
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, ensure_one, offsets_from
from tests.helpers import open_files, wait_until

CONFIG = LogConfig(segment_bytes=1024, retention_ms=None)
COUNT = 9  # of segments, the active one with them


#: What is let go of, is let go of at once: nobody waits for the collector of cycles.
pytestmark = pytest.mark.usefixtures("no_collector")


def filled(broker: Broker) -> PartitionLog:
    """All segments open, as after a look at each of them."""
    broker.append(*(record_batch(1, payload=bytes(600)) for _ in range(COUNT)))
    log = broker.log()
    assert offsets_from(log, 0) == list(range(COUNT))
    assert log.segment_count == COUNT
    assert len(open_files(broker.path)) > COUNT
    return log


def deleted_files(path: Path) -> list[str]:
    return [name for name in open_files(path) if name.endswith(" (deleted)")]


def test_of_a_removed_log_nothing_is_open(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", config=CONFIG)
    log = filled(broker)
    broker.remove(TP, topic_id=TOPIC_ID)
    assert open_files(broker.path) == [str(broker.path / ".lock")]
    for use in (
        lambda: log.read(0, max_bytes=100),
        lambda: log.read(COUNT - 1, max_bytes=100),
        lambda: log.offset_at(NOW_US),
        lambda: log.split(0, COUNT, target_bytes=1),
        lambda: log.append_as_leader(record_batch(1), leader_epoch=1),
    ):
        with pytest.raises(UnknownTopicError, match="was deleted"):
            use()
    assert open_files(broker.path) == [str(broker.path / ".lock")]


def test_of_a_log_that_is_set_aside_nothing_is_open(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", config=CONFIG)
    filled(broker)
    other = ensure_one(broker.directory, TP, topic_id="b" * 32, config={})
    aside = [name for name in open_files(broker.path) if ".stray" in name]
    assert aside == []
    other.append_as_leader(record_batch(2), leader_epoch=1)
    other.flush()
    assert offsets_from(other, 0) == [0]


@pytest.mark.parametrize("flush_ms", [None, 600_000])
def test_the_flusher_keeps_no_file_of_a_removed_log(tmp_path: Path, flush_ms: int | None) -> None:
    """Its thread still has the last log at hand, and a timer has the log that set it."""
    config = LogConfig(flush_ms=flush_ms)
    directory = LogDirectory(
        tmp_path / "data", defaults=config, clock=SystemClock(), watermark=sole_replica
    )
    directory.open()
    log = ensure_one(directory, TP, topic_id=TOPIC_ID, config={})
    log.append_as_leader(record_batch(1), leader_epoch=1)
    wait_until(lambda: flush_ms or log.flushed_end >= 1)
    answers: list[LogbusError | None] = []
    log.append_as_leader(record_batch(1), leader_epoch=1)
    log.when_flushed(99, answers.append)
    assert directory.remove({TP: TOPIC_ID}) == {}
    assert [type(answer) for answer in answers] == [UnknownTopicError]
    assert deleted_files(tmp_path) == []
    directory.close()


@pytest.mark.parametrize("offset", [0, COUNT - 1])
def test_a_reader_under_way_ends_whole_and_then_lets_go(tmp_path: Path, offset: int) -> None:
    broker = Broker(tmp_path / "data", config=CONFIG)
    log = filled(broker)
    piece: LogSlice | None = log.read(offset, max_bytes=100)
    assert piece is not None
    whole = piece.read()
    broker.remove(TP, topic_id=TOPIC_ID)
    assert len(deleted_files(broker.path)) == 1
    assert piece.read() == whole
    piece = None
    assert deleted_files(broker.path) == []


def test_what_retention_deletes_is_not_open(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", config=CONFIG)
    log = filled(broker)
    log.configure(LogConfig(segment_bytes=1024, retention_bytes=1, retention_ms=None))
    broker.directory.maintain()
    assert log.segment_count == 1
    assert deleted_files(broker.path) == []
    broker.directory.close()


def test_a_segment_deleted_while_opened_is_closed(tmp_path: Path) -> None:
    files = MeddlingFiles()
    broker = Broker(tmp_path / "data", config=CONFIG, files=files)
    filled(broker)
    broker.restart()  # nothing but the last segment is open
    gc.collect()
    broker.log().configure(LogConfig(segment_bytes=1024, retention_bytes=1, retention_ms=None))
    files.after_opening = broker.directory.maintain
    piece = broker.log().read(0, max_bytes=100)
    assert piece is not None
    assert len(deleted_files(broker.path)) == 1, "for this reader"
    del piece
    assert deleted_files(broker.path) == []
    broker.directory.close()


def test_what_compaction_replaces_is_not_open(tmp_path: Path) -> None:
    config = LogConfig(**{**vars(CONFIG), "cleanup_policy": "compact"})
    broker = Broker(tmp_path / "data", config=config)
    broker.append(*(keyed(2, b"%03d" % number + bytes(400)) for number in range(12)))
    assert len(offsets_from(broker.log(), 0)) == 12
    for group in planned(broker).groups:
        write_cleaned(broker, group)
        assert broker.log().compaction.swap(group)
    offsets_from(broker.log(), 0)
    assert deleted_files(broker.path) == []
    broker.directory.close()


def test_errors_that_are_kept_hold_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MeddlingFiles()
    broker = Broker(tmp_path / "data", config=CONFIG, files=files)
    log = filled(broker)
    monkeypatch.setattr(_File, "sync_fails", True)
    broker.append(record_batch(1))
    for _ in range(3):
        with pytest.raises(PartitionOfflineError):
            log.append_as_leader(record_batch(1), leader_epoch=1)
    broker.remove(TP, topic_id=TOPIC_ID)
    assert deleted_files(broker.path) == []
    assert log.offline is not None
    assert log.offline.__traceback__ is None


def test_a_log_that_could_not_be_opened_holds_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MeddlingFiles()
    broker = Broker(tmp_path / "data", config=CONFIG, files=files)
    filled(broker)
    broker.directory.close()
    (broker.path / "clean-shutdown").unlink()
    del broker
    gc.collect()
    monkeypatch.setattr(_File, "sync_fails", True)
    broker = Broker(tmp_path / "data", config=CONFIG, files=files)
    assert TP in broker.directory.failed()
    assert [name for name in open_files(broker.path) if name.endswith(".log")] == []


class _File(OSFile):
    sync_fails = False

    def sync(self) -> None:
        if self.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        super().sync()


class MeddlingFiles(OSFileSystem):
    """Real files; something happens right after one was opened, or flushes fail."""

    def __init__(self) -> None:
        self.after_opening: Callable[[], None] | None = None

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        return _File(os.open(path, flags, 0o644), path)

    def open_read_only(self, path: Path) -> File:
        file = super().open_read_only(path)
        meddle, self.after_opening = self.after_opening, None
        if meddle is not None:
            meddle()
        return file
