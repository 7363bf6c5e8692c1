"""Lines of long-running verbs: they go out at once, and nobody may be there to read them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.helpers import wait_until, without_waiting
from tests.servers.cluster import Logbus

LOGBUS: Final = [sys.executable, "-m", "spark_logbus.cli"]
DEADLINE_S: Final = 60


@contextmanager
def running(*words: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    """A verb in a process of its own, killed at the end where it has not ended."""
    process = subprocess.Popen(
        [*LOGBUS, *words], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_until(pipe: int, wanted: bytes) -> bytes:
    """Reads the pipe up to ``wanted``; fails where that does not come in time."""
    deadline = time.monotonic() + DEADLINE_S
    seen = b""
    while wanted not in seen:
        left = deadline - time.monotonic()
        assert left > 0, f"{seen!r} came, and no {wanted!r}"
        if select.select([pipe], [], [], left)[0]:
            new = os.read(pipe, 10_000)
            assert new, f"{seen!r} came, and the end"
            seen += new
    return seen


def mirroring(logbus: Logbus, topic: str, *more: str) -> list[str]:
    return [
        "mirror", "--from", logbus.zookeeper, "-z", logbus.zookeeper, "--topics", topic,
        "--name", topic, "--rename", "copy.{topic}", *more,
    ]  # fmt: skip


def test_what_running_verbs_print_reaches_a_pipe(logbus: Logbus) -> None:
    topic = logbus.topic()
    logbus.produce(topic, ["first"])
    for words, wanted in (
        (["consume", topic, "--follow", "-z", logbus.zookeeper], b"first\n"),
        (mirroring(logbus, topic), b"up to date"),
        (mirroring(logbus, topic, "--json"), b'"lag": 0'),
    ):
        with running(*words) as process:
            assert process.stdout is not None
            read_until(process.stdout.fileno(), wanted)
            assert process.poll() is None


def test_what_running_verbs_print_reaches_a_file(logbus: Logbus, tmp_path: Path) -> None:
    topic = logbus.topic()
    logbus.produce(topic, ["first"])
    for number, (words, wanted) in enumerate(
        [
            (["consume", topic, "--follow", "-z", logbus.zookeeper], "first\n"),
            (mirroring(logbus, topic), "up to date"),
        ]
    ):
        path = tmp_path / f"{number}.out"
        with path.open("wb") as file, running(*words, stdout=file.fileno()) as process:
            wait_until(
                lambda path=path, wanted=wanted: wanted in path.read_text(),  # type: ignore[misc]
                deadline_s=DEADLINE_S,
                message=wanted,
            )
            assert process.poll() is None


def test_up_and_its_greeting_in_a_pipe(tmp_path: Path) -> None:
    """A script waits for the address; that its reader leaves then ends nothing before it prints."""
    with running("up", "--data", str(tmp_path / "data")) as process:
        assert process.stdout is not None
        shown = read_until(process.stdout.fileno(), b"Ctrl-C stops the cluster")
        assert shown.startswith(b"logbus is up\nZooKeeper  ")
        process.stdout.close()
        process.send_signal(signal.SIGTERM)  # and "Stopped." goes nowhere
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize("options", [[], ["--group", "left"]])
def test_a_follower_whose_reader_has_gone_ends_though_nothing_comes(
    logbus: Logbus, options: list[str]
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, ["first"])
    with running("consume", topic, "--follow", *options, "-z", logbus.zookeeper) as process:
        assert process.stdout is not None
        read_until(process.stdout.fileno(), b"first\n")
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr is not None
        assert without_waiting(process.stderr.read().decode()) == ""
