"""A log is brought to where its leader's is, by what that answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.broker.handlers.replica_reads import divergence
from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.assignments import WantedReplica
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.errors import CorruptRecordBatchError, ProtocolError, StorageError
from spark_logbus.log import LogConfig, PartitionLog, WantedLog
from spark_logbus.log.epochs import EpochEntry
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import LogPoint, ReplicateResult, StagedSource
from tests.builders.record_batches import record_batch
from tests.builders.staged import WRITE, attempt, stage
from tests.fakes.broker_parts import TOPIC_ID, Logs, logs_in
from tests.fakes.log_directory import ensure_one

T0 = TopicPartition("t", 0)
RECORD = TopicRecord("t", TOPIC_ID, {0: [1]}, {}, moves={0: MovePayload(to=[2], since_us=1)})
MOVING = WantedReplica(T0, RECORD, RECORD.moves[0])
CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=128)


class World:
    """A leader's log, and one that follows it; the test carries the answers."""

    def __init__(self, leading: Logs, following: Logs, watermarks: HighWatermarks) -> None:
        self.leading, self.logs, self.watermarks = leading, following, watermarks
        self.leader = ensure_one(leading.directory, T0, topic_id=TOPIC_ID, config={})
        self.room_asked: list[int] = []
        self.room = 1 << 40
        self.follow(is_copy=True)

    def follow(
        self,
        *,
        is_copy: bool,
        wanted: WantedReplica = MOVING,
        config: dict[str, str] | None = None,
    ) -> None:
        self.watermarks.follow(T0, 0)
        log = self.logs.directory.ensure_all([WantedLog(T0, TOPIC_ID, config or {}, follows=True)])[
            T0
        ]
        assert isinstance(log, PartitionLog)
        self.followed = FollowedLog(
            wanted,
            log,
            leader=1,
            leader_epoch=7,
            logs=self.logs.directory,
            watermarks=self.watermarks,
            is_copy=is_copy,
            require_room=self.require_room,
        )

    @property
    def copy(self) -> PartitionLog:
        return self.followed.log

    def require_room(self, size_bytes: int) -> None:
        self.room_asked.append(size_bytes)
        if size_bytes > self.room:
            raise StorageError("There is no room.")

    def lead(self, *counts: int, epoch: int = 7) -> None:
        for count in counts:
            self.leader.append_as_leader(record_batch(count), leader_epoch=epoch)
        self.leader.flush()

    def answer(self, **changes: object) -> tuple[ReplicateResult, memoryview]:
        """Answer of the leader to a request: some of what the follower lacks."""
        wanted = self.followed.request(1 << 20)
        ends = self.leader.ends()
        result = ReplicateResult("t", 0, leader_epoch=7, log_start_offset=ends.log_start_offset)
        result.log_end, result.high_watermark = ends.log_end_offset, ends.high_watermark
        payload = b""
        if not changes and wanted.offset < ends.log_end_offset:
            found = self.leader.read_as_replica(wanted.offset, max_bytes=wanted.max_bytes)
            assert found is not None
            payload = found.read()
            result.length = len(payload)
        for name, value in changes.items():
            setattr(result, name, value)
        return result, memoryview(bytearray(payload))

    def pull(self, **changes: object) -> None:
        self.apply(*self.answer(**changes))

    def apply(self, result: ReplicateResult, payload: memoryview) -> None:
        self.followed.apply(result, payload)
        if self.followed.is_to_be_flushed:
            self.followed.flush()
        self.followed.settle()

    def pull_all(self) -> None:
        while self.copy.ends().log_end_offset < self.leader.ends().log_end_offset:
            before = self.copy.ends().log_end_offset
            self.pull()
            assert self.copy.ends().log_end_offset > before


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    watermarks = HighWatermarks()
    with (
        logs_in(tmp_path / "1", CONFIG) as leading,
        logs_in(tmp_path / "2", CONFIG, watermark=watermarks) as following,
    ):
        yield World(leading, following, watermarks)


def test_what_the_leader_is_told_is_on_the_disk(world: World) -> None:
    world.lead(*[5] * 40)
    world.pull_all()
    wanted = world.followed.request(1 << 20)
    assert (wanted.offset, wanted.flushed_end, wanted.last_epoch) == (200, 200, 7)
    assert (wanted.log_id, wanted.leader_epoch) == (world.copy.log_id, 7)
    assert wanted.log_id != world.leader.log_id
    assert wanted.max_bytes == 2_000, "a record batch does not go over the end of a segment"
    assert world.copy.epochs.entries == world.leader.epochs.entries


