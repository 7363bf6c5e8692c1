"""How the broker's threads are organised, against the two obvious other ways.

The same frames, the same answers, three servers, each a process of its own:

* epoll: the broker's own network, one-shot epoll and 8 threads;
* threads: one blocking thread for each connection;
* asyncio: one event loop with ``loop.sock_sendfile``.

The client is one process with a thread for each connection. Rounds in turn; medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.table import Table

from bench.kit.children import Child
from bench.kit.harness import console
from bench.kit.processes import CpuTime, memory_mib
from spark_logbus.clock import SystemClock
from spark_logbus.log import OS_FILES, LogSlice
from spark_logbus.network import Connection, Network, Response
from spark_logbus.network.config import NetworkConfig
from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    Api,
    DeleteTopicRequest,
    DeleteTopicResponse,
    Frame,
    FrameLimits,
    FrameReader,
    encode_request,
    encode_response,
    frame_head,
)

MIB = 1 << 20
FETCH_BYTES = 8 * MIB
FILE_BYTES = 256 * MIB
_HEADER = encode_response(DeleteTopicResponse())


# -- servers ------------------------------------------------------------------------------


class Answers:
    """An empty response to a ping, 8 MiB of a file to a fetch."""

    def __init__(self, path: Path) -> None:
        self._file = OS_FILES.open_read_only(path)
        self._position = 0

    def __call__(self, frame: Frame) -> Response:
        if frame.api != Api.FETCH:
            return Response(_HEADER)
        self._position = (self._position + FETCH_BYTES) % FILE_BYTES
        return Response(_HEADER, [LogSlice(self._file, self._position, FETCH_BYTES)])


def head_of(frame: Frame, reply: Response) -> bytes:
    return frame_head(
        api=frame.api,
        version=frame.version,
        correlation=frame.correlation,
        header=reply.header,
        payload_length=reply.payload_length,
    )


def serve_epoll(answers: Answers, ready: Callable[[int], None]) -> None:
    config = NetworkConfig(local_socket=False)
    network = Network(host="127.0.0.1", port=0, config=config, clock=SystemClock())

    def handle(connection: Connection, frame: Frame) -> Response:
        connection.handshake_done()
        return answers(frame)

    network.start(handle)
    assert network.port is not None
    ready(network.port)
    threading.Event().wait()


def serve_threads(answers: Answers, ready: Callable[[int], None]) -> None:
    def serve(sock: socket.socket) -> None:
        reader = FrameReader(FrameLimits(64 * MIB))
        with sock:
            while count := sock.recv_into(reader.buffer()):
                frame = reader.advance(count)
                if frame is not None:
                    reply = answers(frame)
                    flags = socket.MSG_MORE if reply.slices else 0
                    sock.send(head_of(frame, reply), flags)
                    for piece in reply.slices:
                        done = 0
                        while done < piece.length:
                            at = piece.position + done
                            left = piece.length - done
                            done += os.sendfile(sock.fileno(), piece.file.fileno(), at, left)

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        ready(listener.getsockname()[1])
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(sock,), daemon=True).start()


def serve_asyncio(answers: Answers, ready: Callable[[int], None], path: Path) -> None:
    async def serve(sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = FrameReader(FrameLimits(64 * MIB))
        with sock, path.open("rb") as file:
            while count := await loop.sock_recv_into(sock, reader.buffer()):
                frame = reader.advance(count)
                if frame is not None:
                    reply = answers(frame)
                    await loop.sock_sendall(sock, head_of(frame, reply))
                    for piece in reply.slices:
                        await loop.sock_sendfile(sock, file, piece.position, piece.length)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        tasks = set()
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            listener.setblocking(False)
            ready(listener.getsockname()[1])
            while True:
                sock, _ = await loop.sock_accept(listener)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                task = asyncio.create_task(serve(sock))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    asyncio.run(run())


KINDS = ("epoll", "threads", "asyncio")


def serve(kind: str, file: str) -> None:
    path = Path(file)

    def ready(port: int) -> None:
        print(port, flush=True)

    answers = Answers(path)
    if kind == "epoll":
        serve_epoll(answers, ready)
    elif kind == "threads":
        serve_threads(answers, ready)
    else:
        serve_asyncio(answers, ready, path)


# -- clients ------------------------------------------------------------------------------


class Server:
    """A running server of one kind."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def cpu_s(self) -> float:
        return CpuTime.of(self.pid).whole

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))


