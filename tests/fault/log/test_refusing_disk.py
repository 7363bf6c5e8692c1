"""The disk is full, fails to flush, or cannot be read."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import resource
from pathlib import Path

import pytest

from spark_logbus.errors import LogbusError, PartitionOfflineError, StorageError
from spark_logbus.log import LogConfig
from spark_logbus.log.disk import names
from spark_logbus.model import TopicPartition
from tests.builders.record_batches import record_batch
from tests.fakes.disk import NOTHING, AllSurvives, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, ensure_one, offsets_from

SEGMENT = Path("/data/flights-0") / names.segment(0)
OTHER = TopicPartition("other", 3)


def refusing(operation: str, path_part: str, number: int) -> object:
    return lambda done, path: number if done == operation and path_part in str(path) else None


# -- no space left ------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1, 79, 80, 87])
def test_a_full_disk_refuses_an_append_whole(
    room: int,
) -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch(2), record_batch(3))
    whole = bytes(disk.data(SEGMENT))
    disk.capacity = disk.used() + room
    with pytest.raises(StorageError, match="free space"):
        broker.append(record_batch(1))
    assert disk.data(SEGMENT) == whole
    assert broker.log().offline is None
    assert offsets_from(broker.log(), 0) == [0, 2]
    disk.capacity = None
    assert broker.append(record_batch(1)) == 6
    assert offsets_from(broker.log(), 0) == [0, 2, 5]
    disk.crash(NOTHING)
    broker.start()
    assert offsets_from(broker.log(), 0) == [0, 2, 5]


def test_a_file_that_takes_only_a_part_of_a_write(tmp_path: Path) -> None:
    """A real file system first says how much it took and then why not more."""
    broker = Broker(tmp_path / "data")
    broker.append(record_batch(2))
    path = broker.log_path() / names.segment(0)
    whole = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 4096, hard))
    try:
        with pytest.raises(StorageError, match=os.strerror(errno.EFBIG)):
            broker.append(record_batch(1, payload=bytes(10_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == whole
    assert broker.append(record_batch(1, payload=bytes(10_000))) == 3
    assert offsets_from(broker.log(), 0) == [0, 2]
    broker.directory.close()


def test_an_append_that_cannot_be_undone_takes_the_partition_offline() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch(2))
    disk.refuse = lambda done, path: (
        errno.EIO if done in ("pwrite", "truncate") and path == SEGMENT else None
    )
    with pytest.raises(PartitionOfflineError, match="could not be removed"):
        broker.append(record_batch(1))
    disk.refuse = lambda _done, _path: None
    with pytest.raises(PartitionOfflineError):
        broker.append(record_batch(1))
    assert offsets_from(broker.log(), 0) == [0]
    disk.crash(AllSurvives())
    broker.start()
    assert offsets_from(broker.log(), 0) == [0]
    assert broker.append(record_batch(1)) == 3


@pytest.mark.parametrize("refused", ["create", "pwrite"])
def test_a_roll_without_space_fails_the_append_only(refused: str) -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=LogConfig(segment_bytes=1024))
    broker.append(record_batch(1, payload=bytes(800)))
    second = names.segment(1)
    disk.refuse = refusing(refused, second, errno.ENOSPC)  # type: ignore[assignment]
    with pytest.raises(StorageError, match="free space"):
        broker.append(record_batch(1, payload=bytes(800)))
    assert broker.log().offline is None
    assert offsets_from(broker.log(), 0) == [0]
    disk.refuse = lambda _done, _path: None
    assert broker.append(record_batch(1, payload=bytes(800))) == 2
    assert offsets_from(broker.log(), 0) == [0, 1]


@pytest.mark.parametrize(
    ("refused", "said"),
    [(".index", "index will be rebuilt"), (".producers", "recovery would take longer")],
)
def test_rebuildable_files_stop_no_append(
    refused: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=LogConfig(segment_bytes=1024))
    disk.refuse = refusing("pwrite", refused, errno.ENOSPC)  # type: ignore[assignment]
    broker.append(*(record_batch(1, payload=bytes(600)) for _ in range(4)))
    assert offsets_from(broker.log(), 0) == [0, 1, 2, 3]
    assert said in caplog.text
    disk.refuse = lambda _done, _path: None
    broker.restart()
    assert offsets_from(broker.log(), 0) == [0, 1, 2, 3]


def test_retention_frees_a_full_disk_without_a_checkpoint() -> None:
    disk = SimulatedDisk()
    config = LogConfig(segment_bytes=1024, retention_bytes=1024, retention_ms=None)
    broker = Broker(files=disk, config=config)
    broker.append(*(record_batch(1, payload=bytes(600)) for _ in range(6)))
    before = disk.used()
    disk.capacity = disk.used()
    broker.directory.maintain()
    assert disk.used() < before
    assert broker.append(record_batch(1, payload=bytes(600))) == 7
    start = broker.log().ends().log_start_offset
    assert start == 4
    disk.crash(NOTHING)
    broker.start()
    assert offsets_from(broker.log(), start) == [4, 5, 6]


# -- failed flushes -----------------------------------------------------------------------


def test_a_failed_flush_is_not_acknowledged_and_not_tried_again() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch(2))
    log = broker.log()
    answers: list[LogbusError | None] = []
    told: list[int] = []
    log.add_listener(lambda: told.append(log.ends().high_watermark))
    disk.refuse = refusing("sync", "flights-0", errno.EIO)  # type: ignore[assignment]
    appended = log.append_as_leader(record_batch(3), leader_epoch=1)
    log.when_flushed(appended.end_offset, answers.append)
    broker.flusher.run()
    assert [type(answer) for answer in answers] == [PartitionOfflineError]
    assert told == [2]

    disk.refuse = lambda _done, _path: None  # the next fsync would "succeed"
    syncs = disk.operations.count(("sync", SEGMENT))
    log.flush()
    broker.flusher.run()
    broker.directory.maintain()
    assert disk.operations.count(("sync", SEGMENT)) == syncs
    assert log.ends().high_watermark == 2
    assert log.flushed_end < appended.end_offset
    with pytest.raises(PartitionOfflineError, match="stay readable"):
        log.append_as_leader(record_batch(1), leader_epoch=1)
    log.when_flushed(appended.end_offset, answers.append)  # told at once
    log.when_flushed(2, answers.append)
    assert [type(answer) for answer in answers[1:]] == [PartitionOfflineError, type(None)]
    assert offsets_from(log, 0) == [0]


def test_a_failed_flush_leaves_no_clean_marker() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch(2))
    other = broker.log(OTHER)
    disk.refuse = refusing("sync", "flights-0", errno.EIO)  # type: ignore[assignment]
    broker.append(record_batch(2))
    assert broker.log().offline is not None
    other.append_as_leader(record_batch(4), leader_epoch=1)
    other.flush()
    assert offsets_from(other, 0) == [0]
    disk.refuse = lambda _done, _path: None
    broker.directory.close()
    assert not disk.exists(Path("/data/clean-shutdown"))
    broker.start()
    assert broker.append(record_batch(1)) >= 3


def test_after_a_failed_flush_pages_are_rewritten_before_serving() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch(2))
    disk.refuse = refusing("sync", "flights-0", errno.EIO)  # type: ignore[assignment]
    broker.append(record_batch(3))
    disk.refuse = lambda _done, _path: None
    disk.forget_pending(SEGMENT)
    broker.directory.close()
    broker.start()
    assert offsets_from(broker.log(), 0) == [0, 2]
    disk.crash(NOTHING)
    broker.start()
    assert offsets_from(broker.log(), 0) == [0, 2]


def test_a_failed_flush_at_start_is_repaired_at_the_next() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch(2))
    path_of_other = broker.log(OTHER).directory
    disk.refuse = refusing("sync", "flights-0", errno.EIO)  # type: ignore[assignment]
    broker.append(record_batch(3))
    for _ in range(2):  # the disk goes on failing, and the kernel forgets what it could not write
        disk.forget_pending(SEGMENT)
        broker.directory.close()
        broker.start()
        assert broker.directory.get(TP) is None
        assert broker.directory.get(OTHER) is not None
    disk.refuse = lambda _done, _path: None
    broker.restart()
    assert offsets_from(broker.log(), 0) == [0, 2]
    assert names.FLUSH_FAILED not in disk.names(SEGMENT.parent)
    assert names.FLUSH_FAILED not in disk.names(path_of_other)
    disk.crash(NOTHING)
    broker.start()
    assert offsets_from(broker.log(), 0) == [0, 2]


def test_a_failed_first_flush_is_repaired_at_the_next_start() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch(2))
    broker.append(record_batch(3), flush=False)
    disk.kill()
    disk.refuse = refusing("sync", "flights-0", errno.EIO)  # type: ignore[assignment]
    broker.start()
    assert broker.directory.get(TP) is None
    disk.forget_pending(SEGMENT)
    disk.kill()
    disk.refuse = lambda _done, _path: None
    broker.start()
    served = offsets_from(broker.log(), 0)
    disk.crash(NOTHING)
    broker.start()
    assert offsets_from(broker.log(), 0) == served == [0, 2]


def test_what_was_flushed_is_not_written_again_after_a_crash() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch(2), record_batch(3))
    disk.crash(AllSurvives())
    writes = disk.operations.count(("pwrite", SEGMENT))
    broker.start()
    assert disk.operations.count(("pwrite", SEGMENT)) == writes
    assert offsets_from(broker.log(), 0) == [0, 2]


@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
def test_a_roll_that_cannot_flush_takes_the_partition_offline(operation: str) -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=LogConfig(segment_bytes=1024, flush_ms=1000))
    log = broker.log()
    log.append_as_leader(record_batch(1, payload=bytes(800)), leader_epoch=1)
    disk.refuse = refusing(operation, "flights-0", errno.EIO)  # type: ignore[assignment]
    answers: list[LogbusError | None] = []
    log.when_flushed(2, answers.append)
    with pytest.raises(PartitionOfflineError):
        log.append_as_leader(record_batch(1, payload=bytes(800)), leader_epoch=1)
    broker.flusher.run()
    assert [type(answer) for answer in answers] == [PartitionOfflineError]
    disk.refuse = lambda _done, _path: None
    disk.crash(AllSurvives())
    broker.start()
    assert offsets_from(broker.log(), 0) == [0]


@pytest.mark.parametrize("operation", ["create", "open directory"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_roll_without_descriptors_fails_the_append_only(operation: str, number: int) -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=LogConfig(segment_bytes=1024))
    broker.append(record_batch(1, payload=bytes(800)))
    disk.refuse = refusing(operation, "flights-0", number)  # type: ignore[assignment]
    with pytest.raises(StorageError, match=r"start a segment .*(limit of open files|free memory)"):
        broker.append(record_batch(1, payload=bytes(800)))
    assert broker.log().offline is None
    assert offsets_from(broker.log(), 0) == [0]
    disk.refuse = lambda _done, _path: None
    assert broker.append(record_batch(1, payload=bytes(800))) == 2
    disk.crash(NOTHING)
    broker.start()
    assert offsets_from(broker.log(), 0) == [0, 1]


def limit_with_free(count: int) -> int:
    """The limit below which so many descriptors are free: between those that others have opened
    there are gaps."""
    free = (number for number in itertools.count() if not is_open(number))
    return next(itertools.islice(free, count, None))


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_descriptors_that_run_out_at_a_roll_on_a_real_disk(tmp_path: Path) -> None:
    """Rolls at each number of descriptors that are left, until there are enough."""
    for left in range(12):
        broker = Broker(tmp_path / f"{left}", config=LogConfig(segment_bytes=1024))
        broker.append(record_batch(1, payload=bytes(800)))
        log = broker.log()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        gc.collect()  # or garbage of earlier tests would let go of some in between
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit_with_free(left), hard))
        try:
            log.append_as_leader(record_batch(1, payload=bytes(800)), leader_epoch=1)
            enough = True
        except StorageError:
            enough = False
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert log.offline is None
        if not enough:
            log.append_as_leader(record_batch(1, payload=bytes(800)), leader_epoch=1)
        log.flush()
        assert offsets_from(log, 0) == [0, 1]
        broker.directory.close()
        if enough:
            break
    assert enough
    assert left > 1


# -- reads --------------------------------------------------------------------------------


def test_an_unreadable_log_at_start_spares_the_others() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch(2))
    broker.log(OTHER).append_as_leader(record_batch(4), leader_epoch=1)
    disk.crash(AllSurvives())
    disk.refuse = refusing("pread", str(SEGMENT), errno.EIO)  # type: ignore[assignment]
    broker.start()
    assert broker.directory.get(TP) is None
    assert offsets_from(broker.log(OTHER), 0) == [0]
    with pytest.raises(PartitionOfflineError, match="could not be opened"):
        ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={})
    disk.refuse = lambda _done, _path: None
    broker.restart()
    assert offsets_from(broker.log(), 0) == [0]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_log_without_a_descriptor_at_start_opens_later(number: int) -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch(2))
    disk.crash(AllSurvives())
    disk.refuse = refusing("open for writing", str(SEGMENT), number)  # type: ignore[assignment]
    broker.start()
    for _ in range(2):
        with pytest.raises(PartitionOfflineError, match="could not be opened"):
            ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={})
    disk.refuse = lambda _done, _path: None
    assert offsets_from(broker.log(), 0) == [0]
    assert broker.directory.failed() == {}
    assert broker.append(record_batch(1)) == 3


def test_a_read_error_is_a_storage_error_with_path_and_remedy() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch(2), record_batch(2))
    disk.refuse = refusing("pread", "flights-0", errno.EIO)  # type: ignore[assignment]
    with pytest.raises(StorageError, match=r"/data/flights-0.*check the disk"):
        broker.log().read(3, max_bytes=90)
    disk.refuse = lambda _done, _path: None
    assert offsets_from(broker.log(), 0) == [0, 2]
