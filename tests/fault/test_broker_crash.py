"""kill -9 of a broker while several producers publish: what was acknowledged is there.

Each acknowledgement names one record and one offset. After every crash the records are read back:
at each acknowledged offset stands the very record that was acknowledged there, no offset was given
to two records, and offsets are dense. A producer repeats what was not acknowledged, so a record
may be there more often than it was acknowledged; one that is sent without repeating may not.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from spark_logbus.client import Cluster, Producer, ProducerConfig, RangeReader, RecordFuture
from spark_logbus.errors import LogbusError
from spark_logbus.model import Acks, OffsetRange, TopicPartition
from spark_logbus.protocol import MetadataRequest, MetadataResponse
from spark_logbus.protocol.messages import Api
from spark_logbus.record.arrow import encode
from spark_logbus.record.builder import ArrowBatchBuilder
from tests.helpers import wait_until
from tests.integration.broker_tools import broker_process, connect, create_topic, is_led
from tests.unit.broker.wire import EndedError, Wire

TOPIC = "t"
PARTITIONS = 3
MOST_UNACKNOWLEDGED = 500
# Small, so that crashes meet rolls, retired indexes and batches of several requests too.
SETTINGS = {"log": {"segment_bytes": 1 << 20, "index_interval_bytes": 256}}

Place = tuple[int, int]  # partition, offset


class Publisher(threading.Thread):
    """Publishes numbered records, and knows which were acknowledged, and where."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name=name)
        self.chance = random.Random(seed)
        self.acknowledged: dict[bytes, Place] = {}
        self.sent = 0
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.publish()
        except BaseException as error:
            self.error = error
            raise

    def publish(self) -> None:
        raise NotImplementedError

    def next_value(self) -> bytes:
        self.sent += 1
        padding = bytes(self.chance.choice([0, 10, 100, 1000, 10_000]))
        return b"%s:%d:" % (self.name.encode(), self.sent) + padding

    def acknowledge(self, value: bytes, place: Place) -> None:
        assert value not in self.acknowledged, f"{value[:20]!r} was acknowledged twice"
        self.acknowledged[value] = place


class Repeating(Publisher):
    """A producer, which repeats what was not acknowledged."""

    def __init__(self, name: str, seed: int, cluster: Cluster) -> None:
        super().__init__(name, seed)
        self._cluster = cluster

    def publish(self) -> None:
        config = ProducerConfig(acks=Acks.FLUSHED, linger_ms=2, batch_bytes=32 << 10)
        room = threading.Semaphore(MOST_UNACKNOWLEDGED)
        with Producer(self._cluster, config) as producer:
            while not self.stopping.is_set():
                room.acquire()
                value = self.next_value()
                key = b"%d" % self.sent if self.chance.random() < 0.5 else None
                future = producer.send(TOPIC, value, key=key)
                future.add_done_callback(partial(self._done, value, room))

    def _done(self, value: bytes, room: threading.Semaphore, done: RecordFuture) -> None:
        metadata = done.result()
        assert metadata.offset is not None
        self.acknowledge(value, (metadata.partition, metadata.offset))
        room.release()


class Once(Publisher):
    """Sends each record once, whatever becomes of it."""

    def __init__(self, name: str, seed: int, open_one: Callable[[], Wire]) -> None:
        super().__init__(name, seed)
        self._open = open_one

    def publish(self) -> None:
        while not self.stopping.is_set():
            try:
                with self._open() as wire:
                    while not self.stopping.is_set():
                        self._append(wire)
            except (EndedError, ConnectionError, LogbusError):
                self.stopping.wait(0.05)

    def _append(self, wire: Wire) -> None:
        value, partition = self.next_value(), self.chance.randrange(PARTITIONS)
        builder = ArrowBatchBuilder()
        builder.add(value=value, key=None, timestamp_us=self.sent, headers=None)
        (result,) = wire.append(TOPIC, partition, encode(builder.build())).results
        if result.error is None:
            self.acknowledge(value, (partition, result.base_offset))


