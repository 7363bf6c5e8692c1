"""Producers and writers of atomic writes. Each knows what it has written, and where if it was
told."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from spark_logbus.client import (
    AppendedRange,
    AtomicWrites,
    Cluster,
    Producer,
    RecordFuture,
    StagedTask,
    WriteIdentity,
)
from spark_logbus.local.processes import spawn
from spark_logbus.model import TopicPartition
from spark_logbus.record.stage_id import WRITE_BITS, stage_id
from tests.fault.load.participants import Participant
from tests.fault.load.records import FILLER, PRODUCER, WAIT_S, Places, Record, name, value_of
from tests.helpers import process_is_gone
from tests.servers.kill_points import KillPoints

How = Literal["send", "send_many", "send_arrow"]
Shares = dict[TopicPartition, list[Record]]
"""The records of an atomic write in each partition, in their order."""

ROOT: Final = Path(__file__).parents[3]
PROGRAM: Final = "tests.fault.load.atomic_writer_program"
_BURST = 10
_BETWEEN_BURSTS_S = 0.05
_UNANSWERED = 20  # bursts


class Writer(Participant):
    """Writes numbered records into some partitions. ``number`` is no other writer's."""

    def __init__(self, number: int, partitions: Sequence[TopicPartition], kind: str) -> None:
        super().__init__(f"{kind}-{number}")
        self.number = number
        self.partitions = partitions
        self.chance = random.Random(number)
        self._written = 0
        #: What is to be found, and where.
        self.places = Places()
        #: Atomic writes that were committed: each is to be found whole.
        self.committed: list[Shares] = []

    def take(self, count: int) -> list[Record]:
        """The next records."""
        first = self._written + 1
        self._written += count
        return [name(self.number, number) for number in range(first, first + count)]


class Sender(Writer):
    """An idempotent producer. Each of its records has to be acknowledged."""

    def __init__(
        self, number: int, cluster: Cluster, partitions: Sequence[TopicPartition], how: How
    ) -> None:
        super().__init__(number, partitions, how)
        self._cluster = cluster
        self._how = how
        self._unanswered: deque[_Burst] = deque()

    def work(self) -> None:
        with Producer(self._cluster, PRODUCER) as producer:
            while not self.stopping.is_set():
                records = self.take(self.chance.randint(1, _BURST))
                where = self.chance.choice(self.partitions)
                self._unanswered.append(
                    _Burst(where, records, self._send(producer, where, records))
                )
                while len(self._unanswered) > _UNANSWERED or (
                    self._unanswered and self._unanswered[0].is_answered
                ):
                    self._settle(self._unanswered.popleft())
                self.stopping.wait(_BETWEEN_BURSTS_S)
            producer.flush()
            while self._unanswered:
                self._settle(self._unanswered.popleft())

    def _send(
        self, producer: Producer, where: TopicPartition, records: Sequence[Record]
    ) -> Sequence[RecordFuture | Future[AppendedRange]]:
        topic, partition = where.topic, where.partition
        values = [value_of(record) for record in records]
        match self._how:
            case "send":
                return [producer.send(topic, value, partition=partition) for value in values]
            case "send_many":
                return producer.send_many(topic, values, partition=partition)
            case "send_arrow":
                table = pa.table({"value": pa.array(values, pa.binary())})
                return producer.send_arrow(topic, table, partition=partition)

    def _settle(self, burst: _Burst) -> None:
        records = iter(burst.records)
        for future in burst.futures:
            placed = future.result(WAIT_S)
            count = 1
            if isinstance(placed, AppendedRange):
                offset, count = placed.base_offset, placed.record_count
            else:
                offset = placed.offset
            assert TopicPartition(placed.topic, placed.partition) == burst.where
            assert offset is not None, "it is acknowledged with its place"
            self.places.add(burst.where, offset, list(itertools.islice(records, count)))
        assert next(records, None) is None
        self.progress += 1


class Filler(Writer):
    """Has written so many large records into each of the partitions, and does no more."""

    def __init__(self, cluster: Cluster, sizes: Mapping[TopicPartition, int]) -> None:
        super().__init__(FILLER, list(sizes), "filler")
        with Producer(cluster, PRODUCER) as producer:
            for where, count in sizes.items():
                names = self.take(count)
                values = [value_of(record) for record in names]
                futures = producer.send_many(where.topic, values, partition=where.partition)
                left = iter(names)
                for future in futures:
                    placed = future.result(WAIT_S)
                    assert placed.base_offset is not None
                    some = list(itertools.islice(left, placed.record_count))
                    self.places.add(where, placed.base_offset, some)

    def work(self) -> None:
        self.stopping.wait()


