"""Certificates that are expired, of others, missing or broken, at a broker that asks for them."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.broker import Broker, SecurityConfig, TlsConfig
from spark_logbus.errors import AuthenticationError, BrokerUnavailableError, UntrustedBrokerError
from spark_logbus.retry import Deadline
from spark_logbus.security.tls import ClientTls, of_client
from spark_logbus.wire.config import ConnectionConfig
from spark_logbus.wire.connect import connect
from tests.helpers import wait_until
from tests.servers.broker import broker_here
from tests.servers.certificates import Authority, Files


class Asking:
    """A broker that asks who connects, and believes certificates of its authority."""

    def __init__(self, broker: Broker, authority: Authority, files: Files, directory: Path) -> None:
        self.broker = broker
        self.authority = authority
        self.files = files
        self.other = Authority(directory / "other", name="other")

    def connect(self, shown: Files | None = None) -> str:
        """Connects and logs in by TLS alone; returns the principal."""
        tls = ClientTls(
            ca=self.authority.ca,
            certificate=None if shown is None else shown.certificate,
            key=None if shown is None else shown.key,
        )
        config = ConnectionConfig(client_id="test", tls=of_client(tls), local_sockets=False)
        deadline = Deadline.after_ms(self.broker._clock, 20_000)
        connection = connect(self.broker.address, config, deadline)
        network = self.broker._network
        assert network is not None
        principals = [str(each.identity.principal) for each in network._snapshot()]
        connection.close()
        wait_until(lambda: network.connection_count == 0)
        [principal] = principals
        return principal


@pytest.fixture(params=["optional", "required"])
def asking(tmp_path: Path, chroot: str, request: pytest.FixtureRequest) -> Iterator[Asking]:
    authority = Authority(tmp_path / "ca")
    files = authority.files("broker", "127.0.0.1")
    tls = TlsConfig(
        certificate=files.certificate,
        key=files.key,
        port=0,
        only=True,
        client_ca=authority.ca_file,
        client_certificates=request.param,
    )
    security = SecurityConfig(authenticate=True)
    with broker_here(tmp_path / "broker", chroot, tls=tls, security=security) as broker:
        yield Asking(broker, authority, files, tmp_path)


def test_a_client_is_known_by_its_certificate_alone(asking: Asking) -> None:
    assert asking.connect(asking.authority.files("etl")) == "certificate:etl"
    with pytest.raises((AuthenticationError, BrokerUnavailableError)):
        asking.connect(None)
    for wrong in (asking.other.files("etl"), asking.authority.files("late", days=0)):
        with pytest.raises(BrokerUnavailableError):
            asking.connect(wrong)
    # One that is a server's alone is none of a client.
    assert asking.connect(asking.authority.files("etl")) == "certificate:etl"


def test_the_log_says_why_certificates_were_refused(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    network = asking.broker._network
    assert network is not None
    with caplog.at_level(logging.INFO, "spark_logbus.network.tls"):
        for wrong in (asking.authority.files("late", days=0), asking.other.files("etl")):
            with pytest.raises(BrokerUnavailableError):
                asking.connect(wrong)
        wait_until(lambda: network.failed_handshakes == 2)
        asking.connect(asking.authority.files("etl"))
        wait_until(lambda: "certificate has expired" in caplog.text)
        wait_until(lambda: "unable to get local issuer certificate" in caplog.text)
    assert network.failed_handshakes == 2


def test_an_expired_broker_is_sent_nothing(asking: Asking) -> None:
    asking.authority.files("broker", "127.0.0.1", days=0)

    def is_refused() -> bool:
        try:
            asking.connect(asking.authority.files("etl"))
        except UntrustedBrokerError as error:
            return "expired" in str(error)
        return False

    wait_until(is_refused)


def test_files_that_are_broken_leave_the_last_good_certificate(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    shown = asking.authority.files("etl")
    good = asking.files.certificate.read_text()
    with caplog.at_level(logging.ERROR, "spark_logbus.security.tls"):
        for broken in ("", "none at all", good[: len(good) // 2]):
            caplog.clear()
            asking.files.certificate.write_text(broken)
            wait_until(lambda: asking.connect(shown) and "from before are used" in caplog.text)
        asking.files.key.unlink()
        assert asking.connect(shown) == "certificate:etl"


def test_a_name_with_what_no_name_has_is_no_principal(asking: Asking) -> None:
    pair = asking.authority.issue("etl\nforged")
    files = Files(asking.files.key.parent / "odd.pem", asking.files.key.parent / "odd.key")
    files.certificate.write_text(pair.certificate)
    files.key.write_text(pair.key)
    with pytest.raises(AuthenticationError, match="printable"):
        asking.connect(files)


def test_contexts_take_nothing_old() -> None:
    context = of_client(ClientTls()).get()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.check_hostname
