"""A log and one that follows it, driven at random over disks that forget.

The follower does what a broker's does, with no more than a leader tells: it asks from its end on,
with the leader epoch of its last record; is cut back where its log has diverged, passes over what
the leader has lost, and takes the leader's start. Each log is checked by itself after every step;
whenever the follower has caught up, its records and leader epochs are the leader's.
"""

from __future__ import annotations

from collections.abc import Iterator

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

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.log import NO_EPOCH, LogConfig, PartitionLog, WantedLog
from spark_logbus.log.disk import names
from spark_logbus.log.epochs import parse_epochs
from spark_logbus.record import RecordBatchHeader, split
from tests.builders.record_batches import joined, record_batch
from tests.fakes.disk import AllSurvives, RandomSurvival, SimulatedDisk, Survival
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, SlowFollower
from tests.property.examples import examples

survivals = st.one_of(
    st.just(Survival()), st.just(AllSurvives()), st.integers(0, 99).map(RandomSurvival)
)
Batches = dict[int, tuple[RecordBatchHeader, bytes]]


def batches_in(log: PartitionLog) -> Iterator[tuple[RecordBatchHeader, bytes]]:
    """Yields all that the log can show a replica."""
    ends = log.ends()
    offset = log.first_offset
    while offset < ends.log_end_offset:
        found = None
        try:
            lost = log.lost_at(offset)
            if lost is None:
                found = log.read_as_replica(offset, max_bytes=900)
        except CorruptRecordBatchError:
            lost = log.lost_at(offset)  # it is known now
        if found is None:
            assert lost is not None
            assert lost.start <= offset < lost.end
            offset = lost.end
            continue
        for header, data in split(found.read(), allow_tail=False):
            yield header, bytes(data)
            offset = header.next_offset
    assert offset == ends.log_end_offset


def epoch_at(log: PartitionLog, offset: int) -> int:
    return [each for each in log.epochs.entries if each.start_offset <= offset][-1].epoch


