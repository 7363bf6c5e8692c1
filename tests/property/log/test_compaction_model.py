"""A compacted log against a plain list of what was appended to it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_logbus.client.fetch.records import ConsumerRecord
from spark_logbus.log import LogConfig
from spark_logbus.model import Compression, Header
from tests.builders.compaction import (
    Keyed,
    compact_here,
    keyed_batch,
    raw_batches,
    records_in,
    state_of,
)
from tests.fakes.clock import NOW_US, SECOND
from tests.fakes.log_directory import Broker
from tests.property.examples import examples

keys = st.sampled_from([b"a", b"a", b"b", b"c", b"", b"d" * 40, None])
values = st.one_of(st.none(), st.binary(max_size=60))
headers: st.SearchStrategy[tuple[Header, ...]] = st.sampled_from(
    [(), (), (("h", b"1"),), (("h", None), ("h", b"2"))]
)
records = st.builds(
    Keyed,
    keys,
    values,
    st.integers(-100, 100).map(lambda seconds: NOW_US + seconds * SECOND),
    headers,
)
batches = st.tuples(
    # The log refuses a record batch without any key.
    st.lists(records, min_size=1, max_size=4).filter(lambda batch: any(one.key for one in batch)),
    st.sampled_from(Compression),
    st.sampled_from([1, 1, 1, 30]),  # how often: compression begins at 50 records
    st.sampled_from([0, 0, 0, 7]),  # schema id
)
Batch = tuple[list[Keyed], Compression, int, int]
Round = tuple[list[Batch], int, int, str]
RETENTION_MS = 60_000
MEMORY = Path("/dev/shm")  # nothing here is about the disk, so do not wait for one


class CompactedLog:
    """The log and what is known of it. Every round appends, so that every round has work."""

    def __init__(self, *, segment_bytes: int, interval: int) -> None:
        self.directory = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=RETENTION_MS,
            flush_ms=60_000,
        )
        # Such that record batches may have schema ids, or none.
        topic_config = {"value.encoding": "avro", "value.subject": "flights-value"}
        self.broker = Broker(Path(self.directory.name), config=config, topic_config=topic_config)
        self.broker.log()
        self.appended: list[Keyed] = []
        self.cleanings: list[tuple[int, int]] = []  # (offset, at), all of them

    def close(self) -> None:
        self.broker.directory.close()
        self.directory.cleanup()

    def append(self, several: list[Batch]) -> None:
        for batch, compression, repeat, schema_id in several:
            data = keyed_batch(*batch * repeat, compression=compression, schema_id=schema_id)
            self.broker.append(data)
            self.appended += batch * repeat

    def restart(self, lose_the_history: bool) -> None:
        self.broker.directory.close()
        path = self.broker.log_path() / "compaction"
        if lose_the_history and path.exists():
            path.write_text("damaged")
            self.cleanings = []
        self.broker.start()
        assert self.broker.log().damaged == ()

    def compact(self, later: int, map_bytes: int) -> None:
        self.broker.clock.advance(later)
        now_us = self.broker.clock.now_us()
        before = {record.offset: record for record in records_in(self.broker.log())}
        done = compact_here(self.broker.log(), now_us, map_bytes=map_bytes)
        if done is None:
            return
        finished, groups = done
        end = finished.end_offset
        assert self.cleanings == [] or end > self.cleanings[-1][0]
        after = {record.offset: record for record in records_in(self.broker.log())}
        tombstones_end = max(
            (offset for offset, at in self.cleanings if at <= now_us - RETENTION_MS * 1000),
            default=0,
        )
        newest = {record.key: offset for offset, record in before.items() if offset < end}
        for offset, record in before.items():
            kept = offset in after
            if offset >= end or record.key is None:
                assert kept
            elif newest[record.key] != offset:
                assert not kept
            elif record.value is not None or offset >= tombstones_end:
                assert kept
        assert sum(group.records_after for group in groups) <= len(after)
        self.cleanings.append((end, now_us))

    def look_up(self, age: int, length: int, piece: int) -> None:
        log = self.broker.log()
        raws = raw_batches(log)
        wanted = NOW_US + age * SECOND
        late = [raw.header for raw in raws if raw.header.max_timestamp_us >= wanted]
        assert log.offset_at(wanted) == (late[0].base_offset if late else None)
        first = log.ends().high_watermark // 2
        cuts, _ = log.split(first, first + length, target_bytes=piece)
        assert cuts == sorted(set(cuts))
        assert set(cuts) <= {raw.header.base_offset for raw in raws}

    def every_record_is_as_it_was_appended(self) -> None:
        log = self.broker.log()
        assert log.ends().log_end_offset == len(self.appended)
        found = records_in(log)
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        for record in found:
            assert appended_form(record) == self.appended[record.offset]

    def a_replay_ends_in_the_same_state(self) -> None:
        expected: dict[bytes, bytes | None] = {}
        for record in self.appended:
            if record.key is not None:
                expected[record.key] = record.value
        found = state_of(records_in(self.broker.log()))
        assert {k: v for k, v in found.items() if v is not None} == {
            k: v for k, v in expected.items() if v is not None
        }
        assert found.keys() <= expected.keys()

    def any_offset_can_be_read_from(self) -> None:
        log = self.broker.log()
        everything = [record.offset for record in records_in(log)]
        end = log.ends().high_watermark
        for start in {end // 3, end // 2, max(end - 1, 0)}:
            found = [record.offset for record in records_in(log, start)]
            assert found == [offset for offset in everything if offset >= start]


def appended_form(record: ConsumerRecord) -> Keyed:
    return Keyed(record.key, record.value, record.timestamp_us, record.headers)


rounds = st.tuples(
    st.lists(batches, min_size=1, max_size=6),
    st.sampled_from([0, 1, 20, 61, 61]),  # seconds that pass
    st.sampled_from([1, 1000, 1 << 20, 1 << 20]),  # memory of the map
    st.sampled_from(["go on"] * 4 + ["restart", "lose the history"]),
)


def run(count: int, most: int) -> None:
    @settings(max_examples=count)
    @given(
        segment_bytes=st.sampled_from([1024, 3000, 6000]),
        interval=st.sampled_from([128, 4096]),
        several=st.lists(rounds, min_size=1, max_size=most),
        age=st.integers(-101, 101),
        piece=st.integers(1, 2000),
    )
    def check(
        segment_bytes: int, interval: int, several: list[Round], age: int, piece: int
    ) -> None:
        log = CompactedLog(segment_bytes=segment_bytes, interval=interval)
        try:
            for appends, later, map_bytes, then in several:
                log.append(appends)
                log.compact(later, map_bytes)
                if then != "go on":
                    log.restart(then == "lose the history")
                log.every_record_is_as_it_was_appended()
                log.a_replay_ends_in_the_same_state()
            log.any_offset_can_be_read_from()
            log.look_up(age, len(several), piece)
        finally:
            log.close()

    check()


def test_a_compacted_log_agrees_with_its_model() -> None:
    run(examples(60), 6)


@pytest.mark.slow
def test_a_compacted_log_agrees_with_its_model_at_length() -> None:
    run(2000, 12)
