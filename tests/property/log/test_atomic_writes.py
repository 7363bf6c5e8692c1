"""A model of atomic writes: writers, their decisions, brokers that crash, and what readers see.

The decision's node is in memory, where no crash reaches it; the logs are real ones on a disk that
forgets. Every step of a commit is a rule of its own, so that a crash, another run, an abort or an
expiry comes between any two of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from spark_logbus.coordination.writes import decisions
from spark_logbus.coordination.writes.decisions import DecidedWrite, Proposal, TopicRecords
from spark_logbus.errors import LogbusError, StagedDataLostError, WriteFencedError
from spark_logbus.log import DecidedShare, LogConfig, PartitionLog
from spark_logbus.model import TopicPartition
from spark_logbus.record.stage_id import StageIds, attempts_text, stage_id
from tests.builders.producers import batch
from tests.builders.record_batches import record_batch
from tests.fakes.disk import AllSurvives, SimulatedDisk, Survival
from tests.fakes.log_directory import TOPIC_ID, Broker, batches_from
from tests.property.examples import examples

PARTITIONS = (0, 1)
CONFIG = LogConfig(segment_bytes=2048, index_interval_bytes=256, retention_ms=None)


@dataclass
class Write:
    """Attempt to write a version, as its driver knows it."""

    version: int
    number: int
    run: str
    tasks: dict[int, Counter[int]] = field(default_factory=dict)  # records by partition
    promise: int | None = None  # under which it was prepared
    decided: bool = False

    def total(self, partition: int) -> int:
        return sum(records[partition] for records in self.tasks.values())


class AtomicWrites(RuleBasedStateMachine):
    writes = Bundle("writes")

    @initialize()
    def start(self) -> None:
        self.disk = SimulatedDisk()
        self.broker = Broker(files=self.disk, config=CONFIG)
        self.node = decisions.NOTHING
        self.all: list[Write] = []
        self.committed: list[Write] = []
        self.seen_published: int | None = None  # by the writer that lives now
        self.numbers = 0
        self.promise = 1  # of the broker, which stands in ZooKeeper
        for partition in PARTITIONS:
            self.log(partition)

    def log(self, partition: int) -> PartitionLog:
        return self.broker.log(TopicPartition("flights", partition))

    # -- tasks ----------------------------------------------------------------------------

    @rule(target=writes, run=st.sampled_from(["a", "b"]), again=st.booleans())
    def begin(self, run: str, again: bool) -> Write:
        return self.new_write(run, again)

    def new_write(self, run: str, again: bool) -> Write:
        last = self.committed[-1].version if self.committed else 0
        self.numbers += 1
        write = Write(last if again else last + 1, self.numbers, run)
        self.all.append(write)
        return write

    @rule(
        write=writes,
        attempt=st.integers(1, 3),
        partition=st.sampled_from(PARTITIONS),
        count=st.integers(1, 40),
        counts=st.booleans(),
    )
    def stage(self, write: Write, attempt: int, partition: int, count: int, counts: bool) -> None:
        """An attempt that does not ``count`` is of a task that fails later."""
        if write.promise is not None or write.decided:
            return
        if not counts:
            attempt += 10
        records = write.tasks.get(attempt, Counter()) if counts else Counter[int]()
        data = batch(records[partition], count, producer=stage_id(write.number, attempt))
        try:
            staged = self.log(partition).staging.stage(data, leader_epoch=1)
        except LogbusError:
            return  # the rest of the attempt is gone: the task fails
        staged.file.flush()
        if counts:
            records[partition] += count
            write.tasks[attempt] = records

    @rule(
        target=writes,
        run=st.sampled_from(["a", "b"]),
        again=st.booleans(),
        parts=st.lists(
            st.tuples(st.integers(1, 3), st.sampled_from(PARTITIONS), st.integers(1, 40)),
            min_size=1,
            max_size=5,
        ),
        until=st.sampled_from(["staged", "prepared", "decided", "flushed", "shown", "published"]),
    )
    def write(self, run: str, again: bool, parts: list[tuple[int, int, int]], until: str) -> Write:
        """A driver that dies at some point, or does not."""
        write = self.new_write(run, again)
        for attempt, partition, count in parts:
            self.stage(write, attempt, partition, count, counts=True)
        if until == "staged":
            return write
        self.prepare(write)
        if until == "prepared":
            return write
        self.decide(write)
        if self.node.unpublished and until == "published":
            self.publish_all()
        elif self.node.unpublished and until in ("flushed", "shown"):
            stop_before = "finish" if until == "flushed" else "note"
            self.publish(PARTITIONS[run == "b"], stop_before)
        return write

    # -- the driver's commit ----------------------------------------------------------------

    def share(self, write: int, attempts: str, records: int) -> DecidedShare:
        return DecidedShare(StageIds.of(write, attempts), records)

    @rule(write=writes)
    def prepare(self, write: Write) -> None:
        attempts = attempts_text(write.tasks)
        try:
            for partition in PARTITIONS:
                if total := write.total(partition):
                    self.log(partition).publishing.check(
                        self.share(write.number, attempts, total), self.promise, leader_epoch=0
                    )
        except StagedDataLostError:
            return
        write.promise = self.promise

    @rule(write=writes)
    def decide(self, write: Write) -> None:
        if write.promise != self.promise:
            return  # not prepared, or by a promise that was let go since
        records = {p: total for p in PARTITIONS if (total := write.total(p))}
        topics = {"flights": TopicRecords(TOPIC_ID, records)} if records else {}
        decision = DecidedWrite(write.version, write.number, attempts_text(write.tasks), topics)
        proposal = Proposal(decision, run=write.run, settled=self.seen_published)
        try:
            outcome = decisions.decide(self.node, proposal, now_us=0)
        except WriteFencedError:
            return
        if outcome.state is not None:
            self.node = outcome.state
            self.committed.append(write)
            write.decided = True

    @rule(write=writes)
    def abort(self, write: Write) -> None:
        decision = DecidedWrite(write.version, write.number, "", {})
        outcome = decisions.abort(self.node, Proposal(decision, run=write.run), now_us=0)
        self.node = outcome.state or self.node
        if outcome.standing is None:
            self.discard(write)

    @rule(write=writes)
    def discard(self, write: Write) -> None:
        """Discard a write that lost to another of its version, or was aborted."""
        last = self.node.last
        over = write.number in self.node.aborted or (
            last is not None and write.version <= last.version and write.number != last.write
        )
        for partition in PARTITIONS:
            staging = self.log(partition).staging
            if over and write.number not in staging.decided:
                staging.discard(write.number)

    # -- publishing, by the driver or a broker ------------------------------------------------

    @precondition(lambda self: self.node.unpublished)
    @rule(
        partition=st.sampled_from(PARTITIONS),
        stop_before=st.sampled_from(["flush", "finish", "note", "nothing"]),
    )
    def publish(self, partition: int, stop_before: str) -> None:
        last = self.node.last
        assert last is not None
        records = last.topics["flights"].records.get(partition)
        if records is None:
            return
        log = self.log(partition)
        log.publishing.publish(self.share(last.write, last.attempts, records), leader_epoch=1)
        if stop_before == "flush":
            return
        log.flush()
        if stop_before == "finish":
            return
        log.publishing.finish(last.write)
        if stop_before == "note":
            return
        self.node = (
            decisions.published(self.node, last.write, {"flights": [partition]}) or self.node
        )

    @rule()
    def publish_all(self) -> None:
        """The driver that lives sees all of it published, and remembers."""
        last = self.node.last
        for partition in PARTITIONS:
            if self.node.unpublished:
                self.publish(partition, "note")
        self.seen_published = None if last is None else last.write

    @rule()
    def settle(self) -> None:
        for partition in PARTITIONS:
            log = self.log(partition)
            known, pending = dict(log.staging.decided), self.pending()
            log.publishing.settle({write: known[write] for write in {*known} - pending})

    def pending(self) -> set[int]:
        last = self.node.last
        return {last.write} if last is not None and self.node.unpublished else set()

    # -- what happens meanwhile -----------------------------------------------------------------

    @rule(partition=st.sampled_from(PARTITIONS), flush=st.booleans())
    def append(self, partition: int, flush: bool) -> None:
        self.log(partition).append_as_leader(record_batch(1), leader_epoch=1)
        if flush:
            self.log(partition).flush()

    @rule(survival=st.sampled_from([Survival(), AllSurvives()]))
    def crash(self, survival: Survival) -> None:
        self.disk.crash(survival)
        self.restarted()

    @rule()
    def restart(self) -> None:
        self.broker.directory.close()
        self.restarted()

    def restarted(self) -> None:
        self.broker.start()
        last = self.node.last
        if last is not None and self.node.unpublished:
            for partition, records in last.topics["flights"].records.items():
                share = self.share(last.write, last.attempts, records)
                self.log(partition).publishing.expect(share)

    @rule()
    def driver_dies(self) -> None:
        self.seen_published = None

    @rule()
    def a_day_passes(self) -> None:
        """Let a day pass, also between two steps of a commit."""
        self.promise += 1
        self.broker.clock.advance(25 * 3600)
        for partition in PARTITIONS:
            now_us = self.broker.clock.now_us()
            self.log(partition).staging.expire(
                now_us,
                keep=lambda write, _: write in self.pending(),
                promise=self.promise,
                leader_epoch=1,
            )

    # -- promises -------------------------------------------------------------------------------

    @invariant()
    def each_committed_write_is_seen_whole_or_not_yet(self) -> None:
        for partition in PARTITIONS:
            seen: list[tuple[int, int]] = []
            for header, _ in batches_from(self.log(partition), 0):
                if header.producer_id >= 0:
                    seen.append((header.producer_id, header.record_count))
            expected: list[tuple[int, int]] = []
            for write in self.committed:
                whole = [
                    (stage_id(write.number, attempt), records[partition])
                    for attempt, records in write.tasks.items()
                    if records[partition]
                ]
                if write is self.committed[-1] and _merged(seen) == expected:
                    break  # decided, and not seen yet
                expected += whole
            assert _merged(seen) == expected

    def teardown(self) -> None:
        """Check that the brokers' follow-up makes all visible that is committed."""
        if not hasattr(self, "broker"):
            return
        self.publish_all()
        for partition in PARTITIONS:
            total = sum(write.total(partition) for write in self.committed)
            records = Counter(
                header.producer_id >= 0
                for header, _ in batches_from(self.log(partition), 0)
                for _ in range(header.record_count)
            )
            assert records[True] == total
        self.broker.directory.close()


def _merged(seen: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Records by attempt, as they follow one another."""
    merged: list[tuple[int, int]] = []
    for producer_id, count in seen:
        if merged and merged[-1][0] == producer_id:
            merged[-1] = (producer_id, merged[-1][1] + count)
        else:
            merged.append((producer_id, count))
    return merged


TestAtomicWrites = AtomicWrites.TestCase
TestAtomicWrites.settings = settings(max_examples=examples(150), stateful_step_count=40)
