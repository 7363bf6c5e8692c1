"""More connections than are good: bounded, and those who are inside live on."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_logbus.client import ClientConfig, Cluster
from spark_logbus.errors import LimitExceededError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.local.processes import spawn, stop
from spark_logbus.model import BrokerAddress
from spark_logbus.protocol import Api, AppendResponse, MetadataRequest, MetadataResponse
from spark_logbus.wire.connect import connect as dial
from tests.builders.record_batches import record_batch
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, create_topic, offsets_in
from tests.servers.peers import ROOT, resident_mib, sockets_of, works
from tests.servers.wire import Wire, append_request, request


@contextmanager
def serving(directory: Path, zookeeper: str, **network: int) -> Iterator[BrokerProcess]:
    """A broker with these limits, which leads topic t."""
    with broker_process(directory, zookeeper, settings={"network": network}) as broker:
        alone = sockets_of(broker.pid)
        with connect(broker) as wire:
            create_topic(wire, "t")
        wait_until(lambda: sockets_of(broker.pid) <= alone)
        yield broker


def drip(wire: Wire, *, pause_s: float) -> float:
    """Sends a request byte by byte until the broker ends the connection, before the last byte;
    returns the seconds until then."""
    pause = threading.Event()
    started = time.monotonic()
    with contextlib.suppress(ConnectionError):
        for byte in request(Api.METADATA, MetadataRequest(["x" * 1000])):
            wire.sock.sendall(bytes([byte]))
            pause.wait(pause_s)
    assert wire.is_ended()
    return time.monotonic() - started


@pytest.mark.long
def test_drips_buy_no_time_before_the_handshake(tmp_path: Path, chroot: str) -> None:
    with (
        serving(tmp_path, chroot, stall_timeout_ms=2_000) as broker,
        connect(broker) as good,
    ):
        started = time.monotonic()  # what is limited begins with the connection
        with Wire.to(broker.address, shake_hands=False) as slow:
            drip(slow, pause_s=0.05)
        assert time.monotonic() - started >= 2
        assert works(broker, good)


@pytest.mark.long
def test_ten_thousand_idle_connections_cost_little(tmp_path: Path, chroot: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000, hard - 5_000)  # the broker may want as many, and 4,096 more
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 1_000), hard))
    try:
        with (
            serving(
                tmp_path, chroot,
                max_connections=count + 100, max_connections_per_address=count + 100,
            ) as broker,
            contextlib.ExitStack() as stack,
            connect(broker) as good,
        ):  # fmt: skip
            assert works(broker, good)
            before = resident_mib(broker.pid)
            idle = [stack.enter_context(connect(broker)) for _ in range(count)]
            each_kib = (resident_mib(broker.pid) - before) * 1024 / count
            assert each_kib < 10, f"{count} idle connections take {each_kib:.1f} KiB each"
            for _ in range(20):
                assert works(broker, good)
            for wire in idle:
                wire.send(Api.METADATA, MetadataRequest([]))
            for wire in idle:
                wire.answer(Api.METADATA, MetadataResponse)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
def test_half_a_frame_stalls_out(tmp_path: Path, chroot: str) -> None:
    with (
        serving(tmp_path, chroot, stall_timeout_ms=2_000) as broker,
        contextlib.ExitStack() as stack,
    ):
        idle = [stack.enter_context(connect(broker)) for _ in range(100)]
        half = [stack.enter_context(connect(broker)) for _ in range(20)]
        for wire in half:
            wire.sock.sendall(b"\x40\x00")
        for wire in half:
            assert wire.is_ended()
        for wire in idle:
            assert wire.call(Api.METADATA, MetadataRequest([]), MetadataResponse).brokers


@pytest.mark.long
def test_a_request_that_drips_in_ends_its_connection(tmp_path: Path, chroot: str) -> None:
    """The client sends often enough not to stall, and would hold its share of the memory for
    ever."""
    with (
        serving(tmp_path, chroot, stall_timeout_ms=5_000, frame_timeout_ms=2_000) as broker,
        connect(broker) as slow,
        connect(broker) as good,
    ):
        assert drip(slow, pause_s=0.05) >= 2
        assert works(broker, good)


@pytest.mark.long
def test_connections_on_which_nothing_moves_are_closed(tmp_path: Path, chroot: str) -> None:
    with serving(tmp_path, chroot, idle_timeout_ms=4_000) as broker, connect(broker) as busy:
        before = sockets_of(broker.pid)

        def others_are_closed() -> bool:
            busy.call(Api.METADATA, MetadataRequest([]), MetadataResponse)  # one that is used stays
            return sockets_of(broker.pid) <= before

        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(connect(broker)) for _ in range(10)]
            wait_until(others_are_closed)
            assert all(wire.is_ended() for wire in idle)
        busy.append("t", 0, record_batch())


@pytest.mark.long
def test_clients_survive_closed_idle_connections(tmp_path: Path, chroot: str) -> None:
    with (
        serving(tmp_path, chroot, idle_timeout_ms=300) as broker,
        Cluster.from_zookeeper(chroot) as cluster,
    ):
        before = sockets_of(broker.pid)
        for _ in range(3):
            # Asked once, with time for a busy machine: nothing is retried here.
            assert cluster.ask_metadata(None, deadline=cluster.deadline_ms(30_000)).topics
            wait_until(lambda: sockets_of(broker.pid) < before)


def test_the_one_connection_too_many_learns_why(tmp_path: Path, chroot: str) -> None:
    with serving(tmp_path, chroot, max_connections=5) as broker, contextlib.ExitStack() as stack:
        inside = [stack.enter_context(connect(broker)) for _ in range(5)]
        for _ in range(20):
            with pytest.raises(LimitExceededError, match="max_connections"):
                connect(broker)
        for wire in inside:
            wire.append("t", 0, record_batch())
        inside.pop().sock.close()

        def has_room() -> bool:
            with contextlib.suppress(LimitExceededError):
                inside.append(stack.enter_context(connect(broker)))
            return len(inside) == 5

        wait_until(has_room)
        wait_until(lambda: "Refused" in broker.log_file.read_text())


def test_one_address_cannot_take_all_connections(tmp_path: Path, chroot: str) -> None:
    with (
        serving(tmp_path, chroot, max_connections_per_address=5) as broker,
        contextlib.ExitStack() as stack,
    ):
        inside = [stack.enter_context(connect(broker)) for _ in range(5)]
        with pytest.raises(LimitExceededError, match="max_connections_per_address"):
            connect(broker)
        host, _, port = broker.address.rpartition(":")
        for _ in range(3):  # of this machine too, and counted apart
            sock = socket.create_connection((host, int(port)), source_address=("127.0.0.2", 0))
            other = stack.enter_context(Wire(sock))
            other.shake_hands()
            assert other.append("t", 0, record_batch()).results[0].error is None
        (me,) = inside[0].call(Api.METADATA, MetadataRequest([]), MetadataResponse).brokers
        assert me.local_socket is not None
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.connect("\0" + me.local_socket)
        stack.enter_context(Wire(local)).shake_hands()
        inside.pop().sock.close()
        wait_until(lambda: works_now(broker))


def works_now(broker: BrokerProcess) -> bool:
    try:
        with connect(broker):
            return True
    except LimitExceededError:
        return False


@contextmanager
def idle_process(address: BrokerAddress, count: int) -> Iterator[int]:
    """A process that holds idle connections to the UNIX socket; with how many it was let in."""
    assert address.local_socket is not None
    program = [sys.executable, "-m", "tests.fault.idle_program", address.local_socket, str(count)]
    with subprocess.Popen(
        program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def is_served(cluster: Cluster, address: BrokerAddress) -> bool:
    """Tells whether a new connection gets an append through, and whether it is a local one."""
    deadline = cluster.deadline_ms(20_000)
    connection = dial(address, cluster.config.connections, deadline)
    try:
        data = record_batch()
        pending = connection.send(Api.APPEND, append_request("t", 0, data), [data])
        assert pending.result(AppendResponse, deadline).results[0].error is None
        return connection.takes_files
    finally:
        connection.close()


@pytest.mark.long
def test_idle_local_connections_shut_out_nobody(tmp_path: Path, chroot: str) -> None:
    with serving(tmp_path, chroot) as broker, Cluster.from_zookeeper(chroot) as cluster:
        (address,) = cluster.brokers
        assert isinstance(address, BrokerAddress)
        with idle_process(address, 1_024) as admitted:
            assert is_served(cluster, address), "over the UNIX socket"
            assert admitted == 256
            wait_until(lambda: "max_connections_per_process" in broker.log_file.read_text())


@pytest.mark.long
def test_a_client_refused_at_the_local_socket_uses_tcp(tmp_path: Path, chroot: str) -> None:
    with (
        serving(tmp_path, chroot, max_connections_per_address=200) as broker,
        Cluster.from_zookeeper(chroot) as cluster,
    ):
        (address,) = cluster.brokers
        assert isinstance(address, BrokerAddress)
        with idle_process(address, 250) as admitted:
            assert admitted >= 190, "but for those that the test has itself"
            assert not is_served(cluster, address)
            wait_until(lambda: "200 of this machine are open" in broker.log_file.read_text())
        wait_until(lambda: is_served(cluster, address))


@pytest.mark.parametrize("local", [False, True])
def test_a_client_that_is_refused_says_so(tmp_path: Path, chroot: str, local: bool) -> None:
    limits = {"max_connections": 3, "local_socket": local}
    with serving(tmp_path, chroot, **limits) as broker, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connect(broker))
        config = ClientConfig(retry_deadline_ms=500)
        cluster = stack.enter_context(Cluster.from_zookeeper(chroot, config))
        (address,) = cluster.brokers
        assert isinstance(address, BrokerAddress)
        wait_until(lambda: fill_up(broker, stack))
        stack.enter_context(cluster.pool.lease(address, cluster.deadline_ms(5_000)))  # it has one
        with pytest.raises(LimitExceededError, match=r"3 are open \(max_connections\)"):
            cluster.pool.take(address, cluster.deadline_ms(5_000))


def fill_up(broker: BrokerProcess, stack: contextlib.ExitStack) -> bool:
    with contextlib.suppress(LimitExceededError):
        stack.enter_context(connect(broker))
        return False
    return True


# -- descriptors --------------------------------------------------------------------------


def test_connections_leave_descriptors_to_the_logs(tmp_path: Path, chroot: str) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(
        f'[broker]\nid = 1\ndata_dir = "{tmp_path}/data"\nport = 0\nzookeeper = "{chroot}"\n'
        "[log]\nsegment_bytes = 4096\nindex_interval_bytes = 128\n"
    )
    ready = tmp_path / "ready"
    command = f"ulimit -n 800; exec {sys.executable} -m spark_logbus.cli broker"
    process = spawn(
        ["/bin/sh", "-c", f"{command} --config {config} --ready-file {ready}"],
        output=tmp_path / "out",
    )
    try:
        wait_until(ready.exists)
        address = ready.read_text().strip()
        with contextlib.ExitStack() as stack:
            inside = [stack.enter_context(Wire.to(address))]
            create_topic(inside[0], "t")

            def fill() -> None:
                while len(inside) < 800:
                    inside.append(stack.enter_context(Wire.to(address)))

            with pytest.raises(LimitExceededError, match="ulimit -n"):
                fill()
            assert 400 < len(inside) < 800 - 192
            for number in range(200):  # each a new segment
                inside[number].append("t", 0, record_batch(payload=bytes(4000)), acks="written")
            inside[-1].append("t", 0, record_batch())
            for number in range(201):
                wire = inside[number]
                assert wire.fetch("t", 0, number, max_bytes=1).results[0].error is None
                assert offsets_in(wire.payload) == [(number, number + 1)]
        with Wire.to(address) as wire:
            wire.append("t", 0, record_batch())
    finally:
        stop(process, 20)
    assert "foreseen" not in (tmp_path / "out").read_text()


@pytest.mark.long
def test_a_limit_of_descriptors_that_is_reached_all_the_same(tmp_path: Path, chroot: str) -> None:
    """Connections that are open live on, and others get in when some have left."""
    with broker_process(tmp_path, chroot) as broker, contextlib.ExitStack() as stack:
        inside = [stack.enter_context(connect(broker))]
        create_topic(inside[0], "t")
        used = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used + 10, used + 10))
        waiting = []
        for _ in range(30):
            wire = Wire.to(broker.address, shake_hands=False)
            waiting.append(stack.enter_context(wire))
        for _ in range(20):
            inside[0].append("t", 0, record_batch())
            inside[0].fetch("t", 0, 0)
        for wire in waiting[:25]:
            wire.sock.close()
        for wire in waiting[25:]:
            wire.shake_hands()
            wire.append("t", 0, record_batch())
