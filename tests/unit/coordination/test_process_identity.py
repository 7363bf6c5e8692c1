"""Whether a process has ended, told by what identifies it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spark_logbus.coordination.process_identity import is_gone, this_process
from tests.helpers import process_is_gone, wait_until

TELL = "from spark_logbus.coordination.process_identity import this_process; print(this_process())"


def test_this_one_lives() -> None:
    assert this_process() == this_process()
    assert f"/{os.getpid()}/" in this_process()
    assert not is_gone(this_process())


def test_an_ended_process_is_gone_before_it_is_reaped() -> None:
    with subprocess.Popen([sys.executable, "-c", TELL], stdout=subprocess.PIPE, text=True) as ended:
        assert ended.stdout is not None
        identity = ended.stdout.readline().strip()
        wait_until(lambda: process_is_gone(ended.pid))
        assert is_gone(identity)
    assert is_gone(identity)


def test_a_process_id_that_was_given_again_is_another_process() -> None:
    boot, namespace, pid, started = this_process().split("/")
    assert is_gone(f"{boot}/{namespace}/{pid}/{int(started) - 1}")


@pytest.mark.parametrize("identity", ["", "x", "a/b/c", "a/b/c/d", "a/b/1/2/3"])
def test_nothing_is_known_of_what_is_no_identity(identity: str) -> None:
    assert not is_gone(identity)


def test_nothing_is_known_of_other_machines_and_containers() -> None:
    boot, namespace, _, started = this_process().split("/")
    nobody = str(2**22 + 1)  # more than a process id can be
    assert is_gone(f"{boot}/{namespace}/{nobody}/{started}")
    assert not is_gone(f"{boot[::-1]}/{namespace}/{nobody}/{started}")
    assert not is_gone(f"{boot}/{int(namespace) + 1}/{nobody}/{started}")
