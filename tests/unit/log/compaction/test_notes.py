"""Notes of compactions for other replicas, and when they are on the disk."""

from __future__ import annotations

import pytest

from spark_logbus.errors import StorageError
from spark_logbus.log import PurgedLog
from spark_logbus.log.checkpoint import CleanedUpTo, write_cleanings
from spark_logbus.log.compaction.notes import recover_notes
from spark_logbus.log.disk import names
from tests.fakes.clock import NOW_US
from tests.fakes.compaction import CONFIG, broker_with, keyed, planned, write_cleaned
from tests.fakes.disk import NOTHING, AllSurvives, PowerCutError, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, ensure_one

LATER_US = NOW_US + 2 * 24 * 3600 * 1_000_000


def cleaned_long_ago() -> Broker:
    """A broker whose tombstones before the offset 8 are old."""
    broker = broker_with(12)
    broker.log().compaction.notes.cleaned(CleanedUpTo(8, NOW_US), delete_retention_ms=1)
    return broker


def test_what_may_be_purged_is_on_the_disk_before_the_first_record_goes() -> None:
    """The power is cut at every operation of the swap, and what was not synced is lost or kept."""
    at, outcomes = 0, set()
    while True:
        at += 1
        for survival in (NOTHING, AllSurvives()):
            broker = cleaned_long_ago()
            disk = broker.files
            assert isinstance(disk, SimulatedDisk)
            broker.log().configure(CONFIG)
            plan = broker.log().compaction.plan(LATER_US)
            assert plan is not None
            assert plan.delete_horizon == 8
            group = plan.groups[0]
            write_cleaned(broker, group)
            disk.cut_power_at = len(disk.operations) + at
            try:
                assert broker.log().compaction.swap(group)
            except PowerCutError:
                disk.crash(survival)
                disk.cut_power_at = None
                broker.start()
                is_over = False
            else:
                is_over = True
            log = broker.log()
            piece = log.read(0, max_bytes=1)
            assert piece is not None
            is_purged = b"new000" in piece.read()
            assert not is_purged or log.compaction.notes.purged_end == min(8, group.end_offset)
            outcomes.add((is_purged, log.compaction.notes.purged_end))
        if is_over:
            break
    purged = min(8, group.end_offset)
    # Without the note it is as with a release that had none: the first line of the history counts.
    assert outcomes == {(False, 8), (False, purged), (True, purged)}


def test_a_disk_that_refuses_the_note_lets_nothing_be_replaced() -> None:
    broker = cleaned_long_ago()
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    plan = broker.log().compaction.plan(LATER_US)
    assert plan is not None
    write_cleaned(broker, plan.groups[0])
    disk.refuse = lambda _, path: 28 if path.name.startswith(names.PURGED_TOMBSTONES) else None
    with pytest.raises(StorageError, match="purged-tombstones"):
        broker.log().compaction.swap(plan.groups[0])
    disk.refuse = lambda *_: None
    piece = broker.log().read(0, max_bytes=1)
    assert piece is not None
    assert b"new" not in piece.read()
    assert broker.log().compaction.notes.purged_end == 0


def test_nothing_is_purged_where_no_tombstone_is_old() -> None:
    broker = broker_with(12)
    plan = planned(broker)
    write_cleaned(broker, plan.groups[0])
    assert broker.log().compaction.swap(plan.groups[0])
    assert broker.log().compaction.notes.purged_end == 0
    assert names.PURGED_TOMBSTONES not in broker.files.names(broker.log_path())


def test_what_is_cut_off_and_comes_anew_has_its_tombstones() -> None:
    broker = cleaned_long_ago()
    log = broker.log()
    log.compaction.notes.purge(8)
    assert (log.compaction.notes.clean_end, log.compaction.notes.purged_end) == (8, 8)
    end = log.truncate_to(5, below_watermark=True)
    for _ in range(2):
        notes = broker.log().compaction.notes
        assert (notes.clean_end, notes.purged_end) == (end, end)
        broker.restart()


def test_a_history_of_a_release_without_that_note_may_have_purged_before_its_first_line() -> None:
    broker = broker_with(12)
    write_cleanings(
        broker.files, broker.log_path(), [CleanedUpTo(4, NOW_US), CleanedUpTo(12, NOW_US + 5)]
    )
    notes = recover_notes(broker.files, broker.log_path(), end=24)
    assert (notes.purged_end, notes.clean_end) == (4, 12)
    notes.purge(6)
    notes.purge(5)
    for end, expected in ((24, 6), (3, 3)):
        found = recover_notes(broker.files, broker.log_path(), end=end)
        assert (found.purged_end, found.clean_end) == (expected, 12)


@pytest.mark.parametrize(
    ("end", "leader", "goes_on"),
    [
        (24, PurgedLog(24, 24), True),  # it has all that is purged
        (24, PurgedLog(100, 24), True),
        (24, PurgedLog(100, 25), False),
        (24, PurgedLog(24, 0), True),
    ],
)
def test_a_follower_goes_on_where_it_misses_no_tombstone(
    end: int, leader: PurgedLog, goes_on: bool
) -> None:
    broker = broker_with(12)
    assert broker.log().ends().log_end_offset == end
    assert broker.log().compaction.goes_on_as(leader) is goes_on
    assert broker.log().compaction.notes.purged_end == 0


def test_an_empty_follower_takes_over_what_is_clean() -> None:
    broker = Broker(files=SimulatedDisk(), config=CONFIG)
    ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={})
    for leader in (PurgedLog(100, 40), PurgedLog(90, 20)):  # another leads meanwhile
        assert broker.log().compaction.goes_on_as(leader)
        assert broker.log().compaction.notes.clean_end == leader.clean_end
        assert broker.log().compaction.notes.purged_end == leader.purged_end
    broker.append(keyed(2, b"x"))
    assert broker.log().compaction.goes_on_as(PurgedLog(200, 90)), "it was clean up to there"
    assert broker.log().compaction.notes.purged_end == 90
    assert not broker.log().compaction.goes_on_as(PurgedLog(200, 91))
    broker.restart()
    notes = broker.log().compaction.notes
    assert (notes.clean_end, notes.purged_end) == (90, 2), "it has come no further yet"


@pytest.mark.parametrize(("leader", "clean"), [(PurgedLog(40, 0), 40), (PurgedLog(1, 0), 2)])
def test_a_copy_that_goes_on_from_a_leader_that_is_less_clean_is_no_cleaner(
    leader: PurgedLog, clean: int
) -> None:
    """Compaction would else let tombstones go, and keep what they deleted."""
    broker = Broker(files=SimulatedDisk(), config=CONFIG)
    ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={})
    assert broker.log().compaction.goes_on_as(PurgedLog(100, 90))
    broker.append(keyed(2, b"x"))
    assert broker.log().ends().log_end_offset == 2
    assert broker.log().compaction.goes_on_as(leader)
    notes = broker.log().compaction.notes
    assert (notes.clean_end, notes.purged_end) == (clean, clean)
    assert not broker.log().compaction.goes_on_as(PurgedLog(200, 41))
    broker.restart()
    assert broker.log().compaction.notes.clean_end == clean
