"""Logs that are known and not there, that are older copies, or that could not be made or opened."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from spark_logbus.errors import LogMissingError, PartitionOfflineError, StorageError
from spark_logbus.log import PartitionLog
from spark_logbus.log.disk import names
from spark_logbus.model import TopicPartition
from tests.builders.record_batches import record_batch
from tests.fakes.disk import NOTHING, AllSurvives, PowerCutError, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, ensure_one, offsets_from

DATA = Path("/data")
HOME = DATA / "flights-0"
OTHER = TopicPartition("other", 3)
OTHER_ID = "b" * 32
NEW_START = 1000


def ensure(
    broker: Broker, *, topic_id: str = TOPIC_ID, known_end: int | None = None
) -> PartitionLog:
    return ensure_one(broker.directory, TP, topic_id=topic_id, config={}, known_end=known_end)


def away(disk: SimulatedDisk) -> None:
    """Move the log's directory away, durably."""
    disk.rename(HOME, DATA / "elsewhere")
    disk.sync_directory(DATA)


def back(disk: SimulatedDisk) -> None:
    disk.rename(DATA / "elsewhere", HOME)
    disk.sync_directory(DATA)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def broker(disk: SimulatedDisk) -> Broker:
    broker = Broker(files=disk)
    broker.append(record_batch(2), record_batch(3))
    return broker


# -- logs that are not there ----------------------------------------------------------------


def test_a_log_that_the_checkpoint_knows_is_not_made_anew(
    disk: SimulatedDisk, broker: Broker
) -> None:
    broker.directory.close()
    away(disk)
    for _ in range(2):  # what is known of it outlives the starts without it
        broker.start()
        with pytest.raises(LogMissingError, match=r"reached offset 5 .*Mount its disk.*give-up"):
            ensure(broker)
        assert not disk.exists(HOME)
        assert broker.directory.known_end(TP, topic_id=TOPIC_ID) == 5
        broker.directory.close()
    back(disk)
    broker.start()
    assert offsets_from(ensure(broker), 0) == [0, 2]


def test_a_returned_directory_waits_for_the_next_start(disk: SimulatedDisk, broker: Broker) -> None:
    """A directory that comes back may be half copied."""
    broker.directory.close()
    away(disk)
    broker.start()
    back(disk)
    before = len(disk.operations)
    with pytest.raises(LogMissingError):
        ensure(broker)
    assert disk.operations[before:] == [], "nothing of it is touched"
    broker.restart()
    assert offsets_from(ensure(broker), 0) == [0, 2]


@pytest.mark.parametrize("known_end", [0, 5])
def test_a_log_that_zookeeper_knows_is_not_made_anew(known_end: int) -> None:
    broker = Broker(files=SimulatedDisk())
    with pytest.raises(LogMissingError):
        ensure(broker, known_end=known_end)
    assert not broker.files.exists(HOME)


def test_a_log_that_ends_before_what_zookeeper_knows_is_refused(broker: Broker) -> None:
    assert ensure(broker, known_end=5).ends().log_end_offset == 5
    with pytest.raises(LogMissingError, match="ends at offset 5, and reached 6 at least"):
        ensure(broker, known_end=6)


def test_an_earlier_topic_of_that_name_stands_in_no_ones_way(
    disk: SimulatedDisk, broker: Broker
) -> None:
    broker.directory.close()
    away(disk)
    broker.start()
    assert ensure(broker, topic_id=OTHER_ID).ends().log_end_offset == 0


def test_a_missing_log_of_a_deleted_topic_is_forgotten(disk: SimulatedDisk, broker: Broker) -> None:
    broker.directory.close()
    away(disk)
    broker.start()
    broker.remove(TP, topic_id=OTHER_ID)
    with pytest.raises(LogMissingError):
        ensure(broker)
    broker.remove(TP, topic_id=TOPIC_ID)
    broker.restart()
    assert broker.directory.known_end(TP, topic_id=TOPIC_ID) == 0


def test_a_log_that_could_not_be_opened_goes_with_its_topic(
    disk: SimulatedDisk, broker: Broker
) -> None:
    """A log that stays takes its space, and counts as offline, for ever."""
    copy = bytes(disk.data(HOME / names.segment(0)))
    broker.append(record_batch(4))
    broker.directory.close()
    disk.overwrite(HOME / names.segment(0), copy)  # an older one
    broker.start()
    assert list(broker.directory.failed()) == [TP]
    broker.remove(TP, topic_id=OTHER_ID)
    assert list(broker.directory.failed()) == [TP]
    broker.remove(TP, topic_id=TOPIC_ID)
    assert broker.directory.failed() == {}
    assert [name for name in disk.names(DATA) if disk.is_directory(DATA / name)] == []
    broker.restart()
    assert broker.directory.failed() == {}
    assert ensure(broker, topic_id=OTHER_ID).ends().log_end_offset == 0


# -- older copies ---------------------------------------------------------------------------


