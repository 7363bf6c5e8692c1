"""What a verification says of sound directories, of what crashes leave, and of each damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.log import OS_FILES, LogConfig
from spark_logbus.log.disk.filesystem import File, OSFileSystem
from spark_logbus.log.inspect.listing import list_directory, list_log
from spark_logbus.log.inspect.verify import (
    DirectoryFinding,
    LogCheck,
    Severity,
    Verification,
    planned_bytes,
    verify_directory,
)
from spark_logbus.log.segment.scan import ignore_progress
from spark_logbus.model import TopicPartition
from spark_logbus.record import stamp
from tests.builders.record_batches import record_batch
from tests.builders.staged import WRITE, attempt, stage
from tests.fakes.log_directory import Broker

CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=128)
BATCH = len(record_batch(2, payload=bytes(64)))
PER_SEGMENT = 1024 // BATCH
SEGMENTS = 4
LAST = (SEGMENTS - 1) * PER_SEGMENT * 2  # the base offset of the active segment


def fill(path: Path) -> Broker:
    """A broker with three full segments and a begun one of its log ``flights-0``."""
    broker = Broker(path, config=CONFIG)
    count = (SEGMENTS - 1) * PER_SEGMENT + 2
    broker.append(*(record_batch(2, payload=bytes(64)) for _ in range(count)))
    return broker


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A data directory after an orderly stop."""
    broker = fill(tmp_path / "data")
    broker.directory.close()
    return broker.path


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A data directory as a crash leaves it, with a checkpoint of an earlier time."""
    broker = fill(tmp_path / "running")
    shutil.copytree(broker.path, tmp_path / "crashed")
    broker.directory.close()
    return tmp_path / "crashed"


def verify(path: Path) -> Verification:
    listing = list_directory(OS_FILES, path)
    assert listing is not None
    return verify_directory(OS_FILES, listing, known_files=(), on_progress=ignore_progress)


def segment(path: Path, base_offset: int) -> Path:
    return path / "flights-0" / f"{base_offset:020d}.log"


def index(path: Path, base_offset: int) -> Path:
    return segment(path, base_offset).with_suffix(".index")


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def the_one(result: Verification, severity: Severity, path: Path) -> str:
    """The message of the only finding, which is as expected."""
    assert len(result.findings) == 1, result.findings
    found = result.findings[0]
    assert (found.severity, found.path) == (severity, path)
    assert result.sound == (severity is Severity.NOTE)
    return found.message


# -- sound ----------------------------------------------------------------------------------


def test_after_an_orderly_stop(clean: Path) -> None:
    result = verify(clean)
    assert result.findings == []
    assert (result.clean, result.live) == (True, False)
    assert (result.logs, result.segments) == (1, SEGMENTS)
    assert result.record_batches == LAST // 2 + 2
    assert result.records == LAST + 4
    assert result.size_bytes == result.record_batches * BATCH
    listing = list_directory(OS_FILES, clean)
    assert listing is not None
    assert planned_bytes(listing) == result.size_bytes


def test_progress_adds_up_to_the_plan(clean: Path) -> None:
    listing = list_directory(OS_FILES, clean)
    assert listing is not None
    read: list[int] = []
    verify_directory(OS_FILES, listing, known_files=(), on_progress=read.append)
    assert sum(read) == planned_bytes(listing)


def test_after_a_crash(crashed: Path) -> None:
    result = verify(crashed)
    assert result.findings == []
    assert (result.clean, result.live) == (False, False)


def test_while_a_broker_has_it(tmp_path: Path) -> None:
    broker = fill(tmp_path / "data")
    result = verify(broker.path)
    assert result.findings == []
    assert (result.clean, result.live) == (False, True)
    with segment(broker.path, LAST).open("ab") as file:
        file.write(bytes(record_batch())[:50])  # as a write that is under way
    assert verify(broker.path).findings == []
    broker.directory.close()


def test_only_one_partition(clean: Path) -> None:
    result = verify(clean / "flights-0")
    assert result.findings == []
    assert result.clean
    assert result.segments == SEGMENTS


def test_one_partition_with_nothing_but_its_first_segment(clean: Path) -> None:
    for path in (clean / "flights-0").iterdir():
        if path != segment(clean, 0):
            path.unlink()
    result = verify(clean / "flights-0")
    assert result.segments == 1
    assert not result.sound


class BusyRetention(OSFileSystem):
    """Deletes ``before`` the moment that one of them is to be opened."""

    def __init__(self, *before: Path) -> None:
        self._before = before

    def open_read_only(self, path: Path) -> File:
        if path in self._before:
            for each in self._before:
                each.unlink()
        return super().open_read_only(path)


def test_segments_deleted_meanwhile_are_not_missed(crashed: Path) -> None:
    directory = crashed / "flights-0"
    listed = list_log(OS_FILES, directory, TopicPartition("flights", 0))
    head = [segment(crashed, base) for base in listed.base_offsets[:2]]
    check = LogCheck(BusyRetention(*head), listed, None, live=True, clean=False)
    check.run(ignore_progress)
    assert check.sound
    assert len(check.reports) == SEGMENTS - 2


def test_a_segment_that_goes_from_the_middle_is_missed(crashed: Path) -> None:
    listed = list_log(OS_FILES, crashed / "flights-0", TopicPartition("flights", 0))
    files = BusyRetention(segment(crashed, listed.base_offsets[1]))
    check = LogCheck(files, listed, None, live=True, clean=False)
    check.run(ignore_progress)
    assert not check.sound


def test_after_retention(tmp_path: Path) -> None:
    broker = fill(tmp_path / "data")
    broker.log().configure(LogConfig(segment_bytes=1024, retention_bytes=1024))
    broker.directory.maintain()
    broker.directory.close()
    result = verify(broker.path)
    assert result.findings == []
    assert result.segments < SEGMENTS


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "broker-1" / "data").mkdir(parents=True)
    assert list_directory(OS_FILES, tmp_path) is None


# -- what a crash leaves --------------------------------------------------------------------


@pytest.mark.parametrize("tail", [bytes(record_batch())[:40], b"garbage", bytes(5_000)])
def test_a_torn_tail_is_a_note_after_a_crash(crashed: Path, tail: bytes) -> None:
    path = segment(crashed, LAST)
    with path.open("ab") as file:
        file.write(tail)
    message = the_one(verify(crashed), Severity.NOTE, path)
    assert f"Its last {len(tail)} bytes are no whole record batches." in message


def test_a_torn_tail_is_damage_after_an_orderly_stop(clean: Path) -> None:
    path = segment(clean, LAST)
    with path.open("ab") as file:
        file.write(b"garbage")
    assert "last 7 bytes" in the_one(verify(clean), Severity.DAMAGE, path)


SPOILS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "emptied": ("header is damaged", lambda path: path.write_bytes(b"")),
    "truncated": ("entries are damaged", lambda path: path.write_bytes(path.read_bytes()[:-24])),
    "bit of the header flipped": ("header is damaged", lambda path: flip(path, 20)),
    "bit of an entry flipped": ("entries are damaged", lambda path: flip(path, 90)),
}


@pytest.mark.parametrize("how", SPOILS)
def test_an_unusable_index_is_damage_unless_there_was_a_crash(
    clean: Path, crashed: Path, how: str
) -> None:
    named, spoil = SPOILS[how]
    for path, severity in ((clean, Severity.DAMAGE), (crashed, Severity.NOTE)):
        spoil(index(path, 0))
        assert named in the_one(verify(path), severity, index(path, 0))


def test_an_index_that_is_not_there_is_no_damage(clean: Path, crashed: Path) -> None:
    """A full disk did not let it be written, at an orderly stop too; the broker makes it anew."""
    index(clean, LAST).unlink()
    for path in (clean, crashed):
        index(path, 0).unlink()
        result = verify(path)
        assert result.sound
        found = [finding for finding in result.findings if finding.path == index(path, 0)]
        assert [finding.severity for finding in found] == [Severity.NOTE]
        assert "rebuilds it when it opens the segment: it is missing" in found[0].message


def test_a_stale_index(clean: Path) -> None:
    """Whole, but of a segment of another size, as an earlier state of this one would be."""
    index(clean, 0).write_bytes(index(clean, LAST).read_bytes())
    assert "it is stale" in the_one(verify(clean), Severity.DAMAGE, index(clean, 0))


def test_an_index_of_another_segment_of_the_same_size(clean: Path) -> None:
    """Its checksum is right and the broker would trust it: worse than none."""
    other = 2 * PER_SEGMENT
    index(clean, 0).write_bytes(index(clean, other).read_bytes())
    message = the_one(verify(clean), Severity.DAMAGE, index(clean, 0))
    assert "It misleads readers: its entry for offset" in message
    assert message.endswith("Stop the broker and delete it.")


# -- damage ---------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 8, 10, 24, 25, 26, 28, 32, 36, 40, 66, 75, 81, 140])
@pytest.mark.parametrize("number", [0, 1, PER_SEGMENT - 1])
def test_a_flipped_bit(clean: Path, position: int, number: int) -> None:
    """Flips bits in any field but those that the leader stamps and nothing protects."""
    path = segment(clean, 0)
    flip(path, number * BATCH + position)
    message = the_one(verify(clean), Severity.DAMAGE, path)
    start = number * 2
    assert f"Offsets {start} up to {start + 2}" in message


def test_several_places_in_one_segment(clean: Path) -> None:
    path = segment(clean, 0)
    flip(path, 85)
    flip(path, 3 * BATCH + 85)
    messages = [found.message for found in verify(clean).findings]
    assert len(messages) == 2
    assert "Offsets 0 up to 2" in messages[0]
    assert "Offsets 6 up to 8" in messages[1]


def test_a_missing_segment(clean: Path) -> None:
    missing = 2 * PER_SEGMENT
    segment(clean, missing).unlink()
    index(clean, missing).unlink()
    message = the_one(verify(clean), Severity.DAMAGE, segment(clean, 0))
    assert f"ends at offset {missing}, but the next segment begins at {2 * missing}" in message


def test_a_missing_first_segment(clean: Path) -> None:
    segment(clean, 0).unlink()
    index(clean, 0).unlink()
    first = 2 * PER_SEGMENT
    message = the_one(verify(clean), Severity.DAMAGE, segment(clean, first))
    assert f"offsets 0 up to {first} are gone" in message


def test_a_missing_last_segment(clean: Path) -> None:
    segment(clean, LAST).unlink()
    index(clean, LAST).unlink()
    result = verify(clean)
    message = the_one(result, Severity.DAMAGE, segment(clean, LAST - 2 * PER_SEGMENT))
    assert f"Offsets {LAST} up to {LAST + 4} were on disk and are gone" in message


def test_flushed_records_that_were_cut_off(crashed: Path) -> None:
    """The checkpoint knows better than the tail."""
    broker = Broker(crashed, config=CONFIG)
    broker.directory.close()
    (crashed / "clean-shutdown").unlink()
    path = segment(crashed, LAST)
    path.write_bytes(path.read_bytes()[: BATCH + 30])
    message = the_one(verify(crashed), Severity.DAMAGE, path)
    assert f"Offsets {LAST + 2} up to {LAST + 4} were on disk and are gone." in message


@pytest.mark.parametrize("name", [1, 3])
def test_a_renamed_segment(clean: Path, name: int) -> None:
    """Its name says one thing, its record batches another."""
    path = segment(clean, 2 * PER_SEGMENT + name - 2)
    segment(clean, 2 * PER_SEGMENT).rename(path)
    index(clean, 2 * PER_SEGMENT).rename(path.with_suffix(".index"))
    result = verify(clean)
    assert not result.sound
    damaged = {found.path for found in result.findings if found.severity is Severity.DAMAGE}
    assert path in damaged
    messages = " ".join(found.message for found in result.findings)
    assert f"with base offset {2 * PER_SEGMENT} is there, expected" in messages


def test_a_segment_that_is_there_twice(clean: Path) -> None:
    copy = segment(clean, 2)
    data = bytearray(segment(clean, 0).read_bytes()[BATCH:])
    copy.write_bytes(data)
    result = verify(clean)
    messages = [found.message for found in result.findings if found.path == segment(clean, 0)]
    assert len(messages) == 1
    assert "the offsets between are there twice" in messages[0]


def test_a_foreign_record_batch_at_the_end_of_a_sealed_segment(clean: Path) -> None:
    path = segment(clean, 0)
    foreign = record_batch(payload=bytes(64))
    stamp(foreign, base_offset=10_000, leader_epoch=1, append_time_us=0)
    with path.open("ab") as file:
        file.write(foreign)
    assert not verify(clean).sound


# -- the small files ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpoint", "flights-0/partition"])
def test_a_damaged_text_file(clean: Path, name: str) -> None:
    flip(clean / name, 25)
    found = DirectoryFinding(
        Severity.DAMAGE, clean / name, "It counts as missing: its checksum is wrong."
    )
    assert verify(clean).findings == [found]


def test_a_missing_partition_file(clean: Path) -> None:
    (clean / "flights-0" / "partition").unlink()
    the_one(verify(clean), Severity.DAMAGE, clean / "flights-0" / "partition")


def test_a_renamed_log(clean: Path) -> None:
    (clean / "flights-0").rename(clean / "flights-7")
    message = the_one(verify(clean), Severity.DAMAGE, clean / "flights-7" / "partition")
    assert "belongs to the log of flights-0" in message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flights-0/00000000000000000000.log.deleted", "leftover"),
        ("flights-0/partition.tmp", "leftover"),
        ("flights-0/00000000000000000001.index", "leftover"),
        ("flights-0/notes.txt", "Not a file that this release knows"),
        ("flights-0/flush-failed", "A flush failed"),
        ("checkpoint.tmp", "leftover"),
        ("core.1234", "Not a file of logbus's"),
    ],
)
def test_other_files_are_notes(clean: Path, name: str, message: str) -> None:
    (clean / name).write_bytes(b"?")
    assert message in the_one(verify(clean), Severity.NOTE, clean / name)


def test_staged_records_are_a_note(tmp_path: Path) -> None:
    broker = fill(tmp_path / "data")
    stage(broker.log(), attempt(1), 3)
    broker.directory.close()
    path = broker.log_path() / "0000000000000000.staged"
    assert "not committed" in the_one(verify(broker.path), Severity.NOTE, path)
    broker.start()
    broker.log().staging.discard(WRITE)
    broker.directory.close()
    assert verify(broker.path).findings == []


@pytest.mark.parametrize("name", ["t.creating", "t.deleted", "t.stray"])
def test_other_directories_are_notes(clean: Path, name: str) -> None:
    (clean / name).mkdir()
    the_one(verify(clean), Severity.NOTE, clean / name)


def test_a_log_without_segments(clean: Path) -> None:
    for path in (clean / "flights-0").glob("0*"):
        path.unlink()
    assert "no segment" in the_one(verify(clean), Severity.DAMAGE, clean / "flights-0")


@pytest.mark.parametrize("left", [0, 20, -1])
def test_half_a_snapshot_of_producers_is_a_note(clean: Path, left: int) -> None:
    """A snapshot is not synced at a stop, and rebuilt from the log."""
    for path in (clean / "flights-0").glob("*.producers"):
        path.write_bytes(path.read_bytes()[:left])
        break
    else:
        raise AssertionError("there is no snapshot")
    result = verify(clean)
    assert result.clean
    assert result.sound
    (finding,) = result.findings
    assert finding.severity is Severity.NOTE
    assert finding.path.suffix == ".producers"
    assert "rebuilt from the log" in finding.message
