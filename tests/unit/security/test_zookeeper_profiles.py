"""Profiles that speak of ZooKeeper, and replies that come in one record of TLS."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from spark_logbus.errors import ConfigError
from spark_logbus.security.profiles import FILE_VARIABLE, Digest, Profile, load_profile
from spark_logbus.security.tls import (
    ClientFiles,
    ServerTls,
    of_client_files,
    server_context,
)
from spark_logbus.zookeeper.access import TlsHandler, encrypted, of_profile
from spark_logbus.zookeeper.connect_string import ConnectString
from tests.servers.certificates import Authority


def profile_of(directory: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Profile:
    path = directory / "profiles.toml"
    path.write_text(f"[p]\n{text}\n")
    path.chmod(0o600)
    (directory / "secret").write_text("canary-77\n")
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    return load_profile("p")


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("a:b", "x", "without a colon"),
        ("a b", "x", "spaces"),
        ("", "x", "ASCII letters"),
        ("ünal", "x", "ASCII letters"),
        ("a", "", "is empty"),
        ("a", "canary-ü", "printable ASCII"),
        ("a", "canary\n", "printable ASCII"),
    ],
)
def test_a_user_that_zookeeper_would_read_otherwise_is_refused(
    user: str, password: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        Digest(user=user, password=password)
    assert "canary" not in str(refused.value)


def test_a_profile_names_a_user_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    text = 'zookeeper_user = "u"\nzookeeper_password_file = "secret"\nzookeeper_tls_ca = "ca.pem"'
    found = profile_of(tmp_path, monkeypatch, text)
    assert found.zookeeper_tls == ClientFiles(ca=authority.ca_file)
    access = of_profile(found)
    assert (access.name, access.logins) == ("'u'", (("digest", "u:canary-77"),))
    assert access.contexts is not None
    assert "canary" not in f"{found!r} {access!r} {access.logins}"


def test_nothing_is_encrypted_unless_the_profile_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Authority(tmp_path)
    assert profile_of(tmp_path, monkeypatch, 'tls_ca = "ca.pem"').zookeeper_tls is None
    by_machine = profile_of(tmp_path, monkeypatch, "zookeeper_tls = true").zookeeper_tls
    assert by_machine == ClientFiles()
    off = 'zookeeper_tls = false\nzookeeper_tls_ca = "ca.pem"'
    assert profile_of(tmp_path, monkeypatch, off).zookeeper_tls is None


@pytest.mark.parametrize("lines", ['zookeeper_tls_ca = "secret"', 'zookeeper_tls_key = "secret"'])
def test_files_that_cannot_be_used_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        of_profile(profile_of(tmp_path, monkeypatch, lines))
    assert "canary" not in str(refused.value)


def test_what_was_decrypted_is_not_waited_for(tmp_path: Path) -> None:
    """Two replies in one record: after the first has been read, the kernel has nothing more."""
    authority = Authority(tmp_path)
    files = authority.files("server", "zk.example")
    context = server_context(ServerTls(certificate=files.certificate, key=files.key))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with context.wrap_socket(listener.accept()[0], server_side=True) as sock:
            sock.sendall(b"onetwo")
            sock.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    contexts = of_client_files(ClientFiles(ca=authority.ca_file))
    handler = TlsHandler(contexts)
    plain = socket.create_connection(listener.getsockname(), 60)
    with listener, encrypted(plain, contexts, "zk.example.") as sock:
        assert sock.recv(3) == b"one"
        assert handler.select([sock], [], [], 0) == ([sock], [], [])
        assert sock.recv(3) == b"two"
        sock.sendall(b"x")
    thread.join(60)
    assert not thread.is_alive()


GATEWAY = 'gateway = "a.example:9293,b.example:9293/logbus"\n'
USER = 'user = "anna"\npassword_file = "secret"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GATEWAY + USER, "connections are encrypted"),
        (GATEWAY + "tls = false\n" + USER, "connections are encrypted"),
        (GATEWAY + "tls = true\n", "takes nobody whom it does not know"),
        (GATEWAY + "tls = true\nzookeeper = 'zk:2181'\n" + USER, "and zookeeper too"),
        (GATEWAY + "tls = true\nzookeeper_tls = true\n" + USER, "and zookeeper_tls too"),
        (GATEWAY + "tls = true\nuser = 'a:b'\npassword_file = 'secret'\n", "first colon"),
    ],
)
def test_a_gateway_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as met:
        profile_of(tmp_path, monkeypatch, text)
    assert "canary" not in str(met.value)


def test_a_gateway_stands_in_the_place_of_zookeeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = profile_of(tmp_path, monkeypatch, GATEWAY + "tls = true\n" + USER)
    connect = ConnectString.parse("profile:p")
    assert (connect.servers, connect.chroot) == ("a.example:9293,b.example:9293", "/logbus")
    access = of_profile(profile)
    assert access.at_gateway == "user:anna"
    assert access.contexts is not None
    [(scheme, proof)] = access.logins
    assert (scheme, str(proof)) == ("plain", "anna:canary-77")
    assert "canary" not in repr(access)
    assert "canary" not in repr(profile)


def test_authorities_that_are_none_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'gateway = "h:1"\ntls_ca = "secret"\nuser = "u"\npassword_file = "secret"'
    with pytest.raises(ConfigError, match=r"profile 'p': .*/secret has no certificate") as refused:
        profile_of(tmp_path, monkeypatch, text)
    assert "canary" not in str(refused.value)
