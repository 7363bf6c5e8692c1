"""Runs a program in a fresh process, as a user's script runs, to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run_program(
    text: str, *arguments: str, zookeeper: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """The ended process, with what it printed. ``LOGBUS_ZOOKEEPER`` is set."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        env={**os.environ, "LOGBUS_ZOOKEEPER": zookeeper},
    )  # fmt: skip
    assert ended.returncode == code, ended.stderr
    return ended