def test_far_from_its_leader_a_log_is_not_flushed_with_each_answer(world: World) -> None:
    world.lead(5)
    world.pull_all()
    world.lead(5)
    result, payload = world.answer()
    result.remaining_bytes = 100 << 20
    world.apply(result, payload)
    assert (world.copy.ends().log_end_offset, world.copy.flushed_end) == (10, 5)
    world.pull(remaining_bytes=0)
    assert world.copy.flushed_end == 10
    world.lead(5)
    result, payload = world.answer()
    result.remaining_bytes, result.hand_over = 100 << 20, True
    world.apply(result, payload)
    assert world.copy.flushed_end == 15


def test_consumers_would_see_no_more_than_at_the_leader(world: World) -> None:
    world.lead(5, 5)
    result, payload = world.answer()
    result.high_watermark = 5
    world.apply(result, payload)
    assert world.copy.ends().high_watermark == 5
    world.pull()
    assert world.copy.ends().high_watermark == 10


def test_what_the_leader_has_lost_is_cut_off(world: World) -> None:
    """Its log lost an end in a crash that was copied before; it goes on in a later epoch."""
    world.lead(5, 5, 5)
    world.pull_all()
    world.leader.truncate_to(5, below_watermark=True)
    world.lead(3, epoch=8)
    world.pull(diverges=LogPoint(7, 5))
    assert world.copy.ends().log_end_offset == 5
    world.pull_all()
    assert world.copy.epochs.entries == world.leader.epochs.entries
    with pytest.raises(ProtocolError, match="cut back to 8, and it ends at 8 already"):
        world.pull(diverges=LogPoint(9, 8))


def test_an_epoch_of_which_nothing_was_written_is_cut_off(world: World) -> None:
    """A disk that was full leaves it so: the epoch is noted before its first record batch."""
    world.lead(3)
    world.pull_all()
    log = world.copy
    log.epochs.begin([EpochEntry(8, 3)])
    wanted = world.followed.request(1 << 20)
    point = divergence(world.leader, wanted)
    assert point == LogPoint(7, 3)
    world.pull(diverges=point)
    assert (log.epochs.latest, log.ends().log_end_offset) == (7, 3)
    assert divergence(world.leader, world.followed.request(1 << 20)) is None
    world.lead(2)
    world.pull_all()
    assert log.ends().log_end_offset == 5
    with pytest.raises(ProtocolError, match="it ends at 5 already"):
        world.pull(diverges=LogPoint(7, 5))


def test_what_another_leader_may_have_acknowledged_is_kept(world: World, tmp_path: Path) -> None:
    """The broker has led in an epoch of which ZooKeeper, restored, and the leader know nothing."""
    world.lead(5)
    world.pull_all()
    world.copy.append_as_leader(record_batch(5), leader_epoch=8)
    world.copy.flush()
    world.follow(is_copy=False)
    world.lead(5, epoch=9)
    world.pull(diverges=LogPoint(7, 5))
    assert list((tmp_path / "2").glob("*.stray")) != []
    world.pull_all()
    assert world.copy.epochs.entries == world.leader.epochs.entries
    assert world.copy.ends().log_end_offset == 10


def test_a_log_that_has_nothing_in_common_begins_anew(world: World) -> None:
    world.lead(5)
    world.pull_all()
    before = world.copy.log_id
    world.pull(diverges=LogPoint(3, 0))
    assert (world.copy.ends().log_end_offset, world.copy.log_id != before) == (0, True)
    world.pull_all()
    assert world.copy.ends().log_end_offset == 5


@pytest.mark.parametrize("is_copy", [True, False])
def test_a_log_that_ends_before_its_leaders_begins_anew(
    world: World, tmp_path: Path, is_copy: bool
) -> None:
    """Keeps a log that is not known to be a copy, and so may be the only one of what it has."""
    world.lead(5)
    world.pull_all()
    world.follow(is_copy=is_copy)
    world.pull(log_start_offset=50)
    ends = world.copy.ends()
    assert (ends.log_start_offset, ends.log_end_offset) == (50, 50)
    assert world.copy is world.logs.directory.get(T0)
    assert world.followed.is_copy
    strays = [each.name for each in (tmp_path / "2").iterdir() if each.name.endswith(".stray")]
    assert len(strays) == (0 if is_copy else 1)


def test_ranges_without_records_are_passed_over(world: World) -> None:
    world.lead(5)
    world.leader.go_on_at(20)
    world.lead(5)
    world.pull()
    world.pull(go_on_at=20)
    world.pull_all()
    assert world.copy.ends().lost == world.leader.ends().lost
    assert world.copy.ends().log_end_offset == 25


