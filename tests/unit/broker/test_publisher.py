"""What a broker does about decided writes that nobody follows up."""

from __future__ import annotations

import errno
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import pytest

from spark_logbus.broker.decided_shares import DecidedWrites, PartitionShare, decided_shares
from spark_logbus.broker.publisher import Publisher
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.writes.decisions import (
    DecidedWrite,
    Proposal,
    TopicRecords,
    WriterState,
)
from spark_logbus.coordination.writes.promises import Promise, Promises
from spark_logbus.errors import (
    CoordinationError,
    InvalidNameError,
    NotLeaderError,
    StagedDataLostError,
)
from spark_logbus.log import DecidedShare, LogConfig, StagedBy
from spark_logbus.log.staging.publishing import Published
from spark_logbus.model import TopicPartition
from spark_logbus.record.stage_id import StageIds
from spark_logbus.zookeeper import CorruptNodeError, Session, SessionState
from tests.builders.producers import batch
from tests.builders.record_batches import record_batch
from tests.builders.staged import attempt, publish, stage
from tests.fakes.broker_parts import EPOCH, TOPIC_ID, Logs, held_lease, logs_in
from tests.fakes.log_directory import offsets_from
from tests.fakes.writers import MemoryWriters, promises_of

DAY: Final = 86_400
RETENTION_DAYS: Final = 180
T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)


