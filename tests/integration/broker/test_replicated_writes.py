"""Atomic writes to topics with three replicas, while leaders are killed and disks fail."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from spark_logbus.broker import Broker
from spark_logbus.client import AtomicWrites, StagedTask, WriteIdentity
from spark_logbus.errors import WriteNotPreparedError
from spark_logbus.log import PartitionLog
from spark_logbus.log.disk.filesystem import OSFile
from spark_logbus.log.staging.staging import PartitionStaging
from spark_logbus.model import TopicPartition
from spark_logbus.record.stage_id import WRITE_BITS, stage_id
from tests.builders.producers import batch
from tests.helpers import wait_until
from tests.integration.broker.test_replicas import KILLED, Three, numbers, stage

ME = WriteIdentity(writer="me", version=1)


@pytest.fixture
def three(tmp_path: Path, chroot: str) -> Iterator[Three]:
    with ExitStack() as stack:
        yield Three(tmp_path, chroot, stack)


def led_by(three: Three, topic: str, leader: int) -> tuple[TopicPartition, list[int]]:
    """A partition that the broker leads, and its replicas."""
    three.wait_for_all(topic)
    found = three.admin.describe([topic])[topic].partitions
    number = next(each for each, partition in found.items() if partition.leader_id == leader)
    return TopicPartition(topic, number), list(found[number].replicas)


def copy_of(broker: Broker, where: TopicPartition) -> PartitionLog:
    log = broker._logs.get(where)
    assert log is not None
    return log


def test_an_elected_leader_with_less_of_a_write_costs_no_replica_what_is_prepared(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is killed when an attempt that does not count has come to the second of its two
    followers alone."""
    three.create("t")
    where, replicas = led_by(three, "t", KILLED)
    elected, other = (three.brokers[each] for each in replicas[1:])
    write = secrets.randbits(WRITE_BITS)
    writes = AtomicWrites(three.cluster)
    task = stage(three.cluster, "t", write, 1, range(60))
    writes._prepare(ME, writes._decision(ME, write, [task]))
    prepared = copy_of(other, where).staging.position_of(write)
    assert prepared == copy_of(elected, where).staging.position_of(write)
    dropped: list[int] = []
    drop = PartitionStaging.drop_as_follower

    def note(self: PartitionStaging, write: int) -> bool:
        dropped.append(write)
        return drop(self, write)

    three.process.kill()
    copy_of(other, where).staging.stage(
        batch(0, 5, producer=stage_id(write, 2)), leader_epoch=1
    ).file.flush()
    with monkeypatch.context() as patch:
        patch.setattr(PartitionStaging, "drop_as_follower", note)
        wait_until(lambda: elected._replica_manager.find(where), message="to be elected")
        wait_until(
            lambda: copy_of(other, where).staging.position_of(write) == prepared,
            message="what the leader has not to be cut off",
        )
        assert write not in dropped
    outcome = writes.commit(ME, write, [task])
    assert (outcome.committed, outcome.visible) == (True, True)
    assert numbers(three.cluster, "t", 60) == [*range(60)]


def test_a_follower_whose_flush_of_a_write_fails_once_holds_it_up_no_longer(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.create("t")
    failed: list[Path] = []
    genuine = OSFile.sync
    follower = three.brokers[2].config.data_dir

    def sync(self: OSFile) -> None:
        is_staged = self.path.suffix == ".staged" and follower in self.path.parents
        if is_staged and not failed and self.path.parent.name != led_there:
            failed.append(self.path)
            raise OSError(errno.EIO, "Input/output error")
        genuine(self)

    where, _ = led_by(three, "t", 2)
    led_there = str(where)
    monkeypatch.setattr(OSFile, "sync", sync)
    write = secrets.randbits(WRITE_BITS)
    tasks: list[StagedTask] = [stage(three.cluster, "t", write, 1, range(60))]
    tasks.append(stage(three.cluster, "t", write, 2, range(60, 90)))
    assert failed
    outcome = AtomicWrites(three.cluster).commit(ME, write, tasks)
    assert (outcome.committed, outcome.visible) == (True, True)
    assert numbers(three.cluster, "t", 90) == [*range(90)]


def bring_back(three: Three, where: TopicPartition) -> None:
    """Starts the broker that was killed, and has it lead its partition again."""
    three.process.start()
    three.wait_for_all(where.topic)

    def leads() -> bool:
        three.admin.elect_preferred(where.topic)
        part = three.admin.describe([where.topic])[where.topic].partitions[where.partition]
        return part.leader_id == KILLED

    wait_until(leads, message=f"broker {KILLED} to lead {where}")


def commit_and_kill(
    three: Three, where: TopicPartition, first: int, *, version: int, at: str
) -> None:
    """Commits a write of 600 numbers, and kills a leader at one of its steps."""
    writes = AtomicWrites(three.cluster)
    write, identity = secrets.randbits(WRITE_BITS), WriteIdentity(writer="me", version=version)
    size_kb = 16 if at == "half out" else 0

    def come_to(step: str) -> None:
        if step == at:
            three.process.kill()

    tasks = [stage(three.cluster, "t", write, 1, range(first, first + 30), size_kb=size_kb)]
    come_to("begun")
    rest = range(first + 30, first + 600)
    tasks.append(stage(three.cluster, "t", write, 2, rest, size_kb=size_kb))
    come_to("staged")
    decision = writes._decision(identity, write, tasks)
    promises = writes._prepare(identity, decision)
    come_to("prepared")
    with suppress(WriteNotPreparedError):  # then it is prepared again below
        assert writes._decide(identity, decision, promises, None) is None
    come_to("decided")
    follower = copy_of(three.brokers[1], where)
    end = follower.ends().log_end_offset
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(writes.commit, identity, write, tasks)
        if at == "half out":
            wait_until(lambda: follower.ends().log_end_offset > end, message="some to be out")
            come_to(at)
        outcome = committing.result()
    assert (outcome.write, outcome.visible) == (write, True)


def test_a_write_is_committed_once_at_whatever_step_a_leader_is_killed(three: Three) -> None:
    """Kills a leader when half is staged, when all is, is prepared, decided, and half published."""
    three.create("t", config={"segment.bytes": str(1 << 20)})
    where, _ = led_by(three, "t", KILLED)
    steps = ("begun", "staged", "prepared", "decided", "half out")
    for version, step in enumerate(steps):
        commit_and_kill(three, where, 600 * version, version=version, at=step)
        committed = 600 * (version + 1)
        assert numbers(three.cluster, "t", committed) == [*range(committed)], step
        bring_back(three, where)
    assert numbers(three.cluster, "t", 3_000) == [*range(3_000)]
