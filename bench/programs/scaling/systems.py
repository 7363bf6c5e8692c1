"""The two logs as rows see them: topics that become usable, and a broker's costs and restarts."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from bench.kit.processes import CpuTime, memory_mib
from bench.kit.result import LOGBUS
from bench.programs.recovery import fill, open_logs
from bench.programs.scaling.results import KAFKA
from bench.programs.scaling.worker import VALUE_BYTES, Job, Processes, spread_over
from bench.servers import systems
from bench.servers.kafka import Kafka, kafka
from bench.servers.logbus import Logbus, logbus
from spark_logbus.client import Producer, ProducerConfig, RecordFuture
from spark_logbus.model import Acks

_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.01
_BATCH_BYTES: Final = 1 << 20
_FILLERS: Final = 2  # processes that fill Kafka's topic
_VALUE: Final = bytes(VALUE_BYTES)
RECORD_BYTES: Final = VALUE_BYTES + 12
"""About what a record takes on disk, of either."""
_PRODUCER = ProducerConfig(acks=Acks.WRITTEN, linger_ms=0)


Append = Callable[[str, int], None]
"""Appends a record to a partition of a topic, and waits until that is acknowledged."""


class System(systems.System, Protocol):
    """A log whose broker is measured, ended and started again."""

    @property
    def name(self) -> str: ...
    @property
    def pids(self) -> list[int]:
        """Process ids of the brokers."""

    def fill(self, topic: str, partitions: int, *, records: int) -> None:
        """Stores about so many in record batches of 1 MiB, spread over the partitions."""

    def appender(self) -> AbstractContextManager[Append]:
        """Connects a producer."""

    def end(self, *, killed: bool) -> None:
        """Stops the broker, or ends it by SIGKILL."""

    def start(self) -> None:
        """Starts it again, and waits until it says that it serves."""


@dataclass(frozen=True)
class LogbusSystem(Logbus):
    """logbus with a broker or several."""

    name: str = LOGBUS

    def fill(self, topic: str, partitions: int, *, records: int) -> None:
        """Past the broker, which is stopped meanwhile: it is filled many times as fast."""
        self.end(killed=False)
        logs, _ = open_logs(self.data)
        assert len(logs.logs()) == partitions, "other topics would be filled too"
        fill(logs, total_bytes=records * RECORD_BYTES, batch_bytes=_BATCH_BYTES)
        logs.close()
        del logs
        gc.collect()  # until then it has its files open, which would keep their space when removed
        self.start()

    @contextmanager
    def appender(self) -> Iterator[Append]:
        with Producer(self.client, _PRODUCER) as producer:
            yield lambda topic, number: _await(producer.send(topic, _VALUE, partition=number))

    def end(self, *, killed: bool) -> None:
        (broker,) = self.running.brokers
        if killed:
            broker.kill()
        else:
            broker.stop()

    def start(self) -> None:
        (broker,) = self.running.brokers
        broker.start()


def _await(future: RecordFuture) -> None:
    future.result(_DEADLINE_S)


@dataclass(frozen=True)
class KafkaSystem(Kafka):
    """Kafka's broker."""

    name: str = KAFKA

    @property
    def pids(self) -> list[int]:
        return [self.process.pid]

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        flushed: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Creates a topic, and waits until all leaders are known."""
        super().create_topic(topic, partitions=partitions, flushed=flushed, config=config)
        producer = self._producer()
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            found = producer.list_topics(topic, timeout=_DEADLINE_S).topics[topic].partitions
            if len(found) == partitions and all(each.leader >= 0 for each in found.values()):
                return
            time.sleep(_POLL_S)
        raise SystemExit(f"Kafka's topic {topic} has not {partitions} leaders.")

    def ends(self, topic: str, *, partitions: int) -> list[int]:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + _DEADLINE_S
        while True:
            try:
                return super().ends(topic, partitions=partitions)
            except KafkaException:  # a partition that it has not taken yet, after a start
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)

    def fill(self, topic: str, partitions: int, *, records: int) -> None:
        """Sends by producers, whose record batches have up to 1 MiB."""
        job = Job("produce", self.name, self.address, topic, records // _FILLERS, clients=_FILLERS)
        Processes(spread_over(job, _FILLERS)).run()

    @contextmanager
    def appender(self) -> Iterator[Append]:
        producer = self._producer()
        producer.list_topics(timeout=_DEADLINE_S)

        def append(topic: str, partition: int) -> None:
            reports: list[Any] = []
            producer.produce(
                topic,
                _VALUE,
                partition=partition,
                on_delivery=lambda error, _: reports.append(error),
            )
            producer.flush(_DEADLINE_S)
            if reports != [None]:
                raise SystemExit(f"Kafka did not take a record: {reports}.")

        yield append

    def end(self, *, killed: bool) -> None:
        if killed:
            self.process.kill()
        else:
            self.process.stop()

    def start(self) -> None:
        self.process.start()

    def _producer(self) -> Any:
        from confluent_kafka import Producer

        return Producer({"bootstrap.servers": self.address, "acks": "1", "log_level": 0})


@contextmanager
def logbus_system(*, brokers: int = 1, directory: Path | None = None) -> Iterator[LogbusSystem]:
    """Runs logbus below ``directory``, or where temporary files are."""
    with logbus(brokers=brokers, directory=directory) as system:
        yield LogbusSystem(system.running, system.client)


@contextmanager
def kafka_system(*, directory: Path | None = None) -> Iterator[KafkaSystem]:
    """Runs Kafka likewise; raises ServerUnavailableError."""
    with kafka(flushed=False, directory=directory) as server:
        yield KafkaSystem(**vars(server))


def cpu_seconds(system: System) -> float:
    """Returns the processor time of its brokers since they began."""
    return sum(CpuTime.of(pid).whole for pid in system.pids)


def memory_of(system: System) -> float:
    """MiB that its brokers have in memory now."""
    return sum(memory_mib(pid) for pid in system.pids)


def descriptors_of(system: System) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in system.pids)
