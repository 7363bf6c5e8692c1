"""Queries that copy topics into others exactly once, in drivers that tests kill.

Keys are copied in their order, so at every moment the copy has a prefix of what was sent with each
key. And as a micro-batch is all there or not at all, the copy ends, as soon as nothing is being
published, where a micro-batch ends.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_logbus.client import Producer
from spark_logbus.coordination.writes.writers import WriterRegistry
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.cluster import Logbus
from tests.servers.kill_points import KillPoints
from tests.servers.spark import TASKS
from tests.servers.spark_processes import Driver
from tests.servers.staged_files import staged_bytes

KEYS = 20

Placed = dict[TopicPartition, list[str]]


class CopyingDrivers:
    """Starts drivers, one after the other, which copy these topics. ``directory`` is theirs."""

    def __init__(self, copies: Sequence[CopiedTopic], directory: Path, *, master: str) -> None:
        self._copies = copies
        self._directory = directory
        self._master = master
        self.points = KillPoints(directory / "points")
        self._started: list[Driver] = []

    def start(self, *, mode: str = TASKS) -> Driver:
        """Another driver of the queries, whatever the last one does."""
        copies = [
            part
            for copy in self._copies
            for part in (copy.source, copy.target, str(copy.checkpoint))
        ]
        driver = Driver(
            "tests.integration.spark.copy_program",
            self._copies[0].logbus.zookeeper, mode, self._master, *copies,
            log=self._directory / f"driver-{len(self._started)}.log",
            env=self.points.environment,
        )  # fmt: skip
        self._started.append(driver)
        for copy in self._copies:
            copy.driver = driver
        return driver

    def stop_at(self, point: str, copy: CopiedTopic, *, records: int) -> tuple[int, int]:
        """Give it records to copy; the process that then stands still at the point, and its
        micro-batch."""
        self.points.arm(point, copy.target)
        copy.produce(records)
        pid = self.points.wait_for(point, copy.target, copy.running)
        assert copy.planned == copy.committed + 1
        return pid, copy.planned

    def kill(self) -> None:
        for driver in self._started:
            driver.kill()


class CopiedTopic:
    """The topics, the driver process, and what is known of them. ``directory`` is made."""

    def __init__(self, logbus: Logbus, embedded: EmbeddedCluster, directory: Path) -> None:
        directory.mkdir()
        self.logbus = logbus
        self.embedded = embedded
        self.checkpoint = directory / "checkpoint"
        self.source = logbus.topic(partitions=3)
        self.target = logbus.topic(partitions=2)
        self.sent: Placed = defaultdict(list)
        self._next = Counter[int]()
        self.driver: Driver | None = None

    @property
    def running(self) -> Driver:
        assert self.driver is not None
        return self.driver

    # -- what is to be copied -------------------------------------------------------------

    def produce(self, records: int) -> None:
        """Values tell key and number: ``7:000042``."""
        futures = []
        with Producer(self.logbus.cluster) as producer:
            for number in range(records):
                key = number % KEYS
                value = f"{key}:{self._next[key]:06d}"
                self._next[key] += 1
                futures.append(
                    (value, producer.send(self.source, value.encode(), key=str(key).encode()))
                )
        for value, future in futures:
            placed = future.result(60)
            of = self.sent[TopicPartition(self.source, placed.partition)]
            assert placed.offset == len(of), "the producer's own retries repeat nothing"
            of.append(value)

    def up_to(self, batch: int) -> list[str]:
        """Returns all that the query has read with this micro-batch, sorted."""
        if batch < 0:
            return []
        line = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
        ends: Mapping[str, int] = json.loads(line)["to"][self.source]
        return sorted(
            value
            for partition, end in ends.items()
            for value in self.sent[TopicPartition(self.source, int(partition))][:end]
        )

    @property
    def planned(self) -> int:
        """The last micro-batch that the query has begun."""
        return self._last("offsets")

    @property
    def committed(self) -> int:
        """The last micro-batch of which Spark has noted that it is over."""
        return self._last("commits")

    def forget_commit(self, batch: int) -> None:
        """Take back Spark's note that the micro-batch is over."""
        commits = self.checkpoint / "commits"
        (commits / f"{batch}").unlink()
        (commits / f".{batch}.crc").unlink(missing_ok=True)  # it comes a little later

    def _last(self, log: str) -> int:
        found = [path.name for path in (self.checkpoint / log).glob("*")]
        return max((int(name) for name in found if name.isdecimal()), default=-1)

    # -- the copy -------------------------------------------------------------------------

    def copied(self) -> list[str]:
        """Reads all as a consumer, sorted; checks that each key's values are a prefix, in order."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        values = self.logbus.values(self.target)
        for value in (value for partition in values for value in partition):
            found[value.partition(":")[0]].append(value)
        for key, of_key in found.items():
            assert of_key == [f"{key}:{number:06d}" for number in range(len(of_key))]
        return sorted(value for of_key in found.values() for value in of_key)

    @property
    def idle(self) -> bool:
        """Tells if all that was sent is copied, as far as consumers and Spark's log can tell."""
        total = sum(len(values) for values in self.sent.values())
        return self.planned == self.committed and self.seen() >= total

    def wait_for_all(self, *, deadline_s: float = 180) -> None:
        """Waits until the driver has copied all that was sent."""
        expected = sorted(value for values in self.sent.values() for value in values)
        wait_until(
            lambda: self.running.alive() and self.idle,
            deadline_s=deadline_s, message=f"{len(expected)} records in {self.target}",
        )  # fmt: skip
        assert self.copied() == expected

    def seen(self) -> int:
        """The number of records that consumers see on the brokers that are there."""
        described = self.logbus.admin.describe([self.target], ends=True)[self.target]
        ends = [partition.ends for partition in described.partitions.values()]
        return sum(end.high_watermark for end in ends if end is not None)

    def wait_until_settled(self) -> None:
        with Session(self.logbus.zookeeper, client_name="test") as session:
            registry = WriterRegistry(session)
            wait_until(
                lambda: not registry.pending().states, message="decided writes to be published"
            )

    def staged_bytes(self) -> int:
        return staged_bytes(self.embedded, self.target)

    def expire_staged(self) -> None:
        """Waits until nothing is staged any more, however it was left behind."""
        self.logbus.admin.alter_topic(self.target, put={"staging.retention.ms": 1000})
        wait_until(
            lambda: self.staged_bytes() == 0, deadline_s=60, message="what is left staged to expire"
        )
