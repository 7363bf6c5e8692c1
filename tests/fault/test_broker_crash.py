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
MOST_UNACKNOWLEDGED = 100
# Small, so that crashes meet rolls, retired indexes and batches of several requests too.
_PADDING = (0, 10, 10, 100, 100, 100, 1000, 10_000)
SETTINGS = {"log": {"segment_bytes": 1 << 20, "index_interval_bytes": 256}}

Record = tuple[str, int]  # who published it, number
Place = tuple[int, int]  # partition, offset


def value_of(record: Record) -> bytes:
    """What the record holds, told by its name alone."""
    name, number = record
    return b"%s:%d:" % (name.encode(), number) + bytes(_PADDING[number % len(_PADDING)])


def record_of(value: bytes) -> Record:
    name, number, _ = value.split(b":", 2)
    record = name.decode(), int(number)
    assert value == value_of(record), f"{record} is not what was published"
    return record


class Publisher(threading.Thread):
    """Publishes numbered records, and knows which were acknowledged, and where."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name=name)
        self.chance = random.Random(seed)
        self.acknowledged: dict[Record, Place] = {}
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

    def next_record(self) -> Record:
        self.sent += 1
        return self.name, self.sent

    def acknowledge(self, record: Record, place: Place) -> None:
        assert record not in self.acknowledged, f"{record} was acknowledged twice"
        self.acknowledged[record] = place


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
                record = self.next_record()
                key = b"%d" % self.sent if self.chance.random() < 0.5 else None
                future = producer.send(TOPIC, value_of(record), key=key)
                future.add_done_callback(partial(self._done, record, room))

    def _done(self, record: Record, room: threading.Semaphore, done: RecordFuture) -> None:
        metadata = done.result()
        assert metadata.offset is not None
        self.acknowledge(record, (metadata.partition, metadata.offset))
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
        record, partition = self.next_record(), self.chance.randrange(PARTITIONS)
        builder = ArrowBatchBuilder()
        builder.add(value=value_of(record), key=None, timestamp_us=self.sent, headers=None)
        (result,) = wire.append(TOPIC, partition, encode(builder.build())).results
        if result.error is None:
            self.acknowledge(record, (partition, result.base_offset))


def read_back(
    cluster: Cluster, starts: dict[int, int], ends: dict[int, int]
) -> dict[Place, Record]:
    """The records from ``starts`` to ``ends``, by place; every offset is there, in order."""
    found: dict[Place, Record] = {}
    for partition, end in ends.items():
        expected = starts[partition]
        wanted = OffsetRange(TopicPartition(TOPIC, partition), expected, end)
        with RangeReader(cluster, wanted) as reader:
            for batch in reader:
                assert batch.base_offset == expected, "offsets are dense and in order"
                for value in batch.arrow_batch.column("value").to_pylist():
                    found[partition, expected] = record_of(value)
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


def check(acknowledged: dict[Record, Place], found: dict[Place, Record]) -> None:
    wrong = {
        record: (place, found.get(place))
        for record, place in acknowledged.items()
        if found.get(place) != record
    }
    assert not wrong, f"{len(wrong)} acknowledged records are not where they were acknowledged"


def acknowledged_by(publishers: list[Publisher]) -> dict[Record, Place]:
    return {
        record: place for each in publishers for record, place in list(each.acknowledged.items())
    }


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
                starts = dict.fromkeys(range(PARTITIONS), 0)
                for _ in range(rounds):
                    crash_under_load(publishers, chance)
                    broker.kill()
                    before = acknowledged_by(publishers)
                    broker.start()
                    with connect(broker) as wire:
                        wait_until(lambda: is_led(wire, TOPIC))
                        ends = high_watermarks(wire)
                    fresh = {
                        record: (partition, offset)
                        for record, (partition, offset) in before.items()
                        if offset >= starts[partition]
                    }
                    check(fresh, read_back(cluster, starts, ends))
                    starts = ends
            finally:
                for each in publishers:
                    each.stopping.set()
                for each in publishers:
                    each.join(90)
            assert [each.error for each in publishers] == [None] * len(publishers)
            with connect(broker) as wire:
                ends = high_watermarks(wire)
            found = read_back(cluster, dict.fromkeys(range(PARTITIONS), 0), ends)
    acknowledged = acknowledged_by(publishers)
    check(acknowledged, found)
    assert len(set(acknowledged.values())) == len(acknowledged), "one offset, one record"
    times = Counter(found.values())
    for each in publishers:
        if isinstance(each, Repeating):
            assert len(each.acknowledged) == each.sent, "in the end all were acknowledged"
        else:
            mine = [count for (name, _), count in times.items() if name == each.name]
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
