"""Finds the first record at or after a time, inside the record batch that the broker named."""

from __future__ import annotations

import pyarrow as pa

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.client.fetch.range_reader import RangeReader
from spark_logbus.model import OffsetRange, TimestampType, TopicPartition
from spark_logbus.record import compute as pc
from spark_logbus.record.format import NO_END


def first_at_or_after(
    cluster: Cluster,
    topic_partition: TopicPartition,
    *,
    base_offset: int,
    timestamp_us: int,
    topic_id: str | None = None,
) -> int:
    """Offset of the first record at or after ``timestamp_us`` in the record batch at
    ``base_offset``, which by its header holds one."""
    # A fetch of one byte brings one whole record batch. Only its header says how far it
    # reaches, so the range is left open and the reader dropped after the first record batch.
    open_range = OffsetRange(topic_partition, base_offset, NO_END)
    with RangeReader(
        cluster, open_range, topic_id=topic_id, fetch_bytes=1, in_flight=1, without_values=True
    ) as reader:
        fetched = next(reader)
    number = _first_row(fetched, timestamp_us)
    if number is None:  # the header promised more than is there; go on after it
        return fetched.header.next_offset
    return int(fetched.offsets()[number].as_py())


def _first_row(fetched: FetchedBatch, timestamp_us: int) -> int | None:
    if fetched.header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return 0 if fetched.header.append_time_us >= timestamp_us else None
    times = fetched.arrow_batch.column("timestamp").view(pa.int64())
    number = pc.index(pc.greater_equal(times, timestamp_us), True).as_py()
    return None if number < 0 else int(number)
