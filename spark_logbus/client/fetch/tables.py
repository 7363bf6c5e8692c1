"""Fetched record batches as one table, for who reads a bounded part of topics."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.errors import RecordBatchTooLargeError
from spark_logbus.model import TimestampType
from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP

logger = logging.getLogger(__name__)

_LARGE_BYTES: Final = 1 << 30  # what a program may not have expected

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)


class TableBudget:
    """Counts what a table takes that is read bit by bit. None: as much as there is."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._warned = False

    def add(self, batches: Iterable[FetchedBatch]) -> None:
        """Raises RecordBatchTooLargeError for more than may be."""
        self._bytes += sum(batch.decoded_bytes for batch in batches)
        if self._max_bytes is not None:
            if self._bytes > self._max_bytes:
                raise RecordBatchTooLargeError(
                    f"The table would take more than the {self._max_bytes} bytes of max_bytes; it "
                    f"has {self._bytes} and does not end there. Read in parts, with poll_arrow."
                )
        elif self._bytes > _LARGE_BYTES and not self._warned:
            self._warned = True
            logger.warning(
                "A table of all records takes more than %d MiB of memory, and more is to come; "
                "poll_arrow reads them in parts, and max_bytes sets a limit.",
                _LARGE_BYTES >> 20,
            )


def table_of(batches: Iterable[FetchedBatch], value_type: pa.DataType | None = None) -> pa.Table:
    """The records with the columns of ``SCHEMA``, in the order of the batches; values have
    ``value_type`` if it is given. Key, value, headers and timestamps of record batches of some size
    are views of the received bytes."""
    schema = SCHEMA
    if value_type is not None:
        number = SCHEMA.get_field_index("value")
        schema = SCHEMA.set(number, pa.field("value", value_type))
    return pa.Table.from_batches([_with_place(batch, schema) for batch in batches], schema)


def _with_place(batch: FetchedBatch, schema: pa.Schema) -> pa.RecordBatch:
    records, header, at = batch.arrow_batch, batch.header, batch.topic_partition
    rows = records.num_rows
    there = set(records.schema.names)
    timestamps = records.column("timestamp")
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        timestamps = pa.repeat(pa.scalar(header.append_time_us, pa.int64()), rows).view(TIMESTAMP)
    columns = [
        pa.repeat(pa.scalar(at.topic, pa.string()), rows),
        pa.repeat(pa.scalar(at.partition, pa.int32()), rows),
        batch.offsets(),
        timestamps,
        *(
            records.column(name) if name in there else pa.nulls(rows, schema.field(name).type)
            for name in ("key", "value", "headers")
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
