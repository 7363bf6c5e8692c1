"""Metrics and health of a real broker process, read as Prometheus reads them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_logbus import __version__
from spark_logbus.errors import NotLeaderError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.log.disk import names
from spark_logbus.protocol import Api, DeleteTopicRequest, DeleteTopicResponse, frame_head
from spark_logbus.record import stamp
from tests.builders.record_batches import joined, record_batch
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, create_topic, failure
from tests.servers.metrics import (
    get,
    health,
    port_of,
    scrape,
    value,
    wait_for,
    wait_for_health,
)
from tests.servers.peers import sockets_of

FAST_SESSION = {"broker": {"zookeeper_session_ms": 2_000}}


@pytest.fixture
def broker(tmp_path: Path, chroot: str) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path, chroot) as running:
        yield running


def test_counters_agree_exactly_with_what_was_sent(broker: BrokerProcess) -> None:
    with connect(broker) as wire:
        create_topic(wire, "t", partitions=2)
        sizes = []
        for number in range(40):
            data = joined(*(record_batch(3, payload=bytes(8 * number)) for _ in range(2)))
            wire.append("t", number % 2, data, acks=("flushed", "written")[number % 3 == 1])
            sizes.append(len(data))
        refused = wire.append("nowhere", 0, record_batch())
        assert isinstance(failure(refused.results[0].error), NotLeaderError)
        fetched = 0
        for _ in range(3):
            wire.fetch("t", 0, 0)
            fetched += len(wire.payload)
        wire.fetch("t", 1, 120, wait_ms=20)  # nothing there
        found = wait_for(broker, "fetch_wait_seconds_count", 1)
        assert value(found, "topic_bytes_in_total", topic="t") == sum(sizes)
        assert value(found, "topic_records_in_total", topic="t") == 40 * 2 * 3
        assert value(found, "topic_record_batches_in_total", topic="t") == 80
        assert value(found, "topic_bytes_out_total", topic="t") == fetched == 3 * sum(sizes[::2])
        assert value(found, "topic_bytes_in_total", topic="nowhere") is None
        assert value(found, "requests_total", api="append") == 41
        assert value(found, "request_seconds_count", api="append") == 41
        assert value(found, "request_seconds_bucket", api="append", le="+Inf") == 41
        assert value(found, "request_errors_total", api="append", error="NotLeader") == 1
        assert value(found, "requests_total", api="fetch") == 4
        assert value(found, "requests_total", api="create_topic") == 1
        waited = value(found, "fetch_wait_seconds_sum")
        assert waited is not None
        assert 0.02 <= waited < 10
        for partition in "01":
            at = {"topic": "t", "partition": partition}
            assert value(found, "log_start_offset", **at) == 0
            assert value(found, "log_end_offset", **at) == 120
            assert value(found, "log_high_watermark", **at) == 120
            assert value(found, "log_size_bytes", **at) == sum(sizes[int(partition) :: 2])
            assert value(found, "log_segments", **at) == 1
            assert value(found, "log_offline", **at) == 0
        assert value(found, "connections") == 1
        assert value(found, "connections_accepted_total") == 1
        assert value(found, "partitions_led") == 2
        flushes = value(found, "log_flush_seconds_count")
        assert flushes is not None
        assert 2 <= flushes <= 80


def test_what_every_broker_tells(broker: BrokerProcess) -> None:
    found = scrape(broker)
    assert value(found, "build_info", version=__version__, broker="1") == 1
    assert value(found, "healthy") == 1
    assert value(found, "cluster_brokers") == 1
    assert value(found, "partitions_offline") == 0
    assert value(found, "connections_limit") == 4096
    for name in (
        "moves_out",
        "moves_in",
        "moves_failed",
        "moves_stuck",
        "move_sent_bytes_total",
        "move_received_bytes_total",
    ):
        assert value(found, name) == 0
    states = {state: value(found, "zookeeper_session_state", state=state)
              for state in ("connected", "suspended", "lost", "closed")}  # fmt: skip
    assert states == {"connected": 1, "suspended": 0, "lost": 0, "closed": 0}
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"):
        assert found[name, frozenset()] > 0
    assert (value(found, "disk_size_bytes") or 0) > (value(found, "disk_free_bytes") or 0) > 0
    assert get(port_of(broker), "/livez")[0] == 200
    status, said = health(port_of(broker))
    assert (status, said) == (200, {"broker": 1, "status": "ok", "reasons": [], "notes": []})


def test_requests_that_are_none_and_connections_that_are_refused(
    tmp_path: Path, chroot: str
) -> None:
    with broker_process(tmp_path, chroot, settings={"network": {"max_connections": 2}}) as broker:
        alone = sockets_of(broker.pid)
        with connect(broker) as wire:
            wire.sock.sendall(
                frame_head(api=999, version=1, correlation=1, header=b"\x80", payload_length=0)
            )
            wire.receive()
        found = wait_for(broker, "requests_total", 1, api="unknown")
        assert value(found, "request_errors_total", api="unknown", error="UnsupportedVersion") == 1
        wait_until(lambda: sockets_of(broker.pid) <= alone)
        with connect(broker), connect(broker):
            wait_for(broker, "connections", 2)
            for _ in range(3):
                host, _, port = broker.address.rpartition(":")
                with socket.create_connection((host, int(port)), timeout=60) as sock:
                    while sock.recv(4096):  # why it is turned away, then the end
                        pass
            wait_for(broker, "connections_refused_total", 3)


@pytest.mark.long
def test_retention_is_counted_and_series_go_with_their_topic(broker: BrokerProcess) -> None:
    with connect(broker) as wire:
        create_topic(wire, "t", config={"segment.bytes": "1024", "retention.bytes": "2048"})
        for _ in range(20):
            wire.append("t", 0, record_batch(payload=bytes(920)))
        found = wait_for(broker, "log_segments", 3, topic="t", partition="0")
        deleted = value(found, "retention_deleted_segments_total")
        assert deleted == 17
        assert value(found, "retention_deleted_bytes_total") == 17 * 1000
        assert value(found, "log_start_offset", topic="t", partition="0") == 17
        wire.fetch("t", 0, 17)
        wire.call(Api.DELETE_TOPIC, DeleteTopicRequest("t"), DeleteTopicResponse)
        found = wait_for(broker, "log_segments", None, topic="t", partition="0")
        assert not [name for name, labels in found if ("topic", "t") in labels]


def test_series_of_partitions_can_be_switched_off(tmp_path: Path, chroot: str) -> None:
    with broker_process(tmp_path, chroot, settings={"metrics": {"partitions": False}}) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t")
            wire.append("t", 0, record_batch())
        found = wait_for(broker, "topic_records_in_total", 1, topic="t")
        assert not [name for name, labels in found if dict(labels).keys() == {"topic", "partition"}]


@pytest.mark.long
def test_health_follows_zookeeper(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=128) as server:
        connect_string = f"{server.address}/logbus"
        with broker_process(tmp_path, connect_string, settings=FAST_SESSION) as broker:
            port = port_of(broker)
            with connect(broker) as wire:
                create_topic(wire, "t")
                server.stop()
                said = wait_for_health(port, 503)
                assert said["status"] == "unhealthy"
                assert "ZooKeeper has not answered for" in said["reasons"][0]
                found = wait_for(broker, "zookeeper_session_state", 1, state="suspended")
                assert value(found, "healthy") == 0
                assert value(found, "zookeeper_disconnects_total") == 1
                assert get(port, "/livez")[0] == 200
                assert wire.append("t", 0, record_batch()).results[0].error is None
            server.start()
            assert wait_for_health(port, 200)["reasons"] == []
            wait_for(broker, "zookeeper_session_state", 1, state="connected")


@pytest.mark.long
def test_a_log_that_cannot_be_opened(tmp_path: Path, chroot: str) -> None:
    with broker_process(tmp_path, chroot) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t", partitions=2)
            wire.append("t", 0, record_batch())
            wire.append("t", 1, record_batch())
        broker.stop()
        segment = broker.directory / "data" / "t-1" / names.segment(0)
        segment.rename(tmp_path / "away")
        segment.mkdir()
        broker.start()
        status, said = health(port_of(broker))
        assert (status, said["status"]) == (503, "unhealthy")
        assert len(said["reasons"]) == 1
        assert "t-1" in said["reasons"][0]
        found = wait_for(broker, "partitions_offline", 1)
        assert value(found, "log_end_offset", topic="t", partition="0") == 1
        broker.stop()
        segment.rmdir()
        (tmp_path / "away").rename(segment)
        broker.start()
        assert health(port_of(broker))[0] == 200


@pytest.mark.long
def test_recovery_can_be_watched(tmp_path: Path, chroot: str) -> None:
    """A broker that has much to scan after a crash tells so instead of being silent."""
    with broker_process(tmp_path, chroot) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t", partitions=3)
            wire.append("t", 0, record_batch())
        broker.kill()
        path = broker.directory / "data" / "t-1" / names.segment(0)
        with path.open("wb") as file:  # 100,000 small record batches: seconds to scan
            batch = record_batch(payload=bytes(1000))
            for offset in range(100_000):
                stamp(batch, base_offset=offset, leader_epoch=0, append_time_us=0)
                file.write(batch)
        broker.launch()
        said = wait_until(lambda: _recovering(broker), deadline_s=60) or {}
        assert said["status"] == "recovering"
        port = port_of(broker)
        assert get(port, "/livez")[0] == 200
        status, text = get(port, "/metrics")
        assert status == 200
        assert "logbus_recovery_logs 3.0" in text
        assert "logbus_healthy 0.0" in text
        broker.wait_until_ready()
        assert wait_for_health(port, 200)["status"] == "ok"
        found = wait_for(broker, "recovery_logs_done", 3)
        assert (value(found, "recovery_scanned_bytes") or 0) >= path.stat().st_size


def _recovering(broker: BrokerProcess) -> dict[str, Any] | None:
    try:
        status, said = health(port_of(broker))
    except OSError:
        return None  # it does not listen yet
    recovers = status == 503 and said["status"] == "recovering"
    return said if recovers and "of 3 logs are open" in said["reasons"][0] else None


@pytest.mark.long
def test_the_port_is_kept_over_restarts_and_may_be_none(tmp_path: Path, chroot: str) -> None:
    with broker_process(tmp_path, chroot) as broker:
        port = port_of(broker)
        assert f"http://127.0.0.1:{port}/metrics" in broker.log_file.read_text()
        broker.stop()
        broker.start()
        assert port_of(broker) == port
        assert health(port)[0] == 200
    with broker_process(tmp_path / "off", chroot, settings={"metrics": {"enabled": False}}) as off:
        assert not (off.directory / "data" / "metrics.port").exists()


def test_a_log_of_json_lines(tmp_path: Path, chroot: str) -> None:
    with broker_process(tmp_path, chroot, settings={"logging": {"format": "json"}}) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t")
        broker.stop()
        lines = [json.loads(line) for line in broker.log_file.read_text().splitlines()]
        assert all(line["broker"] == 1 and line["message"] for line in lines)
        assert any(line.get("topic") == "t" and line.get("partition") == 0 for line in lines)
        assert "Broker 1 has stopped." in [line["message"] for line in lines]
