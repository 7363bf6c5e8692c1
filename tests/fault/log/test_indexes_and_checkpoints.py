"""Everything that can be rebuilt is taken away or damaged; nothing that is read changes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.log import LogConfig
from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import checksummed_file
from tests.builders.record_batches import record_batch
from tests.fakes.disk import AllSurvives, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, batches_from, ensure_one

DIRECTORY = Path("/data/flights-0")
FIRST_INDEX = DIRECTORY / names.index(0)

Observed = tuple[list[list[bytes]], list[int | None], tuple[list[int], int], object]


def broker_with_segments() -> tuple[Broker, SimulatedDisk]:
    disk = SimulatedDisk()
    config = LogConfig(segment_bytes=1024, index_interval_bytes=300, retention_ms=None)
    broker = Broker(files=disk, config=config)
    for number in range(40):
        broker.append(record_batch(1 + number % 3, timestamps=(0, 10 * (number ^ 5))))
    return broker, disk


def observe(broker: Broker) -> Observed:
    log = broker.log()
    end = log.ends().high_watermark
    reads = [[data for _, data in batches_from(log, at, max_bytes=777)] for at in range(0, end, 5)]
    times = [log.offset_at(timestamp) for timestamp in range(0, 420, 7)]
    return reads, times, log.split(3, end - 2, target_bytes=500), log.ends()


def everything_gone(disk: SimulatedDisk, path: Path) -> None:
    disk.remove(path)


def truncated(disk: SimulatedDisk, path: Path) -> None:
    disk.overwrite(path, bytes(disk.data(path)[:-5]))


def without_its_last_entry(disk: SimulatedDisk, path: Path) -> None:
    disk.overwrite(path, bytes(disk.data(path)[:-24]))


def empty(disk: SimulatedDisk, path: Path) -> None:
    disk.overwrite(path, b"")


def garbage(disk: SimulatedDisk, path: Path) -> None:
    disk.overwrite(path, bytes(range(256)) * 2)


def flipped_header(disk: SimulatedDisk, path: Path) -> None:
    disk.flip(path, 30)


def flipped_entry(disk: SimulatedDisk, path: Path) -> None:
    disk.flip(path, len(disk.data(path)) - 20)


def flipped_position(disk: SimulatedDisk, path: Path) -> None:
    disk.flip(path, len(disk.data(path)) - 16)


def flipped_timestamp(disk: SimulatedDisk, path: Path) -> None:
    disk.flip(path, len(disk.data(path)) - 8, mask=0x80)


def of_another_segment(disk: SimulatedDisk, path: Path) -> None:
    other = sorted(name for name in disk.names(path.parent) if name.endswith(".index"))[1]
    disk.overwrite(path, bytes(disk.data(path.parent / other)))


HARM = [
    everything_gone, truncated, without_its_last_entry, empty, garbage, flipped_header,
    flipped_entry, flipped_position, flipped_timestamp, of_another_segment,
]  # fmt: skip


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("clean", [True, False])
def test_a_harmed_index_changes_no_read(
    harm: Callable[[SimulatedDisk, Path], None], clean: bool
) -> None:
    broker, disk = broker_with_segments()
    before = observe(broker)
    good = bytes(disk.data(FIRST_INDEX))
    broker.clock.advance(60)
    broker.directory.maintain()
    if clean:
        broker.directory.close()
    else:
        disk.crash(AllSurvives())
    harm(disk, FIRST_INDEX)
    broker.start()
    assert observe(broker) == before
    assert disk.data(FIRST_INDEX) == good  # and it is whole again


@pytest.mark.parametrize("harm", [flipped_entry, everything_gone])
def test_an_index_harmed_at_run_time_is_rebuilt_on_load(
    harm: Callable[[SimulatedDisk, Path], None],
) -> None:
    broker, disk = broker_with_segments()
    before = observe(broker)
    broker.restart()
    harm(disk, FIRST_INDEX)
    assert observe(broker) == before


def test_the_active_segment_takes_no_foreign_index() -> None:
    broker = Broker(files=SimulatedDisk(), config=LogConfig(segment_bytes=1024))
    broker.append(*(record_batch(2, payload=bytes(400)) for _ in range(4)))
    before = observe(broker)
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)
    broker.directory.close()
    active = DIRECTORY / names.index(4)
    assert len(disk.data(active)) == len(disk.data(FIRST_INDEX))
    disk.overwrite(active, bytes(disk.data(FIRST_INDEX)))
    broker.start()
    assert observe(broker) == before
    assert broker.append(record_batch(1)) == 9


def test_the_active_segment_s_stale_index_is_not_used() -> None:
    broker, disk = broker_with_segments()
    broker.restart()  # writes the active segment's index
    broker.append(record_batch(2, payload=b"after the index"))
    after = observe(broker)
    disk.crash(AllSurvives())
    broker.start()
    assert observe(broker) == after


@pytest.mark.parametrize("harm", [everything_gone, truncated, empty, garbage, flipped_header])
@pytest.mark.parametrize("clean", [True, False])
def test_a_harmed_checkpoint_costs_a_scan_and_no_record(
    harm: Callable[[SimulatedDisk, Path], None], clean: bool
) -> None:
    broker, disk = broker_with_segments()
    before = observe(broker)
    broker.directory.close()
    if not clean:
        disk.remove(Path("/data/clean-shutdown"))
    harm(disk, Path("/data/checkpoint"))
    broker.start()
    assert observe(broker) == before
    assert broker.directory.recovery.bytes_scanned >= broker.log().ends().size_bytes


@pytest.mark.parametrize(
    "words",
    ["", "x", "0", "0 0", "x 0 0", "{} 0 x", "{} -1 0", "{} 5 4", "{} 0 9223372036854775807"],
)
def test_an_empty_checkpoint_costs_a_scan_only(words: str) -> None:
    broker, disk = broker_with_segments()
    before = observe(broker)
    broker.directory.close()
    text = checksummed_file("logbus-checkpoint 1", [f"{TP} {words.format(TOPIC_ID)}".strip()])
    disk.overwrite(Path("/data/checkpoint"), text)
    broker.start()
    assert observe(broker) == before


@pytest.mark.parametrize("lines", [[], ["flights"], ["flights", "x", TOPIC_ID], ["a"] * 4])
def test_partition_metadata_that_says_nothing_is_restored(lines: list[str]) -> None:
    broker, disk = broker_with_segments()
    before = observe(broker)
    broker.directory.close()
    disk.overwrite(DIRECTORY / "partition", checksummed_file("logbus-partition 1", lines))
    broker.start()
    assert observe(broker) == before


def test_a_snapshot_of_producers_that_says_nothing_is_not_needed() -> None:
    broker, disk = broker_with_segments()
    before = observe(broker)
    broker.directory.close()
    for name in disk.names(DIRECTORY):
        if names.parse_producers(name) is not None:
            text = checksummed_file("logbus-producers 1", ["1 2 3"])
            disk.overwrite(DIRECTORY / name, text)
    broker.start()
    assert observe(broker) == before


def test_files_named_beyond_all_offsets_are_left_alone() -> None:
    broker, disk = broker_with_segments()
    before = observe(broker)
    disk.open(DIRECTORY / f"{(1 << 63) - 1:020d}.log", create=True)
    broker.restart()
    assert observe(broker) == before


def test_a_clean_restart_scans_nothing() -> None:
    broker, _ = broker_with_segments()
    before = observe(broker)
    broker.restart()
    assert broker.directory.recovery.bytes_scanned == 0
    assert observe(broker) == before


def test_an_unclean_restart_scans_from_the_recovery_point_only() -> None:
    broker, disk = broker_with_segments()
    broker.clock.advance(60)
    broker.directory.maintain()
    active = max(name for name in disk.names(DIRECTORY) if name.endswith(".log"))
    disk.crash(AllSurvives())
    broker.start()
    assert broker.directory.recovery.bytes_scanned == len(disk.data(DIRECTORY / active))


def test_a_marker_holds_for_one_start_only() -> None:
    broker, disk = broker_with_segments()
    broker.directory.close()
    broker.start()
    assert not disk.exists(Path("/data/clean-shutdown"))
    disk.crash()  # not even an append in between
    assert not disk.exists(Path("/data/clean-shutdown"))


def test_the_marker_goes_without_a_checkpoint() -> None:
    broker, disk = broker_with_segments()
    broker.directory.close()
    disk.refuse = lambda done, path: (
        errno.ENOSPC if done == "create" and path.name == "checkpoint.tmp" else None
    )
    broker.start()
    broker.append(record_batch(2))
    disk.crash()
    assert not disk.exists(Path("/data/clean-shutdown"))


def test_a_sealed_segment_of_another_size_is_scanned() -> None:
    broker, disk = broker_with_segments()
    end = broker.log().ends().high_watermark
    broker.directory.close()
    segment = DIRECTORY / names.segment(0)
    second = sorted(filter(names.parse_segment, disk.names(DIRECTORY)))[0]
    disk.overwrite(segment, bytes(disk.data(segment)[:-8]))
    broker.start()
    (damaged,) = broker.log().damaged
    assert damaged.end == names.parse_segment(second)
    assert broker.log().ends().high_watermark == end


@pytest.mark.parametrize("harm", [everything_gone, garbage, flipped_header])
def test_lost_partition_metadata_is_restored_from_the_checkpoint(
    harm: Callable[[SimulatedDisk, Path], None],
) -> None:
    broker, disk = broker_with_segments()
    before = observe(broker)
    broker.directory.close()
    harm(disk, DIRECTORY / "partition")
    broker.start()
    assert observe(broker) == before


def test_another_topics_checkpoint_is_not_believed() -> None:
    broker, disk = broker_with_segments()
    broker.clock.advance(60)
    broker.directory.maintain()
    content = bytes(disk.data(Path("/data/checkpoint")))
    broker.remove(TP, topic_id=broker.log().topic_id)
    new = ensure_one(broker.directory, TP, topic_id="f" * 32, config={})
    disk.crash(AllSurvives())
    disk.overwrite(Path("/data/checkpoint"), content)
    broker.start()
    log = broker.directory.get(TP)
    assert log is not None
    assert (log.topic_id, log.ends().log_end_offset, log.damaged) == (new.topic_id, 0, ())
