"""A topic that is compacted while its partitions move: what is left of it has not changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from spark_logbus.client import (
    Admin,
    Cluster,
    Consumer,
    FetchedBatch,
    Producer,
    RangeReader,
    RecordFuture,
)
from spark_logbus.model import Latest, OffsetRange, TopicPartition
from tests.fault.load.participants import Participant
from tests.fault.load.records import PRODUCER, WAIT_S, Record, record_of, value_of
from tests.fault.load.writers import Writer

COMPACTED: Final = "compacted"
KEYED: Final = TopicPartition(COMPACTED, 0)
CONFIG: Final[Mapping[str, str | int]] = {
    "cleanup.policy": "compact",
    "segment.bytes": 20_000,
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": -1,
}
_KEYS: Final = 40
_BURST: Final = 20
_BETWEEN_BURSTS_S: Final = 0.1


def key_of(record: Record) -> bytes:
    return b"key-%d" % (record % _KEYS)


class KeyedWriter(Writer):
    """Writes a few keys again and again, each in its order, into a partition."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        super().__init__(number, [KEYED], "keyed-writer")
        self._cluster = cluster

    def work(self) -> None:
        (where,) = self.partitions
        unanswered: deque[tuple[Record, RecordFuture]] = deque()

        def settle(*, at_most: int) -> None:
            while len(unanswered) > at_most:
                record, future = unanswered.popleft()
                offset = future.result(WAIT_S).offset
                assert offset is not None
                self.places.add(where, offset, [record])
                self.progress += 1

        with Producer(self._cluster, PRODUCER) as producer:
            while not self.stopping.wait(_BETWEEN_BURSTS_S):
                for record in self.take(_BURST):
                    future = producer.send(
                        COMPACTED, value_of(record), key=key_of(record), partition=0
                    )
                    unanswered.append((record, future))
                settle(at_most=_BURST)
            producer.flush()
            settle(at_most=0)


class KeyedReader(Participant):
    """Reads what is there of the keys: it never goes back, and knows the newest of each."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("keyed-reader")
        self._cluster = cluster
        self.seen: dict[int, Record] = {}

    def work(self) -> None:
        end = 0
        with Consumer(self._cluster) as consumer:
            consumer.assign([KEYED])
            while not self.stopping.is_set():
                for batch in consumer.poll_arrow(0.2):
                    found = _by_offset(batch)
                    assert min(found) >= end, "nothing comes again"
                    end = max(found) + 1
                    self.seen.update(found)
                    self.progress += 1


def _by_offset(batch: FetchedBatch) -> dict[int, Record]:
    records = map(record_of, batch.arrow_batch.column("value").to_pylist())
    return dict(zip(batch.offsets().to_pylist(), records, strict=True))


def check_compacted(
    cluster: Cluster, writer: KeyedWriter, reader: KeyedReader, *, compacting: bool = True
) -> None:
    """Fails unless what is there, or was read, was acknowledged at that offset, and the newest of
    each key is there."""
    acknowledged = {offset: record for _, offset, record in writer.places}
    (where,) = writer.partitions
    end = Admin(cluster).list_offsets({where: Latest()})[where] or 0
    assert end == len(acknowledged)
    left: dict[int, Record] = {}
    for batch in RangeReader(cluster, OffsetRange(where, 0, end)):
        left.update(_by_offset(batch))
    for found in (left, reader.seen):
        wrong = {offset: record for offset, record in found.items()
                 if acknowledged.get(offset) != record}  # fmt: skip
        assert not wrong, f"these are not where they were acknowledged: {wrong}"
    newest = {key_of(record): offset for offset, record in sorted(acknowledged.items())}
    missing = {*newest.values()} - left.keys()
    assert not missing, f"the newest of some keys are gone: {missing}"
    assert not compacting or len(left) < len(acknowledged), "it was never compacted"
