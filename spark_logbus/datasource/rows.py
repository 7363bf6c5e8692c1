"""From record batches as fetched to arrow batches as Spark wants them.

No work per record: columns are views of what was received, joined only where record batches are
smaller than what is worth handing to Spark; the columns that do not come from the record (topic,
partition, offset, timestampType) are slices of arrays made once per process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_logbus.client import FetchedColumns
from spark_logbus.client.fetch.plain_reader import UNDECODABLE
from spark_logbus.datasource.columns import ColumnChoice
from spark_logbus.datasource.value_types import retyped
from spark_logbus.record import compute as pc
from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP
from spark_logbus.record.rows.plain import scalar
from spark_logbus.spark.field_names import column_of

if TYPE_CHECKING:
    from spark_logbus.client.fetch.values import ValueReader

# Constants are made once and sliced, but for arrow batches of more rows than this.
_CACHED_ROWS = 1 << 17

# And but for those of fewer, which cost no more than a slice does. A slice keeps all of what it is
# cut from, for each partition, as long as a micro-batch of a thousand partitions is gathered.
_FEW_ROWS = 1 << 10

Fetched = Sequence[FetchedColumns]
Maker = Callable[[Fetched, int], pa.Array]

_PAYLOAD_COLUMNS = frozenset({"key", "value", "timestamp", "headers"})


class RowAssembler:
    """Builds arrow batches with the chosen columns. Stateless; thread-safe."""

    def __init__(
        self, columns: ColumnChoice, values: Mapping[str, ValueReader] | None = None
    ) -> None:
        """``values`` decode those of topics with a schema, by topic."""
        self._schema = columns.arrow_schema()
        makers: dict[str, Maker] = {
            "key": lambda fetched, rows: _column(fetched, rows, "key", pa.binary()),
            "value": lambda fetched, rows: _column(fetched, rows, "value", pa.binary()),
            "topic": _topics,
            "partition": _partitions,
            "offset": _offsets,
            "timestamp": lambda fetched, rows: _column(fetched, rows, "timestamp", TIMESTAMP),
            "timestampType": _timestamp_types,
            "headers": self._headers,
        }
        self.payload_columns: frozenset[str] = _PAYLOAD_COLUMNS.intersection(columns.names)
        if values:
            kind = next(iter(values.values())).arrow_type
            makers |= self._typed_makers(columns, kind)
            self.payload_columns |= {"value"} if columns.reads_fields else set()
        self._makers = [makers[name] for name in columns.names]

    def _typed_makers(self, columns: ColumnChoice, kind: pa.DataType) -> dict[str, Maker]:
        makers: dict[str, Maker] = {
            "value": partial(self._value, kind),
            "undecodable": lambda fetched, rows: _column(fetched, rows, "undecodable", UNDECODABLE),
        }
        if columns.values.flatten:
            for number, field in enumerate(kind):
                column = column_of(field.name)
                makers[column] = partial(self._field, number, column)
        return makers

    def _value(self, kind: pa.DataType, fetched: Fetched, rows: int) -> pa.Array:
        return retyped(_column(fetched, rows, "value", kind), self._schema.field("value").type)

    def _field(self, number: int, column: str, fetched: Fetched, rows: int) -> pa.Array:
        chunks = [_field_of(one.columns["value"], number) for one in fetched]
        return retyped(_joined(chunks), self._schema.field(column).type)

    def build(self, fetched: Fetched) -> pa.RecordBatch:
        """One arrow batch of all records of ``fetched``, in their order."""
        rows = sum(one.rows for one in fetched)
        arrays = [make(fetched, rows) for make in self._makers]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _headers(self, fetched: Fetched, rows: int) -> pa.Array:
        # Spark calls the items of a list "element", Arrow calls them "item"; the cast renames.
        headers = _column(fetched, rows, "headers", HEADERS)
        return headers.cast(self._schema.field("headers").type)


def _field_of(value: pa.StructArray, number: int) -> pa.Array:
    """A field; null where the value is."""
    return value.flatten()[number] if value.null_count else value.field(number)


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


def _topics(fetched: Fetched, rows: int) -> pa.Array:
    by_topic = groupby(
        (each for one in fetched for each in one.partitions),
        key=lambda each: each.topic_partition.topic,
    )
    return _joined(
        [_constant(topic, pa.string(), sum(each.rows for each in own)) for topic, own in by_topic]
    )


def _partitions(fetched: Fetched, rows: int) -> pa.Array:
    parts = [each for one in fetched for each in one.partitions]
    return _repeated(
        [each.topic_partition.partition for each in parts], [each.rows for each in parts]
    )


def _timestamp_types(fetched: Fetched, rows: int) -> pa.Array:
    return _repeated([int(one.timestamp_type) for one in fetched], [one.rows for one in fetched])


def _repeated(values: Sequence[int], counts: Sequence[int]) -> pa.Array:
    """Each value as often as its count says, int32."""
    if len({*values}) == 1:
        return _constant(values[0], pa.int32(), sum(counts))
    return _column_of(pa.int32(), np.repeat(np.array(values, np.int32), counts))


def _offsets(fetched: Fetched, rows: int) -> pa.Array:
    """One addition for the whole where offsets are dense, as those of a partition without
    compaction are."""
    expected = base = fetched[0].base_offset
    for one in fetched:
        if one.base_offset != expected or one.offsets is not None:
            return _joined([_own_offsets(each) for each in fetched])
        expected += one.rows
    if rows > _CACHED_ROWS:
        return _count_from(base, rows)
    counted = [_cached_count_up().slice(0, rows), scalar(base, pa.int64())]
    return pc.call_function("add", counted)


def _own_offsets(one: FetchedColumns) -> pa.Array:
    return one.offsets if one.offsets is not None else _count_from(one.base_offset, one.rows)


@lru_cache(maxsize=1)
def _cached_count_up() -> pa.Array:
    return _count_from(0, _CACHED_ROWS)


def _count_from(base: int, rows: int) -> pa.Array:
    return _column_of(pa.int64(), np.arange(base, base + rows))


def _column_of(kind: pa.DataType, numbers: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _joined(chunks: list[Any]) -> pa.Array:
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _constant(value: Any, kind: Any, rows: int) -> pa.Array:
    if not _FEW_ROWS < rows <= _CACHED_ROWS:
        return pa.repeat(scalar(value, kind), rows)
    return _cached_constant(value, kind, 1 << (rows - 1).bit_length()).slice(0, rows)


@lru_cache(maxsize=64)
def _cached_constant(value: Any, kind: Any, rows: int) -> pa.Array:
    return pa.repeat(scalar(value, kind), rows)
