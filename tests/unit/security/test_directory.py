"""The directory of ``logbus security init``, and the profiles that it adds."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.broker import load_broker_config
from spark_logbus.errors import ConfigError
from spark_logbus.security import directory as module
from spark_logbus.security.certificates import common_name_of, expires, hosts_of
from spark_logbus.security.directory import NewCluster, SecurityDirectory, add_profile, leftovers
from spark_logbus.security.profiles import FILE_VARIABLE, load_profile
from spark_logbus.security.tls import client_context, server_context

CLUSTER = NewCluster(
    profile="trial", user="admin", zookeeper="127.0.0.1:2181/logbus", hosts=("kafka1.example",)
)


@pytest.fixture(params=[0, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_may_read_what_is_made_whatever_the_umask(tmp_path: Path, umask: None) -> None:
    made = SecurityDirectory.make(tmp_path / "keys", CLUSTER)
    files = [each for each in made.path.rglob("*") if each.is_file()]
    assert {mode(each) for each in files} == {0o600}
    assert len(files) == 11
    assert mode(made.path) == mode(made.broker(1)) == 0o700


def test_what_is_made_works_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SecurityDirectory.make(tmp_path / "keys", CLUSTER)
    config = load_broker_config(made.broker(1) / "broker.toml")
    assert config.tls.server is not None
    server_context(config.tls.server)
    assert (config.host, config.advertised_host) == ("0.0.0.0", "kafka1.example")
    assert (config.tls.only, config.security.authorize) == (True, True)
    assert config.security.super_principals == ["user:admin"]
    assert config.metrics.authenticate  # they name topics
    monkeypatch.setenv(FILE_VARIABLE, str(made.path / "profiles.toml"))
    profile = load_profile("trial")
    assert profile.tls is not None
    client_context(profile.tls)
    assert profile.login is not None
    assert profile.login.password == made.password_file.read_text().strip()
    assert len(profile.login.password) >= 32
    monkeypatch.setenv(FILE_VARIABLE, str(made.broker(1) / "profiles.toml"))
    brokers = load_profile("brokers")
    assert brokers.digest is not None
    assert brokers.digest.password not in (made.path / "profiles.toml").read_text()
    assert (profile.digest, brokers.login) == (None, None)
    assert profile.gateway == "kafka1.example:9293/logbus"
    assert config.gateway.port == 9293


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    made = SecurityDirectory.make(tmp_path / "keys", CLUSTER)
    before = {each: each.read_bytes() for each in made.path.rglob("*") if each.is_file()}
    with pytest.raises(ConfigError, match=r"something in .*keys already"):
        SecurityDirectory.make(tmp_path / "keys", CLUSTER)
    with pytest.raises(ConfigError, match=r"something in .*broker-1 already"):
        made.add_broker(1, [])
    assert before == {each: each.read_bytes() for each in made.path.rglob("*") if each.is_file()}


def test_half_a_directory_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "issue", dies)
        with pytest.raises(KeyboardInterrupt):
            SecurityDirectory.make(tmp_path / "keys", CLUSTER)
    assert [*tmp_path.iterdir()] == []
    with monkeypatch.context() as patched:  # as a kill leaves it
        patched.setattr(module, "issue", dies)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            SecurityDirectory.make(tmp_path / "keys", CLUSTER)
    with pytest.raises(ConfigError, match=r"has no ca\.pem"):
        SecurityDirectory.at(tmp_path / "keys")
    made = SecurityDirectory.make(tmp_path / "keys", CLUSTER)
    [left] = leftovers(made.path)
    assert (left / "ca.key").exists()


def test_certificates_are_renewed_for_the_same_names(tmp_path: Path) -> None:
    made = SecurityDirectory.make(tmp_path / "keys", CLUSTER)
    made.add_broker(2, ["kafka2.example", "10.0.0.2"])
    made.add_client("etl")
    gateways = "kafka1.example:9293,kafka2.example:9293/logbus"
    assert made.gateways == gateways
    assert gateways in (made.path / "etl" / "profiles.toml").read_text()
    ca = (made.path / "ca.pem").read_text()
    old = (made.broker(2) / "broker.pem").read_text()
    renewed = [path.relative_to(made.path) for path, _ in made.renew()]
    assert [str(each) for each in renewed] == [
        "broker-1/broker.pem", "broker-2/broker.pem", "etl/client.pem",
    ]  # fmt: skip
    new = (made.broker(2) / "broker.pem").read_text()
    assert new != old
    assert hosts_of(new) == hosts_of(old)
    assert {"kafka2.example", "10.0.0.2", "localhost"} <= {*hosts_of(new)}
    assert common_name_of((made.path / "etl" / "client.pem").read_text()) == "etl"
    assert (made.path / "ca.pem").read_text() == ca
    assert mode(made.broker(2) / "broker.key") == 0o600
    config = load_broker_config(made.broker(2) / "broker.toml")
    assert config.tls.server is not None
    server_context(config.tls.server)


def test_the_key_of_the_authority_may_be_kept_elsewhere(tmp_path: Path) -> None:
    made = SecurityDirectory.make(tmp_path / "keys", CLUSTER)
    (made.path / "ca.key").rename(tmp_path / "ca.key")
    assert SecurityDirectory.at(made.path).user == "admin"
    with pytest.raises(ConfigError, match=r"Cannot read .*ca\.key"):
        SecurityDirectory.at(made.path).add_client("etl")
    assert not (made.path / "etl").exists()


def test_no_certificate_outlives_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AUTHORITY_DAYS", 10)
    made = SecurityDirectory.make(tmp_path / "keys", CLUSTER)
    ca, broker = made.path / "ca.pem", made.broker(1) / "broker.pem"
    assert expires(broker.read_text()) <= expires(ca.read_text())
    monkeypatch.setattr(module, "AUTHORITY_DAYS", 0)
    with pytest.raises(ConfigError, match=r"authority in .* is no longer good"):
        SecurityDirectory.make(tmp_path / "old", CLUSTER)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"profile": "a b"}, "no name of a profile"),
        ({"profile": "brokers"}, "is the brokers'"),
        ({"user": "../x"}, "cannot be the user"),
        ({"hosts": ("a/b",)}, "no name or address"),
        ({"hosts": ("kafka.*",)}, "no name or address"),
        ({"hosts": ("",)}, "no name or address"),
        ({"user": "a:b"}, "ends at the first colon"),
        ({"user": "anna "}, "no space before or after"),
    ],
)
def test_names_that_cannot_be_used_are_refused(wrong: dict[str, str], said: str) -> None:
    given = {"profile": "trial", "user": "admin", "zookeeper": "zk:2181", **wrong}
    with pytest.raises(ConfigError, match=said):
        NewCluster(**given)  # type: ignore[arg-type]


def test_a_user_whose_file_would_be_another_one_is_refused(tmp_path: Path) -> None:
    cluster = NewCluster(profile="trial", user="zookeeper", zookeeper="zk:2181")
    with pytest.raises(ConfigError, match="Cannot write"):
        SecurityDirectory.make(tmp_path / "keys", cluster)
    assert [*tmp_path.iterdir()] == []


def test_a_profile_is_added_to_others_and_never_over_one(tmp_path: Path) -> None:
    path = tmp_path / "config" / "profiles.toml"
    path.parent.mkdir()
    path.write_text("# Ours.")
    path.chmod(0o600)
    assert add_profile(path, "one", {"zookeeper": 'a"b', "tls": True})
    assert mode(path) == 0o600
    first = path.read_text()
    assert first.startswith("# Ours.\n\n[one]\n")
    assert add_profile(path, "two", {"zookeeper": "zk:2181"})
    assert path.read_text().startswith(first)
    assert not add_profile(path, "one", {"zookeeper": 'a"b', "tls": True})
    before = path.read_text()
    with pytest.raises(ConfigError, match="profile 'one' already, which is another"):
        add_profile(path, "one", {"zookeeper": "zk:2181"})
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="Others may read"):
        add_profile(path, "three", {})
    assert path.read_text() == before


def test_what_cannot_be_signed_is_told(tmp_path: Path) -> None:
    given = NewCluster(profile="p" * 60, user="admin", zookeeper="zk:2181")
    with pytest.raises(ConfigError, match="too long for a certificate"):
        SecurityDirectory.make(tmp_path / "long", given)
    made = SecurityDirectory.make(tmp_path / "made", CLUSTER)
    for host in ("kafka.*", "b\u00fccher.example", ""):
        with pytest.raises(ConfigError, match="no name or address"):
            made.add_broker(2, [host])
    (made.path / "ca.key").write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match="cannot be read, or has a password"):
        made.add_broker(2, [])
    assert made.brokers() == [1]
