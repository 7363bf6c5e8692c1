"""From record batches as fetched to arrow batches as Spark wants them.

No work per record: columns are views of what was received, joined only where record batches are
smaller than what is worth handing to Spark; the columns that do not come from the record (topic,
partition, offset, timestampType) are slices of arrays made once per process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_logbus.client import FetchedColumns
from spark_logbus.datasource.columns import ColumnChoice
from spark_logbus.model import TopicPartition
from spark_logbus.record.arrow import HEADERS, TIMESTAMP
from spark_logbus.record.plain import integers, scalar

# Constants are made once and sliced, but for arrow batches of more rows than this.
_CACHED_ROWS = 1 << 17

# And but for those of fewer, which cost no more than a slice does. A slice keeps all of what it is
# cut from, for each partition, as long as a micro-batch of a thousand partitions is gathered.
_FEW_ROWS = 1 << 10

Fetched = Sequence[FetchedColumns]

_PAYLOAD_COLUMNS = frozenset({"key", "value", "timestamp", "headers"})


class RowAssembler:
    """Builds arrow batches with the chosen columns for one partition. Stateless; thread-safe."""

    def __init__(self, columns: ColumnChoice, topic_partition: TopicPartition) -> None:
        self._schema = columns.arrow_schema()
        self.payload_columns = _PAYLOAD_COLUMNS.intersection(columns.names)
        makers: dict[str, Callable[[Fetched, int], pa.Array]] = {
            "key": lambda fetched, rows: _column(fetched, rows, "key", pa.binary()),
            "value": lambda fetched, rows: _column(fetched, rows, "value", pa.binary()),
            "topic": lambda _, rows: _constant(topic_partition.topic, pa.string(), rows),
            "partition": lambda _, rows: _constant(topic_partition.partition, pa.int32(), rows),
            "offset": _offsets,
            "timestamp": lambda fetched, rows: _column(fetched, rows, "timestamp", TIMESTAMP),
            "timestampType": _timestamp_types,
            "headers": self._headers,
        }
        self._makers = [makers[name] for name in columns.names]

    def build(self, fetched: Fetched) -> pa.RecordBatch:
        """One arrow batch of all records of ``fetched``, which follow each other."""
        rows = sum(one.rows for one in fetched)
        arrays = [make(fetched, rows) for make in self._makers]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _headers(self, fetched: Fetched, rows: int) -> pa.Array:
        # Spark calls the items of a list "element", Arrow calls them "item"; the cast renames.
        headers = _column(fetched, rows, "headers", HEADERS)
        return headers.cast(self._schema.field("headers").type)


def _column(fetched: Fetched, rows: int, name: str, kind: pa.DataType) -> pa.Array:
    """A column of the payloads, null for the whole of those that do not have it."""
    if not any(name in one.columns for one in fetched):
        return _constant(None, kind, rows)
    return _joined(
        [
            one.columns[name] if name in one.columns else _constant(None, kind, one.rows)
            for one in fetched
        ]
    )


def _offsets(fetched: Fetched, rows: int) -> pa.Array:
    """One addition for the whole where offsets are dense, as they are without compaction."""
    expected = base = fetched[0].base_offset
    for one in fetched:
        if one.base_offset != expected or one.offsets is not None:
            return _joined([_own_offsets(each) for each in fetched])
        expected += one.rows
    return _dense(base, rows)


def _own_offsets(one: FetchedColumns) -> pa.Array:
    return one.offsets if one.offsets is not None else _dense(one.base_offset, one.rows)


def _dense(base: int, rows: int) -> pa.Array:
    return pc.add(_count_up(rows), scalar(base, pa.int64()))


def _timestamp_types(fetched: Fetched, rows: int) -> pa.Array:
    if len({one.timestamp_type for one in fetched}) == 1:
        return _constant(int(fetched[0].timestamp_type), pa.int32(), rows)
    return _joined([_constant(int(one.timestamp_type), pa.int32(), one.rows) for one in fetched])


def _joined(chunks: list[Any]) -> pa.Array:
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _constant(value: Any, kind: Any, rows: int) -> pa.Array:
    if not _FEW_ROWS < rows <= _CACHED_ROWS:
        return pa.repeat(scalar(value, kind), rows)
    return _cached_constant(value, kind, 1 << (rows - 1).bit_length()).slice(0, rows)


@lru_cache(maxsize=64)
def _cached_constant(value: Any, kind: Any, rows: int) -> pa.Array:
    return pa.repeat(scalar(value, kind), rows)


def _count_up(rows: int) -> pa.Array:
    if rows > _CACHED_ROWS:
        return _made_count_up(rows)
    return _cached_count_up().slice(0, rows)


@lru_cache(maxsize=1)
def _cached_count_up() -> pa.Array:
    return _made_count_up(_CACHED_ROWS)


def _made_count_up(rows: int) -> pa.Array:
    return integers(range(rows), pa.int64())
