"""A log, driven at random over a disk that forgets, against a list of record batches.

The model (the broker is the real log) knows every record batch that was ever appended
and where, what is flushed for certain, what was damaged, and where the log starts. After a crash
it learns from the log how much of the rest survived; what it learns must be a part of what it
knows. A rule for something new says what it does to ``known``, ``end``, ``flushed`` and ``start``;
the invariant then compares all that is visible.
"""

from __future__ import annotations

import errno
import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spark_logbus.errors import (
    CorruptRecordBatchError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionOfflineError,
    StorageError,
    UnknownProducerError,
    UnsupportedVersionError,
)
from spark_logbus.log import LogConfig
from spark_logbus.log.disk import names
from spark_logbus.record import HEADER_SIZE, split
from spark_logbus.record.rows.arrow import ProducerStamp, canonical, encode
from spark_logbus.record.rows.builder import ArrowBatchBuilder
from tests.builders.record_batches import joined
from tests.fakes.clock import NOW_US, SECOND
from tests.fakes.disk import NOTHING, AllSurvives, RandomSurvival, SimulatedDisk
from tests.fakes.log_directory import Broker, batches_from
from tests.property.examples import examples

PRODUCER_ID = 7
YEAR_2099_US = 4_070_908_800 * SECOND


@dataclass(frozen=True)
class Known:
    """One record batch that was appended; ``age`` as the draw that made it says."""

    base: int
    end: int
    payload: bytes
    max_timestamp_us: int
    append_time_us: int
    size: int


@dataclass(frozen=True)
class Drawn:
    """Ingredients of a record batch."""

    count: int
    size: int
    key: int | None
    age: int | None  # seconds; None: at ``odd``
    odd: int


ODD_TIMES = [0, -1, YEAR_2099_US, (1 << 63) - 1, -(1 << 63), -(1 << 63) + 1]
drawn = st.builds(
    Drawn,
    count=st.integers(1, 5),
    size=st.sampled_from([0, 8, 40, 200, 700, 1500]),
    key=st.none() | st.integers(0, 3),
    age=st.none() | st.integers(-3600, 7200) | st.integers(-3600, 7200),
    odd=st.sampled_from(ODD_TIMES),
)
segment_sizes = st.sampled_from([1024, 2048, 8192])
retention_sizes = st.sampled_from([None, 3000, 6000])
retention_times = st.sampled_from([None, 1_800_000])
crashes = st.sampled_from(["nothing", "all", "some"])


