"""Logs from a backup that are given up with what they have kept: the lost offsets are told of."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from spark_logbus.errors import LogMissingError, OffsetOutOfRangeError, UnknownProducerError
from spark_logbus.log import LogConfig, PartitionLog
from spark_logbus.log.disk import names
from spark_logbus.log.inspect import list_directory, verify_directory
from tests.builders.producers import batch
from tests.builders.record_batches import record_batch
from tests.builders.staged import attempt, publish, share, stage
from tests.fakes.clock import NOW_US
from tests.fakes.compaction import broker_with, keyed, planned, write_cleaned
from tests.fakes.disk import NOTHING, AllSurvives, PowerCutError, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, batches_from, ensure_one, offsets_from

DATA = Path("/data")
HOME = DATA / "flights-0"
ON = 10**12
LATER_US = NOW_US + 1_000_000


def ensure(broker: Broker, known_end: int | None = None) -> PartitionLog:
    return ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config={}, known_end=known_end)


def go_on(broker: Broker, offset: int = ON) -> PartitionLog:
    return broker.directory.go_on(TP, topic_id=TOPIC_ID, config={}, base_offset=offset, keep=True)


def refused(broker: Broker, known_end: int) -> int | None:
    with pytest.raises(LogMissingError, match="what is missing is lost"):
        ensure(broker, known_end)
    return broker.directory.kept_end(TP, topic_id=TOPIC_ID)


def copy_of(disk: SimulatedDisk) -> dict[Path, bytes]:
    return {HOME / name: bytes(disk.data(HOME / name)) for name in disk.names(HOME)}


def put_back(disk: SimulatedDisk, copy: dict[Path, bytes]) -> None:
    for name in disk.names(HOME):
        disk.remove(HOME / name)
    for path, data in copy.items():
        disk.open(path, create=True).pwrite(data, 0)
    disk.sync_directory(HOME)
    disk.crash(AllSurvives())


def sound(disk: SimulatedDisk) -> list[str]:
    listing = list_directory(disk, DATA)
    assert listing is not None
    found = verify_directory(disk, listing, known_files=(), on_progress=lambda _count: None)
    return [finding.message for finding in found.findings if not found.sound]


def check(broker: Broker, start: int = 5, end: int = ON, count: int = 0) -> None:
    """Reads what was kept and what came since, and is told of the loss at every lost offset."""
    log = broker.log()
    ends = log.ends()
    assert (ends.log_start_offset, ends.lost) == (0, ((start, end),))
    assert ends.high_watermark == ends.log_end_offset == end + 2 * count
    assert log.damaged == ()
    with pytest.raises(OffsetOutOfRangeError, match=f"from {start} on were lost.*from {end} on"):
        offsets_from(log, 0)
    assert offsets_from(log, 0, end=start)[-1] < start
    for offset in (start, start + 1, (start + end) // 2, end - 1):
        with pytest.raises(OffsetOutOfRangeError, match=f"Offset {offset} "):
            log.read(offset, max_bytes=1000)
    assert offsets_from(log, end) == [end + 2 * number for number in range(count)]


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def broker(disk: SimulatedDisk) -> Broker:
    broker = Broker(files=disk)
    broker.append(record_batch(2), record_batch(3))
    return broker


def test_an_older_copy_that_is_given_up_keeps_what_it_has(
    disk: SimulatedDisk, broker: Broker
) -> None:
    assert refused(broker, 9) == 5
    go_on(broker)
    check(broker)
    broker.append(record_batch(2), record_batch(2))
    check(broker, count=2)
    for crashed in (False, True, True):
        if crashed:
            disk.crash(NOTHING)
            broker.start()
        else:
            broker.restart()
        ensure(broker, known_end=ON + 4)
        check(broker, count=2)
    broker.directory.close()
    assert sound(disk) == []


def test_a_copy_that_its_own_checkpoint_knows_better_keeps_what_it_has(
    disk: SimulatedDisk, broker: Broker
) -> None:
    """Segments that were copied one by one, and the checkpoint last."""
    broker.restart()
    copy = copy_of(disk)
    broker.append(record_batch(4))
    broker.restart()
    put_back(disk, copy)
    broker.start()
    assert refused(broker, 9) == 5
    go_on(broker)
    check(broker)
    broker.append(record_batch(2))
    broker.restart()
    check(broker, count=1)


def test_a_torn_tail_of_a_copy_is_cut_before_it_goes_on(
    disk: SimulatedDisk, broker: Broker
) -> None:
    disk.crash(AllSurvives())
    path = HOME / names.segment(0)
    disk.open(path).pwrite(bytes(record_batch(4))[:100], len(disk.data(path)))
    broker.start()
    assert refused(broker, 9) == 5
    go_on(broker)
    check(broker)
    broker.append(record_batch(2))
    broker.restart()
    check(broker, count=1)


def test_a_second_time_is_told_of_beside_the_first(disk: SimulatedDisk, broker: Broker) -> None:
    go_on(broker)
    broker.append(record_batch(2))
    assert refused(broker, ON + 9) == ON + 2
    go_on(broker, 3 * ON)
    broker.append(record_batch(3))
    for _ in range(2):
        log = broker.log()
        assert log.ends().lost == ((5, ON), (ON + 2, 3 * ON))
        assert offsets_from(log, 3 * ON) == [3 * ON]
        with pytest.raises(OffsetOutOfRangeError, match=f"from {3 * ON} on"):
            offsets_from(log, ON)
        disk.crash(NOTHING)
        broker.start()


def test_a_second_time_without_a_record_between_is_one_gap(
    disk: SimulatedDisk, broker: Broker
) -> None:
    go_on(broker)
    go_on(broker, 3 * ON)
    check(broker, end=3 * ON)
    disk.crash(NOTHING)
    broker.start()
    check(broker, end=3 * ON)
    assert [name for name in disk.names(HOME) if name.endswith(".log")] == [
        names.segment(0),
        names.segment(3 * ON),
    ]


def test_a_copy_without_a_record_goes_on_as_an_empty_log(disk: SimulatedDisk) -> None:
    broker = Broker(files=disk)
    broker.log()
    assert refused(broker, 9) is None
    log = go_on(broker)
    assert (log.ends().log_start_offset, log.ends().lost) == (ON, ())
    broker.restart()
    assert broker.log().ends().log_start_offset == ON


@pytest.mark.parametrize("again", [False, True])
def test_power_that_fails_while_the_end_is_given_up(*, again: bool) -> None:
    """Power fails before or after: the log is refused, or whole with its gap; never does it hold
    other records, or damage."""
    for at in itertools.count():
        disk = SimulatedDisk()
        broker = Broker(files=disk)
        broker.append(record_batch(2), record_batch(3))
        if again:
            go_on(broker, ON // 2)
        broker.restart()
        disk.cut_power_at = len(disk.operations) + at
        try:
            go_on(broker)
            done = True
        except PowerCutError:
            done = False
        disk.crash(NOTHING)
        broker.start()
        assert broker.log().damaged == ()
        try:
            ensure(broker, known_end=ON // 2 + 9)
        except LogMissingError:
            go_on(broker)
        check(broker)
        broker.append(record_batch(2))
        check(broker, count=1)
        if done:
            break
    assert at > 5


def test_a_lost_note_of_the_gap_is_damage_and_no_silence(
    disk: SimulatedDisk, broker: Broker
) -> None:
    go_on(broker)
    broker.append(record_batch(2))
    broker.directory.close()
    disk.remove(HOME / names.LOST_OFFSETS)
    broker.start()
    assert [(each.start, each.end) for each in broker.log().damaged] == [(5, ON)]


def test_retention_takes_the_gap_along(disk: SimulatedDisk, broker: Broker) -> None:
    log = go_on(broker)
    broker.append(record_batch(2))
    log.configure(LogConfig(retention_bytes=1))
    log.resume_deletion()
    broker.clock.advance(1)
    broker.directory.maintain()
    ends = broker.log().ends()
    assert ends.log_start_offset >= ON
    assert ends.lost == ()
    broker.restart()
    assert broker.log().ends().lost == ()


def test_times_are_found_on_both_sides_of_the_gap(broker: Broker) -> None:
    go_on(broker)
    broker.append(record_batch(2, timestamps=(LATER_US, LATER_US)))
    log = broker.log()
    assert log.offset_at(NOW_US) == 0
    assert log.offset_at(NOW_US + 1) == ON
    cuts, size = log.split(0, ON + 2, target_bytes=1)
    assert all(cut < 5 or cut >= ON for cut in cuts)
    assert size == log.ends().size_bytes


def test_an_idempotent_producer_starts_over_after_the_gap(
    disk: SimulatedDisk, broker: Broker
) -> None:
    broker.append(batch(0, 2))
    for restarted in (False, True):
        go_on(broker) if not restarted else broker.restart()
        log = broker.log()
        assert log.append_as_leader(batch(0, 2), leader_epoch=1).base_offset == 5, "a repetition"
        with pytest.raises(UnknownProducerError, match="lost with a part of the log"):
            log.append_as_leader(batch(20, 2), leader_epoch=1)
    assert log.append_as_leader(batch(0, 2, epoch=1), leader_epoch=1).base_offset == ON


@pytest.mark.parametrize("published", [0, 1, 4])
def test_a_decided_write_is_there_once_whatever_of_it_was_kept(
    disk: SimulatedDisk, broker: Broker, published: int
) -> None:
    """The copy has it staged, with none, some or all of its record batches in the log."""
    decided = share(40, 2, 1)
    log = broker.log()
    stage(log, attempt(3), 5)
    stage(log, attempt(1), 10, 10)
    stage(log, attempt(2), 10, 10)
    log.publishing.check(decided, 1, leader_epoch=0)
    disk.crash(AllSurvives())
    staged = copy_of(disk)
    broker.start()
    log = broker.log()
    log.publishing.expect(decided)
    publish(log, decided)
    whole = list(batches_from(log, 5))
    assert [header.base_offset for header, _ in whole] == [5, 15, 25, 35]
    broker.directory.close()
    kept = b"".join(data for _, data in whole[:published])
    for path in list(staged):
        if path.name == names.segment(0):
            staged[path] += kept
    put_back(disk, staged)
    broker.start()
    end = 5 + 10 * published
    assert refused(broker, 99) == end
    log = go_on(broker)
    for _ in range(2):
        log.publishing.expect(decided)
        publish(log, decided)
        of_it = [
            (header.producer_id, header.base_sequence)
            for start, stop in ((5, end), (ON, None))
            for header, _ in (batches_from(log, start, end=stop) if start != stop else ())
        ]
        assert of_it == [(header.producer_id, header.base_sequence) for header, _ in whole]
        disk.crash(NOTHING)
        broker.start()
        log = broker.log()


def test_compaction_leaves_the_gap_where_it_is() -> None:
    """Segments are not merged over a gap, however small they are."""
    broker = broker_with(12)
    go_on(broker, 100)
    broker.append(*(keyed(2, b"%03d" % number + bytes(400)) for number in range(6)))
    compaction = broker.log().compaction
    groups = planned(broker).groups
    bounds = [(each.base_offset, each.end_offset) for each in groups]
    assert (24, 100) in {(one[1], other[0]) for one, other in itertools.pairwise(bounds)}
    for each in groups:
        write_cleaned(broker, each)
        assert compaction.swap(each)
    for _ in range(2):
        log = broker.log()
        assert log.ends().lost == ((24, 100),)
        assert log.damaged == ()
        with pytest.raises(OffsetOutOfRangeError, match="from 24 on were lost"):
            log.read(24, max_bytes=1000)
        assert offsets_from(log, 100)[0] == 100
        broker.restart()
