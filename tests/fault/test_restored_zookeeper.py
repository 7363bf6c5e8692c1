"""ZooKeeper's data goes back to a copy from before a partition moved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.local.cluster import BrokerProcess, EmbeddedCluster
from spark_logbus.model import TopicPartition
from tests.fault.load.records import CLIENT
from tests.helpers import wait_until

T0 = TopicPartition("t", 0)
# The old log is deleted as soon as it may be, so that the new one is the only one there is.
SETTINGS = {"moves": {"reserve_bytes": 0, "retention_ms": 0}}
KEPT = f"The log of {T0} in %s is kept, though the partition is not this broker's: "
FORGOTTEN = "ZooKeeper, perhaps restored from an older state, knows of no hand-over by it since"


def log_of(broker: BrokerProcess) -> Path:
    return broker.directory / "data" / str(T0)


def bytes_of(broker: BrokerProcess) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log_of(broker).glob("*.log")}


def send(cluster: Cluster, start: int, end: int) -> None:
    with Producer(cluster) as producer:
        futures = [producer.send("t", b"%d" % n, partition=0) for n in range(start, end)]
    assert [future.result(60).offset for future in futures] == [*range(start, end)]


def leader(admin: Admin) -> int | None:
    part = admin.describe(["t"])["t"].partitions[0]
    return None if part.ends is None else part.leader_id


@pytest.mark.long
def test_the_log_of_a_move_that_zookeeper_has_forgotten_is_kept_and_told(tmp_path: Path) -> None:
    """The broker to which the partition had moved has acknowledged records since."""
    with EmbeddedCluster(tmp_path, brokers=2, settings=SETTINGS) as servers:
        zookeeper, backup = servers.zookeeper_server, tmp_path / "backup"
        data = tmp_path / "zookeeper" / "data"
        by_id = {each.broker_id: each for each in servers.brokers}
        with Cluster.from_zookeeper(servers.zookeeper, CLIENT) as cluster:
            admin = Admin(cluster)
            admin.create_topic("t", partitions=1)
            send(cluster, 0, 100)
            old = leader(admin) or 0
            new = 3 - old
            zookeeper.stop()
            shutil.copytree(data, backup)
            zookeeper.start()
            admin.move_partitions({T0: new})
            wait_until(lambda: leader(admin) == new)
            send(cluster, 100, 150)
            wait_until(lambda: not log_of(by_id[old]).exists())
            wait_until(lambda: not list(log_of(by_id[old]).parent.glob("*.moved")))
        for broker in servers.brokers:
            broker.stop()
        zookeeper.stop()
        acknowledged = bytes_of(by_id[new])
        shutil.rmtree(data)
        backup.rename(data)
        zookeeper.start()
        for broker in servers.brokers:
            broker.start()

        kept = KEPT % log_of(by_id[new])
        wait_until(lambda: kept in by_id[new].log_file.read_text())
        assert bytes_of(by_id[new]) == acknowledged
        with Cluster.from_zookeeper(servers.zookeeper, CLIENT) as cluster:
            admin = Admin(cluster)
            described = admin.describe_cluster()
            assert described.offline == {T0: old}
            assert not described.healthy
            # The old broker goes on without what is lost there, and comes further than the new one.
            admin.give_up("t", execute=True)
            wait_until(lambda: leader(admin) == old)
            with Producer(cluster) as producer:
                for _ in range(100):
                    producer.send("t", b"later", partition=0)
            for _ in range(3):  # each time in another leader epoch
                by_id[old].stop()
                by_id[old].start()
        by_id[new].stop()
        by_id[new].start()
        wait_until(lambda: FORGOTTEN in by_id[new].log_file.read_text())
        assert bytes_of(by_id[new]) == acknowledged