class LogModel(RuleBasedStateMachine):
    @initialize(
        segment_bytes=segment_sizes,
        index_interval_bytes=st.sampled_from([128, 500, 4096]),
        retention_bytes=retention_sizes,
        retention_ms=retention_times,
        flush_records=st.sampled_from([None, 7]),
    )
    def begin(
        self,
        segment_bytes: int,
        index_interval_bytes: int,
        retention_bytes: int | None,
        retention_ms: int | None,
        flush_records: int | None,
    ) -> None:
        self.disk = SimulatedDisk()
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            retention_bytes=retention_bytes,
            retention_ms=retention_ms,
            segment_ms=3_600_000,
            flush_ms=60_000,
            flush_records=flush_records,
        )
        self.broker = Broker(files=self.disk, config=config)
        self.broker.log()
        self.known: list[Known] = []
        self.broken: set[int] = set()  # offsets whose bytes were damaged on disk
        self.index_missing = False  # one could not be written
        self.end = 0
        self.flushed = 0
        self.start = 0
        self.number = 0
        self.epoch = self.next_sequence = 0
        # The last append of the idempotent producer: bytes, base offset, first sequence.
        self.numbered: tuple[memoryview, int, int] | None = None

    # -- what happens to the log --------------------------------------------------------

    def made(self, batches: list[Drawn]) -> tuple[memoryview, list[Known]]:
        """The bytes to append, and what is known of them once they are."""
        now_us, base = self.broker.clock.now_us(), self.end
        data, known = [], []
        for each in batches:
            self.number += 1
            newest = each.odd if each.age is None else now_us - each.age * SECOND
            builder = ArrowBatchBuilder()
            for row in range(each.count):
                builder.add(
                    value=b"%08d" % self.number + bytes(each.size // each.count),
                    key=None if each.key is None else b"key %d" % ((each.key + row) % 4),
                    timestamp_us=newest,
                    headers=None,
                )
            encoded = encode(builder.build())
            end = base + each.count
            known.append(
                Known(base, end, bytes(encoded[HEADER_SIZE:]), newest, now_us, len(encoded))
            )
            data.append(encoded)
            base = end
        return joined(*data), known

    @rule(batches=st.lists(drawn, min_size=1, max_size=3))
    def append(self, batches: list[Drawn]) -> None:
        data, known = self.made(batches)
        log = self.broker.log()
        if log.offline is not None:
            with pytest.raises(PartitionOfflineError):
                log.append_as_leader(data, leader_epoch=3)
            return
        appended = log.append_as_leader(data, leader_epoch=3)
        assert (appended.base_offset, appended.end_offset) == (self.end, known[-1].end)
        self.known += known
        self.end = known[-1].end

    @rule(batches=st.lists(drawn, min_size=1, max_size=3), room=st.integers(0, 300))
    def append_to_a_full_disk(self, batches: list[Drawn], room: int) -> None:
        log = self.broker.log()
        data, known = self.made(batches)
        self.disk.capacity = self.disk.used() + room
        self.index_missing = True
        try:
            log.append_as_leader(data, leader_epoch=3)
        except (StorageError, PartitionOfflineError):
            assert log.ends().log_end_offset == self.end
        else:
            self.known += known
            self.end = known[-1].end
        finally:
            self.disk.capacity = None

    # -- an idempotent producer --------------------------------------------------------

    def is_sound(self) -> bool:
        """True if the log can know all that it was sent: nothing damaged, still taking appends."""
        log = self.broker.log()
        return not (self.broken or log.damaged or log.offline)

    @precondition(lambda self: hasattr(self, "broker") and self.is_sound())
    @rule(
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=3), gap=st.sampled_from([0, 0, 3])
    )
    def append_numbered(self, counts: list[int], gap: int) -> None:
        first, data = self.next_sequence + gap, []
        known: list[Known] = []
        for count in counts:
            self.number += 1
            end = (known[-1].end if known else self.end) + count
            producer = ProducerStamp(PRODUCER_ID, self.epoch, first)
            values = pa.array([b"numbered %08d" % self.number] * count)
            batch = canonical(pa.record_batch({"value": values}), now_us=NOW_US)
            encoded = encode(batch, stamp=producer)
            payload, now_us = bytes(encoded[HEADER_SIZE:]), self.broker.clock.now_us()
            known.append(Known(end - count, end, payload, NOW_US, now_us, len(encoded)))
            data.append(encoded)
            first += count
        log = self.broker.log()
        try:
            appended = log.append_as_leader(joined(*data), leader_epoch=3)
        except UnknownProducerError:  # silent for too long
            assert self.next_sequence + gap > 0
            self.epoch, self.next_sequence, self.numbered = self.epoch + 1, 0, None
        except OutOfOrderSequenceError:
            assert gap > 0
            assert log.ends().log_end_offset == self.end
        else:
            assert gap == 0
            assert (appended.base_offset, appended.end_offset) == (self.end, known[-1].end)
            self.numbered = (joined(*data), self.end, self.next_sequence)
            self.known += known
            self.end, self.next_sequence = known[-1].end, first

    @precondition(lambda self: hasattr(self, "broker") and self.is_sound() and self.numbered)
    @rule()
    def append_the_same_again(self) -> None:
        assert self.numbered is not None
        data, base, _ = self.numbered
        log = self.broker.log()
        try:
            appended = log.append_as_leader(memoryview(bytearray(data)), leader_epoch=3)
        except UnknownProducerError:
            self.epoch, self.next_sequence, self.numbered = self.epoch + 1, 0, None
            return
        assert appended.base_offset == base, "the first copy's place is told"
        assert log.ends().log_end_offset == self.end, "and there is no second"

    @rule()
    def flush(self) -> None:
        log = self.broker.log()
        log.flush()
        if log.offline is None:
            self.flushed = self.end

    @rule()
    def flush_as_requested(self) -> None:
        self.broker.flusher.run()

    @rule(forgotten=st.booleans())
    def a_flush_fails(self, forgotten: bool) -> None:
        log = self.broker.log()
        before = log.ends().high_watermark
        active = self.segment_paths()[-1]
        self.disk.refuse = lambda done, _path: errno.EIO if done == "sync" else None
        log.flush()
        self.disk.refuse = lambda _done, _path: None
        assert log.ends().high_watermark == before
        assert (log.offline is not None) or before == self.end
        if forgotten and log.offline is not None:
            self.disk.forget_pending(active)

    @rule(seconds=st.integers(0, 1800))
    def time_passes(self, seconds: int) -> None:
        self.broker.clock.advance(seconds)

    @rule(hours=st.sampled_from([-1, 1]))
    def the_clock_jumps(self, hours: int) -> None:
        self.broker.clock.jump(hours * 3600)

    @rule(
        segment_bytes=segment_sizes,
        retention_bytes=retention_sizes,
        retention_ms=retention_times,
    )
    def configure(
        self, segment_bytes: int, retention_bytes: int | None, retention_ms: int | None
    ) -> None:
        self.broker.config = replace(
            self.broker.config,
            segment_bytes=segment_bytes,
            retention_bytes=retention_bytes,
            retention_ms=retention_ms,
        )
        self.broker.log().configure(self.broker.config)

    @rule()
    def maintain(self) -> None:
        config, before = self.broker.config, self.broker.log().ends()
        self.broker.directory.maintain()
        ends = self.broker.log().ends()
        assert before.log_start_offset <= ends.log_start_offset <= ends.high_watermark
        now_us = self.broker.clock.now_us()
        for known in self.known:
            if not before.log_start_offset <= known.base < ends.log_start_offset:
                continue
            if config.retention_bytes is not None and ends.size_bytes >= config.retention_bytes:
                continue
            # It is old, or claims to be of the future, and retention goes by a clock that may
            # have jumped back since.
            assert config.retention_ms is not None
            oldest_kept = now_us + 3 * 3600 * SECOND - config.retention_ms * 1000
            assert known.max_timestamp_us <= oldest_kept or known.append_time_us <= oldest_kept
        self.start = ends.log_start_offset

    @rule()
    def restart(self) -> None:
        offline = self.broker.log().offline is not None
        self.broker.restart()
        ends = self.broker.log().ends()
        assert ends.log_end_offset == self.end
        self.flushed = self.end
        scanned = self.broker.directory.recovery.bytes_scanned
        assert scanned == 0 or offline or self.index_missing or self.broker.log().damaged
        self.index_missing = False

    @rule(seed=st.integers(0, 1 << 16), kind=crashes, garbage=st.binary(max_size=200))
    def crash(self, seed: int, kind: str, garbage: bytes) -> None:
        survivals = {"nothing": NOTHING, "all": AllSurvives(), "some": RandomSurvival(seed)}
        log = self.broker.log()
        before, damaged, offline = log.ends(), log.damaged, log.offline is not None
        self.disk.crash(survivals[kind])
        if garbage:
            active = self.segment_paths()[-1]
            self.disk.overwrite(active, bytes(self.disk.data(active)) + garbage)
        self.broker.start()
        log = self.broker.log()
        ends = log.ends()
        assert before.high_watermark <= ends.high_watermark <= self.end
        if kind == "nothing":
            # All that was rolled or flushed, and not one record more.
            assert ends.high_watermark == before.high_watermark
        if kind == "all" and not offline:
            assert ends.high_watermark == self.end
        assert all(hole in log.damaged or hole.end <= ends.log_start_offset for hole in damaged)
        for hole in log.damaged:
            known = hole in damaged or self.is_broken(hole.start, hole.end)
            assert known or hole.start >= before.high_watermark
        assert ends.log_start_offset <= self.start or self.start == before.log_start_offset
        self.learn()

    def learn(self) -> None:
        """Learn from the log, after a crash, what survived; that is on disk now."""
        log = self.broker.log()
        ends = log.ends()
        self.start = ends.log_start_offset
        self.end = self.flushed = ends.high_watermark
        self.known = [known for known in self.known if known.end <= self.end]
        if self.numbered is not None and self.numbered[1] + self.numbered_count() > self.end:
            # Some or all of it is lost: whoever sent it cannot tell, and starts over.
            self.epoch, self.next_sequence, self.numbered = self.epoch + 1, 0, None

    def numbered_count(self) -> int:
        assert self.numbered is not None
        return self.next_sequence - self.numbered[2]

    @precondition(lambda self: self.known_with_another_behind())
    @rule(data=st.data(), scanned=st.booleans())
    def a_bit_flips(self, data: st.DataObject, scanned: bool) -> None:
        """Flip a bit in a record batch that has another behind it; the broker is down."""
        self.restart()
        target, path, position = data.draw(st.sampled_from(self.known_with_another_behind()))
        # Leader epoch and append time (bytes 12 to 23) are under no checksum.
        at = data.draw(st.integers(24, target.size - 1) | st.integers(0, 11))
        self.broker.directory.close()
        self.disk.flip(path, position + at)
        if scanned:
            self.disk.remove(self.broker.path / names.CHECKPOINT)
        self.broker.start()
        self.broken.update(range(target.base, target.end))
        ends = self.broker.log().ends()
        assert ends.high_watermark == self.end
        if scanned:
            holes = self.broker.log().damaged
            assert {n for hole in holes for n in range(hole.start, hole.end)} >= set(
                range(target.base, target.end)
            )
        self.start = ends.log_start_offset

    # -- what there is to see of it -------------------------------------------------------

    def segment_paths(self) -> list[Path]:
        directory = self.broker.log_path()
        return [
            directory / name
            for name in self.disk.names(directory)
            if names.parse_segment(name) is not None
        ]

    def known_with_another_behind(self) -> list[tuple[Known, Path, int]]:
        """Unharmed visible record batches, each with its file and position; not the last ones."""
        if not hasattr(self, "broker") or self.broken or self.broker.log().damaged:
            return []
        log, found = self.broker.log(), []
        base_offsets = {names.parse_segment(path.name): path for path in self.segment_paths()}
        ends, path, position = log.ends(), None, 0
        visible = [known for known in self.known if known.base >= ends.log_start_offset]
        for known, following in itertools.pairwise(visible):
            if known.base in base_offsets:
                path, position = base_offsets[known.base], 0
            if path is not None and following.base not in base_offsets:
                found.append((known, path, position))
            position += known.size
        return found

    def is_broken(self, start: int, end: int) -> bool:
        return any(offset in self.broken for offset in range(start, end))

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
        try:
            found = log.read(offset, max_bytes=max_bytes, end=end)
            batches = [] if found is None else list(split(found.read(), allow_tail=False))
        except (CorruptRecordBatchError, UnsupportedVersionError):
            assert self.is_broken(ends.log_start_offset, ends.high_watermark)
            return
        if offset == ends.high_watermark or (end is not None and end <= offset):
            assert found is None
            return
        assert found is not None
        if self.is_broken(offset, offset + 1):
            return  # its own offset may be what is broken
        assert batches[0][0].base_offset <= offset < batches[0][0].next_offset
        assert found.length <= max_bytes or len(batches) == 1
        # An index entry behind a damaged header spares the look-up that header; readers find it.
        if not self.is_broken(offset, ends.high_watermark):
            assert batches[-1][0].next_offset <= ends.high_watermark
            assert end is None or batches[-1][0].base_offset < end

    @rule(age=st.integers(-3600, 7200), odd=st.none() | st.sampled_from(ODD_TIMES))
    def find_a_time(self, age: int, odd: int | None) -> None:
        log = self.broker.log()
        ends = log.ends()
        wanted = NOW_US - age * SECOND if odd is None else odd
        expected = [
            known.base
            for known in self.known
            if known.max_timestamp_us >= wanted
            and ends.log_start_offset <= known.base < ends.high_watermark
            and not any(hole.start <= known.base < hole.end for hole in log.damaged)
        ]
        found = log.offset_at(wanted)
        # Damage that no scan has met yet may hide in what the walk believes.
        assert self.broken or found == (expected[0] if expected else None)

    @rule(target_bytes=st.integers(1, 3000), a=st.integers(0, 40), b=st.integers(0, 40))
    def split_a_range(self, target_bytes: int, a: int, b: int) -> None:
        log = self.broker.log()
        ends = log.ends()
        start, end = ends.log_start_offset + min(a, b), ends.log_start_offset + max(a, b)
        cuts, size = log.split(start, end, target_bytes=target_bytes)
        assert cuts == sorted(set(cuts))
        assert all(start < cut < min(end, ends.high_watermark) for cut in cuts)
        base_offsets = {known.base for known in self.known}
        if not log.damaged:
            assert set(cuts) <= base_offsets
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
        while offset < ends.high_watermark:
            try:
                for header, data in batches_from(log, offset, max_bytes=1500):
                    known = by_base[offset]
                    if header.base_offset != offset and self.is_broken(offset, known.end):
                        raise CorruptRecordBatchError("a reader expects dense offsets")
                    assert header.base_offset == offset
                    assert header.next_offset == known.end
                    assert data[HEADER_SIZE:] == known.payload
                    offset = header.next_offset
            except (CorruptRecordBatchError, UnsupportedVersionError):
                hole = next((h for h in log.damaged if h.start <= offset < h.end), None)
                # Either the log knows of it, or the reader's own check found a flipped bit.
                behind = hole.end if hole is not None else by_base[offset].end
                assert hole is not None or self.is_broken(offset, behind)
                offset = behind


def test_the_log_agrees_with_its_model() -> None:
    run_state_machine_as_test(
        LogModel,
        settings=settings(
            max_examples=examples(60),
            stateful_step_count=40,
            report_multiple_bugs=False,
        ),
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_log_agrees_with_its_model_at_length() -> None:
    run_state_machine_as_test(
        LogModel,
        settings=settings(max_examples=1500, stateful_step_count=60, report_multiple_bugs=False),
    )