def test_a_replica_whose_disk_has_lost_records_does_not_tell_that_it_has_them(world: World) -> None:
    """Opening it again, which comes next, cuts it back."""
    world.lead(5, 5, 5)
    world.pull_all()
    with (world.copy.directory / f"{0:020d}.log").open("r+b") as file:
        file.seek(len(record_batch(5)))
        file.write(b"\xff" * 80)
    assert world.followed.request(1).flushed_end == 15
    with pytest.raises(CorruptRecordBatchError):
        world.copy.read(5, max_bytes=100)
    with pytest.raises(StorageError, match=r"t-0\[5, 10\) are damaged on the disk of this"):
        world.followed.request(1)


def test_the_leaders_start_is_taken(world: World) -> None:
    world.lead(*[5] * 60)
    world.pull_all()
    world.pull(log_start_offset=200)
    assert world.copy.ends().log_start_offset == 200


def test_room_is_looked_for_before_the_first_byte(world: World) -> None:
    world.lead(5)
    world.room = 1 << 20
    result, payload = world.answer()
    result.remaining_bytes = 2 << 20
    with pytest.raises(StorageError, match="no room"):
        world.apply(result, payload)
    assert world.copy.ends().size_bytes == 0
    world.room = 1 << 40
    world.apply(*world.answer())
    assert world.room_asked == [2 << 20, len(payload)]


def staged_answer(world: World, *, position: int) -> tuple[ReplicateResult, memoryview]:
    found = world.leader.staging.read_as_replica(WRITE, position, max_bytes=1 << 20)
    payload = b"" if found is None else found.read()
    result, _ = world.answer()
    size = world.leader.staging.size_bytes(WRITE)
    result.staged = [StagedSource(WRITE, size, position, len(payload))]
    return result, memoryview(bytearray(payload))


def test_what_writes_have_staged_comes_along_and_goes_with_them(world: World) -> None:
    world.lead(5)
    world.pull_all()
    stage(world.leader, attempt(1), 2, 3)
    world.apply(*staged_answer(world, position=0))
    stage(world.leader, attempt(2), 4)
    (told,) = world.followed.request(1).staged
    world.apply(*staged_answer(world, position=told.position))
    assert world.copy.staging.replica_state() == world.leader.staging.replica_state()
    (told,) = world.followed.request(1).staged
    assert told.flushed == told.position == world.leader.staging.size_bytes(WRITE)
    world.pull()  # the leader names no write
    assert world.copy.staging.replica_state() == []


def test_a_copy_of_something_else_is_dropped_and_copied_anew(world: World) -> None:
    stage(world.leader, attempt(1), 2)
    world.apply(*staged_answer(world, position=0))
    world.leader.staging.discard(WRITE)
    stage(world.leader, attempt(3), 1, 1)
    world.followed.request(1)
    result, payload = staged_answer(world, position=0)
    world.apply(result, payload)
    assert world.copy.staging.replica_state() == world.leader.staging.replica_state()


def test_a_piece_of_another_file_is_not_taken(world: World) -> None:
    stage(world.leader, attempt(1), 2)
    result, payload = staged_answer(world, position=0)
    result.staged[0] = StagedSource(WRITE + 1, len(payload), 0, len(payload))
    world.apply(result, payload)
    assert world.copy.staging.replica_state() == []
    world.apply(*staged_answer(world, position=0))
    assert world.copy.staging.replica_state() == world.leader.staging.replica_state()


# -- replicas that are assigned for good ----------------------------------------------------------


def assigned(*, committed: int | None = None, given_up: int | None = None) -> WantedReplica:
    record = TopicRecord("t", TOPIC_ID, {0: [1, 2]}, {})
    return WantedReplica(
        T0, record, state=PartitionState(1, 7, [1, 2], committed=committed, given_up=given_up)
    )


def led_before(world: World, *, shared: int = 10, surplus: int = 5) -> None:
    """Fills both logs: the follower led in epoch 6, and the leader has not its last records."""
    for log in (world.leader, world.copy):
        log.append_as_leader(record_batch(shared), leader_epoch=6)
    world.copy.append_as_leader(record_batch(surplus), leader_epoch=6)
    world.copy.flush()
    world.lead(8)


def cut_back(world: World) -> None:
    world.pull(diverges=LogPoint(6, 10))


