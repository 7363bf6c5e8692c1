"""The servers that contenders need, each started when the first of them is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bench.kit.result import LOGBUS
from bench.programs.peers.contenders import (
    ACTIVEMQ,
    ACTIVEMQ_FLUSHED,
    KAFKA,
    RABBITMQ,
    RABBITMQ_STREAMS,
)
from bench.programs.peers.java_clients import SOURCES
from bench.servers import POMS
from bench.servers.activemq import POM as ACTIVEMQ_POM
from bench.servers.activemq import activemq
from bench.servers.artifacts import jars_of
from bench.servers.java_programs import JavaProgram, compiled
from bench.servers.kafka import kafka, kafka_cluster
from bench.servers.logbus import logbus, logbus_cluster
from bench.servers.rabbitmq import rabbitmq
from bench.servers.systems import ReplicatedSystem, System

SESSION_MS = 6_000
"""A broker of several counts as gone when it has been silent for so long."""

_BLOCK_BYTES = 512  # of st_blocks, on any file system


@dataclass(frozen=True)
class Server:
    version: str
    address: str
    stored_bytes: Callable[[str], int]
    """Grows by what a topic takes, with its indexes, while it is written."""
    topics: System | None = None
    """None: clients make queues, and delete them."""
    java: JavaProgram | None = None
    replicated: ReplicatedSystem | None = None
    """The same as ``topics``, where it has several brokers."""


@contextmanager
def _logbus() -> Iterator[Server]:
    with logbus() as system:
        data = system.data
        yield Server(
            version("logbus"), system.address, lambda topic: bytes_in(data / f"{topic}-0"), system
        )


@contextmanager
def _kafka() -> Iterator[Server]:
    jars = jars_of(POMS / "kafka-server.xml")
    with compiled(SOURCES / "KafkaClient.java", jars) as client, kafka(flushed=False) as running:
        yield Server(
            running.version,
            running.bootstrap,
            lambda topic: bytes_in(running.data / f"{topic}-0"),
            running,
            client,
        )


@contextmanager
def _logbus_cluster(brokers: int) -> Iterator[Server]:
    with logbus_cluster(brokers=brokers, session_ms=SESSION_MS) as system:
        yield _replicated(version("logbus"), system, None)


@contextmanager
def _kafka_cluster(brokers: int) -> Iterator[Server]:
    jars = jars_of(POMS / "kafka-server.xml")
    with (
        compiled(SOURCES / "KafkaClient.java", jars) as client,
        kafka_cluster(brokers=brokers, session_ms=SESSION_MS) as running,
    ):
        yield _replicated(running.version, running, client)


def _replicated(version: str, system: ReplicatedSystem, java: JavaProgram | None) -> Server:
    def stored_bytes(topic: str) -> int:
        return sum(bytes_in(data / f"{topic}-0") for data in system.all_data) // system.replicas

    return Server(version, system.address, stored_bytes, system, java, system)


@contextmanager
def _rabbitmq(*, streams: bool) -> Iterator[Server]:
    jars = jars_of(POMS / "rabbitmq-client.xml")
    source = SOURCES / ("RabbitMqStreamClient.java" if streams else "RabbitMqClient.java")
    with compiled(source, jars) as client, rabbitmq() as running:
        yield Server(
            running.version,
            running.stream_address if streams else running.address,
            lambda _: bytes_in(running.data),  # one queue at a time
            java=client,
        )


@contextmanager
def _activemq(*, flushed: bool) -> Iterator[Server]:
    with (
        compiled(SOURCES / "ActiveMqClient.java", jars_of(ACTIVEMQ_POM)) as client,
        activemq(flushed=flushed) as running,
    ):
        yield Server(
            running.version, running.address, lambda _: running.journal_bytes(), java=client
        )


SERVERS: Mapping[str, Callable[[], AbstractContextManager[Server]]] = {
    LOGBUS: _logbus,
    KAFKA: _kafka,
    RABBITMQ: partial(_rabbitmq, streams=False),
    RABBITMQ_STREAMS: partial(_rabbitmq, streams=True),
    ACTIVEMQ: partial(_activemq, flushed=False),
    ACTIVEMQ_FLUSHED: partial(_activemq, flushed=True),
}


def servers_of(
    replicas: int | None,
) -> Mapping[str, Callable[[], AbstractContextManager[Server]]]:
    """Returns the servers that have so many replicas of each partition; None: all servers, with
    one broker each."""
    if replicas is None:
        return SERVERS
    return {
        LOGBUS: partial(_logbus_cluster, replicas),
        KAFKA: partial(_kafka_cluster, replicas),
    }


def bytes_in(directory: Path) -> int:
    """Sums what files take, without holes and what is set aside behind their ends."""
    total = 0
    for path in directory.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:  # servers delete files at any time
            continue
        if path.is_file():
            total += min(status.st_size, status.st_blocks * _BLOCK_BYTES)
    return total