def read_back(cluster: Cluster, ends: dict[int, int]) -> dict[Place, bytes]:
    """All records, by place; every offset up to the high watermark, in order."""
    found: dict[Place, bytes] = {}
    for partition, end in ends.items():
        tp = TopicPartition(TOPIC, partition)
        expected = 0
        with RangeReader(cluster, OffsetRange(tp, 0, end)) as reader:
            for batch in reader:
                assert batch.base_offset == expected, "offsets are dense and in order"
                for value in batch.arrow_batch.column("value").to_pylist():
                    found[partition, expected] = value
                    expected += 1
        assert expected == end
    return found


def high_watermarks(wire: Wire) -> dict[int, int]:
    response = wire.call(Api.METADATA, MetadataRequest([TOPIC], ends=True), MetadataResponse)
    return {
        each.partition: each.ends.high_watermark
        for each in response.topics[0].partitions
        if each.ends is not None
    }


def check(publishers: list[Publisher], found: dict[Place, bytes]) -> None:
    acknowledged = [item for each in publishers for item in list(each.acknowledged.items())]
    places = Counter(place for _, place in acknowledged)
    assert max(places.values()) == 1, "no offset was given to two records"
    wrong = {
        place: (value[:20], found.get(place, b"nothing")[:20])
        for value, place in acknowledged
        if found.get(place) != value
    }
    assert not wrong, f"{len(wrong)} acknowledged records are not where they were acknowledged"


def crash_and_check(tmp_path: Path, zookeeper: str, *, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    with broker_process(tmp_path, zookeeper, settings=SETTINGS) as broker:
        with connect(broker) as wire:
            create_topic(wire, TOPIC, partitions=PARTITIONS)
        with Cluster.from_zookeeper(zookeeper) as cluster:
            publishers: list[Publisher] = [
                *(Repeating(f"repeating-{n}", seed + n, cluster) for n in range(3)),
                *(Once(f"once-{n}", seed + 10 + n, lambda: connect(broker)) for n in range(2)),
            ]
            for each in publishers:
                each.start()
            try:
                for _ in range(rounds):
                    crash_under_load(publishers, chance)
                    broker.kill()
                    # What is checked must have been acknowledged before the crash.
                    before = [dict(each.acknowledged) for each in publishers]
                    broker.start()
                    with connect(broker) as wire:
                        wait_until(lambda: is_led(wire, TOPIC))
                        ends = high_watermarks(wire)
                    found = read_back(cluster, ends)
                    for number, each in enumerate(publishers):
                        for value, place in before[number].items():
                            assert found.get(place) == value, (each.name, value[:20], place)
            finally:
                for each in publishers:
                    each.stopping.set()
                for each in publishers:
                    each.join(90)
            assert [each.error for each in publishers] == [None] * len(publishers)
            with connect(broker) as wire:
                ends = high_watermarks(wire)
            found = read_back(cluster, ends)
            check(publishers, found)
            times = Counter(found.values())
            for each in publishers:
                if isinstance(each, Repeating):
                    assert len(each.acknowledged) == each.sent, "in the end all were acknowledged"
                else:
                    mine = [n for value, n in times.items() if value.startswith(each.name.encode())]
                    assert max(mine) == 1, "what was sent once is there at most once"


def crash_under_load(publishers: list[Publisher], chance: random.Random) -> None:
    """Return at some moment in the middle of publishing, after everyone got on."""
    start = [len(each.acknowledged) for each in publishers]
    wait_until(
        lambda: all(
            len(each.acknowledged) >= before + 50
            for each, before in zip(publishers, start, strict=True)
        ),
        deadline_s=60,
    )
    threading.Event().wait(chance.random() / 2)


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, chroot: str) -> None:
    crash_and_check(tmp_path, chroot, rounds=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2, 3])
def test_what_was_acknowledged_survives_kill_9_again_and_again(
    tmp_path: Path, chroot: str, seed: int
) -> None:
    crash_and_check(tmp_path, chroot, rounds=20, seed=seed * 100)
