"""Readers that stop in the middle of a fetch, and machines that vanish: nobody else notices."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.protocol import Api
from tests.builders.record_batches import joined, record_batch
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, create_topic
from tests.servers.peers import MIB, ROOT, sockets_of, stopped_reader, works
from tests.servers.wire import fetch_request

STORED_MIB = 32


@contextmanager
def serving(directory: Path, zookeeper: str, **network: int) -> Iterator[BrokerProcess]:
    """A broker with more records than a socket's buffers hold."""
    settings = {"network": {"threads": 4, **network}}
    with broker_process(directory, zookeeper, settings=settings) as broker:
        alone = sockets_of(broker.pid)
        with connect(broker) as wire:
            create_topic(wire, "t")
            data = joined(*[record_batch(payload=bytes(MIB)) for _ in range(STORED_MIB // 2)])
            wire.append("t", 0, data, acks="written")
            wire.append("t", 0, data)
        wait_until(lambda: sockets_of(broker.pid) <= alone)
        yield broker


def others_are_served(broker: BrokerProcess, count: int) -> None:
    """Appends and fetches so many times, as others would."""
    with connect(broker) as good:
        for _ in range(count):
            assert works(broker, good)


@pytest.mark.long
def test_stopped_fetching_processes_cost_others_nothing(tmp_path: Path, chroot: str) -> None:
    # An hour, so that whoever waited for a stalled reader would wait for good.
    with (
        serving(tmp_path, chroot, stall_timeout_ms=3_600_000) as broker,
        contextlib.ExitStack() as stack,
    ):
        readers = [
            stack.enter_context(stopped_reader(broker, fetches=3)) for _ in range(6)
        ]  # more than there are threads
        others_are_served(broker, 20)
        for reader in readers:
            reader.go_on()
        for reader in readers:
            assert int(reader.result()) >= 3 * STORED_MIB * MIB, "they get all they asked for"


def test_readers_that_never_read_cost_others_nothing(tmp_path: Path, chroot: str) -> None:
    with (
        serving(tmp_path, chroot, stall_timeout_ms=2_000) as broker,
        contextlib.ExitStack() as stack,
    ):
        stopped = [stack.enter_context(connect(broker)) for _ in range(20)]
        for wire in stopped:
            for _ in range(3):
                wire.send(Api.FETCH, fetch_request("t", 0, 0, max_bytes=64 * MIB))
        started = time.monotonic()
        while time.monotonic() - started < 3:
            others_are_served(broker, 20)
        # They get what they asked for once they read, though it took longer than a stall may.
        assert len(stopped[0].receive().payload) > STORED_MIB * MIB


@pytest.mark.long
def test_a_stopped_process_is_let_go_of_in_bounded_time(tmp_path: Path, chroot: str) -> None:
    """Its kernel goes on answering probes, so only the broker can tell."""
    with serving(tmp_path, chroot, idle_timeout_ms=1_500) as broker:
        before = sockets_of(broker.pid)
        with stopped_reader(broker, fetches=3) as reader:
            wait_until(lambda: sockets_of(broker.pid) <= before, deadline_s=60)
            reader.go_on()
            assert reader.result() == "ended"


def test_a_vanished_machine_is_noticed_in_bounded_time(
    tmp_path: Path,
) -> None:
    """The broker has a network of its own, whose link goes down under the connections."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], check=False).returncode:
        pytest.skip("no network namespaces here")
    program = [sys.executable, "-m", "tests.fault.vanishing_peer_program", str(tmp_path)]
    command = [unshare, "-rn", *program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
