"""A ZooKeeper server on a host of its own."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from spark_logbus.errors import EmbeddedServerError
from spark_logbus.local.processes import spawn, stop
from spark_logbus.local.zookeeper_command import server_command
from tests.helpers import wait_until
from tests.servers.hosts import Host

_PORT: Final = 2181
_TIMEOUT_S: Final = 1.0


class ZooKeeperOnHost:
    """A server that can be killed and started again. Use from one thread at a time."""

    def __init__(self, directory: Path, host: Host) -> None:
        self._directory = directory
        self.host = host
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host.address}:{_PORT}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EmbeddedServerError("ZooKeeper has not been started.")
        return self._process.pid

    def start(self) -> None:
        """Starts it, and waits until it serves."""
        self._directory.mkdir(parents=True, exist_ok=True)
        command = server_command(self._directory, host=self.host.address, port=_PORT, heap_mb=64)
        self._process = spawn(
            [*self.host.enter, *command],
            output=self._directory / "zookeeper.out",
            cwd=self._directory,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        wait_until(self._serves, message="ZooKeeper to serve")

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process, 10)

    def _serves(self) -> bool:
        assert self.running, (self._directory / "zookeeper.out").read_text()
        answer = b""
        with (
            suppress(OSError),
            socket.create_connection((self.host.address, _PORT), timeout=_TIMEOUT_S) as connection,
        ):
            connection.sendall(b"srvr")
            while data := connection.recv(4096):
                answer += data
        return b"Mode: " in answer
