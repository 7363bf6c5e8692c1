"""What logbus's consumers do for each ``Work``, with a checksum of the values."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pyarrow as pa

from bench.clients.logbus_client import SILENCE_S, consumer_of, require_bytes, value_bytes_of
from bench.clients.work import CHECKSUMS, SUMMED_BYTES, Done, Work, tail
from bench.clients.worker import timed


def iterate(work: Work) -> Done:
    with consumer_of(work) as consumer:
        checksum = tail(next(iter(consumer)).value or b"")
        left = work.records - 1

        def read() -> None:
            nonlocal checksum
            for record in islice(consumer, left):
                checksum += tail(record.value or b"")

        took = timed(read)
        return Done(left, 1, *took, checksum=checksum % CHECKSUMS)


def poll_arrow(work: Work) -> Done:
    with consumer_of(work) as consumer:
        count = checksum = value_bytes = 0

        def poll() -> None:
            nonlocal count, checksum, value_bytes
            batches = consumer.poll_arrow(SILENCE_S)
            if not batches:
                raise SystemExit(f"No more records within {SILENCE_S:.0f} s after {count:,}.")
            for batch in batches:
                values = batch.arrow_batch.column("value")
                count += len(values)
                value_bytes += value_bytes_of(values)
                checksum += tails(values, work.value_bytes)

        def read() -> None:
            while count < work.records:
                poll()

        poll()  # it may bring all of a small topic: begin again
        count = checksum = value_bytes = 0
        for topic_partition in consumer.assignment:
            consumer.seek(topic_partition, 0)
        took = timed(read)
        require_bytes(work, value_bytes)
        return Done(count, 0, *took, checksum=checksum % CHECKSUMS)


def tails(values: pa.Array, value_bytes: int) -> int:
    """The sum of ``tail`` over a column of values that are all so long, without a loop."""
    start = memoryview(values.buffers()[1]).cast("i")[values.offset]
    data = np.frombuffer(values.buffers()[2], np.uint8, len(values) * value_bytes, start)
    last = np.ascontiguousarray(data.reshape(-1, value_bytes)[:, -SUMMED_BYTES:])
    return int(last.view(">u8").sum(dtype=np.uint64))
