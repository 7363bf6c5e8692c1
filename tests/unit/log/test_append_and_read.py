from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RecordBatchTooLargeError,
    UnsupportedVersionError,
)
from spark_logbus.log import LogConfig
from spark_logbus.record import checksum, split
from spark_logbus.record import format as fmt
from tests.builders.record_batches import joined, record_batch
from tests.fakes.clock import NOW_US, SECOND
from tests.fakes.log_directory import Broker, batches_from, offsets_from


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "data", config=LogConfig(segment_bytes=4096, index_interval_bytes=256))


def test_an_append_stamps_offset_epoch_and_time(broker: Broker) -> None:
    log = broker.log()
    data = joined(record_batch(3), record_batch(2))
    appended = log.append_as_leader(data, leader_epoch=7)
    assert (appended.base_offset, appended.end_offset) == (0, 5)
    assert appended.append_time_us == NOW_US
    headers = [header for header, _ in split(data, allow_tail=False)]
    assert [header.base_offset for header in headers] == [0, 3]
    assert {(h.leader_epoch, h.append_time_us) for h in headers} == {(7, NOW_US)}
    log.flush()
    assert [bytes(d) for _, d in batches_from(log, 0)] == [
        bytes(d) for _, d in split(data, allow_tail=False)
    ]


def broken(position: int, value: int) -> memoryview:
    data = record_batch(2)
    data[position] = value
    return data


def with_gaps() -> memoryview:
    data = record_batch(2)
    fmt.HEADER.pack_into(
        data, 0, 0, len(data) - 12, 0, 0, 1, 0, fmt.HAS_OFFSET_DELTA, 0, 2, 9, 1, 1, -1, -1, -1, 0
    )
    fmt.CRC.pack_into(data, fmt.CRC_AT, checksum(data))
    return data


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (memoryview(bytearray()), InvalidRequestError),
        (memoryview(bytearray(5)), CorruptRecordBatchError),
        (record_batch(2)[:-1], CorruptRecordBatchError),
        (broken(85, 1), CorruptRecordBatchError),
        (broken(24, 9), UnsupportedVersionError),
        (broken(11, 0x7F), CorruptRecordBatchError),
        (record_batch(payload=bytes(900)), RecordBatchTooLargeError),
        (joined(record_batch(2), broken(85, 1)), CorruptRecordBatchError),
        (joined(record_batch(2), memoryview(bytearray(8))), CorruptRecordBatchError),
        (with_gaps(), InvalidRequestError),
    ],
)
def test_wrong_data_is_refused_and_nothing_appended(
    broker: Broker, data: memoryview, error: type[Exception]
) -> None:
    broker.log().configure(LogConfig(max_record_batch_bytes=500))
    with pytest.raises(error):
        broker.log().append_as_leader(data, leader_epoch=0)
    assert broker.log().ends().log_end_offset == 0
    assert broker.append(record_batch(1)) == 1


def test_a_slice_is_a_piece_of_a_file(broker: Broker) -> None:
    import os

    broker.append(record_batch(2), record_batch(2), record_batch(2))
    found = broker.log().read(3, max_bytes=1)
    assert found is not None
    assert (found.position, found.length) == (88, 88)
    assert os.pread(found.file.fileno(), found.length, found.position) == found.read()


