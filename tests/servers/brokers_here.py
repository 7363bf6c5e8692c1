"""Brokers in this process, which tests of moves and replicas stop and start.

They start in no time, as no process has to. To kill one see ``tests.servers.replicas``.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from spark_logbus.broker import Broker, CompactionConfig, MovesConfig
from spark_logbus.client import Cluster, Producer, ProducerConfig, StagedTask
from spark_logbus.log import LogConfig, PartitionLog
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import Api, MoveRequest, MoveResponse, PartitionMove
from spark_logbus.record.stage_id import stage_id
from tests.fakes.log_directory import batches_from
from tests.helpers import wait_until
from tests.servers.broker import broker_here, connect

NO_RESERVE = MovesConfig(reserve_bytes=0)


class BrokersHere:
    """Brokers by their ids, whose logs have small segments."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.directory = directory
        self.zookeeper = zookeeper
        self.log = LogConfig(segment_bytes=64 << 10, index_interval_bytes=1 << 10)
        self.moves = NO_RESERVE
        self._running: dict[int, ExitStack] = {}
        self.brokers: dict[int, Broker] = {}

    def start(self, broker_id: int) -> Broker:
        stack = ExitStack()
        self.brokers[broker_id] = stack.enter_context(
            broker_here(
                self.directory / str(broker_id),
                self.zookeeper,
                broker_id=broker_id,
                log=self.log,
                moves=self.moves,
                compaction=CompactionConfig(check_interval_ms=50),
            )
        )
        self._running[broker_id] = stack
        return self.brokers[broker_id]

    def stop(self, broker_id: int) -> None:
        del self.brokers[broker_id]
        self._running.pop(broker_id).close()

    def stop_all(self) -> None:
        for broker_id in [*self._running]:
            self.stop(broker_id)

    def move(self, where: TopicPartition, to: int | None, *, throttle: int = 0) -> None:
        broker = next(iter(self.brokers.values()))
        request = MoveRequest([PartitionMove(where.topic, where.partition, to)], throttle)
        with connect(broker) as wire:
            (result,) = wire.call(Api.MOVE, request, MoveResponse).results
        if result.error is not None:
            raise result.error.to_exception()

    def leads(self, where: TopicPartition, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and broker._replica_manager.find(where) is not None

    def log_of(self, where: TopicPartition, broker_id: int) -> PartitionLog:
        return self.brokers[broker_id]._replica_manager.leader_of(where).log

    def wait_until_at(self, where: TopicPartition, broker_id: int) -> None:
        wait_until(lambda: self.leads(where, broker_id), message=f"{where} at {broker_id}")

    def move_error(self, where: TopicPartition) -> str:
        """The error of a move, empty if it has none."""
        broker = next(iter(self.brokers.values()))
        record = broker._metadata_cache.topics[where.topic]
        move = record.moves.get(where.partition)
        return "" if move is None else move.error

    def copied_bytes(self, where: TopicPartition, broker_id: int) -> int:
        log = self.brokers[broker_id]._logs.get(where)
        return 0 if log is None else log.ends().size_bytes

    def directories(self, broker_id: int) -> set[str]:
        """Names of the directories of logs, and the suffixes of those that are none any more."""
        names = [each.name for each in (self.directory / str(broker_id)).iterdir() if each.is_dir()]
        return {name.rpartition(".")[1] + name.rpartition(".")[2] for name in names}


def fill(
    cluster: Cluster, where: TopicPartition, count: int, *, start: int = 0, padding: int = 0
) -> None:
    """Appends numbers, each with so many random bytes as its key."""
    with Producer(cluster, ProducerConfig(batch_bytes=20 * padding or 2_000)) as producer:
        for number in range(start, start + count):
            key = secrets.token_bytes(padding) if padding else None
            producer.send(where.topic, b"%08d" % number, key=key, partition=where.partition)


def stage(
    cluster: Cluster, where: TopicPartition, write: int, attempt: int, numbers: Iterable[int]
) -> StagedTask:
    with Producer(cluster, stage_id=stage_id(write, attempt)) as producer:
        futures = [
            producer.send(where.topic, b"%08d" % number, partition=where.partition)
            for number in numbers
        ]
        for future in futures:
            future.result(60)
    return StagedTask(attempt, {where: len(futures)}, 1_000)


def held(log: PartitionLog) -> list[bytes]:
    """Values of all visible records of a log."""
    data = b"".join(data for _, data in batches_from(log, log.ends().log_start_offset))
    return re.findall(rb"[0-9]{8}", data)
