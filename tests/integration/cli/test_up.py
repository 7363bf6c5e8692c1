"""``logbus up``: it stops all that it started, and continues where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers import wait_until

LOGBUS = [sys.executable, "-m", "spark_logbus.cli"]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [*LOGBUS, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_up_stops_everything_and_continues(tmp_path: Path) -> None:
    """SIGTERM ends ZooKeeper and the broker; a second start has the data and the ports."""
    addresses = []
    for turn in range(2):
        output = tmp_path / f"up-{turn}.out"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [*LOGBUS, "up", "--data", str(tmp_path / "data")], stdout=sink, stderr=sink
            )
        try:
            address = wait_until(lambda: address_in(output.read_text()), deadline_s=120)  # noqa: B023
            assert address is not None
            addresses.append(address)
            if turn == 0:
                run("topics", "create", "kept", "--zookeeper", address)
            else:
                assert "kept" in run("topics", "list", "--zookeeper", address).split()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        left = run_ps(str(tmp_path))
        assert left == [], left
    assert addresses[0] == addresses[1]
    shell = f"set -eu; source {tmp_path}/data/env; echo $LOGBUS_ZOOKEEPER"
    sourced = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert sourced.stdout == f"{addresses[0]}\n"


def address_in(shown: str) -> str | None:
    """ZooKeeper's address, which ``logbus up`` shows when all is up."""
    return next((word for word in shown.split() if word.endswith("/logbus")), None)


def run_ps(part: str) -> list[str]:
    """Command lines of processes that name ``part``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if any(part in word for word in words) and str(os.getpid()) not in entry.parts:
            found.append(" ".join(words))
    return found
