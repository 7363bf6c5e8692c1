"""Copies of what atomic writes have staged, between a leader that answers and a follower's log."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.broker.handlers.replica_reads import checked_copy, read_partition
from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.assignments import WantedReplica
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import StorageError
from spark_logbus.log import LogConfig, PartitionLog, StagedPosition, WantedLog
from spark_logbus.log.disk.filesystem import OSFile
from spark_logbus.log.staging.staged_file import StagedFile
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import ReplicateResult
from tests.builders.staged import WRITE, attempt, publish, share, stage
from tests.fakes.broker_parts import TOPIC_ID, Logs, logs_in
from tests.fakes.log_directory import ensure_one

T0 = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=128)


class Pair:
    """A leader's log and a follower's; the test carries requests and answers between them."""

    def __init__(self, leading: Logs, following: Logs, watermarks: HighWatermarks) -> None:
        self.leader = ensure_one(leading.directory, T0, topic_id=TOPIC_ID, config={})
        watermarks.follow(T0, 0)
        wanted = WantedLog(T0, TOPIC_ID, {}, follows=True)
        log = following.directory.ensure_all([wanted])[T0]
        assert isinstance(log, PartitionLog)
        state = PartitionState(1, 7, [1, 2])
        self.followed = FollowedLog(
            WantedReplica(T0, TopicRecord("t", TOPIC_ID, {0: [1, 2]}, {}), None, state),
            log,
            leader=1,
            leader_epoch=7,
            logs=following.directory,
            watermarks=watermarks,
            is_copy=True,
            require_room=lambda _: None,
        )
        #: The least that the follower had of the write after any answer.
        self.least = 0

    @property
    def copy(self) -> PartitionLog:
        return self.followed.log

    def ask(self) -> None:
        """Asks once and applies the answer, as the fetcher does."""
        wanted = self.followed.request(1 << 20)
        found = read_partition(
            self.leader,
            wanted,
            checked_copy(self.leader, 2, wanted),
            ReplicateResult("t", 0, leader_epoch=7),
            room=1 << 20,
            first=True,
            hands_over=False,
            others_have_all=True,
        )
        payload = bytearray(b"".join(each.read() for each in found.slices))
        self.followed.apply(found.result, memoryview(payload))
        self.least = min(self.least, position(self.copy).size_bytes)
        if self.followed.is_to_be_flushed:
            self.followed.flush()
        self.followed.settle()

    def copy_all(self, *, within: int = 10) -> None:
        """Asks until the follower has on its disk what the leader has."""
        self.least = position(self.copy).size_bytes
        for _ in range(within):
            self.ask()
            wanted = position(self.leader)
            if position(self.copy) == wanted._replace(flushed_bytes=wanted.size_bytes):
                return
        raise AssertionError(f"{position(self.copy)} after {within} answers, not {wanted}")


def position(log: PartitionLog) -> StagedPosition:
    return log.staging.position_of(WRITE) or StagedPosition(WRITE, 0, 0, 0)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    watermarks = HighWatermarks()
    with (
        logs_in(tmp_path / "1", CONFIG) as leading,
        logs_in(tmp_path / "2", CONFIG, watermark=watermarks) as following,
    ):
        yield Pair(leading, following, watermarks)


def test_a_leader_with_less_of_a_write_has_only_the_rest_cut_off(pair: Pair) -> None:
    """Keeps what is prepared on the disk of a follower, which may be the next to lead. The leader
    was elected before it had what an attempt that does not count has staged."""
    stage(pair.leader, attempt(1), 2, 3)
    pair.copy_all()
    prepared = position(pair.copy).size_bytes
    stage(pair.copy, attempt(2), 1, 1, 1)
    pair.copy_all()
    assert pair.least == prepared
    pair.copy.publishing.check(share(5, 1), 1, leader_epoch=1)
    publish(pair.copy, share(5, 1))
    assert pair.copy.ends().log_end_offset == 5


@pytest.mark.parametrize("count", [1, 3, 250, 900])
def test_what_two_files_have_in_common_stays(pair: Pair, count: int) -> None:
    stage(pair.leader, attempt(1), *[1] * 40)
    pair.copy_all()
    common = position(pair.copy).size_bytes
    stage(pair.leader, attempt(2), *[1] * count)
    stage(pair.copy, attempt(3), 1, 1)
    pair.copy_all()
    # Of a leader that went far ahead, some of that is copied again.
    assert pair.least == common if count <= 200 else 0 <= pair.least <= common
    assert pair.copy.staging.replica_state()[0].digest == position(pair.leader).digest


def test_nothing_stays_of_a_write_that_began_anew(pair: Pair) -> None:
    stage(pair.leader, attempt(1), 2)
    pair.copy_all()
    pair.leader.staging.discard(WRITE)
    stage(pair.leader, attempt(3), 1, 1)
    pair.copy_all()
    assert pair.least == 0


def fail_flushes(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> StagedFile:
    file = log.staging.file_of(WRITE)
    assert file is not None

    def sync(self: OSFile) -> None:
        if self is file.file:
            raise OSError(errno.EIO, "Input/output error")
        genuine(self)

    genuine = OSFile.sync
    monkeypatch.setattr(OSFile, "sync", sync)
    return file


def test_what_a_failed_flush_has_lost_is_copied_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps the leader from waiting for this follower each time when it prepares the write."""
    stage(pair.leader, attempt(1), 2, 3)
    pair.copy_all()
    prepared = position(pair.copy).size_bytes
    stage(pair.leader, attempt(2), 4)
    failed = fail_flushes(pair.copy, monkeypatch)
    pair.copy_all()
    assert failed.failure is not None
    assert pair.least == prepared, "what was on the disk stays there"
    assert not failed.path.exists()
    stage(pair.leader, attempt(2), 1, start=4)
    pair.copy_all()


def test_a_disk_that_takes_no_new_file_is_told_of_and_tried_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(pair.leader, attempt(1), 2)
    pair.copy_all()
    stage(pair.leader, attempt(1), 4, start=2)
    fail_flushes(pair.copy, monkeypatch)
    pair.ask()
    before = position(pair.copy)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(OSFile, "copy_from", refuse)
        for _ in range(2):
            with pytest.raises(StorageError, match="No space left"):
                pair.ask()
    assert position(pair.copy) == before
    assert len([*pair.copy.directory.glob("*.staged")]) == 1
    pair.copy_all()