class World:
    """A publisher over logs, writers and topics that the test owns."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self._flushing = ThreadPoolExecutor(1)
        logs.flusher.request = lambda log: self._flushing.submit(log.flush)  # type: ignore[assignment]
        self.writers = MemoryWriters(stamp_us=logs.directory.clock.time.stamp_us)
        self.topics: dict[str, TopicRecord | CorruptNodeError] = {
            name: TopicRecord(name, TOPIC_ID, {0: [5]}, {}) for name in ("t", "u")
        }
        self.publisher = Publisher(
            logs.here.as_replica_manager(),
            logs=logs.directory,
            writers=self.writers.as_registry(),
            topics=cast(TopicRegistry, self),
            lease=held_lease(),
            session=cast(Session, SimpleNamespace(state=SessionState.CONNECTED)),
            clock=logs.clock,
            retention_ms=RETENTION_DAYS * DAY * 1000,
            promises=promises_of(5),
            in_sync=logs.in_sync,
        )
        for each in (T0, U0):
            logs.lead(each)

    def each_of(self, names: Iterable[str]) -> dict[str, TopicRecord | CorruptNodeError | None]:
        return {name: self.topics.get(name) for name in names}

    def decide(self, writer: str, write: int, *topics: str, once: bool = False) -> None:
        records = {topic: TopicRecords(TOPIC_ID, {0: 2}) for topic in topics}
        self.writers.decide(writer, Proposal(DecidedWrite(1, write, "1", records), once=once))

    def stage(self, where: TopicPartition, write: int) -> None:
        stage(self.logs.here.led[where].log, attempt(1, write=write), 2)

    def look(self) -> None:
        """Looks at what is decided, until nothing can be new to the publisher."""
        self.publisher.look()
        self.logs.clock.advance(5)
        self.publisher.look()

    def remembered(self, writer: str) -> bool:
        """Tells whether what the writer has decided last is known still."""
        return self.writers.state(writer).last is not None

    def look_for(self, days: float) -> None:
        """Every half a day for so long, as the broker does more often."""
        for _ in range(int(2 * days)):
            self.logs.clock.advance(DAY / 2)
            self.publisher.look()

    def visible(self, where: TopicPartition) -> list[int]:
        return offsets_from(self.logs.here.led[where].log, 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with logs_in(tmp_path / "data", LogConfig()) as logs:
        yield World(logs)


def test_a_topic_that_cannot_be_read_costs_no_other_writer_its_write(world: World) -> None:
    for number, topic in ((1, "t"), (2, "u")):
        world.stage(TopicPartition(topic, 0), number)
    world.decide("first", 1, "t", "elsewhere")
    world.decide("second", 2, "u")
    world.topics["elsewhere"] = CorruptNodeError("The node is garbage.")
    world.look()
    assert world.visible(T0) == [0]
    assert world.visible(U0) == [0]
    first, second = world.writers.state("first").last, world.writers.state("second").last
    assert first is not None
    assert first.topics.keys() == {"elsewhere"}  # nobody knows, so it is not given up
    assert second is not None
    assert not second.topics


@pytest.mark.parametrize("failure", [ZeroDivisionError("a bug"), InvalidNameError("no name")])
def test_whatever_is_wrong_with_one_writer_the_others_are_followed_up(
    world: World, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    for number in (1, 2, 3):
        world.stage(T0, number)
        world.decide(f"writer {number}", number, "t")
    follow_up = world.publisher._follow_up

    def harmed(writer: str, state: WriterState) -> None:
        if writer == "writer 1":
            raise failure
        follow_up(writer, state)

    monkeypatch.setattr(world.publisher, "_follow_up", harmed)
    world.look()
    assert sorted(world.writers.pending().states) == ["writer 1"]
    assert world.visible(T0) == [0, 2]


def test_a_decision_takes_memory_by_its_attempts_not_times_its_partitions(tmp_path: Path) -> None:
    """Earlier releases took numbers of attempts that no write has."""
    partitions = 60
    topics = {"t": TopicRecords(TOPIC_ID, dict.fromkeys(range(partitions), 1))}
    state = WriterState(last=DecidedWrite(1, 5, "0-1048574", topics), changed_us=0)
    with logs_in(tmp_path / "data", LogConfig()) as logs:
        found = [logs.lead(TopicPartition("t", number)) for number in range(partitions)]
        tracemalloc.start()
        try:
            for log in found:
                for each in decided_shares({"w": state})[log.topic_partition]:
                    log.publishing.expect(each)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 5_000_000


def test_a_wide_write_is_prepared_and_published_by_what_each_partition_has(tmp_path: Path) -> None:
    """20,000 tasks, each of which has written to one of many partitions."""
    tasks, partitions, write = 20_000, 40, 5
    with logs_in(tmp_path / "data", LogConfig()) as logs:
        for number in range(partitions):
            log = logs.lead(TopicPartition("t", number))
            for task in range(number, tasks, tasks // 4):
                stage(log, attempt(task, write=write), 2)
        attempts = StageIds.of(write, f"0-{tasks - 1}")
        looked_up = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal looked_up
            looked_up += event == "call"

        sys.setprofile(count)
        try:
            for number in range(partitions):
                log = logs.here.led[TopicPartition("t", number)].log
                log.publishing.check(DecidedShare(attempts, 8), 1, leader_epoch=0)
        finally:
            sys.setprofile(None)
        assert looked_up < 200 * partitions
        for number in range(partitions):
            log = logs.here.led[TopicPartition("t", number)].log
            publish(log, DecidedShare(attempts, 8))
            assert offsets_from(log, 0) == [0, 2, 4, 6]


JUMPS = pytest.mark.parametrize("days", [400, -400, -20_000, 1_000_000])


@JUMPS
@pytest.mark.parametrize("once", [False, True])
def test_a_wrong_clock_makes_nobody_forget_what_was_committed(
    world: World, days: int, once: bool
) -> None:
    world.stage(T0, 1)
    world.decide("writer", 1, "t", once=once)
    world.look()
    world.logs.clock.jump(days * DAY)
    for _ in range(60):
        world.logs.clock.advance(15)
        world.publisher.look()
    world.logs.clock.jump(-days * DAY)
    world.look()
    assert world.remembered("writer")
    if not once:
        world.look_for(RETENTION_DAYS - 1)
        assert world.remembered("writer")


@JUMPS
def test_what_was_committed_under_a_wrong_clock_is_remembered(world: World, days: int) -> None:
    """The broker has begun with that clock, and nothing told it."""
    world.logs.clock.jump(days * DAY)
    world.logs.directory.clock.time.accept()
    world.stage(T0, 1)
    world.decide("writer", 1, "t")
    world.look()
    world.logs.clock.jump(-days * DAY)
    world.logs.directory.clock.time.accept()
    world.look_for(RETENTION_DAYS - 1)
    assert world.remembered("writer")


def test_a_writer_that_is_silent_for_long_is_forgotten(world: World) -> None:
    for number, (writer, once) in enumerate([("often", False), ("once", True)]):
        world.stage(T0, number)
        world.decide(writer, number, "t", once=once)
    world.look()
    world.look_for(2)
    assert (world.remembered("often"), world.remembered("once")) == (True, False)
    world.look_for(2 * RETENTION_DAYS)
    assert not world.remembered("often")


# -- what was prepared -------------------------------------------------------------------------


DAY_S = 25 * 3600


def share_of(where: TopicPartition, write: int, *, writer: str = "writer") -> PartitionShare:
    attempts = StageIds.of(write, "1")
    return PartitionShare(attempts, 2, writer, topic_partition=where, topic_id=TOPIC_ID)


@pytest.mark.parametrize("full", [False, True])
def test_no_promise_outlives_what_was_prepared(world: World, tmp_path: Path, full: bool) -> None:
    """The broker asks after a day, or ten minutes where the disk was full, in any one of the
    topics."""
    world.stage(T0, 1)
    world.stage(U0, 1)
    promise, outcomes = world.publisher.prepare([share_of(T0, 1), share_of(U0, 1)])
    assert outcomes == [None, None]
    world.logs.clock.advance(601 if full else DAY_S)
    if full:
        error = OSError(errno.ENOSPC, "full")
        world.logs.directory.stats.refused.note(
            T0, tmp_path, error, size_bytes=1, now=world.logs.clock.monotonic()
        )
    else:
        world.logs.here.led[U0].log.configure(LogConfig(staging_retention_ms=1 << 40))
    world.publisher.look()
    assert not world.logs.here.led[T0].log.staging.holds(1)
    assert world.publisher.promises.current().token != promise
    _, outcomes = world.publisher.prepare([share_of(T0, 1), share_of(U0, 1)], anew=True)
    assert isinstance(outcomes[0], StagedDataLostError)


def test_what_is_staged_where_another_broker_leads_is_nobodys_to_drop_here(world: World) -> None:
    """The log of a partition that moves here has what its leader has, as long as that has it."""
    log = world.logs.here.led[T0].log
    for number in (1, 2):
        world.stage(T0, number)
    log.staging.decided[2] = DecidedShare(StageIds(2, [(1, 1)]), 2)
    del world.logs.here.led[T0]
    world.logs.clock.advance(2 * DAY)
    world.look()
    world.publisher.discard(1)
    assert log.staging.totals.writes == 2
    world.logs.here.led[T0] = LeaderPartition(log, 8)
    world.look()
    assert log.staging.totals.writes == 0
    assert not log.staging.decided


def test_what_comes_in_the_place_of_a_published_write_is_not_taken_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lead goes just when it is published: the log is cut back, and grows to the same end."""
    world.stage(T0, 1)
    log = world.logs.here.led[T0].log
    genuine = log.publishing.publish

    def and_another_leads(share: DecidedShare, *, leader_epoch: int) -> Published:
        published = genuine(share, leader_epoch=leader_epoch)
        log.truncate_to(0, below_watermark=True)
        log.append_as_leader(record_batch(published.end), leader_epoch=leader_epoch + 1)
        log.flush()
        return published

    with monkeypatch.context() as patch:
        patch.setattr(log.publishing, "publish", and_another_leads)
        (outcome,) = world.publisher.publish([share_of(T0, 1)])
    assert isinstance(outcome, NotLeaderError)
    assert log.staging.holds(1)


