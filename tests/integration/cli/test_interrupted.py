"""``logbus produce``, interrupted while its broker does not answer."""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers import frozen, wait_until, without_waiting
from tests.servers.broker import broker_process, connect, create_topic

PATIENCE_S = 1.0  # shorter than what is waited for after the first Ctrl-C


@pytest.mark.long
def test_a_second_ctrl_c_ends_it_and_tells_what_was_acknowledged(
    tmp_path: Path, chroot: str
) -> None:
    with broker_process(tmp_path, chroot) as broker, connect(broker) as wire:
        create_topic(wire, "t")
        command = [sys.executable, "-m", "spark_logbus.cli", "produce", "t", "-z", chroot]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            process.stdin.write(b"a\n")
            process.stdin.flush()
            wait_until(lambda: wire.fetch("t", 0, 0).results[0].length > 0, message="a record")
            with frozen(broker.pid):
                pipe = process.stdin.fileno()
                for line in (b"b\n", b"c\n"):  # the second is read when the first was sent
                    process.stdin.write(line)
                    process.stdin.flush()
                    wait_until(lambda: unread_bytes(pipe) == 0, message="the line to be read")
                for _ in range(2):
                    process.send_signal(signal.SIGINT)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(PATIENCE_S)
                assert process.wait(60) == 130
            assert process.stderr is not None
            told = without_waiting(process.stderr.read().decode())
    assert re.fullmatch(
        # The broker may have been stopped before it could answer.
        r"Interrupted twice: [01] of [23] records were acknowledged by t; others may be there, "
        r"too\.\n",
        told,
    )


def unread_bytes(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
