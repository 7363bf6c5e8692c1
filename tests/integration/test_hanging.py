"""A program that hangs is told of with the stacks of all its processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spark_logbus.local.processes import spawn
from tests.helpers import wait_until
from tests.servers.hanging import stacks

_PROGRAM = """
import subprocess, sys, threading

def the_child_waits():
    print("child", flush=True)
    threading.Event().wait(60)

def the_parent_waits():
    subprocess.run([sys.executable, __file__, "child"])

the_child_waits() if sys.argv[1:] else the_parent_waits()
"""


def test_stacks_of_a_program_and_of_what_it_started(tmp_path: Path) -> None:
    program, log = tmp_path / "program.py", tmp_path / "program.log"
    program.write_text(_PROGRAM)
    env = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    process = spawn([sys.executable, program], output=log, env=env)
    try:
        wait_until(lambda: "child" in log.read_text(), message="the child to run")
        told = stacks([process.pid], tmp_path)
        assert "in the_parent_waits" in told
        assert "in the_child_waits" in told
    finally:
        process.kill()
        process.wait()
