"""Record batches of idempotent producers."""

from __future__ import annotations

from spark_logbus.log import PartitionLog
from spark_logbus.record import stamp_producer
from tests.builders.record_batches import joined, record_batch

A, B = 1 << 62, 7  # producer ids


def batch(sequence: int, count: int = 1, *, producer: int = A, epoch: int = 0) -> memoryview:
    data = record_batch(count, payload=b"%d" % sequence)
    stamp_producer(data, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return data


def append(log: PartitionLog, *batches: memoryview) -> tuple[int, ...]:
    """The base offset of each record batch."""
    appended = log.append_as_leader(joined(*batches), leader_epoch=1)
    return appended.base_offsets or (appended.base_offset,)