def test_a_log_that_follows_knows_what_it_has_of_a_decided_write_for_as_long_as_that_is(
    world: World,
) -> None:
    """Keeps whoever is elected from taking a published write for a lost one."""
    log = world.logs.here.led.pop(T0).log
    log.append_as_leader(batch(0, 2, producer=attempt(1, write=1)), leader_epoch=EPOCH)
    log.flush()
    world.decide("writer", 1, "t", "elsewhere")
    world.topics["elsewhere"] = CorruptNodeError("The node is garbage.")
    world.look()
    world.logs.clock.advance(30 * DAY)
    world.logs.directory.maintain()
    world.look()
    log.publishing.require_published(share_of(T0, 1))
    world.writers.published("writer", 1, {"t": [0], "elsewhere": [0]})
    world.look()
    assert not log.staging.decided
    with pytest.raises(StagedDataLostError):
        log.publishing.require_published(share_of(T0, 1))


def test_a_promise_is_kept_while_nothing_of_it_expires(world: World) -> None:
    world.stage(T0, 1)
    promise, _ = world.publisher.prepare([share_of(T0, 1)])
    world.logs.clock.advance(DAY_S / 2)
    world.stage(U0, 2)
    world.look()
    assert world.publisher.prepare([share_of(U0, 2)])[0] == promise
    assert world.publisher.promises.current().token == promise


