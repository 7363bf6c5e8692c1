"""Each of the three listeners, plain, TLS and UNIX sockets, is there or not by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_logbus.broker import NetworkConfig, TlsConfig
from spark_logbus.client import Admin, ClientConfig, Cluster, Producer, ProducerConfig
from spark_logbus.clock import SystemClock
from spark_logbus.errors import LogbusError
from spark_logbus.model import BrokerAddress
from spark_logbus.retry import Deadline
from spark_logbus.security.tls import ClientTls
from spark_logbus.wire.connect import connect
from tests.servers.broker import broker_here
from tests.servers.certificates import Authority


def lets_in(address: BrokerAddress, config: ClientConfig) -> bool:
    try:
        connect(address, config.connections, Deadline.after_ms(SystemClock(), 10_000)).close()
    except LogbusError:
        return False
    return True


@pytest.mark.parametrize(
    ("encrypted", "only", "local"),
    [
        (False, False, True),
        (False, False, False),
        (True, False, True),
        (True, False, False),
        (True, True, True),
        (True, True, False),
    ],
)
def test_a_broker_has_the_listeners_that_it_is_told(
    tmp_path: Path, chroot: str, encrypted: bool, only: bool, local: bool
) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.files("broker", "127.0.0.1")
    tls = TlsConfig()
    if encrypted:
        tls = TlsConfig(certificate=files.certificate, key=files.key, port=0, only=only)
    network = NetworkConfig(local_socket=local)
    with broker_here(tmp_path / "broker", chroot, tls=tls, network=network) as broker:
        address = broker.address
        assert (address.tls_port is not None) == encrypted
        assert (address.local_socket is not None) == local
        plain = ClientConfig(client_id="test", local_sockets=False)
        by_tls = replace(plain, tls=ClientTls(ca=authority.ca))
        assert lets_in(address, plain) == (not only)
        assert lets_in(address, by_tls) == encrypted
        # A UNIX socket needs neither port.
        unix = replace(plain, local_sockets=True)
        assert lets_in(replace(address, port=1, tls_port=1), unix) == local


def test_metadata_leads_nobody_who_encrypts_to_a_plain_port(tmp_path: Path, chroot: str) -> None:
    """A broker of two has no port for TLS: what it leads is sent to nobody."""
    authority = Authority(tmp_path / "ca")
    files = authority.files("broker", "127.0.0.1")
    tls = TlsConfig(certificate=files.certificate, key=files.key, port=0)
    network = NetworkConfig(local_socket=False)
    plain = ClientConfig(client_id="test", local_sockets=False, retry_deadline_ms=3_000)
    by_tls = replace(plain, tls=ClientTls(ca=authority.ca))
    with (
        broker_here(tmp_path / "1", chroot, broker_id=1, tls=tls, network=network),
        broker_here(tmp_path / "2", chroot, broker_id=2, network=network),
    ):
        with Cluster.from_zookeeper(chroot, plain) as cluster:
            Admin(cluster).create_topic("t", partitions=2)
        with pytest.raises(LogbusError, match="does not answer by TLS"):
            send_to_both(chroot, by_tls)
        with Cluster.from_zookeeper(chroot, plain) as cluster:
            found = Admin(cluster).describe(["t"])["t"].partitions.values()
            ends = [each.ends for each in found if each.leader_id == 2]
            assert [each and each.log_end_offset for each in ends] == [0]


def send_to_both(zookeeper: str, config: ClientConfig) -> None:
    with (
        Cluster.from_zookeeper(zookeeper, config) as cluster,
        Producer(cluster, ProducerConfig(delivery_timeout_ms=3_000)) as producer,
    ):
        for each in [producer.send("t", b"x", partition=number) for number in (0, 1)]:
            each.result(60)
