"""Collects single records until they are worth a record batch."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_logbus.record.arrow import HEADERS, TIMESTAMP, payload_schema

Header = tuple[str, bytes | None]

# Rough bytes of a record beside its key, value and headers: timestamp and three offsets.
RECORD_OVERHEAD_BYTES = 20


class ArrowBatchBuilder:
    """Records of one partition, in order, as columns. Not thread-safe."""

    __slots__ = ("_headers", "_keys", "_timestamps", "_values", "size_bytes")

    def __init__(self) -> None:
        self._timestamps: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._headers: list[Sequence[Header] | None] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def add(
        self,
        *,
        value: bytes | None,
        key: bytes | None,
        timestamp_us: int,
        headers: Sequence[Header] | None,
    ) -> int:
        """Add one record and return its number within this arrow batch."""
        self._timestamps.append(timestamp_us)
        self._keys.append(key)
        self._values.append(value)
        self._headers.append(headers or None)
        self.size_bytes += record_size(value=value, key=key, headers=headers)
        return len(self._values) - 1

    def build(self) -> pa.RecordBatch:
        """The arrow batch in canonical form; the builder keeps its records."""
        has_key = any(key is not None for key in self._keys)
        has_headers = any(self._headers)
        columns = [pa.array(self._timestamps, pa.int64()).cast(TIMESTAMP)]
        if has_key:
            columns.append(pa.array(self._keys, pa.binary()))
        columns.append(pa.array(self._values, pa.binary()))
        if has_headers:
            rows = [
                None if row is None else [{"key": name, "value": data} for name, data in row]
                for row in self._headers
            ]
            columns.append(pa.array(rows, HEADERS))
        schema = payload_schema(has_key=has_key, has_headers=has_headers)
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def record_size(*, value: bytes | None, key: bytes | None, headers: Sequence[Header] | None) -> int:
    """About how many payload bytes one record takes."""
    size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
    for name, data in headers or ():
        size += len(name) + len(data or b"") + 16
    return size
