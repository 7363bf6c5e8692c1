"""Partitions move away from a broker whose disk is full, which makes room on it."""

from __future__ import annotations

import errno
import os
import secrets
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_logbus.client import (
    Admin,
    AtomicWrites,
    Cluster,
    Producer,
    RecordFuture,
    StagedTask,
    WriteIdentity,
)
from spark_logbus.errors import StorageError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import TopicPartition
from spark_logbus.record.stage_id import WRITE_BITS, stage_id
from tests.fault.load.checks import check_content, read_all
from tests.fault.load.machines import points_of_brokers
from tests.fault.load.moves import begin
from tests.fault.load.records import CLIENT, PRODUCER, WAIT_S, value_of
from tests.fault.load.writers import Filler, Writer
from tests.fault.small_disk import BrokerOnSmallDisk, SmallDisk, small_disk
from tests.helpers import wait_until
from tests.servers.broker import broker_process

SETTINGS = {
    "broker": {"zookeeper_session_ms": 30_000},  # longer than a broker is stopped
    "log": {"segment_bytes": 1 << 20},
    "moves": {"retention_ms": 0, "reserve_bytes": 0},
}
NO_SPACE = os.strerror(errno.ENOSPC)
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class RefusedSender(Writer):
    """An idempotent producer some of whose records the disk refuses: those are nowhere then."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(2, [A, B], "refused")
        self._cluster = cluster
        self.refused = dict.fromkeys(self.partitions, 0)
        self.taken = dict.fromkeys(self.partitions, 0)

    def work(self) -> None:
        with Producer(self._cluster, PRODUCER) as producer:
            while not self.stopping.wait(0.02):
                for where in self.partitions:
                    records = self.take(10)
                    futures = [
                        producer.send(where.topic, value_of(each), partition=where.partition)
                        for each in records
                    ]
                    for record, future in zip(records, futures, strict=True):
                        self._note(where, record, future)

    def _note(self, where: TopicPartition, record: int, future: RecordFuture) -> None:
        error = future.exception(WAIT_S)
        if error is None:
            offset = future.result(0).offset
            assert offset is not None, "it is acknowledged with its place"
            self.places.add(where, offset, [record])
            self.taken[where] += 1
        else:
            assert isinstance(error, StorageError)
            assert NO_SPACE in str(error)
            self.refused[where] += 1

    def wait_until_refused(self, where: TopicPartition) -> None:
        self._wait_for_more(self.refused, where)

    def wait_until_taken(self, where: TopicPartition) -> None:
        self._wait_for_more(self.taken, where)

    def _wait_for_more(self, counts: dict[TopicPartition, int], where: TopicPartition) -> None:
        before = counts[where]

        def has_more() -> bool:
            assert not self.error, self.error
            return counts[where] > before + 20

        wait_until(has_more, message=f"more records of {where}")


class StagedWrite:
    """An atomic write that is prepared, so that it can be decided at any time."""

    def __init__(self, cluster: Cluster, where: TopicPartition, records: list[int]) -> None:
        self._writes = AtomicWrites(cluster)
        self._identity = WriteIdentity(writer="me", version=1)
        self._write = secrets.randbits(WRITE_BITS)
        self.records = records
        with Producer(cluster, PRODUCER, stage_id=stage_id(self._write, 1)) as producer:
            for record in records:
                producer.send(where.topic, value_of(record), partition=where.partition)
        self._task = StagedTask(1, {where: len(records)}, 1_000)
        self._decision = self._writes._decision(self._identity, self._write, [self._task])
        self._promises = self._writes._prepare(self._identity, self._decision)

    def decide(self) -> None:
        assert self._writes._decide(self._identity, self._decision, self._promises, None) is None

    def is_visible(self) -> bool:
        return self._writes.commit(self._identity, self._write, [self._task]).visible


@pytest.mark.long
def test_partitions_move_away_from_a_full_disk_and_it_has_room_again(
    tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when one partition begins to be copied, with a write that is decided and
    finds no room to be published, and when the lead of another is handed over."""
    points = points_of_brokers(tmp_path, monkeypatch)
    (tmp_path / "1").mkdir()
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "1" / "data", mib=24))
        old = BrokerOnSmallDisk(
            tmp_path / "1", broker_id=1, zookeeper=chroot, settings=SETTINGS, disk=disk
        )
        stack.callback(old.stop)
        old.start()
        cluster = stack.enter_context(Cluster.from_zookeeper(chroot, CLIENT))
        admin = Admin(cluster)
        for topic in (A.topic, B.topic):
            admin.create_topic(topic, partitions=1)
        new = stack.enter_context(
            broker_process(tmp_path / "2", chroot, broker_id=2, settings=SETTINGS)
        )
        filler, sender = Filler(cluster, {A: 200, B: 200}), RefusedSender(cluster)
        staged = StagedWrite(cluster, A, sender.take(500))
        sender.start()
        stack.callback(sender.join, WAIT_S)
        stack.callback(sender.stopping.set)

        points.arm("copying", A.topic)
        begin(admin, {A: 2}, 0)
        points.wait_for("copying", A.topic, _Running(new))
        disk.fill()
        staged.decide()
        sender.wait_until_refused(A)
        _check_told(admin)
        os.kill(new.pid, signal.SIGCONT)
        _wait_until_gone(admin, A, disk)
        wait_until(staged.is_visible)
        sender.committed.append({A: staged.records})
        sender.wait_until_taken(A)

        points.arm("handing-over", B.topic)
        begin(admin, {B: 2}, 0)
        points.wait_for("handing-over", B.topic, _Running(old))
        disk.fill()
        os.kill(old.pid, signal.SIGCONT)
        _wait_until_gone(admin, B, disk)
        sender.wait_until_taken(B)

        sender.stopping.set()
        sender.join(WAIT_S)
        assert not sender.error, sender.error
        check_content(read_all(cluster, [A, B]), [filler, sender])


def _check_told(admin: Admin) -> None:
    """The cluster says what is refused while the move goes on."""
    described = admin.describe_cluster()
    assert not described.healthy
    assert {each.broker_id: NO_SPACE in (each.problem or "") for each in described.brokers} == {
        1: True, 2: False,
    }  # fmt: skip


def _wait_until_gone(admin: Admin, where: TopicPartition, disk: SmallDisk) -> None:
    """Waits until the other broker serves the partition, and its bytes are gone from the disk."""

    def is_at_other() -> bool:
        part = admin.describe([where.topic])[where.topic].partitions[where.partition]
        return part.leader_id == 2 and part.ends is not None

    wait_until(is_at_other, message=f"broker 2 to serve {where}")
    left = [str(where), "*.moved", "*.deleted"]
    wait_until(
        lambda: not [path for pattern in left for path in disk.seen.glob(pattern)],
        message=f"no file of {where} to be left",
    )
    status = os.statvfs(disk.seen)
    assert status.f_bavail * status.f_frsize > 200 * 20_000 / 2


class _Running:
    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def alive(self) -> bool:
        assert self._broker.running, self._broker.log_file.read_text()[-5000:]
        return True