class _Burst:
    def __init__(
        self,
        where: TopicPartition,
        records: Sequence[Record],
        futures: Sequence[RecordFuture | Future[AppendedRange]],
    ) -> None:
        self.where = where
        self.records = records
        self.futures = futures

    @property
    def is_answered(self) -> bool:
        return all(future.done() for future in self.futures)


class AtomicWriter(Writer):
    """Commits atomic writes into all partitions, one after the other. Some are staged for longer
    before they are committed, and some are aborted: nothing of these may ever be found."""

    def __init__(self, number: int, cluster: Cluster, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(number, partitions, "atomic-writer")
        self._cluster = cluster

    def work(self) -> None:
        writes = AtomicWrites(self._cluster)
        for version in itertools.count(1):
            if self.stopping.is_set():
                return
            identity = WriteIdentity(writer=self.name, version=version)
            write = self.chance.getrandbits(WRITE_BITS)
            attempts = self.chance.sample(range(100), 3)
            tasks, shares = [], defaultdict[TopicPartition, list[Record]](list)
            for attempt in attempts[1:]:
                task, staged = self._stage(identity, write, attempt)
                tasks.append(task)
                for where, records in staged.items():
                    shares[where] += records
            if self.chance.random() < 0.3:  # a task that was begun twice
                self._stage(identity, write, attempts[0])
            self.stopping.wait(self.chance.choice([0, 0, 0.2, 2]))
            if self.chance.random() < 0.2:
                assert writes.abort(identity, write)
            else:
                commit = writes.commit(identity, write, tasks)
                assert (commit.committed, commit.write) == (True, write)
                self.committed.append(dict(shares))
            self.progress += 1
            self.stopping.wait(0.1)

    def _stage(
        self, identity: WriteIdentity, write: int, attempt: int
    ) -> tuple[StagedTask, Shares]:
        shares = {where: self.take(self.chance.randint(1, 20)) for where in self.partitions}
        return stage(self._cluster, identity, stage_id(write, attempt), attempt, shares), shares


def stage(
    cluster: Cluster, identity: WriteIdentity, staged_as: int, attempt: int, shares: Shares
) -> StagedTask:
    """Stages the records for their partitions as one attempt of a task."""
    values = {where: list(map(value_of, records)) for where, records in shares.items()}
    with Producer(cluster, PRODUCER, stage_id=staged_as, stage_for=identity) as producer:
        for where, some in values.items():
            producer.send_many(where.topic, some, partition=where.partition)
    size = sum(len(value) for some in values.values() for value in some)
    return StagedTask(attempt, {where: len(some) for where, some in values.items()}, size)


class KilledWriters(Writer):
    """Programs that write atomically, killed one after the other at a step of their commits. What
    was decided by then is to be found; nothing of the rest."""

    is_slow = True
    POINTS: Final = ("decided", "half-published", "prepared", "staged", "published")
    DECIDED: Final = ("decided", "half-published", "published")
    RECORDS: Final = 40

    def __init__(
        self,
        number: int,
        cluster: Cluster,
        partitions: Sequence[TopicPartition],
        points: KillPoints,
        directory: Path,
    ) -> None:
        super().__init__(number, partitions, "killed-writer")
        addresses = [(each.broker_id, each.host, each.port) for each in cluster.brokers]
        self._brokers = json.dumps(addresses)
        self._points = points
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def work(self) -> None:
        for version, point in enumerate(itertools.cycle(self.POINTS), start=1):
            if self.stopping.is_set():
                return
            self._write_and_kill(version, point)
            self.progress += 1
            self.stopping.wait(
                1 + 2 * self.chance.random()
            )  # to start one takes a processor a while

    def alive(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log(self.progress + 1).read_text()[-5000:]
        return True

    def _write_and_kill(self, version: int, point: str) -> None:
        records = self.take(self.RECORDS)
        topic = self.partitions[0].topic
        self._points.arm(point, topic)
        arguments = (self._brokers, topic, len(self.partitions), self.number, version,
                     records[0], self.RECORDS)  # fmt: skip
        self._process = spawn(
            [sys.executable, "-m", PROGRAM, *map(str, arguments)],
            output=self._log(version),
            cwd=ROOT,
            env={**os.environ, **self._points.environment},
        )
        pid = self._points.wait_for(point, topic, self)
        assert pid == self._process.pid
        os.kill(pid, signal.SIGKILL)
        self._process.wait()
        assert process_is_gone(pid)
        if point in self.DECIDED:
            self.committed.append(spread(records, self.partitions))

    def _log(self, version: int) -> Path:
        return self._directory / f"{self.name}-{version}.log"


def spread(records: Sequence[Record], partitions: Sequence[TopicPartition]) -> Shares:
    """Shares out the records in turn."""
    count = len(partitions)
    return {where: list(records[number::count]) for number, where in enumerate(partitions)}
