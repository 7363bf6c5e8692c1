"""Clients that err, stall or attack, while others go on."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.broker import Broker, NetworkConfig
from spark_logbus.processes import spawn, stop
from spark_logbus.protocol import Api, MetadataRequest, MetadataResponse
from tests.fault.log.material import joined, record_batch
from tests.helpers import wait_until
from tests.integration.broker_tools import (
    address_of,
    broker_here,
    broker_process,
    connect,
    create_topic,
    offsets_in,
)
from tests.unit.broker.wire import EndedError, Wire, append_request, fetch_request, request

NETWORK = NetworkConfig(threads=4, stall_timeout_ms=700)


@pytest.fixture
def broker(tmp_path: Path, chroot: str) -> Iterator[Broker]:
    with broker_here(tmp_path / "data", chroot, network=NETWORK) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t")
        yield broker


def works(broker: Broker, wire: Wire) -> bool:
    """Whether an append and a fetch go through, on this connection and on a new one."""
    with connect(broker) as fresh:
        for each in (wire, fresh):
            base = each.append("t", 0, record_batch()).results[0].base_offset
            each.fetch("t", 0, base)
            if offsets_in(each.payload)[0] != (base, base + 1):
                return False
    return True


def good_frames() -> list[bytes]:
    data = record_batch(payload=bytes(1000))
    return [
        request(Api.METADATA, MetadataRequest([])),
        request(Api.APPEND, append_request("t", 0, data), data),
        request(Api.FETCH, fetch_request("t", 0, 0)),
    ]


GARBAGE = [
    b"\xff" * 64,
    bytes(64),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),  # TLS
    (1 << 31).to_bytes(4, "little") + bytes(100),  # negative to who takes it as signed
    (0).to_bytes(4, "little") + bytes(12),
    (100).to_bytes(4, "little") + b"\x01\x00\x01\x00" + bytes(4) + b"\xff\xff\xff\xff",
]


@pytest.mark.parametrize("shake_hands", [False, True])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage(broker: Broker, garbage: bytes, shake_hands: bool) -> None:
    with connect(broker) as good:
        with Wire.to(address_of(broker), shake_hands=shake_hands) as bad:
            bad.sock.sendall(garbage)
            with contextlib.suppress(EndedError):
                while True:
                    bad.receive()
        assert works(broker, good)


def test_garbage_behind_a_valid_frame_comes_after_its_answer(broker: Broker) -> None:
    with connect(broker) as wire:
        wire.sock.sendall(request(Api.METADATA, MetadataRequest([]), correlation=7) + b"\xff" * 16)
        assert wire.receive().correlation == 7
        with contextlib.suppress(EndedError):
            wire.receive()
            wire.receive()


def test_frames_cut_anywhere(broker: Broker) -> None:
    chance = random.Random(5)
    with connect(broker) as good:
        for _ in range(100):
            frame = chance.choice(good_frames())
            with connect(broker) as cut:
                cut.sock.sendall(frame[: chance.randrange(len(frame))])
        assert works(broker, good)
        wait_until(lambda: broker._network is not None and broker._network.connection_count == 1)


def test_flipped_bits_never_do_more_than_end_their_connection(broker: Broker) -> None:
    chance = random.Random(6)
    with connect(broker) as good:
        for _ in range(300):
            frame = bytearray(chance.choice(good_frames()))
            frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
            with connect(broker) as bad, contextlib.suppress(EndedError, OSError):
                bad.sock.sendall(frame)
                bad.sock.shutdown(socket.SHUT_WR)
                while True:
                    bad.receive()
        assert works(broker, good)


def test_a_byte_now_and_then_does_not_buy_time_before_the_handshake(broker: Broker) -> None:
    started = time.monotonic()
    pause = threading.Event()
    with Wire.to(address_of(broker), shake_hands=False) as slow, connect(broker) as good:
        hello = request(Api.METADATA, MetadataRequest(["x" * 1000]))
        with contextlib.suppress(ConnectionError):
            for byte in hello:
                slow.sock.sendall(bytes([byte]))
                pause.wait(0.05)
        assert slow.is_ended()
        took = time.monotonic() - started
        assert NETWORK.stall_timeout_ms / 1000 <= took < 15
        assert works(broker, good)


def test_idle_connections_and_half_frames(broker: Broker) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(broker)) for _ in range(500)]
        half = [stack.enter_context(connect(broker)) for _ in range(20)]
        for wire in half:
            wire.sock.sendall(b"\x40\x00")
        assert works(broker, idle[0])
        for wire in half:
            assert wire.is_ended()
        for wire in idle:
            wire.send(Api.METADATA, MetadataRequest([]))
        for wire in idle:
            wire.answer(Api.METADATA, MetadataResponse)


def test_readers_that_stop_reading_cost_others_nothing(broker: Broker) -> None:
    data = joined(*[record_batch(payload=bytes(1 << 20)) for _ in range(16)])
    with connect(broker) as good, contextlib.ExitStack() as stack:
        good.append("t", 0, data, acks="written")
        good.append("t", 0, data)
        stopped = [stack.enter_context(connect(broker)) for _ in range(20)]
        for wire in stopped:
            for _ in range(3):
                wire.send(Api.FETCH, fetch_request("t", 0, 0, max_bytes=64 << 20))
        for _ in range(20):
            assert works(broker, good)
        # They get what they asked for once they read, though it took longer than a stall may.
        assert len(stopped[0].receive().payload) > 16 << 20


def test_connections_over_the_limit(tmp_path: Path, chroot: str) -> None:
    with (
        broker_here(tmp_path, chroot, network=NetworkConfig(max_connections=5)) as broker,
        contextlib.ExitStack() as stack,
    ):
        inside = [stack.enter_context(connect(broker)) for _ in range(5)]
        create_topic(inside[0], "t")
        for _ in range(20):
            with pytest.raises((EndedError, ConnectionError)):
                connect(broker)
        for wire in inside:
            wire.append("t", 0, record_batch())
        inside.pop().sock.close()
        wait_until(lambda: broker._network is not None and broker._network.connection_count == 4)
        stack.enter_context(connect(broker))


def test_running_out_of_descriptors(tmp_path: Path, chroot: str) -> None:
    """Connections do not take the descriptors that the logs need."""
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
            with contextlib.suppress(EndedError, ConnectionError):
                while len(inside) < 800:
                    inside.append(stack.enter_context(Wire.to(address)))
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


def test_a_limit_of_descriptors_that_is_reached_all_the_same(tmp_path: Path, chroot: str) -> None:
    """Whoever is inside lives on, and others get in when some have left."""
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
