"""Threads and sockets, with handlers of the test's own."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_logbus.clock import Clock, SystemClock
from spark_logbus.errors import LimitExceededError, StorageError
from spark_logbus.log import OS_FILES, LogSlice
from spark_logbus.network import server as network_module
from spark_logbus.network.config import NetworkConfig
from spark_logbus.network.connection import Connection
from spark_logbus.network.responses import Answer, DelayedResponse, NoResponse, Response
from spark_logbus.network.server import Network
from spark_logbus.network.sockets import configure, listen
from spark_logbus.protocol import Api, DeleteTopicRequest, DeleteTopicResponse, Frame
from spark_logbus.protocol import encode_response as encoded
from tests.fakes.broker_parts import Polled
from tests.fakes.clock import ManualClock
from tests.helpers import wait_until
from tests.servers.wire import Wire

OK = Response(encoded(DeleteTopicResponse()))
Handler = Callable[[Connection, Frame], Answer]


@contextmanager
def serving(
    handle: Handler, config: NetworkConfig | None = None, *, clock: Clock | None = None
) -> Iterator[Network]:
    network = Network(
        host="127.0.0.1",
        port=0,
        config=config or NetworkConfig(threads=4),
        clock=clock or SystemClock(),
    )

    def shaken(connection: Connection, frame: Frame) -> Answer:
        connection.handshake_done()
        return handle(connection, frame)

    network.start(shaken)
    try:
        yield network
    finally:
        network.stop_accepting()
        network.stop()


def connect(network: Network) -> Wire:
    return Wire.to(f"127.0.0.1:{network.port}", shake_hands=False)


def connect_locally(network: Network) -> Wire:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(f"\0{network.local_socket}")
    return Wire(sock)


def ask(wire: Wire) -> None:
    wire.call(Api.DELETE_TOPIC, DeleteTopicRequest("t"), DeleteTopicResponse)


def later(response: Callable[[], Response | None], *, in_s: float = 60.0) -> DelayedResponse:
    return Polled(response, deadline=time.monotonic() + in_s)


@pytest.mark.parametrize("way", [connect, connect_locally])
def test_requests_are_answered_in_order(way: Callable[[Network], Wire]) -> None:
    with serving(lambda *_: OK) as network, way(network) as wire:
        for _ in range(100):
            wire.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"))
        assert [wire.receive().correlation for _ in range(100)] == list(range(1, 101))


def test_a_bug_in_a_handler_costs_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    def handle(_: Connection, frame: Frame) -> Answer:
        if frame.payload:
            raise KeyError("a bug")
        return OK

    with serving(handle, NetworkConfig(threads=1)) as network, connect(network) as good:
        with caplog.at_level(logging.CRITICAL), connect(network) as bad:
            for _ in range(3):
                ask(good)
            bad.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"), b"bug")
            assert bad.is_ended()
        ask(good)
        wait_until(lambda: network.connection_count == 1)


def test_a_bug_in_a_deferred_answer_costs_only_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[DelayedResponse] = []
    fail = threading.Event()

    def poll() -> Response | None:
        if fail.is_set():
            raise KeyError("a bug")
        return None

    def handle(_: Connection, frame: Frame) -> Answer:
        if not frame.payload:
            return OK
        answers.append(later(poll))
        return answers[-1]

    with (
        caplog.at_level(logging.CRITICAL),
        serving(handle, NetworkConfig(threads=1)) as network,
        connect(network) as good,
        connect(network) as bad,
    ):
        bad.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"), b"later")
        wait_until(lambda: answers)
        fail.set()
        answers[0].wake()
        assert bad.is_ended()
        ask(good)


def test_a_waiting_answer_comes_at_its_wake_up() -> None:
    ready = threading.Event()
    answers: list[DelayedResponse] = []

    def handle(*_: object) -> Answer:
        answers.append(later(lambda: OK if ready.is_set() else None))
        return answers[-1]

    with serving(handle) as network, connect(network) as wire:
        wire.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"))
        wait_until(lambda: answers)
        wait_until(lambda: network.waiting() >= 1)  # not while it goes from one hand to another
        ready.set()
        answers[0].wake()
        wire.receive()
        wait_until(lambda: network.waiting() == 0)


def test_a_waiting_answer_comes_at_its_deadline() -> None:
    def handle(*_: object) -> Answer:
        deadline = time.monotonic() + 0.05
        return Polled(lambda: OK if time.monotonic() >= deadline else None, deadline=deadline)

    with serving(handle) as network, connect(network) as wire:
        for _ in range(3):
            ask(wire)


def test_wake_ups_in_the_middle_of_turns_are_not_lost() -> None:
    """The answer becomes ready at every possible moment around the turn that looks for it."""

    class Racing:
        def __init__(self) -> None:
            self.ready = False
            self.delayed = later(lambda: OK if self.ready else None)

        def finish(self) -> None:
            self.ready = True
            self.delayed.wake()

    def handle(*_: object) -> Answer:
        racing = Racing()
        threading.Thread(target=racing.finish).start()
        return racing.delayed

    with serving(handle) as network, connect(network) as wire:
        for _ in range(300):
            wire.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"))
        assert [wire.receive().correlation for _ in range(300)] == list(range(1, 301))


def test_a_wake_up_after_the_last_look_of_a_turn_is_not_lost() -> None:
    class AlmostReady(DelayedResponse):
        looks = 0

        def poll(self) -> Response | None:
            self.looks += 1
            if self.looks >= 5:
                return OK
            self.wake()  # the turn has looked, and goes away with nothing
            return None

    def handle(*_: object) -> Answer:
        return AlmostReady(deadline=time.monotonic() + 3600)

    with serving(handle) as network, connect(network) as wire:
        ask(wire)


def test_a_busy_connection_keeps_no_second_thread() -> None:
    """Wake-ups of a connection that a thread works on must not bring others to wait for it."""
    working, go_on = threading.Event(), threading.Event()
    busy = later(lambda: OK)

    def handle(connection: Connection, frame: Frame) -> Answer:
        if not frame.payload:
            return OK
        busy.subscribe(connection.strand.call)
        working.set()
        go_on.wait(60)
        return busy

    with (
        serving(handle, NetworkConfig(threads=2)) as network,
        connect(network) as slow,
        connect(network) as quick,
    ):
        slow.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"), b"slow")
        assert working.wait(60)
        for _ in range(20):
            busy.wake()
            slow.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"))
            ask(quick)
        go_on.set()
        for _ in range(21):
            slow.receive()


def test_readers_of_slow_disks_leave_threads_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(100))
    disk = threading.Event()
    blocked = threading.Semaphore(0)
    sendfile = os.sendfile

    def slow(out: int, source: int, offset: int, count: int) -> int:
        blocked.release()
        assert disk.wait(60)
        return sendfile(out, source, offset, count)

    monkeypatch.setattr(os, "sendfile", slow)

    def handle(_: Connection, frame: Frame) -> Answer:
        file = OS_FILES.open_read_only(path)
        return Response(OK.header, [LogSlice(file, 0, 100)]) if frame.payload else OK

    with (
        serving(handle, NetworkConfig(threads=4)) as network,
        contextlib.ExitStack() as stack,
        connect(network) as quick,
    ):
        readers = [stack.enter_context(connect(network)) for _ in range(10)]
        for reader in readers:
            reader.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"), b"slice")
        for _ in range(2):
            assert blocked.acquire(timeout=60)
        for _ in range(5):
            ask(quick)
        disk.set()
        for reader in readers:
            assert len(reader.receive().payload) == 100


def test_connections_over_the_limit_are_refused() -> None:
    with serving(lambda *_: OK, NetworkConfig(threads=2, max_connections=2)) as network:
        with connect(network) as first, connect(network) as second:
            ask(first)
            ask(second)
            with connect(network) as third, pytest.raises(LimitExceededError, match="2 are open"):
                ask(third)
            ask(first)
        wait_until(lambda: network.connection_count == 0)
        with connect(network) as fourth:
            ask(fourth)


def test_out_of_descriptors_the_broker_pauses_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(network_module, "_SWEEP_S", 0.05)
    failures = [OSError(errno.EMFILE, "Too many open files")] * 3

    class Failing(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            if failures:
                raise failures.pop()
            return super().accept()

    def failing(host: str, port: int) -> socket.socket:
        with listen(host, port) as listener:
            return Failing(fileno=listener.detach())

    monkeypatch.setattr(network_module, "listen", failing)
    with (
        caplog.at_level(logging.CRITICAL),
        serving(lambda *_: OK) as network,
        connect(network) as wire,
    ):
        ask(wire)
    assert not failures


def test_the_last_descriptors_are_kept_for_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "first_reserved_descriptor", lambda: 0)
    with (
        serving(lambda *_: OK) as network,
        connect(network) as wire,
        pytest.raises(LimitExceededError, match="ulimit -n"),
    ):
        ask(wire)


@pytest.mark.parametrize("way", [connect, connect_locally])
def test_connections_that_end_are_forgotten(way: Callable[[Network], Wire]) -> None:
    with serving(lambda *_: OK) as network:
        for _ in range(20):
            with way(network) as wire:
                ask(wire)
        with way(network) as wire:  # a reset, not an orderly end
            ask(wire)
            if wire.sock.family == socket.AF_INET:
                linger = struct.pack("ii", 1, 0)
                wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wait_until(lambda: network.connection_count == 0)


@pytest.mark.parametrize("way", [connect, connect_locally])
def test_a_client_that_goes_while_its_answer_waits_is_forgotten(
    way: Callable[[Network], Wire],
) -> None:
    answers: list[DelayedResponse] = []

    def handle(*_: object) -> Answer:
        answers.append(later(lambda: None))
        return answers[-1]

    with serving(handle, NetworkConfig(max_in_flight=1)) as network:
        with way(network) as wire:
            wire.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"))
            wait_until(lambda: answers)
            if wire.sock.family == socket.AF_INET:
                linger = struct.pack("ii", 1, 0)
                wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wait_until(lambda: network.connection_count == 0)
        answers[0].wake()
        with way(network) as wire:
            wire.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"))


@pytest.mark.parametrize("way", [connect, connect_locally])
def test_what_was_sent_before_the_client_went_is_handled(way: Callable[[Network], Wire]) -> None:
    handled: list[Frame] = []

    def handle(_: Connection, frame: Frame) -> Answer:
        handled.append(frame)
        return NoResponse.NOT_WANTED

    with serving(handle) as network:
        with way(network) as wire:
            for _ in range(50):
                wire.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"))
        wait_until(lambda: len(handled) == 50)
        wait_until(lambda: network.connection_count == 0)


def test_a_descriptor_that_is_used_again_at_once() -> None:
    """Connections come and go while events of their predecessors are still under way."""
    with serving(lambda *_: OK) as network:
        failures: list[BaseException] = []

        def hammer() -> None:
            try:
                for _ in range(100):
                    with connect(network) as wire:
                        ask(wire)
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=hammer) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        wait_until(lambda: network.connection_count == 0)


def test_who_does_not_shake_hands_makes_room_where_it_is_crowded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network_module, "_SWEEP_S", 0.01)
    clock = ManualClock()
    config = NetworkConfig(max_connections_per_address=4)
    with serving(lambda *_: OK, config, clock=clock) as network, connect(network) as good:
        ask(good)
        with contextlib.ExitStack() as strangers:
            for _ in range(3):
                strangers.enter_context(connect(network))
            wait_until(lambda: network.connection_count == 4)
            clock.advance(4)
            wait_until(lambda: network.connection_count == 2)
            ask(good)
            with connect(network) as another:
                ask(another)


def test_stalled_connections_end_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "_SWEEP_S", 0.02)
    clock = ManualClock()
    with (
        serving(lambda *_: OK, NetworkConfig(stall_timeout_ms=100), clock=clock) as network,
        connect(network) as silent,
        connect(network) as half,
        connect(network) as idle,
    ):
        ask(idle)
        ask(half)
        half.sock.sendall(b"\x40")

        def others_are_gone() -> bool:
            clock.advance(0.2)
            return network.connection_count == 1

        wait_until(others_are_gone)
        assert silent.is_ended()
        assert half.is_ended()
        ask(idle)


def test_stop_ends_connections_and_threads() -> None:
    with serving(lambda *_: later(lambda: None)) as network:
        wire = connect(network)
        wire.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"))
        wait_until(lambda: network.waiting() == 1)
    with wire:
        assert wire.is_ended()
    assert not any(thread.is_alive() for thread in network._threads)


def test_it_stops_without_having_started() -> None:
    network = Network(host="127.0.0.1", port=0, config=NetworkConfig(), clock=SystemClock())
    network.stop_accepting()
    network.stop()


def test_a_port_that_is_taken_is_named() -> None:
    with (
        serving(lambda *_: OK) as network,
        pytest.raises(StorageError, match=f"127.0.0.1:{network.port}"),
    ):
        Network(host="127.0.0.1", port=network.port, config=NetworkConfig(), clock=SystemClock())


def test_the_local_socket_can_be_switched_off() -> None:
    with serving(lambda *_: OK, NetworkConfig(local_socket=False)) as network:
        assert network.local_socket is None
        with connect(network) as wire:
            ask(wire)


@pytest.mark.parametrize("failure", [OSError(errno.ECONNRESET, "gone"), KeyError("a bug")])
def test_a_connection_that_cannot_be_set_up_costs_nobody_else(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [failure] * 3

    def failing(sock: socket.socket, *, peer_timeout_ms: int) -> None:
        if failures:
            raise failures.pop()
        configure(sock, peer_timeout_ms=peer_timeout_ms)

    monkeypatch.setattr(network_module, "configure", failing)
    with (
        caplog.at_level(logging.CRITICAL),
        serving(lambda *_: OK, NetworkConfig(threads=1)) as network,
    ):
        for _ in range(3):
            with connect(network) as wire:
                assert wire.is_ended()
        with connect(network) as wire:
            ask(wire)
