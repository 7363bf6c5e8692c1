"""The power is cut at every operation of a compaction's swap; and what else may go wrong there."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.errors import BrokerShuttingDownError, StorageError
from spark_logbus.log import CompactionGroup, LogConfig, index_cleaned
from spark_logbus.record import HEADER_SIZE
from tests.fakes.clock import NOW_US
from tests.fakes.compaction import CONFIG, broker_with, keyed, planned, write_cleaned
from tests.fakes.disk import AllSurvives, PowerCutError, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, batches_from
from tests.fault.log.test_crash_points import every_crash


def compact(broker: Broker) -> None:
    plan = planned(broker)
    assert [(group.base_offset, group.end_offset) for group in plan.groups] == [(0, 12), (12, 20)]
    for group in plan.groups:
        write_cleaned(broker, group)
        assert broker.log().compaction.swap(group)
    broker.log().compaction.finished(plan, end_offset=20, now_us=NOW_US)


def check_whole(broker: Broker, *, end: int) -> list[str]:
    """No gap, no double offset, no damage; of each group the old or the new set, never both."""
    log = broker.log()
    assert log.damaged == ()
    assert log.ends().high_watermark == log.ends().log_end_offset == end
    offset = log.ends().log_start_offset
    seen = []
    for header, data in batches_from(log, offset):
        assert header.base_offset == offset
        last = next(batches_from(log, header.next_offset - 1, max_bytes=1))
        assert last[1] == data  # not of a segment that this one replaces
        payload = bytes(data[HEADER_SIZE:]).rstrip(b"\0")
        if header.has_offset_delta:
            assert payload == b"new%03d" % offset
        else:
            assert payload == b"%03d" % (offset // 2)
        seen.append("new" if header.has_offset_delta else "old")
        offset = header.next_offset
    assert offset == end
    return seen


def names_of(broker: Broker) -> list[str]:
    return broker.files.names(broker.log_path())


@pytest.mark.long
def test_a_swap() -> None:
    outcomes = set()
    for broker, _, flushed in every_crash(lambda: broker_with(12), compact):
        seen = check_whole(broker, end=flushed)
        outcomes.add(tuple(seen[:-2]))
        assert not [n for n in names_of(broker) if n.endswith((".cleaned", ".swap", ".deleted"))]
        # And it can be done again from there.
        plan = broker.log().compaction.plan(NOW_US)
        if plan is not None:
            for group in plan.groups:
                write_cleaned(broker, group)
                assert broker.log().compaction.swap(group)
            check_whole(broker, end=flushed)
    assert outcomes == {("old",) * 10, ("new",) + ("old",) * 4, ("new", "new")}


@pytest.mark.long
def test_a_crash_while_recovery_completes_a_swap() -> None:
    def prepare() -> Broker:
        broker = broker_with(12)
        group = planned(broker).groups[0]
        write_cleaned(broker, group)
        disk = broker.files
        assert isinstance(disk, SimulatedDisk)
        disk.cut_power_at = len(disk.operations) + 4  # the files synced and renamed
        with pytest.raises(PowerCutError):
            broker.log().compaction.swap(group)
        disk.crash(AllSurvives())
        return broker

    for broker, _, _ in every_crash(prepare, Broker.start):
        assert check_whole(broker, end=24)[0] == "new"


def test_a_compacted_log_is_trusted_after_a_clean_stop() -> None:
    broker = broker_with(12)
    compact(broker)
    broker.restart()
    assert check_whole(broker, end=24) == ["new", "new", "old", "old"]
    assert broker.directory.recovery.bytes_scanned == 0
    assert broker.log().compaction.plan(NOW_US) is None  # the history is known


def test_appends_go_on_during_a_compaction() -> None:
    broker = broker_with(12)
    plan = planned(broker, 1024)
    write_cleaned(broker, plan.groups[0])
    broker.append(*(keyed(2, b"%03d" % number + bytes(400)) for number in range(12, 20)))
    assert broker.log().compaction.swap(plan.groups[0])
    check_whole(broker, end=40)


def test_a_slice_that_was_taken_before_reads_the_old_records() -> None:
    broker = broker_with(12)
    before = broker.log().read(4, max_bytes=500)
    assert before is not None
    compact(broker)
    assert before.read()[HEADER_SIZE : HEADER_SIZE + 3] == b"002"


def test_a_reader_with_an_old_view_finds_the_new_segment() -> None:
    broker = broker_with(12)
    broker.restart()  # nothing is open
    replaced = broker.log()._state.view.sealed[:2]  # the first one's name is taken over
    compact(broker)
    for old in replaced:
        with pytest.raises(FileNotFoundError):
            old.lookup()
    check_whole(broker, end=24)


def retired_head(broker: Broker) -> None:
    config = LogConfig(**{**vars(CONFIG), "cleanup_policy": "compact,delete", "retention_bytes": 1})
    broker.log().configure(config)
    broker.directory.maintain()


def stopped(broker: Broker) -> None:
    broker.log().stop(BrokerShuttingDownError("stopping"))


def removed(broker: Broker) -> None:
    broker.remove(TP, topic_id=TOPIC_ID)
    broker.log()  # the topic is created again


@pytest.mark.parametrize("meanwhile", [retired_head, stopped, removed])
def test_a_result_that_does_not_fit_any_more_is_discarded(
    meanwhile: Callable[[Broker], None],
) -> None:
    broker = broker_with(12)
    plan = planned(broker)
    log = broker.log()
    write_cleaned(broker, plan.groups[0])
    meanwhile(broker)
    before = names_of(broker)
    assert not log.compaction.swap(plan.groups[0])
    log.compaction.finished(plan, end_offset=20, now_us=NOW_US)
    assert [n for n in names_of(broker) if not n.endswith(".cleaned")] in (
        [n for n in before if not n.endswith(".cleaned")],
        sorted([*(n for n in before if not n.endswith(".cleaned")), "compaction"]),
    )
    assert not any(n.endswith(".swap") for n in names_of(broker))


def cut_off(broker: Broker, group: CompactionGroup) -> None:
    file = broker.files.open(group.cleaned)
    file.truncate(file.size() - 8)


def other_index(broker: Broker, group: CompactionGroup) -> None:
    broker.files.open(group.cleaned_index).pwrite(b"\1", 40)


@pytest.mark.parametrize("spoil", [cut_off, other_index])
def test_a_result_that_is_not_whole_is_discarded(
    spoil: Callable[[Broker, CompactionGroup], None],
) -> None:
    broker = broker_with(12)
    plan = planned(broker)
    write_cleaned(broker, plan.groups[0])
    spoil(broker, plan.groups[0])
    assert not broker.log().compaction.swap(plan.groups[0])
    assert set(check_whole(broker, end=24)) == {"old"}
    assert not any(n.endswith((".cleaned", ".swap")) for n in names_of(broker))


def test_the_index_of_a_segment_with_damage_is_not_written() -> None:
    broker = broker_with(12)
    group = planned(broker).groups[0]
    write_cleaned(broker, group)
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    disk.flip(group.cleaned, 84)
    summary = index_cleaned(
        disk, group.cleaned, group.cleaned_index, base_offset=0, end_offset=12,
        index_interval_bytes=4096,
    )  # fmt: skip
    assert summary is None


@pytest.mark.parametrize("at", range(12))
def test_a_disk_that_refuses_an_operation_of_the_swap(at: int) -> None:
    """The log is served on, and is whole after a restart, after power loss too."""
    for power_loss in (False, True):
        broker = broker_with(12)
        disk = broker.files
        assert isinstance(disk, SimulatedDisk)
        group = planned(broker).groups[0]
        write_cleaned(broker, group)
        countdown = at

        def refuse(operation: str, _path: Path) -> int | None:
            nonlocal countdown
            if operation in ("open", "pread"):
                return None
            countdown -= 1
            return errno.EIO if countdown == -1 else None

        disk.refuse = refuse
        with pytest.raises(StorageError):
            broker.log().compaction.swap(group)
        disk.refuse = lambda _operation, _path: None
        check_whole(broker, end=24)
        assert broker.append(keyed(2, b"012")) == 26
        if power_loss:
            disk.crash()
            broker.start()
        else:
            broker.restart()
        check_whole(broker, end=26)


def test_a_damaged_log_is_not_compacted(caplog: pytest.LogCaptureFixture) -> None:
    broker = broker_with(12)
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    broker.directory.close()
    disk.flip(broker.log_path() / f"{4:020d}.log", 100)
    disk.remove(broker.log_path() / f"{4:020d}.index")
    broker.start()
    assert broker.log().damaged
    for _ in range(3):
        assert broker.log().compaction.plan(NOW_US) is None
    said = [r for r in caplog.records if "damaged and therefore not compacted" in r.message]
    assert len(said) == 1


def test_retention_of_compacted_segments() -> None:
    broker = broker_with(12)
    compact(broker)
    config = LogConfig(
        **{**vars(CONFIG), "cleanup_policy": "compact,delete", "retention_bytes": 900}
    )
    broker.log().configure(config)
    broker.directory.maintain()
    assert broker.log().ends().log_start_offset == 20
    assert names_of(broker)[:1] == [f"{20:020d}.log"]


def test_without_delete_policy_retention_does_nothing() -> None:
    broker = broker_with(12)
    broker.log().configure(LogConfig(**{**vars(CONFIG), "retention_bytes": 1, "retention_ms": 1}))
    broker.clock.advance(10_000)
    broker.directory.maintain()
    assert broker.log().ends().log_start_offset == 0
