"""The embedded ZooKeeper: real servers, killed and restarted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from spark_logbus.errors import ConfigError, DataDirectoryLockedError, EmbeddedServerError
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from tests.helpers import process_is_gone, wait_until
from tests.servers.ports import reserved_port


@contextmanager
def connected(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=hosts)
    client.start(timeout=60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_chroot_is_a_fresh_empty_node(chroot: str) -> None:
    with connected(chroot) as client:
        assert client.get_children("/") == []
        client.create("/a", b"x")
        assert client.get("/a")[0] == b"x"


def test_settings_that_clients_rely_on(zookeeper: EmbeddedZooKeeper) -> None:
    with connected(zookeeper.address) as client:
        settings = client.command(b"conf").splitlines()
    assert "minSessionTimeout=1000" in settings
    assert "maxSessionTimeout=60000" in settings
    assert "maxClientCnxns=0" in settings


@pytest.mark.long
def test_survives_kill_and_restarts_on_the_same_port(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zk") as server:
        address, pid = server.address, server.pid
        with connected(address) as client:
            client.create("/kept", b"value")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not server.running, message="the server to die")
        with pytest.raises(EmbeddedServerError, match="not running"):
            _ = server.pid

        server.start()

        assert server.address == address
        assert server.pid != pid
        with connected(address) as client:
            assert client.get("/kept")[0] == b"value"

    with EmbeddedZooKeeper(tmp_path / "zk") as another:  # and for a new process
        assert another.address == address
        with connected(address) as client:
            assert client.get("/kept")[0] == b"value"


def test_directory_with_spaces_and_other_letters(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "a b" / "zoö") as server, connected(server.address) as client:
        assert client.get_children("/") == ["zookeeper"]


def test_stop_is_orderly_and_can_be_repeated(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    server.stop()
    server.start()
    pid = server.pid
    with pytest.raises(EmbeddedServerError, match="runs already"):
        server.start()
    server.stop()
    server.stop()
    assert process_is_gone(pid)
    assert not server.running


def test_two_servers_choose_different_ports(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> None:
    with EmbeddedZooKeeper(tmp_path) as second:
        assert second.address != zookeeper.address


def test_a_preferred_port_is_taken_where_it_is_free(tmp_path: Path) -> None:
    with reserved_port() as port:
        server = EmbeddedZooKeeper(tmp_path / "second", preferred_port=port)
        with EmbeddedZooKeeper(tmp_path / "first", preferred_port=port) as first:
            assert first.address == f"127.0.0.1:{port}"
            with server:
                other = server.address
                assert other != first.address
        with server:
            assert server.address == other, "that of the last run goes before it"


def test_port_conflict_with_any_program(tmp_path: Path) -> None:
    with reserved_port() as port:
        server = EmbeddedZooKeeper(tmp_path, port=port)
        with (
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(EmbeddedServerError, match=f"127.0.0.1:{port}: another program"),
        ):
            server.start()
        server.start()  # nothing was left locked
        assert server.address == f"127.0.0.1:{port}"
        server.stop()


def test_port_conflict_with_another_zookeeper(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> None:
    port = int(zookeeper.address.rpartition(":")[2])
    with pytest.raises(EmbeddedServerError, match="another program"):
        EmbeddedZooKeeper(tmp_path, port=port).start()
    assert zookeeper.running


def test_refuses_a_directory_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_logbus.local.zookeeper._LOCK_DEADLINE_S", 0.1)
    with EmbeddedZooKeeper(tmp_path) as server:
        with pytest.raises(DataDirectoryLockedError, match=f"process {os.getpid()} started"):
            EmbeddedZooKeeper(tmp_path).start()
        assert server.running


def test_failure_to_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a directory should be")
    with pytest.raises(
        EmbeddedServerError, match=r"ended with code \d+(.|\n)*Unable to access datadir"
    ):
        EmbeddedZooKeeper(tmp_path).start()


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedServerError, match="Cannot prepare"):
        EmbeddedZooKeeper(tmp_path / "file" / "zk").start()


def test_damaged_port_file(tmp_path: Path) -> None:
    (tmp_path / "port").write_text("no port")
    with pytest.raises(EmbeddedServerError, match="'no port', which is no port; delete it"):
        EmbeddedZooKeeper(tmp_path).start()


@pytest.mark.parametrize("arguments", [{"port": -1}, {"port": 65536}, {"heap_mb": 1}])
def test_refuses_bad_settings(tmp_path: Path, arguments: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        EmbeddedZooKeeper(tmp_path, **arguments)


_PARENT = """
import sys, threading
from pathlib import Path
from spark_logbus.local.zookeeper import EmbeddedZooKeeper

server = EmbeddedZooKeeper(Path(sys.argv[1]))
starter = threading.Thread(target=server.start)  # a thread that ends before the process
starter.start()
starter.join()
print(server.pid, server.address, flush=True)
sys.stdin.readline()
print(server.running, flush=True)
sys.stdin.readline()
"""


@pytest.mark.long
def test_a_child_dies_with_its_parent_not_its_thread(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pid, address = parent.stdout.readline().split()
        with connected(address) as client:  # it serves after its starting thread has ended
            client.create("/a", b"x")
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "True\n"

        parent.kill()
        parent.wait()

        wait_until(lambda: process_is_gone(int(pid)), message="the orphan to die")

    with EmbeddedZooKeeper(tmp_path) as successor:  # lock and port are free again
        assert successor.address == address
        with connected(address) as client:
            assert client.get("/a")[0] == b"x"
