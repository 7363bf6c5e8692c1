"""Brokers for tests: in this process, or as a child, on the ZooKeeper that all tests share."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from spark_logbus.broker import (
    Broker,
    BrokerConfig,
    CompactionConfig,
    GatewayConfig,
    MetricsConfig,
    MovesConfig,
    NetworkConfig,
    SecurityConfig,
    TlsConfig,
)
from spark_logbus.errors import LogbusError
from spark_logbus.gateway.beside import BrokerWithGateway
from spark_logbus.gateway.gateway import Gateway
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.log import LogConfig
from spark_logbus.protocol import (
    Api,
    CreateTopicRequest,
    CreateTopicResponse,
    ErrorInfo,
    MetadataRequest,
    MetadataResponse,
)
from spark_logbus.record import split
from tests.helpers import wait_until
from tests.servers.wire import Wire

SESSION_MS = 1_000


@contextmanager
def broker_here(
    data_dir: Path,
    zookeeper: str,
    *,
    broker_id: int = 1,
    rack: str | None = None,
    network: NetworkConfig | None = None,
    log: LogConfig | None = None,
    moves: MovesConfig | None = None,
    compaction: CompactionConfig | None = None,
    tls: TlsConfig | None = None,
    security: SecurityConfig | None = None,
    metrics: MetricsConfig | None = None,
    gateway: GatewayConfig | None = None,
    gateways: dict[int, Gateway] | None = None,
) -> Iterator[Broker]:
    """A broker in this process, with a gateway where that has a port, which is put into
    ``gateways``. It keeps nothing of the disk in reserve, unless it is told to."""
    server = BrokerWithGateway(
        BrokerConfig(
            id=broker_id,
            rack=rack,
            data_dir=data_dir,
            port=0,
            zookeeper=zookeeper,
            zookeeper_session_ms=SESSION_MS,
            network=network or NetworkConfig(),
            log=log or LogConfig(),
            moves=moves or MovesConfig(reserve_bytes=0),
            compaction=compaction or CompactionConfig(),
            tls=tls or TlsConfig(),
            security=security or SecurityConfig(),
            metrics=metrics or MetricsConfig(),
            gateway=gateway or GatewayConfig(),
        )
    )
    server.start()
    if server.gateway is not None and gateways is not None:
        gateways[broker_id] = server.gateway
    try:
        yield server.broker
    finally:
        server.stop()


@contextmanager
def broker_process(
    directory: Path,
    zookeeper: str,
    *,
    broker_id: int = 1,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[BrokerProcess]:
    """A broker in a child process."""
    broker = BrokerProcess(broker_id, directory, zookeeper=zookeeper, settings=settings or {})
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def restart_elsewhere(*brokers: BrokerProcess) -> None:
    """Stop them all, and start them on other ports than those they had."""
    before = {broker.address for broker in brokers}
    for broker in brokers:
        broker.stop()
        # A broker whose port is not configured comes back to the one it remembers.
        (broker.directory / "data" / "broker.port").unlink()
    with ExitStack() as held:
        for address in before:  # else a broker may choose one of them by chance
            with suppress(OSError):  # somebody else has it already, which is as good
                held.enter_context(_listener(address))
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_until_ready()
    assert before.isdisjoint({broker.address for broker in brokers})


def _listener(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_server((host, int(port)))


def address_of(broker: Broker) -> str:
    return f"{broker.address.host}:{broker.address.port}"


def connect(broker: Broker | BrokerProcess) -> Wire:
    return Wire.to(broker.address if isinstance(broker, BrokerProcess) else address_of(broker))


def create_topic(
    wire: Wire, name: str, *, partitions: int = 1, config: dict[str, str] | None = None
) -> str:
    """Create a topic and wait until its partitions are led; its id."""
    created = wire.call(
        Api.CREATE_TOPIC, CreateTopicRequest(name, partitions, config or {}), CreateTopicResponse
    )
    wait_until(lambda: is_led(wire, name, created.topic_id))
    return created.topic_id


def is_led(wire: Wire, name: str, topic_id: str | None = None) -> bool:
    response = wire.call(Api.METADATA, MetadataRequest([name], ends=True), MetadataResponse)
    return bool(response.topics) and all(
        topic.topic_id == (topic_id or topic.topic_id)
        and all(partition.ends is not None for partition in topic.partitions)
        for topic in response.topics
    )


def leads(wire: Wire, topic: str, partition: int) -> bool:
    return wire.fetch(topic, partition, 0).results[0].error is None


def offsets_in(payload: memoryview) -> list[tuple[int, int]]:
    """(base offset, next offset) of each verified record batch in a fetched payload."""
    return [
        (header.base_offset, header.next_offset) for header, _ in split(payload, allow_tail=False)
    ]


def failure(error: ErrorInfo | None) -> LogbusError:
    assert error is not None
    return error.to_exception()
