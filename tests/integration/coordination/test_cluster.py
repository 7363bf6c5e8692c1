"""A whole cluster as children of this process."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.errors import ConfigError, EmbeddedServerError
from spark_logbus.local.cluster import BrokerProcess, EmbeddedCluster, _toml_value
from spark_logbus.model import BrokerAddress
from spark_logbus.protocol import (
    AlterTopicRequest,
    AlterTopicResponse,
    Api,
    CreateTopicRequest,
    CreateTopicResponse,
    MetadataRequest,
    MetadataResponse,
)
from tests.builders.record_batches import record_batch
from tests.helpers import process_is_gone, wait_until
from tests.servers.broker import broker_here, broker_process, connect, leads, offsets_in
from tests.servers.zookeeper import session


def leaders_of(cluster: EmbeddedCluster, topic: str) -> dict[int, BrokerProcess]:
    """Partition -> the broker that leads it, once it does."""
    with connect(cluster.brokers[0]) as wire:
        response = wire.call(Api.METADATA, MetadataRequest([topic]), MetadataResponse)
    leaders = {
        partition.partition: cluster.brokers[partition.leader - 1]
        for partition in response.topics[0].partitions
    }
    for partition, broker in leaders.items():
        with connect(broker) as wire:
            wait_until(lambda wire=wire, partition=partition: leads(wire, topic, partition))  # type: ignore[misc]
    return leaders


@pytest.mark.long
def test_a_cluster_comes_back_with_its_addresses_and_records(tmp_path: Path) -> None:
    cluster = EmbeddedCluster(tmp_path, brokers=2)
    with cluster:
        addresses = [broker.address for broker in cluster.brokers]
        with connect(cluster.brokers[0]) as wire:
            wire.call(Api.CREATE_TOPIC, CreateTopicRequest("t", 2), CreateTopicResponse)
        leaders = leaders_of(cluster, "t")
        assert {broker.broker_id for broker in leaders.values()} == {1, 2}
        for partition, broker in leaders.items():
            with connect(broker) as wire:
                wire.append("t", partition, record_batch(3))
        with pytest.raises(EmbeddedServerError, match="runs already"):
            cluster.start()
        assert all(broker.running for broker in cluster.brokers), "and goes on running"
        pids = [broker.pid for broker in cluster.brokers]
        zookeeper = cluster.zookeeper
    assert all(process_is_gone(pid) for pid in pids)

    with EmbeddedCluster(tmp_path, brokers=2) as cluster:
        assert cluster.zookeeper == zookeeper
        assert [broker.address for broker in cluster.brokers] == addresses
        for partition, broker in leaders_of(cluster, "t").items():
            with connect(broker) as wire:
                wire.fetch("t", partition, 0)
                assert offsets_in(wire.payload) == [(0, 3)]


def test_topics_are_on_brokers_of_which_the_one_that_makes_them_has_not_heard(
    tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = MetadataCache._brokers_changed

    def hears_of_the_first(cache: MetadataCache, brokers: list[BrokerAddress]) -> None:
        heard(cache, [broker for broker in brokers if broker.broker_id == 1])

    monkeypatch.setattr(MetadataCache, "_brokers_changed", hears_of_the_first)
    with (
        broker_here(tmp_path / "1", chroot) as first,
        broker_here(tmp_path / "2", chroot, broker_id=2),
        connect(first) as wire,
        session(chroot) as opened,
    ):
        topics = TopicRegistry(opened)
        wire.call(Api.CREATE_TOPIC, CreateTopicRequest("t", 2), CreateTopicResponse)
        replicas = topics.all()["t"].partitions.values()
        assert sorted(replicas) == [[1], [2]]
        wire.call(Api.ALTER_TOPIC, AlterTopicRequest("t", partitions=4), AlterTopicResponse)
        replicas = topics.all()["t"].partitions.values()
        assert sorted(replicas) == [[1], [1], [2], [2]]


def test_a_failed_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    cluster = EmbeddedCluster(tmp_path, settings={"network": {"thread": 3}})
    with pytest.raises(EmbeddedServerError, match=r"(?s)Broker 1 ended.*did you mean 'threads'"):
        cluster.start()
    assert not cluster.zookeeper_server.running
    assert not any(broker.running for broker in cluster.brokers)


def test_a_cluster_without_brokers_is_none() -> None:
    with pytest.raises(ConfigError, match="at least one broker, got 0"):
        EmbeddedCluster(Path("unused"), brokers=0)


@pytest.mark.long
def test_a_broker_that_was_killed_is_started_again(tmp_path: Path, chroot: str) -> None:
    directory = tmp_path / 'an "odd" \\ directory, ü'
    with broker_process(directory, chroot) as broker:
        address = broker.address
        with pytest.raises(EmbeddedServerError, match="runs already"):
            broker.launch()
        broker.kill()
        assert not broker.running
        broker.start()
        assert broker.address == address


def test_what_has_not_been_started_has_neither_address_nor_pid(tmp_path: Path) -> None:
    broker = BrokerProcess(7, tmp_path, zookeeper="127.0.0.1:1/x", settings={})
    for ask in (lambda: broker.address, lambda: broker.pid, broker.wait_until_ready):
        with pytest.raises(EmbeddedServerError, match="Broker 7"):
            ask()
    assert not broker.running
    broker.stop()
    broker.kill()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broker = BrokerProcess(7, tmp_path / "file" / "x", zookeeper="127.0.0.1:1/x", settings={})
    with pytest.raises(EmbeddedServerError, match=r"Broker 7 cannot start: .*file/x failed"):
        broker.launch()


@pytest.mark.parametrize(
    "value", [True, False, 0, -5, 1 << 40, "", 'a"b\\c', "tab\t\n\r\x00\x1f\x7f", "ü\U0001f600"]
)
def test_values_survive_the_way_through_toml(value: object) -> None:
    assert tomllib.loads(f"x = {_toml_value(value)}") == {"x": value}