@pytest.mark.parametrize(
    ("offset", "max_bytes", "end", "base_offsets"),
    [
        (0, 10_000, None, [0, 2, 4, 6, 8]),
        (1, 10_000, None, [0, 2, 4, 6, 8]),
        (3, 10_000, None, [2, 4, 6, 8]),
        (9, 10_000, None, [8]),
        (0, 1, None, [0]),
        (0, 87, None, [0]),
        (0, 88, None, [0]),
        (0, 175, None, [0]),
        (0, 176, None, [0, 2]),
        (0, 439, None, [0, 2, 4, 6]),
        (0, 440, None, [0, 2, 4, 6, 8]),
        (2, 0, None, [2]),
        (0, 10_000, 1, [0]),
        (0, 10_000, 2, [0]),
        (0, 10_000, 3, [0, 2]),
        (0, 10_000, 4, [0, 2]),
        (3, 10_000, 5, [2, 4]),
        (3, 10_000, 4, [2]),
        (0, 10_000, 10, [0, 2, 4, 6, 8]),
        (0, 10_000, 99, [0, 2, 4, 6, 8]),
        (0, 200, 9, [0, 2]),
    ],
)
def test_where_a_slice_begins_and_ends(
    broker: Broker, offset: int, max_bytes: int, end: int | None, base_offsets: list[int]
) -> None:
    broker.append(*(record_batch(2) for _ in range(5)))
    found = broker.log().read(offset, max_bytes=max_bytes, end=end)
    assert found is not None
    assert [h.base_offset for h, _ in split(found.read(), allow_tail=False)] == base_offsets
    whole = broker.log().read(offset, max_bytes=10_000, end=end)
    assert whole is not None
    assert (found.length + found.bytes_after, whole.bytes_after) == (whole.length, 0)


def test_a_slice_ends_with_its_segment(broker: Broker) -> None:
    broker.append(*(record_batch(1, payload=bytes(920)) for _ in range(9)))
    found = broker.log().read(1, max_bytes=1 << 20)
    assert found is not None
    assert [h.base_offset for h, _ in split(found.read(), allow_tail=False)] == [1, 2, 3]
    assert offsets_from(broker.log(), 0) == list(range(9))


def test_reads_outside_of_the_log(broker: Broker) -> None:
    broker.append(record_batch(3))
    log = broker.log()
    assert log.read(3, max_bytes=100) is None
    assert log.read(2, max_bytes=100, end=2) is None
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRangeError, match="expected 0 to 3"):
            log.read(offset, max_bytes=100)


def test_ends(broker: Broker) -> None:
    broker.append(record_batch(3))
    broker.append(record_batch(2), flush=False)
    ends = broker.log().ends()
    assert (ends.log_start_offset, ends.high_watermark, ends.log_end_offset) == (0, 3, 5)
    assert ends.size_bytes == 2 * 88


def test_offset_at_goes_by_largest_timestamps(broker: Broker) -> None:
    for newest in (50, 10, 70, 60, 70, 90):
        for _ in range(9):  # enough to have it spread over segments
            broker.append(record_batch(1, payload=bytes(300), timestamps=(5, newest)))
    log = broker.log()
    found = [log.offset_at(t) for t in (0, 50, 51, 70, 71, 90, 91)]
    assert found == [0, 0, 18, 18, 45, 45, None]


def test_offset_at_sees_flushed_records_only(broker: Broker) -> None:
    broker.append(record_batch(1, timestamps=(1, 1)))
    broker.append(record_batch(1, timestamps=(9, 9)), flush=False)
    assert broker.log().offset_at(5) is None
    broker.log().flush()
    assert broker.log().offset_at(5) == 1


def test_split(broker: Broker) -> None:
    broker.append(*(record_batch(2, payload=bytes(432)) for _ in range(20)))  # 512 bytes each
    log = broker.log()
    assert log.split(0, 40, target_bytes=1 << 20) == ([], 20 * 512)
    assert log.split(0, 40, target_bytes=2048) == ([8, 16, 24, 32], 20 * 512)
    assert log.split(0, 40, target_bytes=1) == (list(range(2, 40, 2)), 20 * 512)
    assert log.split(5, 11, target_bytes=512) == ([6, 8, 10], 4 * 512)
    assert log.split(-5, 99, target_bytes=6000) == ([24], 20 * 512)
    assert log.split(40, 50, target_bytes=100) == ([], 0)
    assert log.split(7, 7, target_bytes=100) == ([], 0)
    with pytest.raises(InvalidRequestError):
        log.split(0, 1, target_bytes=0)


