from __future__ import annotations

import pytest

from spark_logbus.errors import ConfigError
from spark_logbus.zookeeper.connect_string import ConnectString, default_connect


@pytest.mark.parametrize(
    ("connect", "servers", "chroot"),
    [
        ("localhost:2181/logbus", "localhost:2181", "/logbus"),
        ("localhost:2181", "localhost:2181", "/logbus"),
        ("localhost", "localhost", "/logbus"),
        ("localhost:2181/", "localhost:2181", ""),
        ("a:1,b:2,c:3/deep/down/", "a:1,b:2,c:3", "/deep/down"),
        (" a:1, b:2 /x", "a:1,b:2", "/x"),
        ("[::1]:2181/x", "[::1]:2181", "/x"),
        ("a_b.c-d.e.:1/x", "a_b.c-d.e.:1", "/x"),
    ],
)
def test_what_a_connect_string_means(connect: str, servers: str, chroot: str) -> None:
    assert ConnectString.parse(connect) == ConnectString(servers, chroot)


@pytest.mark.parametrize(
    "connect",
    [
        "",
        "/logbus",
        "a:1,,b:2",
        "a:0",
        "a:65536",
        "a:x",
        "a b:1",
        "a..b:1",
        ".a:1",
        f"{'a' * 64}.b:1",
        "a:1/x/../y",
        "a:1/x\0y",
        "a:1/ü",
    ],
)
def test_what_is_not_a_connect_string(connect: str) -> None:
    with pytest.raises(ConfigError, match="localhost:2181/logbus"):
        ConnectString.parse(connect)


def test_the_default_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGBUS_ZOOKEEPER", raising=False)
    assert default_connect() == "localhost:2181/logbus"
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "zk:1/x")
    assert default_connect() == "zk:1/x"


def test_a_connect_string_prints_as_it_is_written() -> None:
    assert str(ConnectString.parse("a:1,b:2")) == "a:1,b:2/logbus"
    assert str(ConnectString.parse("a:1/")) == "a:1/"


@pytest.mark.parametrize("connect", ["anna:hunter22@zk:2181", "zk:1,b:hunter22@zk:2/x"])
def test_a_connect_string_with_a_password_is_refused_without_repeating_it(connect: str) -> None:
    with pytest.raises(ConfigError, match="put user and password in a profile") as met:
        ConnectString.parse(connect)
    assert "hunter22" not in str(met.value)
