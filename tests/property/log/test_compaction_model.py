"""A compacted log against a plain list of what was appended to it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spark_logbus.client.records import ConsumerRecord
from spark_logbus.log import LogConfig
from spark_logbus.model import Compression
from spark_logbus.record.builder import Header
from tests.compaction_tools import (
    Keyed,
    compact_here,
    keyed_batch,
    raw_batches,
    records_in,
    state_of,
)
from tests.fault.log.material import NOW_US, SECOND, Broker

keys = st.one_of(st.none(), st.sampled_from([b"a", b"b", b"c", b"", b"d" * 40]))
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
RETENTION_MS = 60_000


class CompactedLogModel(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from([1024, 2000, 6000]),
        interval=st.sampled_from([128, 4096]),
    )
    def create(self, segment_bytes: int, interval: int) -> None:
        self.directory = tempfile.TemporaryDirectory()
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=RETENTION_MS,
            flush_ms=60_000,
        )
        self.broker = Broker(Path(self.directory.name), config=config)
        self.broker.log()
        self.appended: list[Keyed] = []
        self.clean_end = 0
        self.cleanings: list[tuple[int, int]] = []  # (offset, at), all of them

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.broker.directory.close()
            self.directory.cleanup()

    @rule(
        batch=st.lists(records, min_size=1, max_size=6),
        compression=st.sampled_from(Compression),
        repeat=st.sampled_from([1, 1, 20]),
        schema_id=st.sampled_from([0, 0, 7]),
    )
    def append(
        self, batch: list[Keyed], compression: Compression, repeat: int, schema_id: int
    ) -> None:
        batch = [Keyed(b"k", b"v"), *batch] * repeat  # at least one key, as the log asks for
        data = keyed_batch(*batch, compression=compression, schema_id=schema_id)
        self.broker.append(data)
        self.appended += batch

    @rule(seconds=st.sampled_from([1, 20, 61]))
    def time_passes(self, seconds: int) -> None:
        self.broker.clock.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.broker.restart()
        assert self.broker.log().damaged == ()

    @rule()
    def lose_the_history(self) -> None:
        path = self.broker.log_path() / "compaction"
        if path.exists():
            self.broker.directory.close()
            path.write_text("damaged")
            self.broker.start()
            self.cleanings = []

    @rule(map_bytes=st.sampled_from([1, 1000, 1 << 20]))
    def compact(self, map_bytes: int) -> None:
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
        self.clean_end = end

    @precondition(lambda self: hasattr(self, "broker"))
    @rule(age=st.integers(-101, 101))
    def find_a_time(self, age: int) -> None:
        wanted = NOW_US + age * SECOND
        found = self.broker.log().offset_at(wanted)
        bases = [
            raw.header.base_offset
            for raw in raw_batches(self.broker.log())
            if raw.header.max_timestamp_us >= wanted
        ]
        assert found == (bases[0] if bases else None)

    @rule(start=st.floats(0, 1), length=st.integers(0, 40), piece=st.integers(1, 2000))
    def split(self, start: float, length: int, piece: int) -> None:
        log = self.broker.log()
        first = round(start * log.ends().high_watermark)
        cuts, _ = log.split(first, first + length, target_bytes=piece)
        bases = {raw.header.base_offset for raw in raw_batches(log)}
        assert cuts == sorted(set(cuts))
        assert set(cuts) <= bases

    @invariant()
    def every_record_is_as_it_was_appended(self) -> None:
        if not hasattr(self, "broker"):
            return
        log = self.broker.log()
        assert log.ends().log_end_offset == len(self.appended)
        found = records_in(log)
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        for record in found:
            assert appended_form(record) == self.appended[record.offset]

    @invariant()
    def a_replay_ends_in_the_same_state(self) -> None:
        if not hasattr(self, "broker"):
            return
        expected: dict[bytes, bytes | None] = {}
        for record in self.appended:
            if record.key is not None:
                expected[record.key] = record.value
        found = state_of(records_in(self.broker.log()))
        assert {k: v for k, v in found.items() if v is not None} == {
            k: v for k, v in expected.items() if v is not None
        }
        assert found.keys() <= expected.keys()

    @invariant()
    def any_offset_can_be_read_from(self) -> None:
        if not hasattr(self, "broker"):
            return
        log = self.broker.log()
        everything = [record.offset for record in records_in(log)]
        end = log.ends().high_watermark
        for start in {end // 3, end // 2, max(end - 1, 0)}:
            found = [record.offset for record in records_in(log, start)]
            assert found == [offset for offset in everything if offset >= start]


def appended_form(record: ConsumerRecord) -> Keyed:
    return Keyed(record.key, record.value, record.timestamp_us, record.headers)


def run(examples: int, steps: int) -> Callable[[], None]:
    return lambda: run_state_machine_as_test(
        CompactedLogModel,
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None),
    )


def test_a_compacted_log_agrees_with_its_model() -> None:
    run(40, 25)()


@pytest.mark.slow
def test_a_compacted_log_agrees_with_its_model_at_length() -> None:
    run(1000, 50)()
