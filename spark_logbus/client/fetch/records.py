"""Single records out of arrow batches, for consumers that want them one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, Generic

import msgspec
import pyarrow as pa

from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.model import TimestampType

_ROWS_AT_ONCE: Final = 1 << 16


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")


class ConsumerRecord(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """One record and where it stood. Immutable, and without cycles, so that the garbage collector
    need not look at it.

    ``value`` is bytes or None; of a topic with a schema what the schema describes: a record as a
    dict, of a union the value that is there. A type checker believes the program:
    ``Consumer[bytes | None]`` and ``ConsumerRecord[bytes | None]`` have such values; without that
    they may be anything. ``timestamp_us`` is the append time where
    ``timestamp_type`` says so, else the producer's. A header that was stored without a name, which
    producers refuse, has an empty one.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    timestamp_type: TimestampType
    key: bytes | None
    value: V
    headers: tuple[tuple[str, bytes | None], ...] = ()


def records_of(fetched: FetchedBatch) -> Iterator[ConsumerRecord]:
    """The records of one arrow batch, in order. Of a large one, some at a time become Python's own
    objects, which take many times what Arrow's columns do."""
    rows = fetched.arrow_batch.num_rows
    if rows <= _ROWS_AT_ONCE:
        return _records_of(fetched)
    parts = (fetched.part(at, _ROWS_AT_ONCE) for at in range(0, rows, _ROWS_AT_ONCE))
    return chain.from_iterable(map(_records_of, parts))


def _records_of(fetched: FetchedBatch) -> Iterator[ConsumerRecord]:
    arrow_batch, header = fetched.arrow_batch, fetched.header
    topic, partition = fetched.topic_partition.topic, fetched.topic_partition.partition
    kind = header.timestamp_type
    times = (
        repeat(header.append_time_us)
        if kind is TimestampType.LOG_APPEND_TIME
        else arrow_batch.column("timestamp").view(pa.int64()).to_pylist()
    )
    keys = arrow_batch.column("key").to_pylist() if header.has_key else repeat(None)
    values = _values(fetched)
    fields = (repeat(topic), repeat(partition), _offsets(fetched), times, repeat(kind), keys)
    if not header.has_headers:
        return map(ConsumerRecord, *fields, values)
    headers = arrow_batch.column("headers")
    entries = headers.values
    lacks = entries.null_count or entries.field("key").null_count
    make = _headers_that_lack if lacks else _headers
    return map(ConsumerRecord, *fields, values, map(make, headers.to_pylist()))


def _values(fetched: FetchedBatch) -> Iterable[Any]:
    column = fetched.arrow_batch.column("value")
    if fetched.value_schema is None:
        return column.to_pylist()  # type: ignore[no-any-return]
    # Imported here: topics without a schema need none of it.
    from avro_columns.values.rows import rows_of

    return rows_of(column, fetched.value_schema)


def _offsets(fetched: FetchedBatch) -> Iterable[int]:
    if fetched.has_gaps:
        return fetched.offsets().to_pylist()  # type: ignore[no-any-return]
    return range(fetched.base_offset, fetched.next_offset)


def _headers(pairs: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((pair["key"], pair["value"]) for pair in pairs) if pairs else ()


def _headers_that_lack(
    pairs: list[dict[str, Any] | None] | None,
) -> tuple[tuple[str, bytes | None], ...]:
    """Reads headers among which one has no name, or is null. No broker looks into records, so a
    client of any kind can have stored them, and they are to be read."""
    return tuple(
        ("", None) if pair is None else (pair["key"] or "", pair["value"]) for pair in pairs or ()
    )
