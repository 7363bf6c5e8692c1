"""Clients of a broker that encrypts its connections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from spark_logbus.broker import Broker, TlsConfig
from spark_logbus.client import (
    Admin,
    Bootstrap,
    ClientConfig,
    Cluster,
    Producer,
    ProducerConfig,
    RangeReader,
)
from spark_logbus.errors import LogbusError, UntrustedBrokerError
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.security.tls import ClientTls
from tests.helpers import wait_until
from tests.servers.broker import broker_here
from tests.servers.certificates import Authority
from tests.servers.relay import Relay


@dataclass
class Encrypted:
    """A broker that takes encrypted connections only, and its authority."""

    broker: Broker
    authority: Authority
    zookeeper: str

    @property
    def config(self) -> ClientConfig:
        return ClientConfig(
            client_id="test",
            tls=ClientTls(ca=self.authority.ca),
            local_sockets=False,
            retry_deadline_ms=3_000,
        )

    def connect(self, config: ClientConfig | None = None) -> Cluster:
        return Cluster.from_zookeeper(self.zookeeper, config or self.config)

    def topic_by(self, ca: str) -> str:
        """Asks for the topic, believing that authority; returns its name."""
        with self.connect(replace(self.config, tls=ClientTls(ca=ca))) as cluster:
            return Admin(cluster).describe(["t"])["t"].name


@pytest.fixture
def encrypted(tmp_path: Path, chroot: str) -> Iterator[Encrypted]:
    authority = Authority(tmp_path / "ca")
    files = authority.files("broker", "127.0.0.1")
    tls = TlsConfig(certificate=files.certificate, key=files.key, port=0, only=True)
    with broker_here(tmp_path / "broker", chroot, tls=tls) as broker:
        found = Encrypted(broker, authority, chroot)
        with found.connect() as cluster:
            Admin(cluster).create_topic("t", partitions=2)
        yield found


def test_records_pass_whole_through_tls(encrypted: Encrypted) -> None:
    values = [bytes([number % 251]) * (number * 97 % 70_000) for number in range(400)]
    with encrypted.connect() as cluster:
        with Producer(cluster, ProducerConfig(linger_ms=20)) as producer:
            sent = [producer.send("t", value, partition=0) for value in values]
            assert [each.result(60).offset for each in sent] == list(range(len(values)))
        read = [
            value
            for each in RangeReader(cluster, OffsetRange(TopicPartition("t", 0), 0, len(values)))
            for value in each.arrow_batch.column("value").to_pylist()
        ]
    assert read == values


def test_what_is_sent_cannot_be_read_on_the_way(encrypted: Encrypted) -> None:
    seen = bytearray()

    def passes(piece: bytes) -> bool:
        seen.extend(piece)
        return True

    relay = Relay(f"127.0.0.1:{encrypted.broker.address.port}", passes)
    with Cluster.connect(Bootstrap.at([("127.0.0.1", relay.port)]), encrypted.config) as cluster:
        topic_id = Admin(cluster).describe(["t"])["t"].topic_id
    relay.close()
    assert len(seen) > 500
    assert topic_id.encode() not in seen


def test_a_broker_of_another_authority_is_sent_nothing(
    encrypted: Encrypted, tmp_path: Path
) -> None:
    with pytest.raises(UntrustedBrokerError, match=r"certificate of 127\.0\.0\.1:\d+ is not trust"):
        encrypted.topic_by(Authority(tmp_path / "other").ca)


def test_a_broker_under_another_name_is_sent_nothing(encrypted: Encrypted) -> None:
    bootstrap = Bootstrap.at([("localhost", encrypted.broker.address.port)])
    with (
        pytest.raises(UntrustedBrokerError, match="Hostname mismatch"),
        Cluster.connect(bootstrap, encrypted.config) as cluster,
    ):
        Admin(cluster).describe(["t"])


def test_who_does_not_encrypt_is_refused_and_the_broker_lives_on(encrypted: Encrypted) -> None:
    plain = replace(encrypted.config, tls=None)
    with pytest.raises(LogbusError), encrypted.connect(plain) as cluster:
        Admin(cluster).describe(["t"])
    assert encrypted.topic_by(encrypted.authority.ca) == "t"


def test_a_renewed_certificate_is_used_without_a_restart(encrypted: Encrypted) -> None:
    tls = encrypted.broker.config.tls
    assert tls.certificate is not None
    assert tls.key is not None
    with encrypted.connect() as cluster:
        assert [*Admin(cluster).describe(["t"])] == ["t"]
        new = Authority(encrypted.authority.ca_file.parent / "new")
        pair = new.issue("broker", "127.0.0.1")
        tls.certificate.write_text(pair.certificate)  # half of it is there: none of it is used
        assert encrypted.topic_by(encrypted.authority.ca) == "t"
        tls.key.write_text(pair.key)

        def is_new() -> bool:
            try:
                return encrypted.topic_by(new.ca) == "t"
            except UntrustedBrokerError:
                return False

        wait_until(is_new)
        assert [*Admin(cluster).describe(["t"])] == ["t"]
