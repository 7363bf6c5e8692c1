"""A broker process that is started while ZooKeeper is away."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from tests.builders.record_batches import record_batch
from tests.helpers import frozen, wait_until
from tests.servers.broker import connect, create_topic, is_led


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """Address of a ZooKeeper that does not run."""
    server = EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=64)
    with server:
        pass
    yield server
    server.stop()


@pytest.fixture
def broker(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> Iterator[BrokerProcess]:
    """Broker that is on its way."""
    launched = BrokerProcess(
        1, tmp_path / "broker", zookeeper=f"{zookeeper.address}/logbus", settings={}
    )
    launched.launch()
    yield launched
    launched.kill()


def says_that_it_waits(broker: BrokerProcess) -> bool:
    assert broker.running, broker.log_file.read_text()
    return "is waiting for ZooKeeper at" in told(broker)


def told(broker: BrokerProcess) -> str:
    return broker.log_file.read_text() if broker.log_file.exists() else ""


def health(broker: BrokerProcess) -> dict[str, Any]:
    address = re.findall(r"http://([0-9.:]+)/metrics", told(broker))[-1]
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=60) as page:
            found: dict[str, Any] = json.load(page)
    except urllib.error.HTTPError as error:
        found = json.load(error)
    return found


def test_it_waits_says_so_and_serves_when_zookeeper_is_there(
    zookeeper: EmbeddedZooKeeper, broker: BrokerProcess
) -> None:
    wait_until(lambda: says_that_it_waits(broker))
    report = health(broker)
    assert report["status"] == "joining"
    assert f"waiting for ZooKeeper at {zookeeper.address}" in report["reasons"][0]
    zookeeper.start()
    broker.wait_until_ready()
    assert health(broker)["status"] == "ok"
    assert told(broker).count("is waiting for ZooKeeper at") == 1
    with connect(broker) as wire:
        create_topic(wire, "t")
        wire.append("t", 0, record_batch())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.long
def test_it_can_be_stopped_while_it_waits(
    broker: BrokerProcess, zookeeper: EmbeddedZooKeeper, number: signal.Signals
) -> None:
    wait_until(lambda: says_that_it_waits(broker))
    process = broker._process
    assert process is not None
    process.send_signal(number)
    assert process.wait(60) == 0
    assert "was stopped before it served" in told(broker)
    zookeeper.start()
    broker.start()
    with connect(broker) as wire:
        create_topic(wire, "t")
        assert is_led(wire, "t")


@pytest.mark.long
def test_a_waiting_broker_stops_right_after_a_pause(
    broker: BrokerProcess,
) -> None:
    for _ in range(4):
        wait_until(lambda: says_that_it_waits(broker))
        with frozen(broker.pid):
            pass
        broker.ask_to_stop()
        wait_until(lambda: not broker.running, deadline_s=60, message="the broker's end")
        broker.log_file.unlink()
        broker.launch()