def test_an_older_copy_is_refused_and_left_as_it_is(disk: SimulatedDisk, broker: Broker) -> None:
    copy = bytes(disk.data(HOME / names.segment(0)))
    broker.append(record_batch(4))
    broker.restart()  # the checkpoint knows of 9
    broker.log(OTHER).append_as_leader(record_batch(1), leader_epoch=1)
    disk.crash(AllSurvives())
    disk.overwrite(HOME / names.segment(0), copy)
    broker.start()
    with pytest.raises(LogMissingError, match="ends at offset 5, and reached 9 at least"):
        ensure(broker)
    assert disk.data(HOME / names.segment(0)) == copy
    assert broker.directory.get(OTHER) is not None
    assert list(broker.directory.failed()) == [TP]
    broker.restart()
    with pytest.raises(LogMissingError):
        ensure(broker)


def test_a_log_without_its_segments_is_refused(disk: SimulatedDisk, broker: Broker) -> None:
    broker.directory.close()
    disk.remove(HOME / names.segment(0))
    broker.start()
    with pytest.raises(LogMissingError, match="ends at offset 0, and reached 5 at least"):
        ensure(broker)


# -- given up -------------------------------------------------------------------------------


def give_up(broker: Broker) -> PartitionLog:
    return broker.directory.go_on(
        TP, topic_id=TOPIC_ID, config={}, base_offset=NEW_START, keep=False
    )


@pytest.mark.parametrize("present", [True, False])
def test_a_log_that_is_given_up_goes_on_at_the_new_start(
    disk: SimulatedDisk, broker: Broker, *, present: bool
) -> None:
    broker.directory.close()
    if present:
        disk.remove(HOME / names.segment(0))
    else:
        away(disk)
    broker.start()
    log = give_up(broker)
    assert (log.ends().log_start_offset, log.ends().high_watermark) == (NEW_START, NEW_START)
    broker.append(record_batch(2))
    stray = f"{TOPIC_ID}-0{names.STRAY_SUFFIX}"
    assert (stray in disk.names(DATA)) == present
    for crashed in (False, True):
        if crashed:
            disk.crash(NOTHING)
            broker.start()
        else:
            broker.restart()
        log = ensure(broker, known_end=NEW_START)
        assert offsets_from(log, NEW_START) == [NEW_START]
        assert log.ends().log_start_offset == NEW_START


def test_an_older_copy_that_is_given_up_is_set_aside_whole(
    disk: SimulatedDisk, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytes(disk.data(HOME / names.segment(0)))
    with pytest.raises(LogMissingError):
        ensure(broker, known_end=9)
    give_up(broker)
    stray = DATA / f"{TOPIC_ID}-0{names.STRAY_SUFFIX}"
    assert disk.data(stray / names.segment(0)) == data
    assert f"was moved to {stray}" in caplog.text


def test_power_that_fails_while_a_log_is_given_up(disk: SimulatedDisk) -> None:
    """Power fails before or after: the log is refused or goes on at the new start; never from 0."""
    at = 0
    done = False
    while not done:
        disk = SimulatedDisk()
        broker = Broker(files=disk)
        broker.append(record_batch(2))
        broker.restart()
        disk.cut_power_at = len(disk.operations) + at
        try:
            give_up(broker)
            done = True
        except PowerCutError:
            at += 1
        disk.crash(NOTHING)
        broker.start()
        try:
            log = ensure(broker, known_end=9)
        except LogMissingError:
            log = give_up(broker)
        assert log.ends().log_start_offset == NEW_START
    assert at > 5


# -- creation that fails half-way -----------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_failed_creation_is_completed_by_the_next_attempt(number: int) -> None:
    for at in itertools.count():
        disk = SimulatedDisk()
        broker = Broker(files=disk)
        operations = itertools.count()
        disk.refuse = lambda _done, _path: number if next(operations) == at else None  # noqa: B023
        try:
            ensure(broker)
            completed_at_once = True
        except StorageError:
            completed_at_once = False
        refused = next(operations) > at
        disk.refuse = lambda _done, _path: None
        assert broker.append(record_batch(2)) == 2
        disk.crash(NOTHING)
        broker.start()
        assert offsets_from(broker.log(), 0) == [0]
        if not refused:
            break
    assert completed_at_once
    assert at > 5


# -- logs that could not be opened ----------------------------------------------------------


@pytest.mark.parametrize("harmed", [names.segment(0), names.PARTITION_METADATA])
def test_an_unopenable_log_makes_room_for_a_new_topic(
    disk: SimulatedDisk, broker: Broker, harmed: str
) -> None:
    broker.restart()
    disk.crash(AllSurvives())
    disk.refuse = lambda done, path: errno.EIO if done == "pread" and harmed in str(path) else None
    broker.start()
    with pytest.raises(PartitionOfflineError, match="could not be opened"):
        ensure(broker)
    log = ensure(broker, topic_id=OTHER_ID)
    assert log.ends().log_end_offset == 0
    assert broker.directory.failed() == {}
    assert f"{TOPIC_ID}-0{names.STRAY_SUFFIX}" in disk.names(DATA)
    disk.refuse = lambda _done, _path: None
    broker.restart()
    assert ensure_one(broker.directory, TP, topic_id=OTHER_ID, config={}).topic_id == OTHER_ID
