"""The socket between a Python worker and Spark: which one it is, and when it acknowledges."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_logbus.spark.worker_socket import Acknowledger, find_spark_socket
from tests.helpers import wait_until

PIECES = 8  # that are acknowledged after a task

linux = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has the option")


class Recorded(socket.socket):
    """A socket that counts the times that an option is set."""

    times_set = 0

    def setsockopt(self, *arguments: int) -> None:  # type: ignore[override]
        super().setsockopt(*arguments)
        self.times_set += 1


@pytest.fixture
def ends() -> Iterator[tuple[Recorded, socket.socket]]:
    """A worker's end of a loopback connection, and the JVM's, whose port the other one leads to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        with Recorded(fileno=one.detach()) as worker, server.accept()[0] as jvm:
            yield worker, jvm


@pytest.fixture
def acknowledger(ends: tuple[Recorded, socket.socket]) -> Iterator[Acknowledger]:
    """Watches the worker's end. When the JVM's is closed, its thread ends."""
    worker, jvm = ends
    yield Acknowledger(worker, socket.TCP_QUICKACK)
    jvm.close()
    wait_until(lambda: not acknowledgers())


def wait_until_set(worker: Recorded, times: int) -> None:
    wait_until(lambda: worker.times_set >= times)


def acknowledgers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "logbus-quick-ack"]


@linux
def test_the_socket_is_found_by_the_port_of_the_jvm(
    ends: tuple[Recorded, socket.socket],
) -> None:
    worker, jvm = ends
    assert find_spark_socket(jvm.getsockname()[1]) == worker.fileno()
    assert find_spark_socket(1) is None


@linux
def test_without_a_port_the_socket_is_the_one_with_several_descriptors(
    ends: tuple[Recorded, socket.socket],
) -> None:
    worker, jvm = ends
    assert find_spark_socket(None) is None
    with closing(socket.socket(fileno=os.dup(worker.fileno()))) as copy:
        assert find_spark_socket(None) in (worker.fileno(), copy.fileno())
        with closing(socket.socket(fileno=os.dup(jvm.fileno()))):
            assert find_spark_socket(None) is None  # which of the two is not known


@linux
def test_no_other_kind_of_socket_is_taken_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one, other = socket.socketpair()
        datagrams = socket.socket(type=socket.SOCK_DGRAM)
        with one, other, datagrams:
            copies = [socket.socket(fileno=os.dup(each.fileno())) for each in (one, server)]
            assert find_spark_socket(None) is None
            for copy in copies:
                copy.close()


@linux
def test_with_a_default_timeout_no_socket_is_touched(ends: tuple[Recorded, socket.socket]) -> None:
    worker, jvm = ends
    socket.setdefaulttimeout(5)
    try:
        assert find_spark_socket(jvm.getsockname()[1]) is None
    finally:
        socket.setdefaulttimeout(None)
    assert worker.getblocking()
    assert os.get_blocking(worker.fileno())


@linux
def test_what_comes_is_acknowledged_though_it_is_read_at_once(
    ends: tuple[Recorded, socket.socket], acknowledger: Acknowledger
) -> None:
    worker, jvm = ends
    acknowledger.begin()
    wait_until_set(worker, 1)  # told at once that it can be written to
    for _ in range(3):
        before = worker.times_set
        reader = threading.Thread(target=worker.recv, args=(100,))
        reader.start()
        jvm.sendall(b"a piece of a task")
        reader.join()
        wait_until_set(worker, before + 1)


@linux
def test_a_few_pieces_are_acknowledged_until_the_next_task_ends(
    ends: tuple[Recorded, socket.socket], acknowledger: Acknowledger
) -> None:
    worker, jvm = ends
    for _ in range(2):
        before = worker.times_set
        acknowledger.begin()
        for number in range(3 * PIECES):
            jvm.sendall(b"x")
            worker.recv(100)
            if number < PIECES - 1:
                wait_until_set(worker, before + number + 1)
        assert worker.times_set <= before + PIECES
