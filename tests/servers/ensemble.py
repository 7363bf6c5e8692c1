"""A ZooKeeper ensemble of three servers on this machine, from the jars that PySpark carries."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from spark_logbus.local.processes import spawn, stop
from spark_logbus.local.zookeeper import _ask
from spark_logbus.local.zookeeper_command import server_command
from tests.helpers import wait_until
from tests.servers.ports import reserved_port

_HOST = "127.0.0.1"
_SERVERS = 3
_START_S = 90.0
# Ticks of 500 ms: a follower may take 30 s to join, and 5 s to answer its leader.
_QUORUM_CFG = "initLimit=60\nsyncLimit=10\n"


class Ensemble:
    """Three servers; a context manager. Use from one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: By server number: for clients, for the quorum, for elections.
        self._ports: dict[int, tuple[int, int, int]] = {}
        self._reserved = ExitStack()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """``host:port`` of all servers, with commas."""
        return ",".join(f"{_HOST}:{port}" for port, _, _ in self._ports.values())

    def __enter__(self) -> Self:
        try:
            for number in range(1, _SERVERS + 1):
                client, quorum, election = (
                    self._reserved.enter_context(reserved_port()) for _ in range(3)
                )
                self._ports[number] = (client, quorum, election)
            for number in self._ports:
                self.start(number)
            wait_until(
                lambda: len(self.modes()) == _SERVERS and self.leader is not None,
                deadline_s=_START_S,
                message="the ensemble to be complete",
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            stop(process, 10)
        self._reserved.close()

    def start(self, number: int) -> None:
        """Start a server, for the first time or after ``kill``; does not wait for it."""
        directory = self._directory / f"server-{number}"
        (directory / "data").mkdir(parents=True, exist_ok=True)
        (directory / "data" / "myid").write_text(f"{number}\n")
        command = server_command(directory, host=_HOST, port=self._ports[number][0], heap_mb=64)
        with (directory / "zoo.cfg").open("a") as config:
            config.write(_QUORUM_CFG)
            for other, (_, quorum, election) in self._ports.items():
                config.write(f"server.{other}={_HOST}:{quorum}:{election}\n")
        self._processes[number] = spawn(
            command,
            output=directory / "zookeeper.out",
            cwd=directory,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )

    def kill(self, number: int) -> None:
        """SIGKILL."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def modes(self) -> dict[int, str]:
        """``leader`` or ``follower``, of those servers that serve."""
        found = {}
        for number, (port, _, _) in self._ports.items():
            for line in _ask(port, b"srvr").splitlines():
                if line.startswith("Mode: "):
                    found[number] = line.removeprefix("Mode: ")
        return found

    @property
    def leader(self) -> int | None:
        return next((number for number, mode in self.modes().items() if mode == "leader"), None)