@pytest.mark.parametrize("cause", ["size", "age", "index"])
def test_a_segment_rolls(broker: Broker, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = broker.log()
    broker.append(record_batch(1, payload=bytes(3000)), record_batch(1, payload=bytes(300)))
    assert len(list(broker.log_path().glob("*.log"))) == 1
    if cause == "age":
        broker.clock.advance(7 * 24 * 3600)
    if cause == "index":
        monkeypatch.setattr("spark_logbus.log.segment.index.MAX_ENTRIES", 2)
    broker.append(record_batch(1, payload=bytes(1000 if cause == "size" else 8)))
    names = sorted(path.name for path in broker.log_path().glob("*.log"))
    assert names == ["00000000000000000000.log", "00000000000000000002.log"]
    assert offsets_from(log, 0) == [0, 1, 2]


def test_a_huge_record_batch_gets_its_own_segment(broker: Broker) -> None:
    broker.append(record_batch(1), record_batch(1, payload=bytes(9000)), record_batch(1))
    assert offsets_from(broker.log(), 0) == [0, 1, 2]
    assert len(list(broker.log_path().glob("*.log"))) == 3


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_clock_jumps_neither_roll_nor_hold_up_a_roll(broker: Broker, jump: int) -> None:
    config = LogConfig(segment_ms=600_000, retention_ms=None)
    broker.log().configure(config)
    broker.append(record_batch(1))
    broker.clock.jump(jump)
    broker.append(record_batch(1))
    assert len(list(broker.log_path().glob("*.log"))) == 1
    broker.clock.advance(600)
    broker.directory.maintain()
    assert len(list(broker.log_path().glob("*.log"))) == 2


def test_age_goes_on_over_a_restart(broker: Broker) -> None:
    broker.config = LogConfig(segment_ms=600_000, retention_ms=None)
    broker.append(record_batch(1))
    broker.restart()
    broker.append(record_batch(1))
    broker.clock.advance(599)
    broker.restart()
    broker.directory.maintain()
    assert len(list(broker.log_path().glob("*.log"))) == 1
    broker.clock.advance(1)
    broker.directory.maintain()
    assert len(list(broker.log_path().glob("*.log"))) == 2


def test_expired_data_goes_from_the_active_segment_too(broker: Broker) -> None:
    broker.log().configure(LogConfig(retention_ms=1000))
    broker.append(record_batch(4))
    broker.clock.advance(0.9)
    broker.directory.maintain()
    assert broker.log().ends().log_start_offset == 0
    broker.clock.advance(0.2)
    broker.directory.maintain()
    ends = broker.log().ends()
    assert (ends.log_start_offset, ends.high_watermark, ends.size_bytes) == (4, 4, 0)
    with pytest.raises(OffsetOutOfRangeError):
        broker.log().read(3, max_bytes=100)
    broker.restart()
    assert broker.log().ends() == ends
    assert broker.append(record_batch(1)) == 5


def test_an_hour_s_jump_of_the_clock_deletes_nothing_early(broker: Broker) -> None:
    broker.log().configure(LogConfig(retention_ms=1_800_000))
    broker.append(record_batch(4))
    broker.clock.jump(3600)
    broker.directory.maintain()
    assert broker.log().ends().log_start_offset == 0
    broker.clock.advance(1801)
    broker.directory.maintain()
    assert broker.log().ends().log_start_offset == 4


def test_a_record_stamped_2099_does_not_hold_up_retention(broker: Broker) -> None:
    broker.log().configure(LogConfig(retention_ms=1000))
    far = NOW_US + 70 * 365 * 24 * 3600 * SECOND
    broker.append(record_batch(4, timestamps=(NOW_US, far)))
    broker.clock.advance(2)
    broker.directory.maintain()
    assert broker.log().ends().log_start_offset == 4