class FollowingModel(RuleBasedStateMachine):
    @initialize(
        leaders=st.sampled_from([1024, 2048]),
        followers=st.sampled_from([1024, 3000]),
        start=st.sampled_from([0, 0, 40]),
    )
    def begin(self, leaders: int, followers: int, start: int) -> None:
        self.told = {"leader": SlowFollower(), "follower": SlowFollower()}
        self.brokers = {
            "leader": self.new_broker(leaders, watermark=self.told["leader"]),
            "follower": self.new_broker(followers, watermark=self.told["follower"]),
        }
        self.told["follower"].end = 0
        wanted = WantedLog(TP, TOPIC_ID, {}, base_offset=start)
        self.brokers["leader"].directory.ensure_all([wanted])
        self.follow_from(0)
        self.epoch = self.number = 0

    def new_broker(self, segment_bytes: int, *, watermark: SlowFollower) -> Broker:
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=300,
            retention_ms=None,
            segment_ms=3_600_000,
            flush_ms=60_000,
        )
        return Broker(files=SimulatedDisk(), config=config, watermark=watermark)

    @property
    def leader(self) -> PartitionLog:
        return self.brokers["leader"].log()

    @property
    def follower(self) -> PartitionLog:
        return self.brokers["follower"].log()

    def follow_from(self, base_offset: int) -> None:
        wanted = WantedLog(TP, TOPIC_ID, {}, follows=True, base_offset=base_offset)
        self.brokers["follower"].directory.ensure_all([wanted])

    # -- the leader ---------------------------------------------------------------------

    @rule(
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        size=st.sampled_from([8, 200, 700]),
        another=st.booleans(),
        flush=st.booleans(),
    )
    def append(self, counts: list[int], size: int, another: bool, flush: bool) -> None:
        self.epoch += another
        pieces = []
        for count in counts:
            self.number += 1
            pieces.append(record_batch(count, payload=b"%08d" % self.number + bytes(size)))
        self.leader.append_as_leader(joined(*pieces), leader_epoch=self.epoch)
        if flush:
            self.leader.flush()

    @rule(more=st.integers(1, 30))
    def give_up(self, more: int) -> None:
        end = self.leader.ends().log_end_offset
        self.leader.go_on_at(end + more)

    @rule(part=st.floats(0, 1))
    def delete_head(self, part: float) -> None:
        ends = self.leader.ends()
        span = ends.high_watermark - ends.log_start_offset
        self.leader.start_from(ends.log_start_offset + int(part * span))
        self.brokers["leader"].directory.maintain()

    @rule(survival=survivals)
    def crash_the_leader(self, survival: Survival) -> None:
        self.crash("leader", survival)
        self.brokers["leader"].start()
        self.epoch = max(self.epoch, self.leader.epochs.latest) + 1

    @rule()
    def elect_the_other(self) -> None:
        """The follower leads, whatever it lacks: what only the old leader has is to go."""
        told, brokers = self.told, self.brokers
        told["leader"], told["follower"] = told["follower"], told["leader"]
        brokers["leader"], brokers["follower"] = brokers["follower"], brokers["leader"]
        self.told["leader"].end, self.told["follower"].end = None, 0
        wanted = WantedLog(TP, TOPIC_ID, {})
        self.brokers["leader"].directory.ensure_all([wanted])
        self.leader.advance_high_watermark()
        self.follow_from(0)
        self.epoch = max(self.epoch, self.leader.epochs.latest) + 1

    # -- the follower -------------------------------------------------------------------

    @rule(steps=st.integers(1, 4), max_bytes=st.sampled_from([1, 500, 5000]), flush=st.booleans())
    def follow(self, steps: int, max_bytes: int, flush: bool) -> None:
        for _ in range(steps):
            self.step(max_bytes)
        if flush:
            self.follower.flush()

    @rule(survival=survivals)
    def crash_the_follower(self, survival: Survival) -> None:
        self.crash("follower", survival)
        broker = self.brokers["follower"]
        broker.start(told=False)
        if broker.directory.get(TP) is not None:
            self.follow_from(0)
        if damaged := self.follower.damaged:
            self.follower.truncate_to(damaged[0].start, below_watermark=True)

    def crash(self, which: str, survival: Survival) -> None:
        disk = self.brokers[which].files
        assert isinstance(disk, SimulatedDisk)
        disk.crash(survival)

    def step(self, max_bytes: int) -> bool:
        """One request and what follows from its answer; False when there is nothing to do."""
        log, leader = self.follower, self.leader
        offset, ends, start = log.ends().log_end_offset, leader.ends(), leader.first_offset
        last_epoch = log.epochs.latest
        if last_epoch != NO_EPOCH and offset >= start:
            agreed = leader.epochs.end_of(last_epoch, ends.log_end_offset)
            if agreed.epoch < last_epoch or agreed.end_offset < offset:
                own = log.epochs.end_of(agreed.epoch, offset)
                to = min(agreed.end_offset, own.end_offset)
                if to < log.ends().log_start_offset:
                    self.start_over(start)
                else:
                    log.truncate_to(to, below_watermark=True)
                return True
        if not start <= offset <= ends.log_end_offset:
            self.start_over(start)
            return True
        found, lost = None, leader.lost_at(offset)
        try:
            if lost is None:
                found = leader.read_as_replica(offset, max_bytes=max_bytes)
        except CorruptRecordBatchError:
            lost = leader.lost_at(offset)
        if lost is not None:
            log.pass_over(lost.end)
        elif found is not None:
            log.append_as_follower(memoryview(bytearray(found.read())))
        self.told["follower"].end = ends.high_watermark
        log.advance_high_watermark()
        log.start_from(start)
        self.brokers["follower"].directory.maintain()
        return lost is not None or found is not None

    def start_over(self, base_offset: int) -> None:
        wanted = WantedLog(TP, TOPIC_ID, {}, follows=True, base_offset=base_offset)
        self.told["follower"].end = 0
        self.brokers["follower"].directory.start_over(wanted, keep_files=False)

    @rule()
    def catch_up(self) -> None:
        self.leader.flush()
        for _ in range(1000):
            if not self.step(5000):
                break
        else:
            pytest.fail("the follower never catches up")
        self.follower.flush()
        self.step(1)
        leader, follower = self.leader.ends(), self.follower.ends()
        assert follower.log_end_offset == leader.log_end_offset == leader.high_watermark
        assert follower.high_watermark == leader.high_watermark
        # A leader that followed may not have come to the start of the one before.
        assert self.leader.first_offset <= follower.log_start_offset
        theirs = {header.base_offset: data for header, data in batches_in(self.follower)}
        for header, data in batches_in(self.leader):
            if header.next_offset <= follower.log_start_offset:
                continue
            assert theirs.pop(header.base_offset) == data
            at = header.base_offset
            assert epoch_at(self.follower, at) == epoch_at(self.leader, at)
        # It may have what its leader lost in a crash after it had sent it.
        assert all(self.leader.lost_at(offset) is not None for offset in theirs)
        assert self.follower.damaged == ()

    # -- each by itself -----------------------------------------------------------------

    @invariant()
    def epochs_are_those_of_the_records(self) -> None:
        for broker in self.brokers.values():
            log = broker.log()
            entries, end = log.epochs.entries, log.ends().log_end_offset
            assert all(each.start_offset < end for each in entries)
            for header, _ in batches_in(log):
                assert epoch_at(log, header.base_offset) == header.leader_epoch
            disk, path = broker.files, broker.log_path() / names.LEADER_EPOCHS
            assert isinstance(disk, SimulatedDisk)
            if entries:
                lines = disk.durable_data(path).decode().splitlines()[1:-1]
                assert parse_epochs(lines) == entries

    @invariant()
    def consumers_see_no_more_than_they_were_told_of(self) -> None:
        ends = self.follower.ends()
        assert ends.log_start_offset <= ends.high_watermark <= ends.log_end_offset


def test_a_log_and_its_follower() -> None:
    run_state_machine_as_test(
        FollowingModel,
        settings=settings(
            max_examples=examples(300), stateful_step_count=30, report_multiple_bugs=False
        ),
    )