@pytest.mark.parametrize("when", ["before", "between"])
def test_what_is_decided_while_it_expires_stays(
    world: World, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Decided at the last moment at which the promise stands."""
    world.stage(T0, 1)
    promise, _ = world.publisher.prepare([share_of(T0, 1)])
    world.logs.clock.advance(DAY_S)
    renew = world.publisher.promises.renew

    def late() -> Promise:
        assert world.publisher.promises.current().token == promise
        world.decide("writer", 1, "t")
        return renew()

    if when == "before":
        world.decide("writer", 1, "t")
    else:
        monkeypatch.setattr(world.publisher.promises, "renew", late)
    world.look()
    assert world.visible(T0) == [0]
    assert not world.writers.pending().states


def test_nothing_is_dropped_while_zookeeper_takes_no_new_promise(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: str) -> None:
        raise CoordinationError("ZooKeeper is away.")

    world.stage(T0, 1)
    promise, _ = world.publisher.prepare([share_of(T0, 1)])
    world.logs.clock.advance(DAY_S)
    with monkeypatch.context() as patch:
        patch.setattr(world.publisher.promises._registry, "write", away)
        for act in (world.publisher.look, lambda: world.publisher.discard(1)):
            with pytest.raises(CoordinationError):
                act()
    assert world.logs.here.led[T0].log.staging.holds(1)
    assert world.publisher.promises._stands is None  # nobody knows which of them stands
    assert world.publisher.prepare([share_of(T0, 1)])[0] != promise


def test_a_process_promises_nothing_by_the_words_of_one_before(world: World) -> None:
    registry = world.publisher.promises._registry
    before = Promises(registry).current()
    assert Promises(registry).current().token != before.token


def test_a_promise_that_somebody_else_wrote_over_is_made_anew(world: World) -> None:
    promises = world.publisher.promises
    mine = promises.current()
    assert promises.current(anew=True) == mine
    promises._registry.write("another's")
    assert promises.current() == mine
    assert promises.current(anew=True).token not in (mine.token, "another's")


def test_writes_of_an_unreadable_writer_stay_and_others_go(world: World) -> None:
    for number, writer in ((1, "readable"), (2, "unreadable")):
        world.stage(T0, number)
        world.publisher.prepare([share_of(T0, number, writer=writer)])
    world.writers.unusable = {"unreadable": None}
    world.logs.clock.advance(DAY_S)
    world.publisher.look()
    staging = world.logs.here.led[T0].log.staging
    assert [staging.holds(number) for number in (1, 2)] == [False, True]


@pytest.mark.parametrize("attempts", ["1", "2"])
def test_a_write_of_the_same_number_takes_nothing_of_another_writer(
    world: World, attempts: str
) -> None:
    """The number is no secret. What is staged is its writer's, whoever else decides it first."""
    stage(world.logs.here.led[T0].log, attempt(1, write=1), 2, by=StagedBy("writer", "run"))
    ours = share_of(T0, 1)
    world.publisher.promises.current()
    assert world.publisher.prepare([ours])[1] == [None]
    theirs = replace(ours, writer="thief")
    assert isinstance(world.publisher.prepare([theirs])[1][0], StagedDataLostError)
    records = {"t": TopicRecords(TOPIC_ID, {0: 2})}
    world.writers.decide("thief", Proposal(DecidedWrite(1, 1, attempts, records)))
    world.look()
    assert not world.writers.state("thief").unpublished
    assert world.visible(T0) == []
    world.look()
    world.decide("writer", 1, "t")
    world.look()
    assert world.visible(T0) == [0]


def test_a_broker_that_has_decided_a_write_asks_nobody_about_it(world: World) -> None:
    world.stage(T0, 1)
    world.decide("writer", 1, "t")
    last = world.writers.state("writer").last
    assert last is not None
    world.publisher.decided.add("writer", last)
    world.writers.nodes.clear()
    assert world.publisher.publish_decided([share_of(T0, 1)], writer="writer") == [None]
    assert world.visible(T0) == [0]


def test_what_was_published_may_be_published_again(world: World) -> None:
    """A writer whose answer was lost asks again, when ZooKeeper has the write as published."""
    world.stage(T0, 1)
    world.decide("writer", 1, "t")
    assert world.publisher.publish_decided([share_of(T0, 1)], writer="writer") == [None]
    world.writers.published("writer", 1, {"t": [0]})
    world.publisher.decided = DecidedWrites()
    assert world.publisher.publish_decided([share_of(T0, 1)], writer="writer") == [None]
    assert world.visible(T0) == [0]


def test_the_decisions_that_a_broker_remembers_are_bounded_by_their_size() -> None:
    decided = DecidedWrites()
    attempts = ",".join(map(str, range(0, 200_000, 2)))
    for number in range(100):
        decided.add("writer", DecidedWrite(number, number, attempts, {}))
        decided.add("writer", DecidedWrite(number, number, attempts, {}))
    remembered = [number for number in range(100) if decided.find(number)]
    assert remembered == list(range(100 - len(remembered), 100))
    assert 10 < len(remembered) < 40
