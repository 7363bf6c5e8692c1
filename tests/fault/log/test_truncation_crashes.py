"""The power is cut at every operation of a truncation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from spark_logbus.errors import OutOfOrderSequenceError, UnknownProducerError
from spark_logbus.log import LogConfig, PartitionLog
from tests.builders.producers import batch
from tests.builders.record_batches import record_batch
from tests.fakes.disk import NOTHING, AllSurvives, PowerCutError, SimulatedDisk, Survival
from tests.fakes.log_directory import Broker, SlowFollower, batches_from
from tests.fault.log.test_crash_points import SURVIVALS

CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=256, retention_ms=None)
COUNT = 24  # of record batches, one record of producer A in each; 7 to a segment


def number_of(data: bytes) -> int:
    return int(bytes(data[80:88]).rstrip(b"\0"))


def read_all(broker: Broker) -> list[int]:
    """Numbers of all record batches; all of them have to become visible."""
    assert isinstance(broker.watermark, SlowFollower)
    broker.watermark.end = None
    log = broker.log()
    log.advance_high_watermark()
    ends = log.ends()
    assert ends.high_watermark == ends.log_end_offset
    assert log.damaged == ()
    found, offset = [], ends.log_start_offset
    for stop, go_on_at in (*((each.start, each.end) for each in ends.lost), (None, None)):
        while offset < (stop or ends.high_watermark):
            header, data = next(batches_from(log, offset))
            assert header.base_offset == offset
            found.append(data)
            offset = header.next_offset
        offset = go_on_at or offset
    return [number_of(data) for data in found]


def prepared(*, visible: int, unflushed: int = 0, lost: bool = False) -> Broker:
    rule = SlowFollower()
    rule.end = visible
    broker = Broker(files=SimulatedDisk(), config=CONFIG, watermark=rule)
    log = broker.log()
    for number in range(COUNT):
        if lost and number == 18:
            log.go_on_at(100)
        log.append_as_leader(batch(number), leader_epoch=1)
        if number < COUNT - unflushed:
            log.flush()
    broker.clock.advance(60)
    broker.directory.maintain()  # the checkpoint knows the end
    return broker


def given_out(broker: Broker) -> Broker:
    log = broker.log()
    assert log.read_as_replica(COUNT - 1, max_bytes=1) is not None
    return broker


CASES: dict[str, tuple[Callable[[], Broker], int]] = {
    "in the active segment": (lambda: prepared(visible=4), 22),
    "in an unflushed tail": (lambda: prepared(visible=4, unflushed=3), 22),
    "where the active segment begins": (lambda: prepared(visible=4), 21),
    "in a sealed segment": (lambda: prepared(visible=4), 17),
    "several segments back": (lambda: prepared(visible=4), 5),
    "to nothing": (lambda: prepared(visible=0), 0),
    "under slices of replicas": (lambda: given_out(prepared(visible=4)), 9),
    "below the watermark": (lambda: prepared(visible=20), 9),
    "below the watermark, in the active segment": (lambda: prepared(visible=24), 22),
    "below lost offsets": (lambda: prepared(visible=4, lost=True), 12),
    "above lost offsets": (lambda: prepared(visible=4, lost=True), 103),
}


def go_on(log: PartitionLog, end: int) -> None:
    """Append past all that was there, as others would have it."""
    log.append_as_leader(batch(0, producer=55), leader_epoch=2)
    for number in range(1, 2 * COUNT):
        log.append_as_leader(record_batch(1, payload=b"%d" % (100 + number)), leader_epoch=2)
    log.flush()
    assert log.ends().log_end_offset == end + 2 * COUNT


@pytest.mark.parametrize("case", CASES)
def test_a_truncation_is_done_or_can_be_done_again(case: str) -> None:
    crash_at_every_operation(case, SURVIVALS[::3])


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_truncation_is_done_or_can_be_done_again_whatever_survives(case: str) -> None:
    crash_at_every_operation(case, SURVIVALS)


def crash_at_every_operation(case: str, survivals: Sequence[Callable[[], Survival]]) -> None:
    prepare, end = CASES[case]
    kept = list(range(end)) if end < 100 else [*range(18), *range(18, 18 + end - 100)]
    for survival in survivals:
        at, done = 0, False
        while not done:
            broker = prepare()
            disk = broker.files
            assert isinstance(disk, SimulatedDisk)
            disk.cut_power_at = len(disk.operations) + at
            try:
                assert broker.log().truncate_to(end, below_watermark=True) == end
                done = True
            except PowerCutError:
                pass
            disk.crash(survival())
            broker.start()
            if done:
                assert broker.log().ends().log_end_offset == end
            if (
                broker.log().damaged
            ):  # what was not flushed before may have come to the disk in part
                assert min(each.start for each in broker.log().damaged) >= COUNT - 3
            else:
                found = read_all(broker)
                assert found == list(range(len(found))), "no record is missing in between"
            assert broker.log().truncate_to(end, below_watermark=True) == end
            assert read_all(broker) == kept
            go_on(broker.log(), end)
            disk.crash(NOTHING)
            broker.start()
            expected = [*kept, 0, *range(101, 100 + 2 * COUNT)]
            assert read_all(broker) == expected
            check_producers(broker.log(), kept)
            at += 1
        assert at > 1


@pytest.mark.parametrize("case", CASES)
def test_a_truncation_that_a_crash_cut_short_leaves_a_sound_log(case: str) -> None:
    prepare, end = CASES[case]
    for survival in SURVIVALS[::3]:
        at, done = 0, False
        while not done:
            broker = prepare()
            disk = broker.files
            assert isinstance(disk, SimulatedDisk)
            disk.cut_power_at = len(disk.operations) + at
            at += 1
            try:
                broker.log().truncate_to(end, below_watermark=True)
                done = True
            except PowerCutError:
                pass
            disk.crash(survival())
            broker.start()
            if broker.log().damaged:
                continue  # what was not flushed before, and is cut off by who follows
            kept = read_all(broker)
            # Past all that was there, without a roll, at which snapshots are tidied up.
            broker.append(record_batch(COUNT, payload=b"100"))
            disk.crash(NOTHING)
            broker.start()
            assert read_all(broker) == [*kept, 100]
            check_sequences(broker.log(), kept)


def test_no_index_of_what_was_cut_off_comes_back() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk, config=replace(CONFIG, index_interval_bytes=128))

    def batches(*sizes: int) -> None:
        for size in sizes:
            broker.append(record_batch(1, payload=bytes(size)))
        broker.clock.advance(60)
        broker.directory.maintain()  # the checkpoint knows of them

    batches(48, 48, 400, 400)
    disk.crash(AllSurvives())  # the first segment's index is on disk
    broker.start()
    assert broker.log().truncate_to(1, below_watermark=True) == 1
    batches(400, 48, 400)  # as many bytes as before, and not in the same places
    disk.crash(NOTHING)
    broker.start()
    for offset in range(4):
        assert next(batches_from(broker.log(), offset))[0].base_offset == offset
    assert broker.log().damaged == ()


def check_producers(log: PartitionLog, kept: list[int]) -> None:
    check_sequences(log, kept)
    end = log.ends().log_end_offset
    assert log.append_as_leader(batch(0, producer=55), leader_epoch=2).base_offset < end


def check_sequences(log: PartitionLog, kept: list[int]) -> None:
    end = log.ends().log_end_offset
    gap = OutOfOrderSequenceError if kept else UnknownProducerError
    with pytest.raises(gap, match=f"sequences {len(kept) + 3} to"):
        log.append_as_leader(batch(len(kept) + 3), leader_epoch=2)
    assert log.append_as_leader(batch(len(kept)), leader_epoch=2).base_offset == end


@pytest.mark.parametrize("case", CASES)
def test_records_that_came_after_it_are_not_cut_off_by_a_crash(case: str) -> None:
    prepare, end = CASES[case]
    for survival in SURVIVALS:
        broker = prepare()
        disk = broker.files
        assert isinstance(disk, SimulatedDisk)
        log = broker.log()
        log.truncate_to(end, below_watermark=True)
        log.append_as_leader(record_batch(1, payload=b"77"), leader_epoch=2)
        log.flush()
        log.append_as_leader(record_batch(1, payload=b"78"), leader_epoch=2)
        disk.crash(survival())
        broker.start()
        kept = list(range(end if end < 100 else 18 + end - 100))
        assert read_all(broker) in ([*kept, 77], [*kept, 77, 78])
