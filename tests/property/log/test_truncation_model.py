"""A log that is truncated at random, against a list of record batches.

The model is the list of what is in the log; what was handed out is remembered with it, and has to
stay as it was. One machine works on a disk that forgets; another test reads and maps real files
from several threads meanwhile.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spark_logbus.errors import (
    BelowWatermarkError,
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    UnknownProducerError,
)
from spark_logbus.log import CompactionPlan, LogConfig, LogSlice, PartitionLog
from spark_logbus.record import HEADER_SIZE, split, stamp, stamp_producer, verify
from tests.fakes.clock import NOW_US
from tests.fakes.compaction import keyed, write_cleaned
from tests.fakes.disk import (
    NOTHING,
    AllSurvives,
    DisorderedSurvival,
    PowerCutError,
    RandomSurvival,
    SimulatedDisk,
    Survival,
)
from tests.fakes.log_directory import Broker, SlowFollower, batches_from
from tests.property.examples import examples

PRODUCER = 7
counts = st.lists(st.integers(1, 3), min_size=1, max_size=4)
SURVIVALS: dict[str, Callable[[int], Survival]] = {
    "nothing": lambda _: NOTHING,
    "all": lambda _: AllSurvives(),
    "some": RandomSurvival,
    "any": DisorderedSurvival,
}


class Known(NamedTuple):
    base: int
    end: int
    payload: bytes
    sequence: int | None


class Truncations(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from([1024, 1024, 4096]),
        interval=st.sampled_from([128, 600]),
        compacts=st.booleans(),
    )
    def begin(self, segment_bytes: int, interval: int, compacts: bool) -> None:
        self.disk, self.rule = SimulatedDisk(), SlowFollower()
        self.rule.end = 0
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            cleanup_policy="compact" if compacts else "delete",
            min_cleanable_dirty_ratio=0.0,
            retention_ms=None,
            segment_ms=3_600_000,
            flush_ms=60_000,
        )
        self.broker = Broker(files=self.disk, config=config, watermark=self.rule)
        self.broker.log()
        self.known: list[Known] = []
        self.number = 0
        self.epoch = 1
        self.plan: CompactionPlan | None = None
        self.compacted = False
        self.given: list[tuple[LogSlice, bytes]] = []
        self.waiting: list[tuple[int, list[LogbusError | None]]] = []

    @property
    def log(self) -> PartitionLog:
        return self.broker.log()

    @property
    def end(self) -> int:
        return self.known[-1].end if self.known else 0

    @property
    def next_sequence(self) -> int:
        return max(
            (each.sequence + 1 for each in self.known if each.sequence is not None), default=0
        )

    # -- what happens to it -------------------------------------------------------------

    def made(self, several: list[int], numbered: bool) -> tuple[bytearray, list[Known]]:
        data, known, base, sequence = bytearray(), list[Known](), self.end, self.next_sequence
        for count in several:
            self.number += 1
            batch = keyed(count, b"%08d" % self.number + bytes(40 * (self.number % 5)))
            if numbered and count == 1:
                stamp_producer(
                    batch, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence
                )
            is_numbered = numbered and count == 1
            known.append(
                Known(
                    base,
                    base + count,
                    bytes(batch[HEADER_SIZE:]),
                    sequence if is_numbered else None,
                )
            )
            sequence += is_numbered
            base += count
            data += batch
        return data, known

    @rule(several=counts, numbered=st.booleans(), later=st.booleans())
    def append_as_leader(self, several: list[int], numbered: bool, later: bool) -> None:
        self.epoch += later
        data, known = self.made(several, numbered and not self.compacted)
        appended = self.log.append_as_leader(memoryview(data), leader_epoch=self.epoch)
        assert (appended.base_offset, appended.end_offset) == (self.end, known[-1].end)
        self.known += known
        heard: list[LogbusError | None] = []
        self.log.when_flushed(appended.end_offset, heard.append, truncations=appended.truncations)
        self.waiting.append((appended.end_offset, heard))

    @rule(several=counts, later=st.booleans())
    def append_as_follower(self, several: list[int], later: bool) -> None:
        self.epoch += later
        data, known = self.made(several, False)
        at = 0
        for each in known:
            size = HEADER_SIZE + len(each.payload)
            stamp(
                memoryview(data)[at : at + size],
                base_offset=each.base,
                leader_epoch=self.epoch,
                append_time_us=NOW_US,
            )
            at += size
        assert self.log.append_as_follower(memoryview(data)).end_offset == known[-1].end
        self.known += known

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def an_hour_passes(self) -> None:
        self.broker.clock.advance(3600)
        self.broker.directory.maintain()  # flushes, rolls, writes the checkpoint

    @rule(part=st.floats(0, 1))
    def the_watermark_moves(self, part: float) -> None:
        before = self.log.ends().high_watermark
        self.rule.end = before + round(part * (self.log.flushed_end - before))
        self.log.advance_high_watermark()

    @rule(part=st.floats(0, 1), below=st.booleans())
    def truncate(self, part: float, below: bool) -> None:
        offset, visible = round(part * (self.end + 2)), self.log.ends().high_watermark
        kept = [each for each in self.known if each.end <= offset]
        end = kept[-1].end if kept else 0
        if end < visible and not below:
            with pytest.raises(BelowWatermarkError):
                self.log.truncate_to(offset)
            return
        self.rule.end = visible
        assert self.log.truncate_to(offset, below_watermark=below) == end
        self.known = kept
        ends = self.log.ends()
        assert ends.high_watermark == min(visible, end)
        assert self.log.flushed_end == end or offset >= end == self.end
        self.hear(end)

    def hear(self, end: int) -> None:
        """Checks that those who waited beyond the new end were told so, and nobody else."""
        for waited, heard in self.waiting:
            if waited > end and heard != [None]:
                assert len(heard) == 1
                assert isinstance(heard[0], NotLeaderError)
            else:
                assert heard in ([], [None])
        self.waiting = [each for each in self.waiting if not each[1]]

    @rule(part=st.floats(0, 1), as_replica=st.booleans(), most=st.sampled_from([1, 300, 5000]))
    def give_out(self, part: float, as_replica: bool, most: int) -> None:
        end = self.end if as_replica else self.log.ends().high_watermark
        read = self.log.read_as_replica if as_replica else self.log.read
        found = read(round(part * end), max_bytes=most)
        if found is not None:
            self.given.append((found, found.read()))

    @rule()
    def plan_a_compaction(self) -> None:
        self.plan = self.log.compaction.plan(self.broker.clock.now_us())

    @precondition(lambda self: self.plan is not None)
    @rule(finishes=st.booleans())
    def end_a_compaction(self, finishes: bool) -> None:
        plan, self.plan = self.plan, None
        assert plan is not None
        for group in plan.groups:
            write_cleaned(self.broker, group)
            base, end = group.base_offset, group.end_offset
            if not self.log.compaction.swap(group):
                break
            self.compacted = True
            payload = b"new%03d" % base
            new = Known(base, end, payload + bytes(-len(payload) % 8), None)
            first = next(n for n, each in enumerate(self.known) if each.base == base)
            last = next(n for n, each in enumerate(self.known) if each.end == end)
            self.known[first : last + 1] = [new]
        else:
            if finishes:
                self.log.compaction.finished(
                    plan, end_offset=plan.groups[-1].end_offset, now_us=NOW_US
                )

    # -- restarts -----------------------------------------------------------------------

    def started(self) -> None:
        self.plan = None
        self.given.clear()  # its files are of the disk before
        self.waiting.clear()

    @rule()
    def restart(self) -> None:
        visible = self.log.ends().high_watermark
        self.broker.directory.close()
        self.rule.end = visible
        self.broker.start()
        assert self.log.ends().log_end_offset == self.end
        self.started()

    @rule(seed=st.integers(0, 1 << 16), kind=st.sampled_from([*SURVIVALS]))
    def crash(self, seed: int, kind: str) -> None:
        flushed = self.log.flushed_end
        self.crash_here(SURVIVALS[kind](seed))
        assert self.log.ends().log_end_offset >= flushed

    def crash_here(self, survival: Survival) -> None:
        self.disk.crash(survival)
        self.broker.start()
        if self.log.damaged:  # of what was not flushed, a later part came to the disk
            self.log.truncate_to(self.log.damaged[0].start, below_watermark=True)
        assert self.log.damaged == ()
        end = self.log.ends().log_end_offset
        self.known = [each for each in self.known if each.end <= end]
        assert self.end == end
        self.started()

    @rule(
        part=st.floats(0, 1),
        at=st.integers(0, 40),
        seed=st.integers(0, 1 << 16),
        kind=st.sampled_from([*SURVIVALS]),
    )
    def crash_in_a_truncation(self, part: float, at: int, seed: int, kind: str) -> None:
        offset = round(part * self.end)
        kept = [each for each in self.known if each.end <= offset]
        flushed = min(self.log.flushed_end, kept[-1].end if kept else 0)
        self.disk.cut_power_at = len(self.disk.operations) + at
        try:
            self.log.truncate_to(offset, below_watermark=True)
            self.known = kept
        except PowerCutError:
            pass
        self.crash_here(SURVIVALS[kind](seed))
        assert self.end >= flushed
        if self.end >= (kept[-1].end if kept else 0):
            self.log.truncate_to(offset, below_watermark=True)
            self.known = kept

    # -- what there is to see -----------------------------------------------------------

    @rule()
    def the_producer_goes_on(self) -> None:
        if self.compacted:
            return
        if last := [each for each in self.known if each.sequence is not None]:
            again = bytearray(keyed(1, b"again"))
            stamp_producer(
                memoryview(again),
                producer_id=PRODUCER,
                producer_epoch=0,
                base_sequence=self.next_sequence - 1,
            )
            appended = self.log.append_as_leader(memoryview(again), leader_epoch=self.epoch)
            assert appended.base_offset == last[-1].base
        gap = bytearray(keyed(1, b"gap"))
        stamp_producer(
            memoryview(gap),
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=self.next_sequence + 1,
        )
        with pytest.raises((OutOfOrderSequenceError, UnknownProducerError)):
            self.log.append_as_leader(memoryview(gap), leader_epoch=self.epoch)
        assert self.log.ends().log_end_offset == self.end

    @invariant()
    def it_holds_what_the_model_says(self) -> None:
        if not hasattr(self, "broker"):
            return
        log = self.log
        assert log.ends().log_end_offset == self.end
        expected = [(each.base, each.end, each.payload) for each in self.known]
        visible = log.ends().high_watermark
        found = [
            (header.base_offset, header.next_offset, bytes(data[HEADER_SIZE:]))
            for header, data in batches_from(log, 0, max_bytes=700)
        ]
        assert found == [each for each in expected if each[1] <= visible]
        offset, written = 0, []
        while (piece := log.read_as_replica(offset, max_bytes=900)) is not None:
            for header, data in split(piece.read(), allow_tail=False):
                written.append((header.base_offset, header.next_offset, bytes(data[HEADER_SIZE:])))
                offset = header.next_offset
        assert written == expected
        starts = [entry.start_offset for entry in log.epochs.entries]
        assert all(start < max(self.end, 1) for start in starts)
        latest = log.epochs.latest
        assert latest <= self.epoch

    @invariant()
    def what_was_given_out_stays(self) -> None:
        for held, data in getattr(self, "given", ()):
            assert held.read() == data


def test_a_truncated_log_agrees_with_its_model() -> None:
    run_state_machine_as_test(
        Truncations,
        settings=settings(
            max_examples=examples(50), stateful_step_count=30, report_multiple_bugs=False
        ),
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_truncated_log_agrees_with_its_model_at_length() -> None:
    run_state_machine_as_test(
        Truncations,
        settings=settings(max_examples=1500, stateful_step_count=50, report_multiple_bugs=False),
    )


# -- real files, and threads that read them ---------------------------------------------------


class Reader:
    """Thread that reads again and again, maps what it gets, and looks at it then and at the end."""

    def __init__(self, log: PartitionLog, *, as_replica: bool) -> None:
        self.log = log
        self.read = log.read_as_replica if as_replica else log.read
        self.ended = threading.Event()
        self.held: list[tuple[mmap.mmap, LogSlice, bytes]] = []
        self.pool = ThreadPoolExecutor(1, "reader")
        self.outcome = self.pool.submit(self.run)

    def run(self) -> None:
        while not self.ended.is_set():
            self.round()

    def round(self) -> None:
        offset = 0
        while True:
            try:
                found = self.read(offset, max_bytes=1500)
            except OffsetOutOfRangeError:
                return  # it was cut below that
            if found is None:
                return
            data = self.mapped(found)
            for header, batch in split(data, allow_tail=False):
                verify(batch)
                assert header.base_offset <= offset < header.next_offset
                offset = header.next_offset

    def mapped(self, found: LogSlice) -> bytes:
        descriptor = found.file.open_again()
        try:
            end = found.position + found.length
            mapping = mmap.mmap(descriptor, end, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        data = mapping[found.position :]
        if len(self.held) < 200:
            self.held.append((mapping, found, data))
        return data

    def end(self) -> None:
        self.ended.set()
        self.outcome.result(60)
        self.pool.shutdown()
        for mapping, found, data in self.held:
            assert mapping[found.position :] == data


steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 12)),
    st.tuples(st.just("visible"), st.floats(0, 1)),
    st.tuples(st.just("truncate"), st.floats(0, 1)),
    st.tuples(st.just("below"), st.floats(0, 1)),
)


def run_with_readers(count: int, most: int) -> None:
    @settings(max_examples=count, deadline=None)
    @given(several=st.lists(steps, min_size=8, max_size=most), seed=st.integers(0, 9))
    def check(several: list[tuple[str, float]], seed: int) -> None:
        with tempfile.TemporaryDirectory() as path:
            truncate_under_readers(Path(path), several, seed)

    check()


def truncate_under_readers(path: Path, several: list[tuple[str, float]], seed: int) -> None:
    watermark = SlowFollower()
    watermark.end = 0
    config = LogConfig(segment_bytes=2048, index_interval_bytes=256, retention_ms=None)
    broker = Broker(path / "data", config=config, watermark=watermark)
    log = broker.log()
    readers = [Reader(log, as_replica=as_replica) for as_replica in (False, True)]
    try:
        for number, (what, much) in enumerate(several):
            end, visible = log.ends().log_end_offset, log.ends().high_watermark
            if what == "append":
                for each in range(int(much)):
                    payload = b"%d %d " % (number, each) + bytes(8 * (seed * each % 40))
                    log.append_as_leader(keyed(2, payload), leader_epoch=number + 1)
                log.flush()
            elif what == "visible":
                watermark.end = visible + round(much * (end - visible))
                log.advance_high_watermark()
            else:
                at = visible + round(much * (end - visible)) if what == "truncate" else None
                if at is None:
                    at = round(much * end)
                cut = log.truncate_to(at, below_watermark=what == "below")
                assert at - 2 < cut <= at
                assert log.ends().log_end_offset == cut
    finally:
        for reader in readers:
            reader.end()
        broker.directory.close()


def test_readers_of_real_files_see_whole_record_batches() -> None:
    run_with_readers(examples(30), 40)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_readers_of_real_files_see_whole_record_batches_at_length() -> None:
    run_with_readers(1000, 80)
