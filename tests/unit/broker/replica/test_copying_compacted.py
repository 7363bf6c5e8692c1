"""Followers of compacted topics: what tombstones deleted stays away, and what agrees stays."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_logbus.broker.handlers.replica_reads import checked_copy, read_partition
from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.assignments import WantedReplica
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.log import LogConfig, PartitionLog, WantedLog
from spark_logbus.protocol import ReplicateResult
from tests.builders.compaction import Keyed, compact_here, keyed_batch, records_in, state_of
from tests.fakes.broker_parts import T0, TOPIC_ID, Logs, logs_in
from tests.fakes.log_directory import ensure_one

HOUR_S = 3600
DAY_S = 24 * HOUR_S
CONFIG = LogConfig(segment_bytes=1_024, index_interval_bytes=128)
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": str(DAY_S * 1000),
}
RECORD = TopicRecord("t", TOPIC_ID, {0: [1, 2]}, COMPACTED)


class Replica:
    """A broker with a log of the partition, which leads or follows."""

    def __init__(self, logs: Logs, watermarks: HighWatermarks) -> None:
        self.logs, self.watermarks = logs, watermarks
        self.followed: FollowedLog | None = None

    @property
    def log(self) -> PartitionLog:
        log = self.logs.directory.get(T0)
        assert log is not None
        return log

    def lead(self) -> None:
        self.followed = None
        self.watermarks.lead(T0)
        ensure_one(self.logs.directory, T0, topic_id=TOPIC_ID, config=COMPACTED)
        self.log.advance_high_watermark()

    def follow(self, epoch: int, *, committed: int = 0) -> None:
        self.watermarks.follow(T0, 0)
        wanted = WantedLog(T0, TOPIC_ID, COMPACTED, follows=True)
        log = self.logs.directory.ensure_all([wanted])[T0]
        assert isinstance(log, PartitionLog)
        self.followed = FollowedLog(
            WantedReplica(T0, RECORD, state=PartitionState(1, epoch, [1], committed=committed)),
            log,
            leader=1,
            leader_epoch=epoch,
            logs=self.logs.directory,
            watermarks=self.watermarks,
            is_copy=False,
            require_room=lambda _: None,
        )

    def pull(self, leader: Replica, *, max_bytes: int = 1 << 20) -> None:
        """One request, and its answer."""
        followed = self.followed
        assert followed is not None
        asked = followed.request(max_bytes)
        copy = checked_copy(leader.log, 2, asked)
        result = ReplicateResult("t", 0, leader_epoch=followed.leader_epoch)
        found = read_partition(
            leader.log,
            asked,
            copy,
            result,
            room=1 << 20,
            first=True,
            hands_over=False,
            others_have_all=True,
        )
        payload = b"".join(each.read() for each in found.slices)
        followed.apply(found.result, memoryview(bytearray(payload)))
        if followed.is_to_be_flushed:
            followed.flush()
        followed.settle()

    def catch_up(self, leader: Replica) -> list[int]:
        """Follows until nothing is missing; returns the ends of the log on the way."""
        ends = [self.log.ends().log_end_offset]
        while ends[-1] < leader.log.ends().log_end_offset:
            self.pull(leader, max_bytes=500)
            ends.append(self.log.ends().log_end_offset)
            assert len(ends) < 10_000
        self.pull(leader)
        return ends

    def send(self, *records: tuple[bytes, bytes | None], epoch: int = 7) -> None:
        for key, value in records:
            self.log.append_as_leader(keyed_batch(Keyed(key, value)), leader_epoch=epoch)
        self.log.flush()

    def fill(self, start: int, end: int, *, epoch: int = 7) -> None:
        self.send(*((b"f%d" % number, b"%d" % number * 20) for number in range(start, end)),
                  epoch=epoch)  # fmt: skip

    def compact(self) -> None:
        assert compact_here(self.log, self.logs.clock.now_us()) is not None

    def purge(self) -> None:
        """Compacts twice, a day apart, as happens by itself; each needs something new."""
        self.compact()
        self.logs.clock.advance(DAY_S + HOUR_S)
        self.fill(0, 20)
        self.compact()

    @property
    def state(self) -> dict[bytes, bytes]:
        """The keys that there are for a reader of the whole log."""
        found = state_of(records_in(self.log))
        return {key: value for key, value in found.items() if value is not None}


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[Replica, Replica, Replica]]:
    made = []
    for name in "123":
        watermarks = HighWatermarks()
        made.append((logs_in(tmp_path / name, CONFIG, watermark=watermarks), watermarks))
    with made[0][0] as one, made[1][0] as two, made[2][0] as three:
        first = Replica(one, made[0][1])
        first.lead()
        yield first, Replica(two, made[1][1]), Replica(three, made[2][1])


Replicas = tuple[Replica, Replica, Replica]


def test_what_a_tombstone_deleted_stays_away_from_a_replica_that_was_long_gone(
    replicas: Replicas, tmp_path: Path
) -> None:
    """The leader has neither the record nor its tombstone any more, and the replica the record."""
    leader, follower, _ = replicas
    leader.send((b"k", b"old"))
    leader.fill(0, 5)
    follower.follow(7)
    follower.catch_up(leader)
    before = follower.log.log_id
    leader.send((b"k", None))
    leader.fill(5, 15)
    leader.purge()
    assert b"k" not in state_of(records_in(leader.log)), "the tombstone is gone as well"
    follower.catch_up(leader)
    assert follower.state == leader.state
    assert follower.log.log_id != before, "what it has told of its log counts no more"
    assert not list((tmp_path / "2").glob("*.stray")), "the leader has all that counts"


def test_a_replica_that_was_gone_for_less_goes_on_where_it_was(replicas: Replicas) -> None:
    """Tombstones that came while it was gone are there; older ones, purged meanwhile, it has."""
    leader, follower, _ = replicas
    leader.send((b"k", b"old"), (b"k", None), (b"j", b"old"))
    leader.fill(0, 15)
    leader.compact()
    leader.logs.clock.advance(DAY_S - HOUR_S)
    follower.follow(7)
    follower.catch_up(leader)
    log_id, end = follower.log.log_id, follower.log.ends().log_end_offset
    leader.send((b"j", None))
    leader.fill(0, 10)
    leader.logs.clock.advance(2 * HOUR_S)
    leader.compact()
    assert 0 < leader.log.compaction.notes.purged_end <= end
    follower.catch_up(leader)
    assert follower.log.log_id == log_id
    assert follower.state == leader.state
    assert b"j" not in follower.state


def test_a_copy_made_of_a_purged_log_makes_those_begin_anew_that_have_the_records(
    replicas: Replicas,
) -> None:
    """The copy leads now; it never purged anything, and lacks the tombstone as its source did."""
    leader, follower, third = replicas
    leader.send((b"k", b"old"))
    leader.fill(0, 5)
    third.follow(7)
    third.catch_up(leader)
    leader.send((b"k", None))
    leader.fill(5, 15)
    leader.purge()
    follower.follow(7)
    follower.catch_up(leader)
    for restarts in (False, True):
        if restarts:
            follower.logs.restart()
        follower.lead()
        third.follow(8)
        assert follower.log.compaction.notes.purged_end > 6
        assert third.log.ends().log_end_offset == 6
    follower.fill(0, 3, epoch=8)
    third.catch_up(follower)
    assert third.state == follower.state
    assert b"k" not in third.state


def test_a_copy_that_takes_its_time_is_not_begun_anew(replicas: Replicas) -> None:
    """Tombstones that are purged meanwhile have nothing left to delete in what it has."""
    leader, follower, _ = replicas
    leader.send((b"k", b"old"), (b"k", None))
    leader.fill(0, 30)
    leader.compact()
    follower.follow(7)
    follower.pull(leader, max_bytes=1)
    first_end, log_id = follower.log.ends().log_end_offset, follower.log.log_id
    leader.logs.clock.advance(DAY_S + HOUR_S)
    leader.fill(0, 20)
    leader.compact()
    assert leader.log.compaction.notes.purged_end > first_end
    follower.catch_up(leader)
    assert follower.log.log_id == log_id
    assert follower.state == leader.state
    assert follower.log.compaction.notes.purged_end == leader.log.compaction.notes.purged_end


def test_a_copy_that_takes_longer_than_tombstones_are_kept_begins_anew(replicas: Replicas) -> None:
    leader, follower, _ = replicas
    leader.send((b"k", b"old"))
    leader.fill(0, 30)
    follower.follow(7)
    follower.pull(leader, max_bytes=1)
    assert follower.log.ends().log_end_offset < 10
    leader.send((b"k", None))
    leader.fill(0, 20)
    leader.purge()
    follower.catch_up(leader)
    assert follower.state == leader.state
    assert b"k" not in follower.state


def test_a_copy_is_compacted_from_where_its_source_was_clean(replicas: Replicas) -> None:
    leader, follower, _ = replicas
    leader.fill(0, 30)
    leader.compact()
    follower.follow(7)
    follower.catch_up(leader)
    clean_end = leader.log.compaction.notes.clean_end
    assert follower.log.compaction.notes.first_dirty_offset == clean_end > 0
    follower.logs.restart()
    follower.lead()
    assert follower.log.compaction.notes.first_dirty_offset == clean_end
    follower.fill(0, 30)
    follower.compact()
    assert follower.state == {b"f%d" % number: b"%d" % number * 20 for number in range(30)}


# -- record batches that the leader has joined ----------------------------------------------------


@pytest.fixture
def behind(replicas: Replicas) -> tuple[Replica, Replica]:
    """A leader that has joined all it had to one record batch, and a replica that ends in that."""
    leader, follower, _ = replicas
    leader.fill(0, 12)
    follower.follow(7)
    follower.catch_up(leader)
    leader.fill(5, 25)
    leader.log.configure(replace(leader.log.config, segment_bytes=100_000))
    leader.compact()
    follower.logs.restart()
    return leader, follower


def test_a_replica_that_ends_within_what_was_joined_is_no_other_log(
    behind: tuple[Replica, Replica], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The logs agree, and all of it comes again with what it was joined to."""
    leader, follower = behind
    follower.follow(7, committed=leader.log.ends().high_watermark)
    log_id = follower.log.log_id
    with caplog.at_level(logging.INFO):
        ends = follower.catch_up(leader)
    assert ends[0] == 12
    assert min(ends) == 0, "it has met the one that begins there"
    assert follower.log.log_id == log_id
    assert records_in(follower.log) == records_in(leader.log)
    assert "cut off" not in caplog.text
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
    assert not list((tmp_path / "2").glob("*.stray"))


def test_what_was_joined_before_the_end_of_a_replica_stays(replicas: Replicas) -> None:
    """Cuts no more than the record batch of the leader in which it ends."""
    leader, follower, _ = replicas
    leader.fill(0, 30)
    leader.compact()
    follower.follow(7)
    follower.catch_up(leader)
    base = leader.log.compaction.notes.clean_end
    leader.fill(30, 32)
    follower.catch_up(leader)
    leader.fill(32, 60)
    leader.logs.clock.advance(1)
    leader.compact()
    leader.fill(60, 61)
    ends = follower.catch_up(leader)
    assert follower.state == leader.state
    assert min(ends) >= base - 12, "a segment at most"


def test_a_replica_that_begins_within_what_was_joined_starts_over(
    behind: tuple[Replica, Replica], tmp_path: Path
) -> None:
    leader, follower = behind
    leader.log.start_from(5)
    follower.follow(7)
    follower.log.start_from(5)
    follower.catch_up(leader)
    assert records_in(follower.log) == records_in(leader.log)
    assert follower.log.ends().log_start_offset == leader.log.first_offset == 0
    assert not list((tmp_path / "2").glob("*.stray"))
    follower.logs.restart()
    follower.lead()
    assert records_in(follower.log) == records_in(leader.log)
