"""Bits flip in data that was on disk: reported, walked around, never cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.errors import (
    CorruptRecordBatchError,
    OffsetOutOfRangeError,
    UnsupportedVersionError,
)
from spark_logbus.log import LogConfig
from spark_logbus.log.disk import names
from spark_logbus.model import OffsetRange
from spark_logbus.record import stamp, verify
from tests.builders.record_batches import record_batch
from tests.fakes.disk import AllSurvives, SimulatedDisk
from tests.fakes.log_directory import TP, Broker, batches_from, offsets_from

DIRECTORY = Path("/data/flights-0")
SIZE = 80 + 160  # of each record batch here; two records each


def broker_with(count: int, *, segment_bytes: int = 1 << 20) -> Broker:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=2 * SIZE)
    broker = Broker(files=SimulatedDisk(), config=config)
    broker.append(*(record_batch(2, payload=bytes([n + 1]) * 160) for n in range(count)))
    return broker


def damage_and_scan(broker: Broker, path: Path, position: int) -> None:
    """Flip a bit of a file while the broker is down, and have all of it scanned."""
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    disk.crash(AllSurvives())
    disk.flip(path, position)
    disk.remove(Path("/data/checkpoint"))
    broker.start()


# What a checksum or the walk from one record batch to the next protects: everything but leader
# epoch and append time (12 to 23), which no checksum covers.
PROTECTED = [byte for byte in range(SIZE) if not 12 <= byte < 24]


# Where each field of the header begins, but for those two.
FIELDS = {
    "base offset": 0, "length": 8, "magic": 24, "reserved": 25, "attributes": 26, "checksum": 28,
    "record count": 32, "last offset delta": 36, "base timestamp": 40, "max timestamp": 48,
    "producer id": 56, "producer epoch": 64, "base sequence": 66, "schema id": 70, "padding": 74,
}  # fmt: skip


@pytest.mark.parametrize("scanned", [True, False], ids=["at the start", "by its reader"])
@pytest.mark.parametrize("bit", [0, 4, 7])
@pytest.mark.parametrize("field", FIELDS)
def test_a_bit_that_flips_in_a_header_field_is_found(field: str, bit: int, scanned: bool) -> None:
    broker = broker_with(8, segment_bytes=5 * SIZE)
    before = {header.base_offset: data for header, data in batches_from(broker.log(), 0)}
    path = DIRECTORY / names.segment(0)
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    broker.directory.close()
    disk.flip(path, 2 * SIZE + FIELDS[field], mask=1 << bit)
    if scanned:
        disk.remove(Path("/data/checkpoint"))
    broker.start()
    log = broker.log()
    assert log.damaged == ((OffsetRange(TP, 4, 6),) if scanned else ())
    refused = []
    for offset in range(16):
        try:
            found = log.read(offset, max_bytes=1)
            assert found is not None
            data = found.read()
            header = verify(data)
            if not header.base_offset <= offset < header.next_offset:
                raise CorruptRecordBatchError("a reader expects the offset it asked for")
        except (CorruptRecordBatchError, UnsupportedVersionError):
            refused.append(offset)
        else:
            assert data == before[header.base_offset]
    assert refused == [4, 5]


@pytest.mark.parametrize("byte", [*PROTECTED[::5], 0, 7, 8, 11, 24, 25, 28, 36, 79, SIZE - 1])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 5 * SIZE], ids=["active", "sealed"])
def test_a_flipped_bit_loses_one_record_batch_and_no_other(byte: int, segment_bytes: int) -> None:
    broker = broker_with(8, segment_bytes=segment_bytes)
    before = [data for _, data in batches_from(broker.log(), 0)]
    damage_and_scan(broker, DIRECTORY / names.segment(0), 2 * SIZE + byte)
    log = broker.log()
    assert log.damaged == (OffsetRange(TP, 4, 6),)
    assert [data for _, data in batches_from(log, 0, end=4)] == before[:2]
    assert [data for _, data in batches_from(log, 6)] == before[3:]
    for offset in (4, 5):
        with pytest.raises(CorruptRecordBatchError, match=r"flights-0\[4, 6\)"):
            log.read(offset, max_bytes=1 << 20)
    assert broker.append(record_batch(2)) == 18
    assert offsets_from(log, 6) == [6, 8, 10, 12, 14, 16]


@pytest.mark.parametrize("first", [0, 3, 4], ids=["first", "middle", "last of the segment"])
def test_a_zeroed_page_in_a_sealed_segment(first: int) -> None:
    broker = broker_with(8, segment_bytes=5 * SIZE)
    path = DIRECTORY / names.segment(0)
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    disk.crash(AllSurvives())
    data = bytearray(disk.data(path))
    data[first * SIZE : (first + 1) * SIZE] = bytes(SIZE)
    disk.overwrite(path, bytes(data))
    disk.remove(Path("/data/checkpoint"))
    broker.start()
    log = broker.log()
    damaged = OffsetRange(TP, 2 * first, 2 * first + 2)
    assert log.damaged == (damaged,)
    assert offsets_from(log, damaged.end) == list(range(damaged.end, 16, 2))
    assert offsets_from(log, 0, end=damaged.start) == list(range(0, damaged.start, 2))
    assert disk.data(path) == data
    # and it is known again after a clean restart
    broker.restart()
    assert broker.log().damaged == (damaged,)


def test_damage_before_the_recovery_point_is_not_cut() -> None:
    broker = broker_with(4)
    broker.clock.advance(60)
    broker.directory.maintain()  # writes the recovery point
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    disk.crash(AllSurvives())
    path = DIRECTORY / names.segment(0)
    disk.flip(path, 3 * SIZE + 100)
    broker.start()
    log = broker.log()
    assert len(disk.data(path)) == 4 * SIZE
    assert log.damaged == (OffsetRange(TP, 6, 8),)
    assert offsets_from(log, 0, end=6) == [0, 2, 4]
    with pytest.raises(CorruptRecordBatchError):
        log.read(6, max_bytes=100)
    # Offset 6 may have been read: it is not given to another record.
    assert broker.append(record_batch(1)) == 9
    assert offsets_from(log, 8) == [8]
    broker.restart()
    assert broker.log().damaged == (OffsetRange(TP, 6, 8),)
    assert offsets_from(broker.log(), 8) == [8]


def test_a_truncated_sealed_segment_leaves_a_gap() -> None:
    broker = broker_with(8, segment_bytes=5 * SIZE)
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    disk.crash(AllSurvives())
    path = DIRECTORY / names.segment(0)
    disk.overwrite(path, bytes(disk.data(path)[: 3 * SIZE + 10]))
    broker.start()
    log = broker.log()
    assert log.damaged == (OffsetRange(TP, 6, 10),)
    assert offsets_from(log, 10) == [10, 12, 14]
    assert offsets_from(log, 0, end=6) == [0, 2, 4]


@pytest.mark.parametrize("segment_bytes", [1 << 20, 5 * SIZE], ids=["active", "sealed"])
@pytest.mark.parametrize("byte", [0, 7, 9, 24])
def test_a_header_broken_at_run_time_fails_its_reader(byte: int, segment_bytes: int) -> None:
    broker = broker_with(8, segment_bytes=segment_bytes)
    log = broker.log()
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    # Two record batches to an index entry: offset 2 can only be found by walking.
    disk.flip(DIRECTORY / names.segment(0), SIZE + byte)
    assert not log.damaged
    with pytest.raises(CorruptRecordBatchError):
        log.read(3, max_bytes=1 << 20)
    assert log.damaged == (OffsetRange(TP, 2, 4),)
    assert offsets_from(log, 0, end=2) == [0]
    assert offsets_from(log, 4) == [4, 6, 8, 10, 12, 14]
    first = log.read(0, max_bytes=1 << 20)
    assert first is not None
    assert first.length == SIZE
    assert log.split(0, 16, target_bytes=1)[0][-1] == (14 if segment_bytes == 5 * SIZE else 12)


@pytest.mark.parametrize("length", [4, SIZE - 15, SIZE - 4], ids=["short", "odd", "too long"])
def test_an_impossible_length_fails_its_reader_only(length: int) -> None:
    broker = broker_with(2)
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    path = DIRECTORY / names.segment(0)
    data = bytes(disk.data(path))
    disk.overwrite(path, data[: SIZE + 8] + length.to_bytes(4, "little") + data[SIZE + 12 :])
    with pytest.raises(CorruptRecordBatchError, match=r"flights-0\[2, 4\)"):
        broker.log().read(2, max_bytes=1)


def test_a_record_batch_inside_a_value_is_not_the_logs() -> None:
    inner = record_batch(7)
    stamp(inner, base_offset=5, leader_epoch=1, append_time_us=1)
    broker = Broker(files=SimulatedDisk())
    broker.append(record_batch(2), record_batch(2, payload=bytes(64) + bytes(inner)))
    broker.append(record_batch(3))
    damage_and_scan(broker, DIRECTORY / names.segment(0), 88 + 80)
    assert broker.log().damaged == (OffsetRange(TP, 2, 4),)
    assert offsets_from(broker.log(), 4) == [4]


def test_damage_does_not_change_the_range_errors() -> None:
    broker = broker_with(3)
    damage_and_scan(broker, DIRECTORY / names.segment(0), SIZE + 100)
    for offset in (-1, 7):
        with pytest.raises(OffsetOutOfRangeError):
            broker.log().read(offset, max_bytes=100)


def test_a_timestamp_is_found_on_both_sides_of_damage() -> None:
    broker = Broker(files=SimulatedDisk(), config=LogConfig(index_interval_bytes=128))
    broker.append(*(record_batch(1, payload=b"x" * 160, timestamps=(n, 100 * n)) for n in range(6)))
    damage_and_scan(broker, DIRECTORY / names.segment(0), 2 * SIZE + 90)
    log = broker.log()
    found = [log.offset_at(timestamp) for timestamp in (0, 100, 101, 200, 201, 300, 500, 501)]
    assert found == [0, 1, 3, 3, 3, 3, 5, None]


def test_damage_is_found_again_despite_an_older_index() -> None:
    broker = broker_with(3)
    broker.restart()  # leaves an index of the whole segment
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    damage_and_scan(broker, DIRECTORY / names.segment(0), SIZE + 100)
    broker.log().configure(LogConfig(segment_bytes=1024))
    broker.append(record_batch(1, payload=bytes(900)))  # rolls: no index is to be left
    for _ in range(2):
        broker.clock.advance(60)
        broker.directory.maintain()
        disk.crash()
        broker.start()
        assert broker.log().damaged == (OffsetRange(TP, 2, 4),)


@pytest.mark.parametrize("segment_bytes", [1 << 20, 5 * SIZE], ids=["active", "sealed"])
def test_damage_across_two_record_batches(
    segment_bytes: int,
) -> None:
    broker = broker_with(8, segment_bytes=segment_bytes)
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    disk.crash(AllSurvives())
    path = DIRECTORY / names.segment(0)
    for position in (2 * SIZE - 1, 2 * SIZE + 4):  # the offset grows by 2 to the 36
        disk.flip(path, position)
    disk.remove(Path("/data/checkpoint"))
    broker.start()
    log = broker.log()
    assert log.damaged == (OffsetRange(TP, 2, 6),)
    assert log.ends().log_end_offset == 16
    assert offsets_from(log, 6) == [6, 8, 10, 12, 14]
