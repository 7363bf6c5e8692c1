from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_logbus.client import ClientConfig
from spark_logbus.model import TopicPartition
from spark_logbus.record.rows.arrow import TIMESTAMP, encode, payload_schema

QUICK = ClientConfig(
    client_id="test",
    request_timeout_ms=60_000,
    retry_deadline_ms=60_000,
    retry_backoff_ms=1,
    retry_backoff_max_ms=5,
)

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def arrow_batch(values: Sequence[bytes | None], *, first_us: int = 1_000) -> pa.RecordBatch:
    """Canonical; timestamps rise by one from ``first_us``."""
    times = pa.array(range(first_us, first_us + len(values)), pa.int64()).cast(TIMESTAMP)
    return pa.RecordBatch.from_arrays(
        [times, pa.array(values, pa.binary())],
        schema=payload_schema(has_key=False, has_headers=False),
    )


def record_batch(values: Sequence[bytes | None], *, first_us: int = 1_000) -> memoryview:
    return encode(arrow_batch(values, first_us=first_us))


def numbered(start: int, count: int) -> list[bytes | None]:
    return [b"%d" % number for number in range(start, start + count)]
