"""Leader epochs of a log: where they end, what is on disk of them, and what headers tell."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from spark_logbus.errors import InvalidRequestError, StorageError
from spark_logbus.log import NO_EPOCH, EpochEnd, EpochEntry, LeaderEpochs, LogConfig
from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import checksummed_file
from spark_logbus.log.epochs import parse_epochs
from spark_logbus.record import stamp
from tests.builders.record_batches import joined, record_batch
from tests.fakes.clock import NOW_US
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import TP, Broker

HOME = Path("/data/flights-0")
FILE = HOME / names.LEADER_EPOCHS
CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=256, retention_ms=None)


def entries(*pairs: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(*pair) for pair in pairs)


def epochs_of(*pairs: tuple[int, int]) -> LeaderEpochs:
    disk = SimulatedDisk()
    disk.make_directory(Path("/data"))
    disk.make_directory(HOME)
    found = LeaderEpochs(disk, HOME)
    found.begin(entries(*pairs))
    return found


def led(*counts: tuple[int, int], config: LogConfig = CONFIG) -> Broker:
    """A log with so many record batches of two records in each epoch."""
    broker = Broker(files=SimulatedDisk(), config=config)
    for epoch, count in counts:
        for _ in range(count):
            broker.log().append_as_leader(record_batch(2, payload=bytes(150)), leader_epoch=epoch)
    broker.log().flush()
    return broker


def disk_of(broker: Broker) -> SimulatedDisk:
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    return disk


def kept(disk: SimulatedDisk) -> list[str]:
    """The lines that a crash now would leave."""
    return disk.durable_data(FILE).decode().splitlines()[1:-1]


# -- where an epoch ends ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "end"),
    [
        (9, (7, 100)),
        (7, (7, 100)),
        (6, (5, 60)),
        (5, (5, 60)),
        (4, (3, 40)),
        (3, (3, 40)),
        (2, (2, 10)),  # before all that is known
        (NO_EPOCH, (NO_EPOCH, 10)),
    ],
)
def test_the_largest_epoch_that_is_not_above_and_where_it_ends(
    asked: int, end: tuple[int, int]
) -> None:
    epochs = epochs_of((3, 10), (5, 40), (7, 60))
    assert epochs.latest == 7
    assert epochs.end_of(asked, 100) == EpochEnd(*end)


def test_a_log_without_epochs_ends_where_it_begins() -> None:
    epochs = epochs_of()
    assert epochs.latest == NO_EPOCH
    assert epochs.end_of(4, 30) == EpochEnd(4, 30)


def test_one_that_had_no_record_gives_way_to_the_next() -> None:
    epochs = epochs_of((3, 10), (5, 40), (6, 40))
    assert epochs.entries == entries((3, 10), (6, 40))
    assert epochs.end_of(5, 99) == EpochEnd(3, 40)


def test_an_epoch_that_is_not_above_the_latest_is_not_noted() -> None:
    epochs = epochs_of((3, 10), (5, 40), (4, 60), (5, 80))
    assert epochs.entries == entries((3, 10), (5, 40))


@pytest.mark.parametrize(
    ("end", "left"),
    [(0, []), (10, []), (11, [(3, 10)]), (40, [(3, 10)]), (41, [(3, 10), (5, 40)])],
)
def test_a_cut_takes_what_begins_there_or_later(end: int, left: list[tuple[int, int]]) -> None:
    """A log may end there already: an epoch may be noted that no record has."""
    epochs = epochs_of((3, 10), (5, 40))
    epochs.cut(end)
    assert epochs.entries == entries(*left)


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (0, [(3, 10), (5, 40), (7, 60)]),
        (39, [(3, 10), (5, 40), (7, 60)]),
        (40, [(5, 40), (7, 60)]),
        (59, [(5, 40), (7, 60)]),
        (1000, [(7, 60)]),
    ],
)
def test_the_epoch_that_covers_the_start_is_kept(start: int, left: list[tuple[int, int]]) -> None:
    epochs = epochs_of((3, 10), (5, 40), (7, 60))
    epochs.drop_before(start)
    assert epochs.entries == entries(*left)


@pytest.mark.parametrize("line", ["", "3", "3 x", "3 4 5", "3 10\n3 20", "3 10\n4 10", "4 1\n3 2"])
def test_lines_that_say_nothing_are_refused(line: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_epochs(line.split("\n"))


# -- on disk before the records -----------------------------------------------------------


@pytest.mark.parametrize("as_leader", [True, False])
def test_an_epoch_is_on_disk_before_its_first_record(as_leader: bool) -> None:
    broker = led((1, 2))
    disk, log = disk_of(broker), broker.log()
    seen = list[list[str]]()

    def watch(operation: str, path: Path) -> None:
        if operation == "pwrite" and path.suffix == ".log":
            seen.append(kept(disk))

    disk.refuse = watch
    if as_leader:
        for epoch in (4, 4, 6):
            log.append_as_leader(record_batch(2), leader_epoch=epoch)
        assert seen == [["1 0", "4 4"], ["1 0", "4 4"], ["1 0", "4 4", "6 8"]]
    else:
        data = joined(*(record_batch(2) for _ in range(3)))
        for number, epoch in enumerate((4, 4, 6)):
            batch = data[number * (len(data) // 3) :][: len(data) // 3]
            stamp(batch, base_offset=4 + 2 * number, leader_epoch=epoch, append_time_us=NOW_US)
        log.append_as_follower(data)
        assert seen == [["1 0", "4 4", "6 8"]]


def test_appends_of_an_epoch_write_its_file_once() -> None:
    broker = led((1, 1))
    operations = disk_of(broker).operations
    before = len(operations)
    for _ in range(3):
        broker.append(record_batch(2))
    assert not [path for _, path in operations[before:] if names.LEADER_EPOCHS in path.name]


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "rename", "sync_directory"])
def test_nothing_is_appended_while_the_disk_refuses_the_epoch(operation: str) -> None:
    broker = led((1, 2))
    disk, log = disk_of(broker), broker.log()
    disk.refuse = lambda did, path: (
        errno.ENOSPC
        if did == operation and (names.LEADER_EPOCHS in path.name or path == HOME)
        else None
    )
    with pytest.raises(StorageError, match="leader-epochs"):
        log.append_as_leader(record_batch(2), leader_epoch=2)
    assert (log.ends().log_end_offset, log.epochs.latest, log.offline) == (4, 1, None)
    assert log.refusing is not None
    disk.refuse = lambda *_: None
    assert log.append_as_leader(record_batch(2), leader_epoch=2).base_offset == 4
    assert kept(disk) == ["1 0", "2 4"]


def test_a_cut_that_the_disk_refused_is_made_good_before_the_next_append() -> None:
    broker = led((1, 2), (2, 1))
    disk, log = disk_of(broker), broker.log()
    disk.refuse = lambda did, path: errno.EIO if names.LEADER_EPOCHS in path.name else None
    log.epochs.cut(4)
    assert (log.epochs.entries, kept(disk)) == (entries((1, 0)), ["1 0", "2 4"])
    with pytest.raises(StorageError):
        log.append_as_leader(record_batch(2), leader_epoch=1)
    disk.refuse = lambda *_: None
    log.append_as_leader(record_batch(2), leader_epoch=1)
    assert kept(disk) == ["1 0"]


def test_a_follower_takes_no_record_batch_that_no_leader_stamped() -> None:
    log = led().log()
    data = record_batch()
    stamp(data, base_offset=0, leader_epoch=-3, append_time_us=NOW_US)
    with pytest.raises(InvalidRequestError, match="has leader epoch -3"):
        log.append_as_follower(data)
    assert log.ends().log_end_offset == 0


def test_they_are_as_they_were_after_a_start() -> None:
    broker = led((1, 3), (4, 9), (9, 1))
    expected = entries((1, 0), (4, 6), (9, 24))
    assert broker.log().epochs.entries == expected
    broker.restart()
    assert broker.log().epochs.entries == expected
    disk_of(broker).kill()
    broker.start()
    assert broker.log().epochs.entries == expected


def test_what_begins_beyond_the_recovered_end_is_cut_on_disk_too() -> None:
    broker = led((1, 3))
    for _ in range(2):
        broker.log().append_as_leader(record_batch(2), leader_epoch=2)  # never flushed
    disk = disk_of(broker)
    assert kept(disk) == ["1 0", "2 6"]
    disk.crash()
    broker.start()
    assert broker.log().ends().log_end_offset == 6
    assert (broker.log().epochs.entries, kept(disk)) == (entries((1, 0)), ["1 0"])


def test_retention_drops_epochs_that_are_gone() -> None:
    broker = led(
        (1, 8), (4, 8), (9, 20), config=LogConfig(segment_bytes=1024, retention_bytes=2500)
    )
    broker.directory.maintain()
    start = broker.log().ends().log_start_offset
    assert start > 32
    assert broker.log().epochs.entries == entries((9, 32))
    assert kept(disk_of(broker)) == ["9 32"]


# -- from headers -------------------------------------------------------------------------


def forget(broker: Broker) -> None:
    """Leaves the data directory as a release without epochs and log ids did."""
    broker.directory.close()
    disk = disk_of(broker)
    disk.remove(FILE)
    lines = [TP.topic, str(TP.partition), broker.log().topic_id]
    disk.overwrite(HOME / names.PARTITION_METADATA, checksummed_file("logbus-partition 1", lines))


def test_a_log_of_a_release_without_the_file_gets_one(caplog: pytest.LogCaptureFixture) -> None:
    broker = led((1, 3), (4, 20), (5, 1), (9, 5))
    assert broker.log().segment_count > 4
    expected = broker.log().epochs.entries
    forget(broker)
    with caplog.at_level(logging.WARNING):
        broker.start()
    assert broker.log().epochs.entries == expected
    assert kept(disk_of(broker)) == ["1 0", "4 6", "5 46", "9 48"]
    assert not caplog.records


def test_segments_within_one_epoch_are_not_read_through() -> None:
    broker = led((4, 60))
    forget(broker)
    disk, reads = disk_of(broker), list[Path]()
    disk.refuse = lambda did, path: (
        reads.append(path) if did == "pread" and path.suffix == ".log" else None
    )
    broker.start()
    assert broker.log().epochs.entries == entries((4, 0))
    # The first one is: until there is an epoch, none can be the same.
    later = [path for path in reads if not path.name.startswith("0" * 20)]
    assert 0 < len(later) <= 4 * broker.log().segment_count


@pytest.mark.parametrize("how", ["missing", "torn", "nonsense"])
def test_a_file_that_is_lost_is_made_again_and_told_of(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = led((1, 3), (4, 6))
    broker.directory.close()
    disk = disk_of(broker)
    if how == "missing":
        disk.remove(FILE)
    else:
        lines = checksummed_file("logbus-leader-epochs 1", ["4 6", "1 0"])
        disk.overwrite(FILE, lines[:-3] if how == "torn" else lines)
    with caplog.at_level(logging.WARNING):
        broker.start()
    assert broker.log().epochs.entries == entries((1, 0), (4, 6))
    assert kept(disk) == ["1 0", "4 6"]
    assert "is not there: 2 leader epochs were read from the headers" in caplog.text


def test_what_a_release_without_the_file_appended_is_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = led((1, 3), (4, 6), (7, 8), (8, 1))
    broker.directory.close()
    disk = disk_of(broker)
    disk.overwrite(FILE, checksummed_file("logbus-leader-epochs 1", ["1 0", "3 5"]))
    with caplog.at_level(logging.WARNING):
        broker.start()
    assert broker.log().epochs.entries == entries((1, 0), (3, 5), (4, 6), (7, 18), (8, 34))
    assert "lacks the newest" in caplog.text


def test_epochs_that_go_back_in_headers_count_as_the_highest_before() -> None:
    """ZooKeeper was restored from a backup, and its epochs began lower again."""
    broker = led((5, 3), (2, 9), (3, 9), (6, 1))
    assert broker.log().epochs.entries == entries((5, 0), (6, 42))
    forget(broker)
    broker.start()
    assert broker.log().epochs.entries == entries((5, 0), (6, 42))


def test_damage_hides_epochs_and_keeps_no_log_from_opening() -> None:
    broker = led((1, 4), (2, 9), (3, 9))
    forget(broker)
    disk = disk_of(broker)
    first = HOME / names.segment(0)
    data = bytearray(disk.data(first))
    data[240:480] = bytes(240)
    disk.overwrite(first, bytes(data))
    broker.start()
    assert broker.log().epochs.entries[0] == (1, 0)
    assert broker.log().epochs.entries[-1] == (3, 26)
    assert broker.log().append_as_leader(record_batch(), leader_epoch=4).base_offset == 44
