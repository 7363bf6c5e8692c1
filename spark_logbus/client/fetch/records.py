"""Single records out of arrow batches, for consumers that want them one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import types

from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.model import TimestampType


class ConsumerRecord(msgspec.Struct, frozen=True, gc=False):
    """One record and where it stood. Immutable, and without cycles, so that the garbage collector
    need not look at it.

    ``value`` is bytes or None; of a topic with a schema what the schema describes, a record as a
    dict. ``timestamp_us`` is the append time where ``timestamp_type`` says so, else the producer's.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    timestamp_type: TimestampType
    key: bytes | None
    value: Any
    headers: tuple[tuple[str, bytes | None], ...] = ()


def records_of(fetched: FetchedBatch) -> Iterator[ConsumerRecord]:
    """The records of one arrow batch, in order."""
    arrow_batch, header = fetched.arrow_batch, fetched.header
    topic, partition = fetched.topic_partition.topic, fetched.topic_partition.partition
    kind = header.timestamp_type
    times = (
        repeat(header.append_time_us)
        if kind is TimestampType.LOG_APPEND_TIME
        else arrow_batch.column("timestamp").view(pa.int64()).to_pylist()
    )
    keys = arrow_batch.column("key").to_pylist() if header.has_key else repeat(None)
    column = arrow_batch.column("value")
    values = python_values(column) if column.type.num_fields else column.to_pylist()
    fields = (repeat(topic), repeat(partition), _offsets(fetched), times, repeat(kind), keys)
    if not header.has_headers:
        return map(ConsumerRecord, *fields, values)
    pairs = arrow_batch.column("headers").to_pylist()
    return map(ConsumerRecord, *fields, values, map(_headers, pairs))


def python_values(column: pa.Array) -> list[Any]:
    """The values of a column, with structs and maps as dicts; None for null."""
    kind = column.type
    if types.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*map(python_values, column.flatten()), strict=True) if names else repeat(())
        if not column.null_count:
            return [
                dict(zip(names, row, strict=True))
                for row, _ in zip(rows, range(len(column)), strict=False)
            ]
        return [
            dict(zip(names, row, strict=True)) if there else None
            for row, there in zip(rows, column.is_valid().to_pylist(), strict=False)
        ]
    if types.is_map(kind) or types.is_list(kind):
        bounds = column.offsets.to_pylist()
        if types.is_map(kind):
            keys, items = column.keys.to_pylist(), python_values(column.items)
            entries = list(zip(keys, items, strict=True))
            make: Any = dict
        else:
            entries, make = python_values(column.values), list
        spans = zip(pairwise(bounds), column.is_valid().to_pylist(), strict=True)
        return [make(entries[start:stop]) if there else None for (start, stop), there in spans]
    return column.to_pylist()  # type: ignore[no-any-return]


def _offsets(fetched: FetchedBatch) -> Iterable[int]:
    if fetched.has_gaps:
        return fetched.offsets().to_pylist()  # type: ignore[no-any-return]
    return range(fetched.base_offset, fetched.next_offset)


def _headers(pairs: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((pair["key"], pair["value"]) for pair in pairs) if pairs else ()
