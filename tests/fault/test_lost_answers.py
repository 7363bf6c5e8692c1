"""The connection breaks after the write and before the acknowledgement; the producer repeats."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Producer,
    ProducerConfig,
    RangeReader,
    dial,
)
from spark_logbus.client.retry import Deadline
from spark_logbus.model import BrokerAddress, Latest, OffsetRange, TopicPartition
from tests.integration.broker_tools import broker_process

TP = TopicPartition("t", 0)
RECORDS = 500
CONFIG = ClientConfig(local_sockets=False, retry_backoff_ms=1, retry_backoff_max_ms=5)


class LossyProxy:
    """Hands requests on and, once ``losing``, drops the connection instead of two answers in five.

    What it drops has been carried out: the broker has answered.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._chance = random.Random(18)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.losing = False
        self.lost = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """When those who are connected have gone."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(self._target)
            thread = threading.Thread(target=self._serve, args=(client, broker), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket, broker: socket.socket) -> None:
        answers = threading.Thread(target=self._relay, args=(broker, client, True), daemon=True)
        answers.start()
        self._relay(client, broker, False)
        answers.join(10)
        client.close()
        broker.close()

    def _relay(self, source: socket.socket, target: socket.socket, may_lose: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if may_lose and self.losing and self._chance.random() < 0.4:
                    self.lost += 1
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def lossy(
    tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Cluster, LossyProxy]]:
    with broker_process(tmp_path, chroot) as process:
        with Cluster.from_zookeeper(chroot, CONFIG) as direct:
            Admin(direct).create_topic(TP.topic, partitions=1)
        assert process.address is not None
        proxy = LossyProxy(process.address)
        connect = dial._connect

        def through_the_proxy(address: BrokerAddress, deadline: Deadline) -> socket.socket:
            detour = BrokerAddress(address.broker_id, "127.0.0.1", proxy.port)
            return connect(detour, deadline)

        monkeypatch.setattr(dial, "_connect", through_the_proxy)
        try:
            with Cluster.from_zookeeper(chroot, CONFIG) as cluster:
                yield cluster, proxy
        finally:
            proxy.close()


def publish(cluster: Cluster, proxy: LossyProxy, config: ProducerConfig) -> dict[bytes, int]:
    """Send records while answers get lost; the offset that each was acknowledged at."""
    with Producer(cluster, config) as producer:
        producer.send(TP.topic, b"first").result(30)
        proxy.losing = True
        offsets: dict[bytes, int | None] = {}
        for first in range(0, RECORDS, 20):  # an answer or more to each
            values = [b"%d" % number for number in range(first, first + 20)]
            futures = {value: producer.send(TP.topic, value) for value in values}
            offsets |= {value: future.result(60).offset for value, future in futures.items()}
        proxy.losing = False
    assert proxy.lost > 5
    return {value: offset for value, offset in offsets.items() if offset is not None}


def stored(cluster: Cluster) -> list[bytes]:
    end = Admin(cluster).list_offsets({TP: Latest()})[TP] or 0
    values: list[bytes] = []
    for fetched in RangeReader(cluster, OffsetRange(TP, 0, end)):
        values += fetched.arrow_batch.column("value").to_pylist()
    return values


def test_a_repeated_append_makes_no_second_copy(lossy: tuple[Cluster, LossyProxy]) -> None:
    cluster, proxy = lossy
    acknowledged = publish(cluster, proxy, ProducerConfig(linger_ms=0, batch_bytes=100))
    values = stored(cluster)
    assert values == [b"first", *(b"%d" % number for number in range(RECORDS))]
    assert acknowledged == {value: values.index(value) for value in values[1:]}


def test_without_numbers_there_are_second_copies(lossy: tuple[Cluster, LossyProxy]) -> None:
    """That the answers get lost as the test above needs it."""
    cluster, proxy = lossy
    config = ProducerConfig(linger_ms=0, batch_bytes=100, idempotent=False)
    publish(cluster, proxy, config)
    assert max(Counter(stored(cluster)).values()) > 1
