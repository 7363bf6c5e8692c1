"""Collects single records until they are worth a record batch."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import Header
from spark_logbus.record.columns import HEADERS, TIMESTAMP, payload_schema

# Rough bytes of a record beside its key, value and headers: timestamp and three offsets.
RECORD_OVERHEAD_BYTES = 20

_MIN_INT64 = -(1 << 63)
_MAX_INT64 = (1 << 63) - 1


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
        """Add one record and return its number within this arrow batch.

        Raises InvalidRequestError for a record that Arrow would refuse, and takes nothing of it:
        at ``build`` it would take all others down with it.
        """
        _check_record(value=value, key=key, timestamp_us=timestamp_us, headers=headers)
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


def _check_record(
    *,
    value: bytes | None,
    key: bytes | None,
    timestamp_us: int,
    headers: Sequence[Header] | None,
) -> None:
    _check_bytes("value", value)
    _check_bytes("key", key)
    if not _MIN_INT64 <= timestamp_us <= _MAX_INT64:
        raise InvalidRequestError(
            f"A timestamp is a number of microseconds that fits 64 bits, got {timestamp_us!r}."
        )
    for name, data in headers or ():
        _check_bytes("header value", data)
        try:
            name.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise InvalidRequestError(
                f"A header name is a string that UTF-8 can express, got {name!r}."
            ) from error


def _check_bytes(what: str, data: bytes | None) -> None:
    if data is not None and not isinstance(data, bytes):
        raise InvalidRequestError(f"A {what} is bytes or None, got {type(data).__name__}.")


def record_size(*, value: bytes | None, key: bytes | None, headers: Sequence[Header] | None) -> int:
    """About how many payload bytes one record takes."""
    size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
    for name, data in headers or ():
        size += len(name) + len(data or b"") + 16
    return size
