"""What a crash leaves at the end of a log: recovery keeps the longest valid prefix."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.log.disk import names
from spark_logbus.record import HEADER_SIZE
from tests.builders.record_batches import joined, record_batch
from tests.fakes.disk import AllSurvives, SimulatedDisk
from tests.fakes.log_directory import Broker, batches_from, offsets_from

SEGMENT = Path("/data/flights-0") / names.segment(0)


def crashed_broker_with(content: bytes) -> Broker:
    """A broker that comes up after kill -9, with ``content`` in its only segment."""
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.log()
    disk.crash(AllSurvives())
    disk.overwrite(SEGMENT, content)
    broker.start()
    return broker


def stamped(*counts: int) -> list[bytes]:
    broker = Broker(files=SimulatedDisk())
    broker.append(*(record_batch(count, payload=b"%d" % count * 5) for count in counts))
    return [data for _, data in batches_from(broker.log(), 0)]


def test_a_write_torn_at_any_byte_is_cut_back() -> None:
    first, second, last = stamped(3, 2, 4)
    whole = first + second
    for torn_at in range(len(last)):
        broker = crashed_broker_with(whole + last[:torn_at])
        log = broker.log()
        assert offsets_from(log, 0) == [0, 3], torn_at
        assert log.ends().log_end_offset == 5
        assert broker.files.data(SEGMENT) == whole  # type: ignore[attr-defined]
        assert broker.append(record_batch(2)) == 7
        assert offsets_from(log, 0) == [0, 3, 5]


def test_an_unfinished_record_batch_is_cut_off_at_any_byte() -> None:
    """The file has its new length already, and zeros where bytes are missing."""
    first, last = stamped(3, 4)
    for written in range(HEADER_SIZE - 6, len(last.rstrip(b"\0"))):  # a header ends in six zeros
        tail = last[:written] + bytes(len(last) - written)
        broker = crashed_broker_with(first + tail)
        assert offsets_from(broker.log(), 0) == [0], written
        assert broker.log().ends().log_end_offset == 3


def test_an_append_of_two_record_batches_keeps_the_whole_one() -> None:
    first, second, last = stamped(1, 1, 1)
    broker = crashed_broker_with(first + second + last[:-8])
    assert [data for _, data in batches_from(broker.log(), 0)] == [first, second]


@pytest.mark.parametrize(
    "tail",
    [
        bytes(1),
        bytes(79),
        bytes(4096),
        b"\xff" * 96,
        b"\x01\x00" * 2000,
        b"\x01\x00\x00\x00\x00\x00\x00\x00" * 512,
        bytes(range(256)) * 16,
    ],
    ids=["one zero", "a short zero run", "a page of zeros", "ones", "magic", "magic8", "bytes"],
)
def test_a_file_longer_than_its_data_serves_none_of_it(tail: bytes) -> None:
    first, second = stamped(3, 2)
    broker = crashed_broker_with(first + second + tail)
    assert [data for _, data in batches_from(broker.log(), 0)] == [first, second]
    assert broker.log().damaged == ()
    assert broker.append(record_batch()) == 6


def test_an_old_record_batch_after_the_end_is_not_new() -> None:
    first, second = stamped(3, 2)
    broker = crashed_broker_with(first + second + first)
    assert offsets_from(broker.log(), 0) == [0, 3]
    assert broker.log().ends().log_end_offset == 5


def test_a_segment_of_nothing_but_garbage_becomes_an_empty_log() -> None:
    broker = crashed_broker_with(b"\x07" * 333)
    assert broker.log().ends().log_end_offset == 0
    assert broker.append(record_batch(2)) == 2


def test_what_was_cut_is_told_with_its_size(caplog: pytest.LogCaptureFixture) -> None:
    first, second = stamped(1, 1)
    crashed_broker_with(first + second[:33])
    assert "The last 33 bytes of" in caplog.text
    assert "ends at offset 1" in caplog.text


def test_a_read_in_one_slice_equals_reads_in_many() -> None:
    broker = Broker(files=SimulatedDisk())
    broker.log().append_as_leader(joined(*(record_batch(n + 1) for n in range(20))), leader_epoch=1)
    broker.log().flush()
    log = broker.log()
    whole = log.read(0, max_bytes=1 << 20)
    assert whole is not None
    assert whole.read() == b"".join(data for _, data in batches_from(log, 0, max_bytes=1))
