"""Many record batches in memory, as a fetch brings them, and read as a task reads them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_logbus.client.fetch.batches import received_run
from spark_logbus.client.fetch.columns import take_columns
from spark_logbus.client.fetch.plain_reader import PLAIN_READER
from spark_logbus.client.fetch.values import ValueReader
from spark_logbus.datasource.batch_sizer import TARGET_BYTES, TARGET_ROWS
from spark_logbus.model import TopicPartition
from spark_logbus.record import parse_header, stamp
from spark_logbus.record.format import NO_END


def fetch_of(record_batches: Iterable[bytes | memoryview]) -> memoryview:
    """The record batches, one after the other, with their offsets."""
    data, offset = bytearray(), 0
    for record_batch in record_batches:
        stamped = bytearray(record_batch)
        stamp(stamped, base_offset=offset, leader_epoch=0, append_time_us=0)
        offset = parse_header(stamped).next_offset
        data += stamped
    return memoryview(pa.py_buffer(bytes(data))).cast("B")


def read_fetch(data: memoryview, *, records: int, values: ValueReader | None = None) -> None:
    """Find, verify, decode and join to arrow batches; ``values`` chose what came."""
    topic_partition = TopicPartition("t", 0)
    chosen_by = values if values is not None and values.choice is not None else None
    run = received_run(topic_partition, data, position=0, chosen_by=chosen_by)
    rows = 0
    while run is not None:
        taken, found = take_columns(
            topic_partition,
            run,
            ("timestamp", "key", "value"),
            start=0,
            end=NO_END,
            enough_rows=TARGET_ROWS,
            enough_bytes=TARGET_BYTES,
            values=values or PLAIN_READER,
        )
        rows += found.rows if found is not None else 0
        run = run.part(taken, len(run)) if taken < len(run) else None
    if rows < records:
        raise SystemExit(f"Expected {records} records, got {rows}.")
