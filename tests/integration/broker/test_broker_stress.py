"""Many clients at once: pipelined appends, long polls, and those that leave in the middle."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.broker import NetworkConfig
from spark_logbus.protocol import (
    Api,
    AppendResponse,
    FetchResponse,
    Message,
    MetadataRequest,
    MetadataResponse,
)
from tests.builders.record_batches import record_batch
from tests.helpers import wait_until
from tests.servers.broker import broker_here, connect, create_topic, offsets_in
from tests.servers.wire import EndedError, Wire, append_request, fetch_request

PARTITIONS = 3


class Client(threading.Thread):
    """Repeats ``work`` on one connection after the other until it is told to stop."""

    def __init__(self, open_one: Callable[[], Wire], seed: int) -> None:
        super().__init__()
        self._open = open_one
        self.chance = random.Random(seed)
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self.answers = 0
        self.start()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                with self._open() as wire:
                    self.work(wire)
        except BaseException as error:
            self.error = error
            raise

    def work(self, wire: Wire) -> None:
        raise NotImplementedError

    def expect(self, wire: Wire, sent: list[tuple[Api, int]]) -> None:
        """All responses, in the order of their requests and without an error."""
        kinds: dict[Api, type[Message]] = {
            Api.APPEND: AppendResponse,
            Api.FETCH: FetchResponse,
            Api.METADATA: MetadataResponse,
        }
        for api, correlation in sent:
            answer = wire.answer(api, kinds[api], correlation=correlation)
            for result in getattr(answer, "results", []):
                assert result.error is None, result.error
            self.answers += 1


class Mixed(Client):
    """Pipelines everything on one connection: appends, fetches that wait, metadata."""

    def work(self, wire: Wire) -> None:
        for _ in range(20):
            sent = []
            for _ in range(self.chance.randrange(1, 40)):
                partition = self.chance.randrange(PARTITIONS)
                kind = self.chance.choice([Api.APPEND, Api.APPEND, Api.FETCH, Api.METADATA])
                if kind is Api.APPEND:
                    acks = self.chance.choice(["none", "written", "flushed", "flushed"])
                    data = record_batch(payload=bytes(self.chance.choice([8, 800, 80_000])))
                    request = append_request("t", partition, data, acks=acks)
                    correlation = wire.send(Api.APPEND, request, data)
                    if acks == "none":
                        continue
                elif kind is Api.FETCH:
                    wait_ms = self.chance.choice([0, 1, 20])
                    most = self.chance.choice([1, 10_000, 1_000_000])
                    request_ = fetch_request("t", partition, 0, max_bytes=most, wait_ms=wait_ms)
                    correlation = wire.send(Api.FETCH, request_)
                else:
                    correlation = wire.send(Api.METADATA, MetadataRequest(["t"], ends=True))
                sent.append((kind, correlation))
            self.expect(wire, sent)


class Tailing(Client):
    """Follows one partition by long polls and sees every offset once."""

    def work(self, wire: Wire) -> None:
        partition = self.chance.randrange(PARTITIONS)
        offset = 0
        for _ in range(50):
            wire.fetch("t", partition, offset, wait_ms=30)
            for base, following in offsets_in(wire.payload):
                assert base == offset
                offset = following
            self.answers += 1
            if self.stopping.is_set():
                return


class Leaving(Client):
    """Leaves with requests unanswered, half sent, or half received."""

    def work(self, wire: Wire) -> None:
        data = record_batch(payload=bytes(40_000))
        for _ in range(self.chance.randrange(5)):
            wire.send(Api.APPEND, append_request("t", 0, data), data)
            wire.send(Api.FETCH, fetch_request("t", 1, 0, wait_ms=60_000, min_bytes=1 << 40))
        if self.chance.random() < 0.5:
            wire.sock.settimeout(0.5)  # for an answer that may never come
            try:
                wire.sock.sendall(bytes(data[: self.chance.randrange(16)]))
                wire.sock.recv(self.chance.randrange(1, 100_000))
            except (ConnectionError, TimeoutError, EndedError):
                return


@pytest.mark.parametrize("seconds", [6, pytest.param(120, marks=pytest.mark.slow)])
@pytest.mark.long
def test_every_request_is_answered_in_its_turn(tmp_path: Path, chroot: str, seconds: float) -> None:
    network = NetworkConfig(threads=6)
    with broker_here(tmp_path, chroot, network=network) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t", partitions=PARTITIONS)

        def open_one() -> Wire:
            return connect(broker)

        kinds: list[type[Client]] = [Mixed, Mixed, Mixed, Tailing, Tailing, Leaving, Leaving]
        clients = [kind(open_one, seed) for seed, kind in enumerate(kinds)]
        pause = threading.Event()
        end = time.monotonic() + seconds
        while time.monotonic() < end and all(client.error is None for client in clients):
            pause.wait(0.1)
        for client in clients:
            client.stopping.set()
        for client in clients:
            client.join(60)
            assert not client.is_alive(), f"{client} waits for an answer that does not come"
        assert [client.error for client in clients] == [None] * len(clients)
        assert sum(client.answers for client in clients) > 100 * seconds
        network_ = broker._network
        assert network_ is not None
        wait_until(lambda: network_.connection_count == 0)
        assert network_.waiting() == 0
