"""Consumers that share a topic come, go, are killed and stopped, and each partition is read by one
of them at a time: told from what they have written down themselves."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import TopicPartition
from tests.helpers import wait_until
from tests.servers.zookeeper import session

PROJECT = Path(__file__).parents[3]
PROGRAM = "tests.integration.groups.group_member_program"
SESSION_MS = 4_000
SETTLED_S = 2 * SESSION_MS / 1000
MARGIN_S = 60.0  # of the machine: ZooKeeper's ticks, the start of a Python process
TOPIC, PARTITIONS, MEMBERS = "t", 8, 6

logger = logging.getLogger(__name__)


@dataclass
class Member:
    """A process, and its journal."""

    process: subprocess.Popen[bytes]
    journal: Path
    stopped: bool = False

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def events(self) -> list[dict[str, Any]]:
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        # A process that was killed may have left half a line.
        return [json.loads(line) for line in lines if line.endswith("}")]

    def reads(self) -> set[int]:
        """The partitions that it reads, for all that it knows."""
        found: set[int] = set()
        for event in self.events():
            if event["event"] == "assigned":
                found.add(event["partition"])
            elif event["event"] in ("revoked", "lost"):
                found.discard(event["partition"])
        return found

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


class Group:
    """Its members, of which some are stopped and some were killed."""

    def __init__(self, zookeeper: str, directory: Path, assignor: str) -> None:
        self._zookeeper = zookeeper
        self._directory = directory
        self._assignor = assignor
        self.members: list[Member] = []

    def join(self) -> Member:
        journal = self._directory / f"member-{len(self.members)}.jsonl"
        arguments = (self._zookeeper, TOPIC, journal, self._assignor, SESSION_MS)
        with (self._directory / f"member-{len(self.members)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, *map(str, arguments)],
                cwd=PROJECT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        member = Member(process, journal)
        self.members.append(member)
        return member

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if member.alive and not member.stopped]

    def is_settled(self) -> bool:
        """Each partition is read by one of those that run, and by all of them about as many."""
        reads = [member.reads() for member in self.running]
        together = [partition for one in reads for partition in one]
        sizes = [len(one) for one in reads]
        return sorted(together) == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1

    def close(self) -> None:
        for member in self.members:
            if member.alive:
                member.signal(signal.SIGCONT)
                member.process.terminate()
        for member in self.members:
            try:
                member.process.wait(60)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
                raise


class Load:
    """A producer that appends the numbers from 0 on, in their order, to each partition."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def _run(self) -> None:
        with Producer(self._cluster) as producer:
            while not self._ended.wait(0.005):
                for partition in range(PARTITIONS):
                    producer.send(TOPIC, b"%d" % self.count, partition=partition)
                self.count += 1

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize(
    ("assignor", "changes"),
    [
        ("sticky", 10),
        pytest.param("sticky", 20, marks=pytest.mark.slow),
        pytest.param("range", 20, marks=pytest.mark.slow),
    ],
)
def test_each_partition_has_one_reader_whoever_comes_and_goes(
    embedded: EmbeddedCluster, tmp_path: Path, assignor: str, changes: int
) -> None:
    chance = random.Random(7)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.from_zookeeper(embedded.zookeeper))
        Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS)
        group = Group(embedded.zookeeper, tmp_path, assignor)
        stack.callback(group.close)
        load = stack.enter_context(Load(cluster))
        for _ in range(MEMBERS):
            group.join()
        settle(group, MARGIN_S)
        for number in range(changes):
            change = change_one(group, chance)
            if number in (6, 13):
                server = embedded.zookeeper_server
                os.kill(server.pid, signal.SIGKILL)
                wait_until(lambda server=server: not server.running)  # type: ignore[misc]
                server.start()
                change += ", and ZooKeeper was killed"
            took = settle(group, MARGIN_S)
            logger.info("Change %d: %s; settled after %.1f s.", number + 1, change, took)
        for member in group.members:
            if member.stopped:
                member.signal(signal.SIGCONT)
                member.stopped = False
        settle(group, MARGIN_S)
        load.end()
        ends = dict.fromkeys(range(PARTITIONS), load.count)
        wait_until(lambda: committed(embedded.zookeeper) == ends, deadline_s=60)
    check_journals([member.events() for member in group.members], ends)


def change_one(group: Group, chance: random.Random) -> str:
    """Lets something happen to a member, and returns what it was."""
    stopped = [member for member in group.members if member.alive and member.stopped]
    if stopped and chance.random() < 0.5:
        member = stopped[0]
        member.signal(signal.SIGCONT)
        member.stopped = False
        return "one that stood still goes on"
    if len(group.running) < MEMBERS - 2 or (len(group.running) < MEMBERS and chance.random() < 0.5):
        group.join()
        return "one joined"
    member = chance.choice(group.running)
    match chance.choice(["leaves", "is killed", "stands still"]):
        case "leaves":
            member.process.terminate()
            member.process.wait(60)
            return "one left"
        case "is killed":
            member.process.kill()
            member.process.wait()
            return "one was killed"
        case _:
            member.signal(signal.SIGSTOP)
            member.stopped = True
            return "one stands still"


def settle(group: Group, margin_s: float) -> float:
    began = time.monotonic()
    wait_until(
        group.is_settled,
        deadline_s=SETTLED_S + margin_s,
        message="the group to settle within two session timeouts",
    )
    return time.monotonic() - began


def committed(zookeeper: str) -> dict[int, int]:
    wanted = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    with session(zookeeper) as opened:
        found = GroupOffsets(opened).committed("g", wanted)
    return {at.partition: one.offset for at, one in found.items()}


def assignments(journals: list[list[dict[str, Any]]]) -> dict[int, list[tuple[float, int]]]:
    """Returns the times at which each partition was assigned to which member.

    What was lost again before anything was handed out of it is left out: a member that stands
    still after its claim, before it could write that down, writes it down when it goes on.
    """
    found: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for member, events in enumerate(journals):
        fresh: dict[int, float] = {}  # assigned, and nothing became of it yet
        for event in events:
            partition = event.get("partition", -1)
            if event["event"] == "assigned":
                fresh[partition] = event["at"]
            elif partition in fresh:
                at = fresh.pop(partition)
                if event["event"] != "lost":
                    found[partition].append((at, member))
        for partition, at in fresh.items():
            found[partition].append((at, member))
    return found


def check_journals(journals: list[list[dict[str, Any]]], ends: dict[int, int]) -> None:
    assigned = assignments(journals)
    seen: defaultdict[int, set[int]] = defaultdict(set)
    for member, events in enumerate(journals):
        last: dict[int, int] = {}  # of each partition, while it is owned
        since: dict[int, float] = {}
        for event in events:
            partition = event.get("partition", -1)
            if event["event"] == "assigned":
                last.pop(partition, None)
                since[partition] = event["at"]
            elif event["event"] in ("revoked", "lost"):
                del since[partition]
            elif event["event"] == "records":
                values = event["values"]
                assert partition in since, "only what it reads is handed out"
                first = last.get(partition, values[0] - 1) + 1
                assert values == list(range(first, first + len(values))), "in order, without a gap"
                last[partition] = values[-1]
                seen[partition].update(values)
                others = [
                    (at, other)
                    for at, other in assigned[partition]
                    if other != member and since[partition] < at < event["asked"]
                ]
                assert not others, (
                    f"partition {partition}, which member {member} has read since "
                    f"{since[partition]}, was another's when it was asked for at {event['asked']}"
                )
    assert {number: len(values) for number, values in seen.items()} == ends