def test_a_replica_that_led_is_cut_back_to_where_it_agrees(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Records beyond that were not replicated; the log is not copied again as a whole."""
    world.follow(is_copy=False, wanted=assigned(committed=10))
    led_before(world)
    directory = world.copy.directory
    with caplog.at_level(logging.INFO):
        cut_back(world)
    assert world.copy.ends().log_end_offset == 10
    assert "t-0 from offset 10 up to 15 are cut off here" in caplog.text
    assert "they were not replicated" in caplog.text
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
    world.pull_all()
    assert world.copy.directory == directory
    assert world.copy.epochs.entries == world.leader.epochs.entries
    assert [each.name for each in directory.parent.iterdir() if "stray" in each.name] == []


@pytest.mark.parametrize("by_state", [True, False])
def test_records_that_were_replicated_and_are_cut_off_are_an_error(
    world: World, caplog: pytest.LogCaptureFixture, by_state: bool
) -> None:
    """The leader was elected though it had not all, as an operator asked; or lost its disk."""
    committed = 13 if by_state else 4
    world.follow(is_copy=False, wanted=assigned(committed=committed))
    led_before(world)
    world.copy.replication.begin(committed)
    if not by_state:  # the leader that it followed before has told it
        world.watermarks.follow(T0, 13)
        world.copy.advance_high_watermark()
    log_end = 12 if by_state else world.leader.ends().log_end_offset
    with caplog.at_level(logging.ERROR):
        world.pull(diverges=LogPoint(6, 10), log_end=log_end)
    assert world.copy.ends().log_end_offset == 10
    assert "though those up to 13 were replicated: they are lost" in caplog.text


def follow_to_the_end(world: World) -> None:
    """Asks and applies as a follower does, until the log ends where its leader's does."""
    for _ in range(20):
        wanted = world.followed.request(1 << 20)
        if (point := divergence(world.leader, wanted)) is not None:
            world.pull(diverges=point)
        elif (lost := world.leader.lost_at(wanted.offset)) is not None:
            world.pull(go_on_at=lost.end)
        elif wanted.offset < world.leader.ends().log_end_offset:
            world.pull()
        else:
            return
    pytest.fail("the log does not come to where its leader's ends")


def ranges(log: PartitionLog) -> tuple[int, list[tuple[int, int]]]:
    ends = log.ends()
    return ends.log_end_offset, [(each.start, each.end) for each in ends.lost]


@pytest.mark.parametrize("appended", [0, 5])
def test_what_a_leader_has_more_than_one_that_was_elected_unclean_is_cut_off(
    world: World, caplog: pytest.LogCaptureFixture, appended: int
) -> None:
    """Its log ends within the range that is lost for the one that leads."""
    world.follow(is_copy=False, wanted=assigned(committed=10, given_up=6))
    for log, count in ((world.leader, 10), (world.copy, 15)):
        log.append_as_leader(record_batch(10), leader_epoch=6)
        if count > 10:
            log.append_as_leader(record_batch(count - 10), leader_epoch=6)
        log.flush()
    world.leader.go_on_at(1_000)
    if appended:
        world.lead(appended)
    with caplog.at_level(logging.ERROR):
        follow_to_the_end(world)
    assert "t-0 from offset 10 up to 15 are cut off here" in caplog.text
    assert "They may have been acknowledged, and are lost." in caplog.text
    assert ranges(world.copy) == ranges(world.leader) == (1_000 + appended, [(10, 1_000)])
    assert world.copy.epochs.entries == world.leader.epochs.entries


def test_one_that_was_elected_unclean_follows_another_that_was(world: World) -> None:
    """Each has a lost range of its own; the records that only the new leader has are copied."""
    world.follow(is_copy=False, wanted=assigned(given_up=7))
    for log in (world.leader, world.copy):
        log.append_as_leader(record_batch(10), leader_epoch=6)
    world.leader.append_as_leader(record_batch(2), leader_epoch=6)
    world.copy.go_on_at(500)
    world.copy.append_as_leader(record_batch(7), leader_epoch=7)
    world.copy.flush()
    world.leader.flush()
    world.leader.go_on_at(1_000)
    follow_to_the_end(world)
    assert ranges(world.copy) == ranges(world.leader) == (1_000, [(12, 1_000)])
    world.lead(3, epoch=8)
    follow_to_the_end(world)
    assert world.copy.epochs.entries == world.leader.epochs.entries
    for offset in (10, 11, 1_002):
        assert world.copy.read_as_replica(offset, max_bytes=1 << 20) is not None


def test_the_watermark_of_what_leaders_wrote_since_is_no_loss(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The replica comes back with records that only it had; others are at their offsets by now."""
    world.copy.append_as_leader(record_batch(15), leader_epoch=6)
    world.copy.flush()
    world.leader.append_as_leader(record_batch(10), leader_epoch=6)
    world.lead(8)
    world.logs.restart()
    world.follow(is_copy=False, wanted=assigned(committed=18))
    world.copy.replication.begin(18)
    with caplog.at_level(logging.INFO):
        cut_back(world)
    assert "from offset 10 up to 15 are cut off here" in caplog.text
    assert "they were not replicated" in caplog.text
    world.pull_all()
    assert world.copy.ends().log_end_offset == 18


@pytest.mark.parametrize(("given_up", "keeps"), [(None, False), (6, True)])
def test_a_replica_of_which_all_has_expired_begins_anew(
    world: World, given_up: int | None, keeps: bool
) -> None:
    """Its files are kept if the partition was given up: the leader may lack what they have."""
    world.follow(is_copy=False, wanted=assigned(given_up=given_up))
    world.copy.append_as_leader(record_batch(10), leader_epoch=6)
    world.copy.flush()
    parent = world.copy.directory.parent
    world.leader.append_as_leader(record_batch(10), leader_epoch=6)
    world.leader.go_on_at(20)
    world.lead(5)
    world.pull(log_start_offset=20)
    assert world.copy.ends().log_start_offset == 20
    assert any("stray" in each.name for each in parent.iterdir()) == keeps
    world.pull_all()
    assert world.copy.ends().log_end_offset == 25


@pytest.mark.parametrize(("given_up", "keeps"), [(None, False), (5, False), (6, True)])
def test_a_copy_is_kept_that_may_have_what_its_leader_has_lost(
    world: World, caplog: pytest.LogCaptureFixture, given_up: int | None, keeps: bool
) -> None:
    """The log of its leader was given up whole, and its own may be the last that has its records:
    but not one that has all from the leader of now."""
    world.follow(is_copy=True, wanted=assigned(given_up=given_up))
    world.copy.append_as_leader(record_batch(10), leader_epoch=6)
    world.copy.flush()
    parent = world.copy.directory.parent
    with caplog.at_level(logging.ERROR):
        world.pull(log_start_offset=20)
    assert world.copy.ends().log_start_offset == 20
    assert any("stray" in each.name for each in parent.iterdir()) == keeps
    assert ("from offset 0 up to 10 are cut off here" in caplog.text) == keeps
    world.pull(log_start_offset=40)
    assert sum("stray" in each.name for each in parent.iterdir()) == keeps, "nothing was in it"


def test_the_watermark_jumps_to_one_of_the_leaders(world: World) -> None:
    """The watermark rests in between, where an atomic write may lie of which the log has a part."""
    world.lead(10, 10, 10)
    world.follow(is_copy=True, wanted=assigned())
    for told, expected in ((10, 0), (25, 0)):
        result, _ = world.answer()
        result.length, result.high_watermark = 0, told
        world.apply(result, memoryview(b""))
        assert world.copy.ends().high_watermark == expected
    wanted = world.followed.request(1 << 20)
    assert wanted.offset == 0
    found = world.leader.read_as_replica(0, max_bytes=1)
    assert found is not None
    result, _ = world.answer()
    payload = found.read()
    result.length, result.high_watermark = len(payload), 30
    world.apply(result, memoryview(bytearray(payload)))
    assert world.copy.ends().log_end_offset == 10
    assert world.copy.ends().high_watermark == 10, "the log has not come to 25"
    world.pull_all()
    assert world.copy.ends().high_watermark == 30


def test_so_many_watermarks_are_kept(world: World) -> None:
    world.follow(is_copy=True, wanted=assigned())
    for offset in range(1, 10_000):
        world.followed.take_watermark(offset)
    told = world.followed._told_watermarks
    assert (told[0], told[-1], len(told)) == (1, 9_999, 64)


def test_a_replica_leaves_flushing_to_the_system_where_the_topic_does(world: World) -> None:
    """A hand-over has it on the disk nevertheless."""
    world.follow(is_copy=True, wanted=assigned(), config={"flush.policy": "os"})
    world.lead(5)
    world.pull()
    wanted = world.followed.request(1 << 20)
    assert (wanted.offset, wanted.flushed_end, wanted.safe_end) == (5, 0, 5)
    assert world.copy.ends().high_watermark == 5
    world.pull(hand_over=True)
    wanted = world.followed.request(1 << 20)
    assert (wanted.flushed_end, wanted.safe_end) == (5, 5)
