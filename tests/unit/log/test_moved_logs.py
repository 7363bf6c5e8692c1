"""Logs of partitions that moved away are set aside, found again, and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.errors import NotLeaderError
from spark_logbus.log import Extent
from spark_logbus.log.disk import names
from tests.builders.record_batches import record_batch
from tests.fakes.disk import AllSurvives, PowerCutError, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, offsets_from
from tests.fault.log.test_crash_points import SURVIVALS


@pytest.fixture
def broker() -> Broker:
    broker = Broker(files=SimulatedDisk())
    for epoch in (3, 4):
        broker.log().append_as_leader(record_batch(5), leader_epoch=epoch)
    broker.log().flush()
    return broker


def directories(broker: Broker) -> set[str]:
    files = broker.files
    return {name for name in files.names(broker.path) if files.is_directory(broker.path / name)}


def test_a_log_that_is_set_aside_says_how_far_it_reaches(broker: Broker) -> None:
    log = broker.log()
    log.append_as_leader(record_batch(2), leader_epoch=4)  # not flushed yet
    moved = broker.directory.set_aside_moved(TP, topic_id=TOPIC_ID)
    assert moved is not None
    assert (moved.topic_partition, moved.topic_id, moved.extent) == (TP, TOPIC_ID, Extent(4, 12))
    assert directories(broker) == {f"{TOPIC_ID}-0.moved"}
    assert broker.directory.get(TP) is None
    with pytest.raises(NotLeaderError, match="has moved to another broker"):
        log.append_as_leader(record_batch(), leader_epoch=4)
    broker.restart()
    assert broker.directory.moved.find() == [moved]
    assert broker.directory.logs() == []


def test_only_a_log_of_that_topic_is_set_aside(broker: Broker) -> None:
    assert broker.directory.set_aside_moved(TP, topic_id="f" * 32) is None
    assert offsets_from(broker.log(), 0)[0] == 0


def test_a_partition_that_comes_back_gets_a_log_beside_the_old_one(broker: Broker) -> None:
    broker.directory.set_aside_moved(TP, topic_id=TOPIC_ID)
    broker.append(record_batch(1))
    second = broker.directory.set_aside_moved(TP, topic_id=TOPIC_ID)
    assert second is not None
    assert second.extent == Extent(1, 1)
    broker.append(record_batch(1))
    assert directories(broker) == {"flights-0", f"{TOPIC_ID}-0.moved", f"{TOPIC_ID}-0.1.moved"}
    assert [each.extent for each in broker.directory.moved.find()] == [Extent(1, 1), Extent(4, 10)]


def test_a_log_that_was_set_aside_is_deleted_as_a_whole(broker: Broker) -> None:
    broker.directory.set_aside_moved(TP, topic_id=TOPIC_ID)
    broker.append(record_batch(1))
    (moved,) = broker.directory.moved.find()
    broker.directory.moved.delete(moved)
    assert directories(broker) == {"flights-0"}
    assert broker.directory.moved.find() == []


@pytest.mark.parametrize("file", [names.MOVED, names.PARTITION_METADATA])
def test_a_log_whose_note_is_damaged_does_not_say_how_far_it_reaches(
    broker: Broker, file: str
) -> None:
    moved = broker.directory.set_aside_moved(TP, topic_id=TOPIC_ID)
    assert moved is not None
    assert isinstance(broker.files, SimulatedDisk)
    broker.files.flip(moved.directory / file, 3)
    found = broker.directory.moved.find()
    assert [each.extent for each in found] == ([None] if file == names.MOVED else [])
    assert len(directories(broker)) == 1


@pytest.mark.parametrize("becomes_free", [False, True])
def test_a_log_on_a_full_disk_is_set_aside_as_well(broker: Broker, *, becomes_free: bool) -> None:
    """The disk gets room by its deletion. The note on how far it reaches is written when there is
    some."""
    assert isinstance(broker.files, SimulatedDisk)
    broker.files.capacity = broker.files.used()
    moved = broker.directory.set_aside_moved(TP, topic_id=TOPIC_ID)
    assert moved is not None
    assert broker.directory.moved.find() == [moved]
    assert not broker.files.exists(moved.directory / names.MOVED)
    if becomes_free:
        broker.files.capacity = None
        assert broker.directory.moved.find() == [moved]
        broker.restart()
        assert broker.directory.moved.find() == [moved]
    broker.directory.moved.delete(moved)
    assert directories(broker) == set()


def test_a_log_of_which_nothing_could_be_noted_before_the_end_is_kept(broker: Broker) -> None:
    assert isinstance(broker.files, SimulatedDisk)
    broker.files.capacity = broker.files.used()
    moved = broker.directory.set_aside_moved(TP, topic_id=TOPIC_ID)
    assert moved is not None
    broker.restart()
    assert broker.directory.moved.find() == [moved._replace(extent=None)]


@pytest.mark.parametrize("deletes", [False, True])
def test_the_power_is_cut_at_every_operation(deletes: bool) -> None:
    """Each time the records are in one of the two places, as a whole; deleted, perhaps in none."""
    for survival in (AllSurvives, *SURVIVALS):
        at = 0
        while True:
            disk = SimulatedDisk()
            broker = Broker(files=disk)
            broker.append(record_batch(5), record_batch(5))
            broker.clock.advance(60)
            broker.directory.maintain()
            if deletes:
                broker.directory.set_aside_moved(TP, topic_id=TOPIC_ID)
                broker.directory.maintain()
            disk.cut_power_at = len(disk.operations) + at
            try:
                if deletes:
                    broker.directory.moved.delete(broker.directory.moved.find()[0])
                else:
                    broker.directory.set_aside_moved(TP, topic_id=TOPIC_ID)
            except PowerCutError:
                pass
            else:
                break
            disk.crash(survival())
            broker.start(told=False)
            found = broker.directory.moved.find()
            log = broker.directory.get(TP)
            if log is not None:
                assert not deletes
                assert log.flushed_end == 10
                assert found == []
            elif found:
                assert [each.extent for each in found] == [Extent(1, 10)]
            else:
                assert deletes
            at += 1
        assert at > 2


def test_names_of_directories_that_were_set_aside() -> None:
    assert names.is_moved_directory(names.moved_directory(TOPIC_ID, 3, 0))
    assert names.is_moved_directory(names.moved_directory(TOPIC_ID, 3, 2))
    for name in ("flights-0", f"{TOPIC_ID}-0.stray", f"{TOPIC_ID}-x.moved", "a.moved"):
        assert not names.is_moved_directory(name)
    assert not names.is_removable_directory(Path(names.moved_directory(TOPIC_ID, 3, 0)).name)
