"""SIGTERM cleans up, whatever the clean-up does, and ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from spark_logbus.datasource.termination import call_on_sigterm

PROGRAM = r"""
import os, signal, sys, threading
from spark_logbus.datasource import termination
termination._LIMIT_S = {limit_s}
lock = threading.Lock()

def clean_up():
    os.write(1, b"cleaning\n")
    {clean_up}

assert termination.call_on_sigterm(clean_up)
assert not termination.call_on_sigterm(clean_up)
lock.acquire()  # what the main thread may hold when the signal comes
# Not print: the signal may come while it holds the lock of standard output.
os.write(1, b"ready\n")
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("clean_up", "limit_s"),
    # The second never ends by itself: its limit is what the test waits for.
    [("pass", 20.0), ("lock.acquire()", 2.0), ("raise SystemExit(7)", 20.0)],
)
def test_sigterm_cleans_up_within_a_bound(clean_up: str, limit_s: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(clean_up=clean_up, limit_s=limit_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "cleaning\n"
        assert process.wait(30) == 128 + signal.SIGTERM


def test_another_handler_is_left_alone() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert not call_on_sigterm(lambda: None)
    finally:
        signal.signal(signal.SIGTERM, before)
