from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.log import OS_FILES, LogConfig
from spark_logbus.log.inspect import Damage, SegmentReport, inspect_segment, read_segment
from tests.builders.record_batches import record_batch
from tests.fakes.clock import NOW_US
from tests.fakes.log_directory import Broker

BATCH = len(record_batch(2, payload=bytes(64)))
COUNT = 5


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Five record batches of two records each, with an index, after an orderly stop."""
    broker = Broker(tmp_path / "data", config=LogConfig(index_interval_bytes=128))
    for age in range(COUNT):
        times = (NOW_US - age, NOW_US + age)
        broker.append(record_batch(2, payload=bytes(64), timestamps=times))
    broker.directory.close()
    return broker.path / "flights-0" / f"{0:020d}.log"


def inspect(path: Path, *, checksums: bool = True) -> SegmentReport:
    return inspect_segment(OS_FILES, path, base_offset=0, checksums=checksums)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def test_headers_say_the_same_as_a_full_read(segment: Path) -> None:
    report = inspect(segment)
    assert report == inspect(segment, checksums=False)
    assert (report.end_offset, report.record_batches, report.records) == (10, COUNT, 10)
    assert report.size_bytes == COUNT * BATCH
    assert (report.min_timestamp_us, report.max_timestamp_us) == (NOW_US - 4, NOW_US + 4)
    assert (report.damage, report.tail) == ((), None)
    assert report.index_state(active=False) == "ok"


def test_an_empty_segment_has_no_times(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.touch()
    report = inspect(path)
    assert (report.end_offset, report.records, report.tail) == (0, 0, None)
    assert (report.min_timestamp_us, report.max_timestamp_us) == (None, None)
    assert report.index_state(active=True) == "in memory"
    assert report.index_state(active=False) == "it is missing"


def test_only_a_full_read_sees_a_flipped_bit_of_a_payload(segment: Path) -> None:
    flip(segment, 2 * BATCH + 90)
    assert inspect(segment, checksums=False).damage == ()
    report = inspect(segment)
    (found,) = report.damage
    assert (found.start, found.end, found.position, found.size_bytes) == (4, 6, 2 * BATCH, BATCH)
    assert "checksum" in found.reason
    assert (report.record_batches, report.end_offset, report.tail) == (COUNT - 1, 10, None)


def test_headers_end_at_the_first_damage(segment: Path) -> None:
    flip(segment, 2 * BATCH + 25)
    report = inspect(segment, checksums=False)
    assert (report.record_batches, report.end_offset, report.damage) == (2, 4, ())
    assert report.tail is not None
    assert (report.tail.position, report.tail.size_bytes) == (2 * BATCH, 3 * BATCH)
    assert report.index_state(active=False) == "not compared"


def test_a_segment_of_another_base_offset_has_nothing_but_a_tail(segment: Path) -> None:
    report = inspect_segment(OS_FILES, segment, base_offset=2, checksums=False)
    assert (report.record_batches, report.end_offset) == (0, 2)
    assert report.tail is not None
    assert "with base offset 0 is there, expected 2" in report.tail.reason


def test_progress_is_of_what_can_be_read(segment: Path) -> None:
    flip(segment, 2 * BATCH + 90)
    read: list[int] = []
    inspect_segment(OS_FILES, segment, base_offset=0, checksums=True, on_progress=read.append)
    assert read == [BATCH] * (COUNT - 1)


def test_damage_is_read_in_its_place(segment: Path) -> None:
    flip(segment, BATCH + 90)
    with segment.open("ab") as file:
        file.write(b"torn")
    found = [
        each if isinstance(each, Damage) else each[0]
        for each in read_segment(OS_FILES.open_read_only(segment))
    ]
    assert [at for at in found if isinstance(at, int)] == [0, 2 * BATCH, 3 * BATCH, 4 * BATCH]
    hole, tail = found[1], found[-1]
    assert isinstance(hole, Damage)
    assert (hole.start, hole.end, hole.at_end) == (2, 4, False)
    assert isinstance(tail, Damage)
    assert (tail.start, tail.position, tail.size_bytes, tail.at_end) == (10, COUNT * BATCH, 4, True)
