"""A broker that dies while its disk is full comes back on it, and lets room be made."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster
from spark_logbus.errors import LogbusError, StorageError
from tests.builders.record_batches import record_batch
from tests.fault.small_disk import BrokerOnSmallDisk, small_disk
from tests.helpers import wait_until
from tests.servers.broker import connect, create_topic, failure, is_led, offsets_in
from tests.servers.metrics import get, health
from tests.servers.peers import MIB
from tests.servers.wire import Wire

SETTINGS = {"log": {"segment_bytes": MIB}, "broker": {"zookeeper_session_ms": 1_000}}
NO_SPACE = os.strerror(errno.ENOSPC)


def append(wire: Wire, topic: str) -> LogbusError | int:
    result = wire.append(topic, 0, record_batch(payload=bytes(200_000))).results[0]
    return result.base_offset if result.error is None else failure(result.error)


def offsets_of(wire: Wire, topic: str) -> list[int]:
    found: list[int] = []
    while True:
        wire.fetch(topic, 0, len(found))
        if not wire.payload:
            return found
        found += [base for base, _ in offsets_in(wire.payload)]


def check_told(port: int, chroot: str) -> None:
    """Metrics, health and log tell that appends are refused, and why."""
    code, told = health(port)
    assert (code, told["status"]) == (503, "unhealthy")
    assert f"Appends to t-0 are refused: {NO_SPACE}" in told["reasons"][0]
    wait_until(lambda: "logbus_partitions_append_refused 1.0\n" in get(port, "/metrics")[1])
    with Cluster.from_zookeeper(chroot) as cluster:
        described = Admin(cluster).describe_cluster()
    assert not described.healthy
    [one] = described.brokers
    assert one.refusing == 1
    assert one.problem is not None
    assert NO_SPACE in one.problem


@pytest.mark.long
def test_a_broker_starts_on_a_full_disk(tmp_path: Path, chroot: str) -> None:
    with small_disk(tmp_path / "data", mib=12) as disk:
        broker = BrokerOnSmallDisk(tmp_path, zookeeper=chroot, settings=SETTINGS, disk=disk)
        broker.start()
        try:
            with connect(broker) as wire:
                for topic in ("t", "other"):
                    create_topic(wire, topic)
                for _ in range(5):
                    append(wire, "other")
                acknowledged = []
                while isinstance(base := append(wire, "t"), int):
                    acknowledged.append(base)
                assert NO_SPACE in str(base)
                check_told(int((disk.seen / "metrics.port").read_text()), chroot)
            disk.fill()
            for _ in range(2):
                broker.kill()
                broker.start()
                with connect(broker) as wire:
                    wait_until(lambda: is_led(wire, "t") and is_led(wire, "other"))
                    assert offsets_of(wire, "t") == acknowledged
                    assert offsets_of(wire, "other") == list(range(5))
                    refused = append(wire, "t")
                    assert isinstance(refused, StorageError)
                    assert NO_SPACE in refused.message
            with connect(broker) as wire, Cluster.from_zookeeper(chroot) as cluster:
                admin = Admin(cluster)
                admin.delete_topic("other")
                wait_until(lambda: not list(disk.seen.glob("other-0")), deadline_s=60)
                disk.fill()
                assert isinstance(append(wire, "t"), StorageError)
                admin.alter_topic("t", put={"retention.bytes": str(2 * MIB)})
                wait_until(lambda: isinstance(append(wire, "t"), int), deadline_s=60)
                wait_until(lambda: admin.describe_cluster().healthy)
                assert "Appends are taken again" in broker.log_file.read_text()
        finally:
            broker.stop()
