"""Record batches of columns in a log: it treats them as all others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.log import OS_FILES, LogConfig
from spark_logbus.log.inspect import (
    Damage,
    inspect_segment,
    list_directory,
    read_segment,
    verify_directory,
)
from spark_logbus.log.segment.scan import ignore_progress
from spark_logbus.model import Compression
from spark_logbus.record import parse_header, stamp, stamp_producer, verify
from spark_logbus.record.chunks import body_start_of
from tests.builders.compaction import Keyed, compact_here, keyed_batch
from tests.builders.record_batches import joined
from tests.builders.staged import attempt, publish, share
from tests.builders.typed import T0, flights, typed_record_batch
from tests.fakes.clock import NOW_US
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, batches_from, ensure_one, offsets_from

COUNT = 60
COLUMNS = {"value.encoding": "columns", "value.subject": "flights-value"}


def typed_batch(count: int = COUNT, compression: Compression = Compression.NONE) -> memoryview:
    data = typed_record_batch(
        [*flights(0, count - 1), None], keys=[b"%d" % n for n in range(count)],
        compression=compression,
    )  # fmt: skip
    return memoryview(bytearray(data))


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    config = LogConfig(segment_bytes=1 << 20, index_interval_bytes=4096)
    broker = Broker(tmp_path / "data", config=config)
    ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config=COLUMNS)
    return broker


def segment_of(broker: Broker) -> Path:
    return sorted(broker.log_path().glob("*.log"))[0]


def test_they_are_appended_and_read_at_any_offset(broker: Broker) -> None:
    broker.append(*(typed_batch(compression=each) for each in Compression), typed_batch(2))
    starts = [0, COUNT, 2 * COUNT, 3 * COUNT]
    assert offsets_from(broker.log(), 0) == starts
    for start in starts:
        found = broker.log().read(start + 1, max_bytes=1)
        assert found is not None
        assert parse_header(found.read()).base_offset == start
    assert broker.log().offset_at(T0) == 0
    assert broker.log().offset_at(T0 + COUNT) is None


@pytest.mark.parametrize("place", ["header", "directory", "metadata", "a column", "the last byte"])
def test_a_damaged_one_is_refused_by_an_append(broker: Broker, place: str) -> None:
    data = typed_batch()
    body_start = body_start_of(data)
    at = {"header": 41, "directory": 92, "metadata": body_start - 9, "a column": body_start + 3}
    data[at.get(place, len(data) - 1)] ^= 1
    with pytest.raises(CorruptRecordBatchError):
        broker.append(data)
    assert broker.log().ends().log_end_offset == 0


def test_a_torn_tail_is_cut_after_a_crash(broker: Broker, tmp_path: Path) -> None:
    broker.append(typed_batch(), typed_batch())
    broker.append(typed_batch(), flush=False)
    shutil.copytree(broker.path, tmp_path / "after")  # as a crash leaves it
    segment = tmp_path / "after" / segment_of(broker).relative_to(broker.path)
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-8])
    after = Broker(tmp_path / "after", config=broker.config)
    assert after.log().ends().log_end_offset == 2 * COUNT
    assert offsets_from(after.log(), 0) == [0, COUNT]
    after.append(typed_batch())
    assert offsets_from(after.log(), 0) == [0, COUNT, 2 * COUNT]


def test_damage_of_one_column_is_told_and_costs_one_record_batch(broker: Broker) -> None:
    size = len(typed_batch())
    broker.append(typed_batch(), typed_batch(), typed_batch())
    segment = segment_of(broker)
    broker.directory.close()
    data = bytearray(segment.read_bytes())
    data[2 * size - 1] ^= 1  # the last column of the second
    segment.write_bytes(data)
    found = list(read_segment(OS_FILES.open_read_only(segment)))
    damage = [each for each in found if isinstance(each, Damage)]
    assert [(each.start, each.end, each.position) for each in damage] == [(COUNT, 2 * COUNT, size)]
    assert "column 6 has checksum" in damage[0].reason
    report = inspect_segment(OS_FILES, segment, base_offset=0, checksums=True)
    assert (report.record_batches, report.records) == (2, 2 * COUNT)
    listing = list_directory(OS_FILES, broker.path)
    assert listing is not None
    result = verify_directory(OS_FILES, listing, known_files=(), on_progress=ignore_progress)
    assert not result.sound
    assert (result.record_batches, len(result.findings)) == (2, 1)


def test_whole_ones_are_found_whole(broker: Broker) -> None:
    broker.append(*(typed_batch(compression=each) for each in Compression))
    broker.directory.close()
    report = inspect_segment(OS_FILES, segment_of(broker), base_offset=0, checksums=True)
    assert (report.record_batches, report.damage, report.tail) == (3, (), None)
    assert report.max_timestamp_us == T0 + COUNT - 1


def test_they_are_staged_and_published(broker: Broker) -> None:
    log = broker.log()
    pieces = []
    for sequence in (0, COUNT):
        data = typed_batch(compression=Compression.LZ4)
        stamp_producer(data, producer_id=attempt(1), producer_epoch=0, base_sequence=sequence)
        verify(data)
        pieces.append(data)
    log.staging.stage(joined(*pieces), leader_epoch=1).file.flush()
    broker.append(typed_batch(1))
    publish(log, share(2 * COUNT, 1))
    assert offsets_from(log, 0) == [0, 1, 1 + COUNT]
    assert [header.schema_id for header, _ in batches_from(log, 0)] == [1, 1, 1]


def test_compaction_keeps_them_as_they_are(tmp_path: Path) -> None:
    """Compaction keeps tombstones behind them too, for what those delete may be in a column."""
    config = LogConfig(
        segment_bytes=1024, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0,
        retention_ms=None, delete_retention_ms=0,
    )  # fmt: skip
    broker = Broker(tmp_path / "data", config=config)
    log = broker.log()
    for data in (
        keyed_batch(Keyed(b"a", b"old"), Keyed(b"b", b"old")),
        typed_batch(),
        keyed_batch(Keyed(b"a", None), Keyed(b"b", b"new")),
        keyed_batch(Keyed(b"active", bytes(900))),
    ):
        # As a leader would have it that took them: no topic that compacts has columns.
        offset = log.ends().log_end_offset
        stamp(data, base_offset=offset, leader_epoch=1, append_time_us=NOW_US)
        log.append_as_follower(data)
        log.flush()
    before = [data for header, data in batches_from(log, 0) if header.layout == 1]
    done = compact_here(log, NOW_US)
    assert done is not None
    finished, _ = done
    assert (finished.of_columns, finished.undecodable, finished.too_large) == (1, 0, 0)
    after = list(batches_from(log, 0))
    assert [data for header, data in after if header.layout == 1] == before
    assert [header.record_count for header, _ in after if not header.is_control] == [COUNT, 2, 1]
    assert broker.log().damaged == ()
    broker.restart()
    assert [data for header, data in batches_from(broker.log(), 0) if header.layout == 1] == before
