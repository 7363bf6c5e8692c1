"""Start of servers: ports on the loopback interface, and a wait until one is open."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

from spark_logbus.errors import EmbeddedServerError
from spark_logbus.ports import random_ports

HOST = "127.0.0.1"
START_DEADLINE_S = 90.0
STOP_GRACE_S = 30.0
_POLL_S = 0.05
_LOG_LINES_SHOWN = 15


def free_ports(count: int) -> list[int]:
    free: list[int] = []
    for port in random_ports():
        with socket.socket() as trial:
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            free.append(port)
        if len(free) == count:
            return free
    raise EmbeddedServerError(f"No {count} free ports were found on {HOST}.")


def wait_until_ready(
    name: str, process: subprocess.Popen[bytes], *, port: int, output: Path
) -> None:
    """Waits until ``port`` is open, which each of these servers opens when it can serve.

    Raises EmbeddedServerError, with the end of ``output``.
    """
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        if process.poll() is not None:
            raise EmbeddedServerError(
                f"{name} ended with code {process.returncode} instead of serving. {_tail(output)}"
            )
        with socket.socket() as trial:
            trial.settimeout(1.0)
            if trial.connect_ex((HOST, port)) == 0:
                return
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"{name} is not ready after {START_DEADLINE_S:.0f} seconds. {_tail(output)}"
            )
        time.sleep(_POLL_S)


def _tail(output: Path) -> str:
    lines = output.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
    return "\n".join(["It said:", *lines])
