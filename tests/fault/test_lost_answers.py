"""The connection breaks after the write and before the acknowledgement; the producer repeats."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.client import Admin, ClientConfig, Cluster, Producer, ProducerConfig, RangeReader
from spark_logbus.model import Latest, OffsetRange, TopicPartition
from tests.helpers import wait_until
from tests.servers.broker import broker_process
from tests.servers.relay import Relay

TP = TopicPartition("t", 0)
RECORDS = 500
CONFIG = ClientConfig(local_sockets=False, retry_backoff_ms=1, retry_backoff_max_ms=5)


class Losses:
    """Drops two answers in five, and the connection with them, once it is ``losing``. While
    ``held``, answers wait, and then get lost likewise.

    What they were about has been carried out: the broker has answered.
    """

    def __init__(self) -> None:
        self._chance = random.Random(18)
        self.losing = False
        self.lost = 0
        self.held: threading.Event | None = None

    def passes(self, _: bytes) -> bool:
        if self.held is not None:
            return self.held.wait(60) and False
        if self.losing and self._chance.random() < 0.4:
            self.lost += 1
            return False
        return True


@pytest.fixture
def lossy(
    tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Cluster, Losses]]:
    with broker_process(tmp_path, chroot) as process:
        with Cluster.from_zookeeper(chroot, CONFIG) as direct:
            Admin(direct).create_topic(TP.topic, partitions=1)
        assert process.address is not None
        losses = Losses()
        relay = Relay(process.address, losses.passes)
        relay.take_over(monkeypatch)
        try:
            with Cluster.from_zookeeper(chroot, CONFIG) as cluster:
                yield cluster, losses
        finally:
            relay.close()


def publish(cluster: Cluster, losses: Losses, config: ProducerConfig) -> dict[bytes, int]:
    """Send records while answers get lost; the offset that each was acknowledged at."""
    with Producer(cluster, config) as producer:
        producer.send(TP.topic, b"first").result(60)
        losses.losing = True
        offsets: dict[bytes, int | None] = {}
        for first in range(0, RECORDS, 20):  # an answer or more to each
            values = [b"%d" % number for number in range(first, first + 20)]
            futures = {value: producer.send(TP.topic, value) for value in values}
            offsets |= {value: future.result(60).offset for value, future in futures.items()}
        losses.losing = False
    assert losses.lost > 5
    return {value: offset for value, offset in offsets.items() if offset is not None}


def stored(cluster: Cluster) -> list[bytes]:
    end = Admin(cluster).list_offsets({TP: Latest()})[TP] or 0
    values: list[bytes] = []
    for fetched in RangeReader(cluster, OffsetRange(TP, 0, end)):
        values += fetched.arrow_batch.column("value").to_pylist()
    return values


def test_a_repeated_append_makes_no_second_copy(lossy: tuple[Cluster, Losses]) -> None:
    cluster, losses = lossy
    acknowledged = publish(cluster, losses, ProducerConfig(linger_ms=0, batch_bytes=100))
    values = stored(cluster)
    assert values == [b"first", *(b"%d" % number for number in range(RECORDS))]
    assert acknowledged == {value: values.index(value) for value in values[1:]}


def test_without_numbers_there_are_second_copies(lossy: tuple[Cluster, Losses]) -> None:
    """Makes sure that answers get lost as the test above needs it."""
    cluster, losses = lossy
    config = ProducerConfig(linger_ms=0, batch_bytes=100, idempotent=False)
    publish(cluster, losses, config)
    assert max(Counter(stored(cluster)).values()) > 1


def test_several_requests_are_under_way_and_keep_their_order(
    lossy: tuple[Cluster, Losses], tmp_path: Path
) -> None:
    """The log of a broker far away shows what it has taken before any of its answers arrives."""
    cluster, losses = lossy
    values = [b"%04d" % number * 1_000 for number in range(20)]

    def taken() -> list[bytes]:
        [log] = tmp_path.glob(f"**/{TP.topic}-0/*.log")
        data = log.read_bytes()
        return [value for value in values if value in data]

    with Producer(cluster, ProducerConfig(linger_ms=0, batch_bytes=100)) as producer:
        producer.send(TP.topic, b"first").result(60)
        losses.held = threading.Event()
        futures = []
        for count in range(1, 4):
            futures.append(producer.send(TP.topic, values[count - 1]))
            wait_until(lambda count=count: taken() == values[:count])  # type: ignore[misc]
        futures += [producer.send(TP.topic, value) for value in values[3:]]
        held, losses.held = losses.held, None
        held.set()
        offsets = [future.result(60).offset for future in futures]
    assert stored(cluster) == [b"first", *values]
    assert offsets == list(range(1, 21))
