"""Nodes in ZooKeeper that logbus did not write, or cannot read, around a broker process."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.errors import LogbusError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.log.disk import names
from tests.builders.record_batches import record_batch
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, create_topic, is_led
from tests.servers.wire import Wire
from tests.servers.zookeeper import allow, forbid, put, read, session

DATA = record_batch(payload=bytes(1_000))
FOREIGN = [
    "/brokers/ids/readme",
    "/brokers/ids/9",
    "/brokers/topics/.DS_Store",
    "/brokers/topics/no topic",
    "/brokers/topics/huge",
]
SECRET = "/brokers/topics/secret"


def health(broker: BrokerProcess) -> dict[str, list[str]]:
    address = re.findall(r"http://([0-9.:]+)/metrics", broker.log_file.read_text())[-1]
    with urllib.request.urlopen(f"http://{address}/healthz", timeout=60) as page:
        found: dict[str, list[str]] = json.load(page)
        return found


def metric(broker: BrokerProcess, name: str) -> float:
    address = re.findall(r"http://([0-9.:]+)/metrics", broker.log_file.read_text())[-1]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
        return float(re.findall(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)[0])


def length(wire: Wire, topic: str) -> int:
    return wire.fetch(topic, 0, 0).results[0].length


def test_foreign_nodes_cost_brokers_and_clients_nothing(tmp_path: Path, chroot: str) -> None:
    for path in FOREIGN:
        put(chroot, path, b"[" * 900_000 if "huge" in path else b"\x00\xffno JSON")
    put(chroot, SECRET, b"{}")
    put(chroot, "/consumers/no group/offsets", b"")
    forbid(chroot, SECRET)
    with broker_process(tmp_path, chroot) as broker, connect(broker) as wire:
        create_topic(wire, "t")
        wire.append("t", 0, DATA)
        with Cluster.from_zookeeper(chroot) as cluster:
            assert [topic.name for topic in Admin(cluster).topics()] == ["t"]
            with Producer(cluster) as producer:
                producer.send("t", b"value").result(60)
        notes = "\n".join(health(broker)["notes"])
        told = broker.log_file.read_text()
        for path in [*FOREIGN, SECRET]:
            assert path in notes
            assert told.count(f"node {path} ") == 1, "each is told once"
        assert metric(broker, "logbus_zookeeper_unreadable_nodes") == len(FOREIGN) + 1


@pytest.mark.parametrize("how", ["garbage", "forbidden"])
@pytest.mark.long
def test_a_topic_with_a_harmed_node_keeps_its_records(
    tmp_path: Path, chroot: str, how: str
) -> None:
    with broker_process(tmp_path, chroot) as broker:
        with connect(broker) as wire:
            for topic in ("harmed", "other"):
                create_topic(wire, topic)
                wire.append(topic, 0, DATA)
            good = read(chroot, "/brokers/topics/harmed")
            harm(chroot, how)
            create_topic(wire, "later")  # a change that the broker follows
            wire.append("harmed", 0, DATA)
        broker.stop()
        broker.start()
        with connect(broker) as wire:
            wait_until(lambda: is_led(wire, "other") and is_led(wire, "later"))
            assert wire.append("other", 0, DATA).results[0].base_offset == 1
            with pytest.raises(LogbusError, match="/brokers/topics/harmed"):
                is_led(wire, "harmed")
            allow(chroot, "/brokers/topics/harmed")
            put(chroot, "/brokers/topics/harmed", good)
            wait_until(lambda: leads(wire, "harmed"), message="the topic to be served again")
            assert length(wire, "harmed") == 2 * len(DATA)
        assert "Removed harmed" not in broker.log_file.read_text()


def test_a_harmed_node_that_is_removed_by_hand_costs_no_records(
    tmp_path: Path, chroot: str
) -> None:
    """Removes the node, as the broker's log advises where it cannot be repaired."""
    with broker_process(tmp_path, chroot) as broker, connect(broker) as wire:
        create_topic(wire, "harmed")
        wire.append("harmed", 0, DATA)
        harm(chroot, "garbage")
        wait_until(lambda: "node /brokers/topics/harmed " in broker.log_file.read_text())
        with session(chroot) as by_hand:
            path = f"{by_hand.connect.chroot}/brokers/topics/harmed"
            by_hand._client.delete(path, recursive=True)
        wait_until(lambda: "harmed-0 is gone from ZooKeeper" in broker.log_file.read_text())
        assert (tmp_path / "data" / "harmed-0" / names.segment(0)).stat().st_size == len(DATA)


def test_a_topic_s_node_that_was_put_back_alone_is_completed(tmp_path: Path, chroot: str) -> None:
    """Repairs as by hand: the node is there, and none of those below it."""
    with broker_process(tmp_path, chroot) as broker, connect(broker) as wire:
        create_topic(wire, "a")
        known = json.loads(read(chroot, "/brokers/topics/a"))
        put(chroot, "/brokers/topics/b", json.dumps(known | {"id": "0" * 32}).encode())
        create_topic(wire, "c")  # behind it
        wait_until(lambda: leads(wire, "b") and leads(wire, "c"))
        assert wire.append("b", 0, DATA).results[0].error is None
        assert "Not all partitions can be led" not in broker.log_file.read_text()


@pytest.mark.long
def test_a_partition_whose_state_is_harmed_costs_no_other(tmp_path: Path, chroot: str) -> None:
    path = "/brokers/topics/t/partitions/0/state"
    with broker_process(tmp_path, chroot) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t", partitions=2)
            create_topic(wire, "z")
        good = read(chroot, path)
        put(chroot, path, b"garbage")
        broker.stop()
        broker.start()
        with connect(broker) as wire:
            wait_until(lambda: leads(wire, "z"))
            wait_until(lambda: wire.append("t", 1, DATA).results[0].error is None)
            assert wire.append("t", 0, DATA).results[0].error is not None
            assert path in "\n".join(health(broker)["notes"])
            put(chroot, path, good)
            wait_until(lambda: wire.append("t", 0, DATA).results[0].error is None)
            assert health(broker)["notes"] == []


def leads(wire: Wire, topic: str) -> bool:
    try:
        return is_led(wire, topic)
    except LogbusError:
        return False


def harm(chroot: str, how: str) -> None:
    path = "/brokers/topics/harmed"
    if how == "garbage":
        put(chroot, path, b"garbage")
    else:
        forbid(chroot, path)
