"""A log, driven at random over a disk that forgets, against a list of record batches.

The model knows every record batch that was ever appended and where, what is flushed for certain,
and where the log starts. After a crash it learns from the log how much of the rest survived; what
it learns must be a part of what it knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from spark_logbus.errors import CorruptRecordBatchError, OffsetOutOfRangeError
from spark_logbus.log import LogConfig
from spark_logbus.record import split
from tests.fault.log.material import NOW_US, SECOND, Broker, batches_from, joined, record_batch
from tests.fault.log.simulated_disk import (
    NOTHING,
    AllSurvives,
    RandomSurvival,
    SimulatedDisk,
)


@dataclass(frozen=True)
class Known:
    base: int
    end: int
    payload: bytes
    max_timestamp_us: int


counts = st.integers(1, 5)
sizes = st.sampled_from([0, 8, 40, 200, 700])
ages = st.integers(-3600, 7200)


class LogModel(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from([1024, 2048, 8192]),
        index_interval_bytes=st.sampled_from([128, 500, 4096]),
        retention_bytes=st.sampled_from([None, 3000, 6000]),
        retention_ms=st.sampled_from([None, 1_800_000]),
    )
    def begin(
        self,
        segment_bytes: int,
        index_interval_bytes: int,
        retention_bytes: int | None,
        retention_ms: int | None,
    ) -> None:
        self.disk = SimulatedDisk()
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            retention_bytes=retention_bytes,
            retention_ms=retention_ms,
            segment_ms=3_600_000,
            flush_ms=60_000,
        )
        self.broker = Broker(files=self.disk, config=config)
        self.broker.log()
        self.known: list[Known] = []
        self.end = 0
        self.flushed = 0
        self.start = 0
        self.number = 0

    # -- what happens to the log --------------------------------------------------------

    @rule(batches=st.lists(st.tuples(counts, sizes, ages), min_size=1, max_size=3))
    def append(self, batches: list[tuple[int, int, int]]) -> None:
        data = []
        base = self.end
        for count, size, age in batches:
            self.number += 1
            payload = b"%08d" % self.number + bytes(size)
            newest = self.broker.clock.now_us() - age * SECOND
            data.append(record_batch(count, payload=payload, timestamps=(newest - 5, newest)))
            self.known.append(Known(base, base + count, payload, newest))
            base += count
        appended = self.broker.log().append(joined(*data), leader_epoch=3)
        assert (appended.base_offset, appended.end_offset) == (self.end, base)
        self.end = base

    @rule()
    def flush(self) -> None:
        self.broker.log().flush()
        self.flushed = self.end

    @rule(seconds=st.integers(0, 1800))
    def time_passes(self, seconds: int) -> None:
        self.broker.clock.advance(seconds)

    @rule(hours=st.sampled_from([-1, 1]))
    def the_clock_jumps(self, hours: int) -> None:
        self.broker.clock.jump(hours * 3600)

    @rule()
    def maintain(self) -> None:
        self.broker.directory.maintain()
        start = self.broker.log().ends().log_start_offset
        assert start >= self.start
        self.start = start

    @rule()
    def restart(self) -> None:
        self.broker.restart()
        self.flushed = self.end
        assert self.broker.directory.recovery.bytes_scanned == 0 or self.broker.log().damaged

    @rule(seed=st.integers(0, 1 << 16), kind=st.sampled_from(["nothing", "all", "some"]))
    def crash(self, seed: int, kind: str) -> None:
        survivals = {"nothing": NOTHING, "all": AllSurvives(), "some": RandomSurvival(seed)}
        before = self.broker.log().ends()
        damaged = self.broker.log().damaged
        self.disk.crash(survivals[kind])
        self.broker.start()
        log = self.broker.log()
        ends = log.ends()
        assert before.high_watermark <= ends.high_watermark <= self.end
        if kind == "nothing":
            # All that was rolled or flushed, and not one record more.
            assert ends.high_watermark == before.high_watermark
        if kind == "all":
            assert ends.high_watermark == self.end
        assert all(hole in log.damaged or hole.end <= ends.log_start_offset for hole in damaged)
        for hole in log.damaged:
            assert hole in damaged or hole.start >= before.high_watermark
        assert ends.log_start_offset <= self.start or self.start == before.log_start_offset
        self.start = ends.log_start_offset
        self.end = self.flushed = ends.high_watermark
        self.known = [known for known in self.known if known.end <= self.end]

    # -- what readers see ---------------------------------------------------------------

    @rule(
        at=st.floats(0, 1),
        max_bytes=st.sampled_from([1, 100, 700, 5000]),
        ahead=st.one_of(st.none(), st.integers(-2, 20)),
    )
    def read(self, at: float, max_bytes: int, ahead: int | None) -> None:
        log = self.broker.log()
        ends = log.ends()
        offset = ends.log_start_offset + round(at * (ends.high_watermark - ends.log_start_offset))
        end = None if ahead is None else offset + ahead
        if any(hole.start <= offset < hole.end for hole in log.damaged):
            with pytest.raises(CorruptRecordBatchError):
                log.read(offset, max_bytes=max_bytes)
            return
        found = log.read(offset, max_bytes=max_bytes, end=end)
        if offset == ends.high_watermark or (end is not None and end <= offset):
            assert found is None
            return
        assert found is not None
        batches = list(split(found.read(), allow_tail=False))
        assert batches[0][0].base_offset <= offset < batches[0][0].next_offset
        assert found.length <= max_bytes or len(batches) == 1
        assert batches[-1][0].next_offset <= ends.high_watermark
        assert end is None or batches[-1][0].base_offset < end

    @rule(age=ages)
    def find_a_time(self, age: int) -> None:
        log = self.broker.log()
        ends = log.ends()
        wanted = NOW_US - age * SECOND
        expected = [
            known.base
            for known in self.known
            if known.max_timestamp_us >= wanted
            and ends.log_start_offset <= known.base < ends.high_watermark
            and not any(hole.start <= known.base < hole.end for hole in log.damaged)
        ]
        assert log.offset_at(wanted) == (expected[0] if expected else None)

    @rule(target_bytes=st.integers(1, 3000), a=st.integers(0, 40), b=st.integers(0, 40))
    def split_a_range(self, target_bytes: int, a: int, b: int) -> None:
        log = self.broker.log()
        ends = log.ends()
        start, end = ends.log_start_offset + min(a, b), ends.log_start_offset + max(a, b)
        cuts, size = log.split(start, end, target_bytes=target_bytes)
        assert cuts == sorted(set(cuts))
        assert all(start < cut < min(end, ends.high_watermark) for cut in cuts)
        bases = {known.base for known in self.known}
        if not log.damaged:
            assert set(cuts) <= bases
        assert 0 <= size <= ends.size_bytes
        assert (size > 0) == (start < min(end, ends.high_watermark)) or log.damaged

    @rule(beyond=st.integers(1, 5))
    def read_out_of_range(self, beyond: int) -> None:
        log = self.broker.log()
        ends = log.ends()
        for offset in (ends.high_watermark + beyond, ends.log_start_offset - beyond):
            with pytest.raises(OffsetOutOfRangeError):
                log.read(offset, max_bytes=100)

    @invariant()
    def what_is_visible_is_what_was_appended(self) -> None:
        if not hasattr(self, "broker"):
            return
        log = self.broker.log()
        ends = log.ends()
        assert ends.log_end_offset == self.end
        assert self.flushed <= ends.high_watermark <= self.end
        by_base = {known.base: known for known in self.known}
        offset = ends.log_start_offset
        for hole in (*(h for h in log.damaged if h.end > offset), None):
            stop = hole.start if hole else ends.high_watermark
            for header, data in batches_from(log, offset, max_bytes=1500, end=stop):
                known = by_base[header.base_offset]
                assert header.base_offset == offset
                assert header.next_offset == known.end
                assert data[80:].startswith(known.payload)
                offset = header.next_offset
            assert offset == stop
            offset = hole.end if hole else offset


def test_the_log_agrees_with_its_model() -> None:
    run_state_machine_as_test(
        LogModel,
        settings=settings(max_examples=60, stateful_step_count=30, deadline=None),
    )


@pytest.mark.slow
def test_the_log_agrees_with_its_model_at_length() -> None:
    run_state_machine_as_test(
        LogModel,
        settings=settings(max_examples=1500, stateful_step_count=60, deadline=None),
    )
