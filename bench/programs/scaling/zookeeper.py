"""The row over what ZooKeeper holds and does: nodes, bytes, reads, commits and idle polls.

Reads and commits are made by this process, through the same code as a broker's and a consumer's.
Groups and writers are under a root of their own, where no broker looks after them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from bench.kit.processes import CpuTime, memory_mib
from bench.programs.scaling.measuring import Measured, Settings, new_topic, tell_round
from bench.programs.scaling.results import ZOOKEEPER, Sample
from bench.programs.scaling.systems import LogbusSystem, cpu_seconds, logbus_system
from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.writes.decisions import DecidedWrite, Proposal, TopicRecords
from spark_logbus.coordination.writes.writers import WriterRegistry
from spark_logbus.model import TopicPartition
from spark_logbus.record.stage_id import attempts_text
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.nodes import Nodes

_REPEATS: Final = 7
_COMMITS: Final = 300
_IDLE_S, _SMALL_IDLE_S = 40.0, 2.0
_GROUP, _WRITER = "bench", "bench-writer"


class Stored(NamedTuple):
    """Size of a node and all below it: paths and data, as ZooKeeper counts."""

    nodes: int
    size_bytes: int


def measure_zookeeper(settings: Settings) -> Iterator[Measured]:
    idle_s = _SMALL_IDLE_S if settings.small else _IDLE_S
    for number in range(settings.rounds):
        for size in settings.sizes:
            tell_round(number, size, ZOOKEEPER)
            with logbus_system() as system:
                yield size, ZOOKEEPER, _costs(system, int(size), idle_s)


def _costs(system: LogbusSystem, partitions: int, idle_s: float) -> Sample:
    topic = new_topic()
    system.create_topic(topic, partitions=partitions)
    all_of_it = [TopicPartition(topic, number) for number in range(partitions)]
    with Session(system.address, client_name="bench") as session:
        registry, states = TopicRegistry(session), PartitionStates(session)
        record = registry.get(topic)
        assert record is not None
        read_s = _median_s(lambda _: states.states(topic))
        of_topic = stored(Nodes(session), paths.topic(topic))
    with Session(f"{system.address}-bench", client_name="bench") as session:
        groups = GroupOffsets(session)

        def commit(offset: int) -> None:
            groups.commit(_GROUP, dict.fromkeys(all_of_it, offset), actor="bench")

        commit(0)
        commit_s = _median_s(lambda number: commit(number + 1))
        started = time.perf_counter()
        for number in range(_COMMITS):
            groups.commit(_GROUP, {all_of_it[0]: number}, actor="bench")
        one_s = (time.perf_counter() - started) / _COMMITS
        WriterRegistry(session).decide(_WRITER, _proposal(record.topic_id, all_of_it))
        nodes = Nodes(session)
        of_group = stored(nodes, paths.group(_GROUP))
        of_writer = stored(nodes, paths.writer(_WRITER))
    pid = system.running.zookeeper_server.pid
    broker, zookeeper = cpu_seconds(system), CpuTime.of(pid).whole
    time.sleep(idle_s)  # what is measured is that nothing is asked for
    hours = idle_s / 3_600
    return {
        "nodes of a topic": of_topic.nodes,
        "bytes of a topic": of_topic.size_bytes,
        "nodes of a group": of_group.nodes,
        "bytes of a group": of_group.size_bytes,
        "bytes of an atomic writer": of_writer.size_bytes,
        "ms to read all leaders": 1e3 * read_s,
        "leaders read a second": partitions / read_s,
        "ms to commit a group": 1e3 * commit_s,
        "commits of one partition a second": 1 / one_s,
        "CPU s of a broker an idle hour": (cpu_seconds(system) - broker) / hours,
        "CPU s of ZooKeeper an idle hour": (CpuTime.of(pid).whole - zookeeper) / hours,
        "MiB of ZooKeeper": memory_mib(pid),
    }


def _median_s(work: Callable[[int], object]) -> float:
    took = []
    for number in range(_REPEATS):
        started = time.perf_counter()
        work(number)
        took.append(time.perf_counter() - started)
    return statistics.median(took)


def _proposal(topic_id: str, topic_partitions: list[TopicPartition]) -> Proposal:
    """A write of a task for each partition, each of which writes to one."""
    attempts = attempts_text(range(len(topic_partitions)))
    records = {each.partition: 1_000_000 for each in topic_partitions}
    topics = {topic_partitions[0].topic: TopicRecords(topic_id, records)}
    return Proposal(DecidedWrite(version=0, write=1 << 60, attempts=attempts, topics=topics))


def stored(nodes: Nodes, path: str) -> Stored:
    deadline = nodes.session.deadline()
    found = [path, *nodes.descendants(path, deadline=deadline)]
    read = nodes.get_many(found, deadline=deadline)
    sizes = [len(each) + len(node.data) for each, node in read.items() if node is not None]
    return Stored(len(sizes), sum(sizes))
