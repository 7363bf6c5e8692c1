"""The network of hosts on which other tests stand: each direction is cut for itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.load.writers import ROOT
from tests.servers.hosts import command_on_a_network


def test_packets_are_lost_one_way_or_both(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.servers.hosts_program", str(tmp_path)]
    command = command_on_a_network(*program)
    if command is None:
        pytest.skip("there is no network of its own here: unshare, nsenter or ip lacks, or rights")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
