"""Producers and readers that live through crashes of a broker, and what they know of the log.

Every record holds its name (who published it, and its number) and is otherwise determined by
it, so what is read tells whether it was ever published. ``Truth`` is what the log was found to
hold at each offset; nothing that was acknowledged, or handed to a reader, may ever differ.
"""

from __future__ import annotations

import random
import re
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from spark_logbus.client import (
    Admin,
    Cluster,
    Consumer,
    Producer,
    ProducerConfig,
    RangeReader,
    RecordFuture,
)
from spark_logbus.errors import CorruptRecordBatchError, LogbusError, OffsetOutOfRangeError
from spark_logbus.model import Acks, Earliest, OffsetRange, TopicPartition
from spark_logbus.record.rows.arrow import encode
from spark_logbus.record.rows.builder import ArrowBatchBuilder
from tests.servers.wire import EndedError, Wire

TOPIC = "t"
PARTITIONS = 3
MOST_UNACKNOWLEDGED = 100
# Few records to a round, so that there can be many rounds.
BURST = 10
BETWEEN_BURSTS_S = 0.02
_PADDING = (0, 10, 10, 100, 100, 100, 1000, 10_000)
_NUMBER_BITS = 40

Record = int  # the publisher's number and the record's, see ``_NUMBER_BITS``
Place = tuple[int, int]  # partition, offset
DAMAGED: Record = 0  # no record has this name: publishers count from 1


def value_of(record: Record) -> bytes:
    """Content of a record, told by its name alone."""
    return b"%d:" % record + bytes(_PADDING[record % len(_PADDING)])


def record_of(value: bytes) -> Record:
    record = int(value[: value.index(b":")])
    assert value == value_of(record), f"{record} is not what was published"
    return record


def publisher_of(record: Record) -> int:
    return record >> _NUMBER_BITS


class Participant(threading.Thread):
    """A thread that works until it is told to stop, and keeps what ended it before."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        self.progress = 0

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error
            raise

    def work(self) -> None:
        raise NotImplementedError


class Publisher(Participant):
    """Publishes numbered records, and knows which were acknowledged, and where."""

    def __init__(self, number: int, seed: int) -> None:
        super().__init__(f"publisher-{number}")
        self.number = number
        self.chance = random.Random(seed)
        self.sent = 0
        # Acknowledged and not yet compared with the log.
        self.acknowledged: list[tuple[Place, Record]] = []

    def next_record(self) -> Record:
        self.sent += 1
        return self.number << _NUMBER_BITS | self.sent

    def acknowledge(self, record: Record, place: Place) -> None:
        self.acknowledged.append((place, record))
        self.progress += 1


class Repeating(Publisher):
    """A producer, which repeats what was not acknowledged."""

    def __init__(self, number: int, seed: int, cluster: Cluster) -> None:
        super().__init__(number, seed)
        self._cluster = cluster

    def work(self) -> None:
        config = ProducerConfig(acks=Acks.FLUSHED, linger_ms=2, batch_bytes=32 << 10)
        room = threading.Semaphore(MOST_UNACKNOWLEDGED)
        with Producer(self._cluster, config) as producer:
            while not self.stopping.is_set():
                room.acquire()
                record = self.next_record()
                key = b"%d" % self.sent if self.chance.random() < 0.5 else None
                future = producer.send(TOPIC, value_of(record), key=key)
                future.add_done_callback(partial(self._done, record, room))
                if self.sent % BURST == 0:
                    self.stopping.wait(BETWEEN_BURSTS_S)

    def _done(self, record: Record, room: threading.Semaphore, done: RecordFuture) -> None:
        try:
            metadata = done.result()
        except LogbusError as error:
            self.error = error
        else:
            assert metadata.offset is not None
            self.acknowledge(record, (metadata.partition, metadata.offset))
        room.release()


class Once(Publisher):
    """Sends each record once, whatever becomes of it."""

    def __init__(self, number: int, seed: int, open_one: Callable[[], Wire]) -> None:
        super().__init__(number, seed)
        self._open = open_one

    def work(self) -> None:
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


class Reader(Participant):
    """Consumes all partitions from their start, in order, and keeps what it was handed."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        super().__init__(f"reader-{number}")
        self._cluster = cluster
        # Read and not yet compared with the log.
        self.seen: list[tuple[Place, Record]] = []

    def work(self) -> None:
        with Consumer(self._cluster) as consumer:
            consumer.assign(TopicPartition(TOPIC, number) for number in range(PARTITIONS))
            while not self.stopping.is_set():
                expected = {
                    topic_partition: consumer.position(topic_partition)
                    for topic_partition in consumer.assignment
                }
                try:
                    batches = consumer.poll_arrow(0.2)
                except CorruptRecordBatchError as error:
                    partition, behind = end_of_damage(error)
                    consumer.seek(TopicPartition(TOPIC, partition), behind)
                    continue
                for batch in batches:
                    topic_partition = batch.topic_partition
                    assert batch.base_offset == expected[topic_partition], (
                        "nothing is skipped or repeated"
                    )
                    expected[topic_partition] = batch.next_offset
                    values = batch.arrow_batch.column("value").to_pylist()
                    self.seen += [
                        ((topic_partition.partition, batch.base_offset + number), record_of(value))
                        for number, value in enumerate(values)
                    ]
                    self.progress += len(values)


