"""Sessions with a ZooKeeper that encrypts its connections."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.errors import ConfigError, CoordinationError, ZooKeeperAddressError
from spark_logbus.security.profiles import FILE_VARIABLE
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.nodes import Nodes
from tests.servers.certificates import Authority
from tests.servers.guarded_zookeeper import GuardedZooKeeper


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedZooKeeper]:
    with GuardedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def server(_server: GuardedZooKeeper, monkeypatch: pytest.MonkeyPatch) -> GuardedZooKeeper:
    monkeypatch.setenv(FILE_VARIABLE, str(_server.profiles))
    return _server


def test_a_session_is_encrypted_and_works(server: GuardedZooKeeper) -> None:
    with Session(server.profile("works", "/works"), client_name="test") as session:
        nodes = Nodes(session)
        for number in range(300):
            nodes.ensure(f"/many/{number}")
        # All in one go: replies that share a record of TLS must not wait for each other.
        found = nodes.get_many([f"/many/{number}" for number in range(300)])
        assert None not in found.values()
        assert len(nodes.children("/many") or ()) == 300


def test_another_name_in_the_certificate_is_refused_at_once(server: GuardedZooKeeper) -> None:
    address = server.profile("wrong-name", "/x", host="localhost")
    with pytest.raises(ZooKeeperAddressError, match=r"does not prove.*not valid for .localhost"):
        Session(address, client_name="test", expects_cluster=True).start()


def test_a_certificate_of_a_stranger_is_refused(server: GuardedZooKeeper, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    address = server.profile("stranger", "/x", ca=stranger.ca_file)
    with pytest.raises(ZooKeeperAddressError, match="does not prove that it is that server"):
        Session(address, client_name="test", expects_cluster=True).start()


def test_files_that_are_missing_are_named_before_anything_is_tried(
    server: GuardedZooKeeper, tmp_path: Path
) -> None:
    address = server.profile("no-ca", "/x", ca=tmp_path / "nowhere.pem")
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        Session(address, client_name="test")


def test_a_server_that_does_not_encrypt_gets_no_login(server: GuardedZooKeeper) -> None:
    name = "plain"
    text = f'[{name}]\nzookeeper = "{server.plain_address}/x"\n'
    with server.profiles.open("a") as file:
        file.write(f'{text}zookeeper_tls_ca = "{server.authority.ca_file}"\n')
    session = Session(f"profile:{name}", client_name="test", connect_timeout_ms=2_000)
    with pytest.raises(CoordinationError, match="does not encrypt"):
        session.start()


def test_expired_certificates_are_refused_and_renewed_ones_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends show a certificate here. The server's expires while a session is there, and is
    renewed by another authority, which the session is told by its file."""
    server = GuardedZooKeeper(tmp_path, client_auth="need")
    monkeypatch.setenv(FILE_VARIABLE, str(server.profiles))
    mine = server.authority.files("client")
    shown = f'zookeeper_tls_certificate = "{mine.certificate}"\nzookeeper_tls_key = "{mine.key}"\n'
    with server:
        address = server.profile("both", "/both", lines=shown)
        with Session(address, client_name="test", operation_timeout_ms=60_000) as session:
            Nodes(session).ensure("/a")
            server.stop()
            server.show(server.authority.files("zookeeper", "127.0.0.1", days=0))
            server.start()
            with pytest.raises(ZooKeeperAddressError, match="certificate has expired"):
                Session(address, client_name="test", expects_cluster=True).start()
            server.stop()
            later = Authority(tmp_path / "later", "later")
            server.show(later.files("zookeeper", "127.0.0.1"))
            with server.authority.ca_file.open("a") as file:
                file.write(later.ca)
            server.start()
            assert Nodes(session).exists("/a")
        # A client without a certificate gets nowhere, and learns why.
        bare = Session(
            server.profile("bare", "/both"), client_name="test", connect_timeout_ms=3_000
        )
        with pytest.raises(CoordinationError, match="does it ask for a certificate"):
            bare.start()


def test_passwords_stay_out_of_logs_and_messages(
    server: GuardedZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="spark_logbus.zookeeper.kazoo_client")
    address = server.profile("quiet", "/quiet", password="canary-6f1")
    with Session(address, client_name="test") as session:
        Nodes(session).ensure("/a")
        shown = f"{session.access!r} {session.connect!r} {session._client.__dict__!r}"
    assert "Sending request" in caplog.text
    assert "canary-6f1" not in caplog.text + shown
