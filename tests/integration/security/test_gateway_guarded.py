"""A gateway before a ZooKeeper that encrypts, and whose nodes belong to the brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl

from spark_logbus.client import Admin, ClientConfig, Cluster
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.topic_owners import GroupOwnership
from spark_logbus.coordination.locks import Lock
from spark_logbus.model import TopicPartition
from spark_logbus.security import profiles
from spark_logbus.zookeeper import Session
from tests.servers.gateway import gated
from tests.servers.guarded_zookeeper import GuardedZooKeeper

T0 = TopicPartition("t", 0)
PASSWORD = "a long secret"


def test_what_clients_make_belongs_to_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(profiles.FILE_VARIABLE, str(tmp_path / "profiles.toml"))
    (tmp_path / "brokers.password").write_text(PASSWORD)
    with GuardedZooKeeper(tmp_path / "zookeeper") as server:
        brokers = (
            f'[brokers]\nzookeeper = "{server.address}/logbus"\n'
            f'zookeeper_tls_ca = "{server.authority.ca_file}"\n'
            'zookeeper_user = "logbus"\nzookeeper_password_file = "brokers.password"\n'
        )
        profiles.profiles_file().write_text(brokers)
        profiles.profiles_file().chmod(0o600)
        with gated(tmp_path, "profile:brokers", brokers=brokers) as found, found.broker(1):
            found.add_user("anna", "admin")
            with Cluster.from_zookeeper(
                found.profile("admin"), ClientConfig(client_id="test", local_sockets=False)
            ) as cluster:
                Admin(cluster).create_topic("t", partitions=1)
            found.allow("user:anna", ("write", "group", "g"), ("write", "lock", "load /warehouse"))
            with (
                Session(found.profile("anna"), client_name="load", expects_cluster=True) as session,
                Lock(session, "load /warehouse", holder="anna") as lock,
            ):
                owner = GroupOwnership(session, "g", pid=1)
                owner.acquire(["t"])
                GroupOffsets(session).commit("g", {T0: 7}, actor="test", ownership=owner)
                lock.check()
                assert GroupOffsets(session).committed("g")[T0].offset == 7
                belongs_to_the_brokers(server.plain_address, "/logbus/consumers/g/offsets/t/0")
                belongs_to_the_brokers(server.plain_address, "/logbus/locks/load%20%2Fwarehouse")


def belongs_to_the_brokers(address: str, path: str) -> None:
    """Fails unless a node is closed to strangers, and its access list names the brokers' user."""
    client = KazooClient(hosts=address)
    client.start()
    try:
        with pytest.raises(NoAuthError):
            client.get(path)
        with pytest.raises(NoAuthError):
            client.delete(path)
        client.add_auth("digest", f"logbus:{PASSWORD}")
        acls, _ = client.get_acls(path)
        assert acls == [make_digest_acl("logbus", PASSWORD, all=True)]
    finally:
        client.stop()
        client.close()