def end_of_damage(error: CorruptRecordBatchError) -> tuple[int, int]:
    """Partition, and where to go on, as the error tells its reader."""
    told = re.search(rf"{TOPIC}-(\d+)\[\d+, (\d+)\) are damaged", error.message)
    assert told is not None, error
    return int(told[1]), int(told[2])


class Truth:
    """Content of the log, read back after each crash. Not thread-safe."""

    def __init__(self) -> None:
        self._records = [array("q") for _ in range(PARTITIONS)]

    def ends(self) -> list[int]:
        return [len(records) for records in self._records]

    def at(self, place: Place) -> Record | None:
        partition, offset = place
        records = self._records[partition]
        return records[offset] if offset < len(records) else None

    def extend(self, cluster: Cluster, ends: dict[int, int]) -> None:
        """Read what was not there yet; every offset up to ``ends`` is there, or damaged."""
        for partition, end in ends.items():
            records = self._records[partition]
            records.extend(read(cluster, partition, len(records), end))

    def check_again(self, cluster: Cluster) -> None:
        """Makes sure that what is still in the log is what was there before."""
        for partition, known in enumerate(self._records):
            while True:
                topic_partition = TopicPartition(TOPIC, partition)
                start = (
                    Admin(cluster).list_offsets({topic_partition: Earliest()})[topic_partition] or 0
                )
                with suppress(OffsetOutOfRangeError):  # retention was faster: again
                    assert read(cluster, partition, start, len(known)) == known[start:]
                    break

    def settle(self, found: list[tuple[Place, Record]], *, lost_after: int) -> None:
        """Take out of ``found`` what can be compared, and compare it.

        The first ``lost_after`` of it were there before the crash, so they have to be in the log.
        """
        count = len(found)  # other threads only add
        later = []
        for number, (place, record) in enumerate(found[:count]):
            held = self.at(place)
            if held is None and number >= lost_after:
                later.append((place, record))
            else:
                assert held == record, f"{place} had {record} before the crash, now {held}"
        found[:count] = later

    def check_history(self, publishers: Iterable[Publisher], *, duplicates: bool) -> int:
        """Order per publisher and partition, nothing invented; how many records are there twice."""
        times: Counter[Record] = Counter()
        sent = {each.number: each.sent for each in publishers}
        for records in self._records:
            newest = dict.fromkeys(sent, 0)
            for record in records:
                if record == DAMAGED:
                    continue
                publisher, number = publisher_of(record), record & ((1 << _NUMBER_BITS) - 1)
                assert number <= sent[publisher], "this was never published"
                times[record] += 1
                if times[record] == 1:
                    assert number > newest[publisher], "records of one publisher stay in order"
                    newest[publisher] = number
        once = {each.number for each in publishers if isinstance(each, Once) or not duplicates}
        repeated = [record for record, count in times.items() if count > 1]
        assert not [record for record in repeated if publisher_of(record) in once]
        return len(repeated)


def read(cluster: Cluster, partition: int, start: int, end: int) -> array[int]:
    """The records in ``[start, end)``, with ``DAMAGED`` at each offset that is."""
    found = array("q")
    while start + len(found) < end:
        begin = start + len(found)
        wanted = OffsetRange(TopicPartition(TOPIC, partition), begin, end)
        try:
            with RangeReader(cluster, wanted) as reader:
                for batch in reader:
                    assert batch.base_offset == start + len(found), "offsets are dense"
                    found.extend(map(record_of, batch.arrow_batch.column("value").to_pylist()))
        except CorruptRecordBatchError as error:
            _, behind = end_of_damage(error)
            found.extend([DAMAGED] * (min(behind, end) - start - len(found)))
    return found
