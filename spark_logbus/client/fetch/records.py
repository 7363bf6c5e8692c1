"""Single records out of arrow batches, for consumers that want them one by one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.model import TimestampType


class ConsumerRecord(msgspec.Struct, frozen=True):
    """One record and where it stood. Immutable.

    ``timestamp_us`` is the append time where ``timestamp_type`` says so, else the producer's.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def records_of(fetched: FetchedBatch) -> Iterator[ConsumerRecord]:
    """The records of one arrow batch, in order."""
    arrow_batch, header = fetched.arrow_batch, fetched.header
    topic, partition = fetched.topic_partition.topic, fetched.topic_partition.partition
    count = arrow_batch.num_rows
    kind = header.timestamp_type
    times = (
        [header.append_time_us] * count
        if kind is TimestampType.LOG_APPEND_TIME
        else arrow_batch.column("timestamp").view(pa.int64()).to_pylist()
    )
    keys = arrow_batch.column("key").to_pylist() if header.has_key else [None] * count
    headers = arrow_batch.column("headers").to_pylist() if header.has_headers else [None] * count
    values = arrow_batch.column("value").to_pylist()
    rows = zip(fetched.offsets().to_pylist(), times, keys, values, headers, strict=True)
    for offset, time_us, key, value, pairs in rows:
        yield ConsumerRecord(
            topic,
            partition,
            offset,
            time_us,
            kind,
            key,
            value,
            tuple((pair["key"], pair["value"]) for pair in pairs) if pairs else (),
        )