@contextmanager
def running(kind: str, path: Path) -> Iterator[Server]:
    """Runs a server in a process of its own."""
    with Child("bench.programs.network", [kind, str(path)]) as process:
        yield Server(process.pid, int(process.line()))


def request(api: Api) -> bytes:
    header = encode_request(DeleteTopicRequest("t"))
    return frame_head(api=api, version=PROTOCOL_VERSION, correlation=1, header=header)


def ask(sock: socket.socket, frame: bytes, buffer: memoryview) -> int:
    """One round trip; the bytes that came."""
    sock.sendall(frame)
    got = sock.recv_into(buffer)
    total = 4 + int.from_bytes(buffer[:4], "little")
    while got < total:
        count = sock.recv_into(buffer)
        if not count:
            raise ConnectionError("The server ended the connection.")
        got += count
    return total


def load(server: Server, api: Api, *, clients: int, seconds: float) -> tuple[float, float]:
    """(requests per second, milliseconds of the server's CPU per request)."""
    frame = request(api)
    counts = [0] * clients
    end = time.perf_counter() + seconds

    def run(number: int) -> None:
        buffer = memoryview(bytearray(MIB if api is Api.FETCH else 4096))
        with server.connect() as sock:
            while time.perf_counter() < end:
                ask(sock, frame, buffer)
                counts[number] += 1

    cpu, started = server.cpu_s(), time.perf_counter()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(counts)
    return total / (time.perf_counter() - started), 1000 * (server.cpu_s() - cpu) / total


def idle(server: Server, *, connections: int, pings: int) -> tuple[float, float, float]:
    """(resident MiB, median and 99th percentile of a ping in ms) beside idle connections."""
    frame, buffer = request(Api.DELETE_TOPIC), memoryview(bytearray(4096))
    with ExitStack() as stack:
        for _ in range(connections):
            ask(stack.enter_context(server.connect()), frame, buffer)
        sock = stack.enter_context(server.connect())
        times = []
        for _ in range(pings):
            started = time.perf_counter()
            ask(sock, frame, buffer)
            times.append(1000 * (time.perf_counter() - started))
        times.sort()
        return memory_mib(server.pid), times[pings // 2], times[pings * 99 // 100]


def measure(path: Path, *, rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Measure -> kind -> a value for each round."""
    found: dict[str, dict[str, list[float]]] = {}

    def note(what: str, kind: str, value: float) -> None:
        found.setdefault(what, {}).setdefault(kind, []).append(value)

    for _ in range(rounds):
        for clients in (1, 8, 64):
            for kind in KINDS:
                with running(kind, path) as server:
                    rate, cpu = load(server, Api.FETCH, clients=clients, seconds=seconds)
                note(f"fetch, {clients} readers: MiB/s", kind, rate * FETCH_BYTES / MIB)
                note(f"fetch, {clients} readers: server CPU ms per 8 MiB", kind, cpu)
        for clients in (1, 16):
            for kind in KINDS:
                with running(kind, path) as server:
                    rate, cpu = load(server, Api.DELETE_TOPIC, clients=clients, seconds=seconds)
                note(f"round trips, {clients} clients: 1/s", kind, rate)
                note(f"round trips, {clients} clients: server CPU µs each", kind, 1000 * cpu)
        for kind in KINDS:
            with running(kind, path) as server:
                rss, median, late = idle(server, connections=1000, pings=2000)
            note("1,000 idle connections: server RSS MiB", kind, rss)
            note("1,000 idle connections: ping, median ms", kind, median)
            note("1,000 idle connections: ping, 99th percentile ms", kind, late)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as directory:
        path = Path(directory) / "segment"
        path.write_bytes(os.urandom(MIB) * ((FILE_BYTES + FETCH_BYTES) // MIB))
        found = measure(path, rounds=arguments.rounds, seconds=arguments.seconds)
    table = Table("", *KINDS, title="median (lowest - highest)")
    for what, values in found.items():
        table.add_row(
            what,
            *(
                f"{statistics.median(values[kind]):,.2f} "
                f"({min(values[kind]):,.2f} - {max(values[kind]):,.2f})"
                for kind in KINDS
            ),
        )
    console.print(table)


if __name__ == "__main__":
    serve(*json.loads(sys.argv[1]))
