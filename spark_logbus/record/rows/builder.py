"""Collects single records until they are worth a record batch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import Compression, Header
from spark_logbus.record.rows.arrow import (
    MIN_RECORDS_TO_COMPRESS,
    encode,
    encode_rows,
    encode_value,
)
from spark_logbus.record.rows.columns import HEADERS, TIMESTAMP, payload_schema
from spark_logbus.record.rows.plain import integers
from spark_logbus.record.rows.rows import FEW_RECORDS

# Rough bytes of a record beside its key, value and headers: timestamp and three offsets.
RECORD_OVERHEAD_BYTES = 20

# Bytes that encoding adds at most to the sizes which ArrowBatchBuilder counts: our header, Arrow's
# metadata, and the padding of each buffer.
BATCH_OVERHEAD_BYTES = 2_048

_MIN_INT64 = -(1 << 63)
_MAX_INT64 = (1 << 63) - 1


class ArrowBatchBuilder:
    """Records of one partition, in order, as columns. Not thread-safe."""

    __slots__ = ("_headers", "_keys", "_null_keys", "_null_values", "_timestamps", "_values")

    def __init__(self) -> None:
        self._timestamps = array("q")
        self._values: list[Any] = []
        # As long as nobody has one they are empty; then they end with the last who has.
        self._keys: list[bytes | None] = []
        self._headers: list[Sequence[Header] | None] = []
        self._null_keys = self._null_values = False  # between others

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
        return self.append(value, key, timestamp_us, headers)

    def append(
        self,
        value: Any,
        key: bytes | None,
        timestamp_us: int,
        headers: Sequence[Header] | None,
    ) -> int:
        """``add`` for a record that was checked. It is a step of each ``send``."""
        values = self._values
        number = len(values)
        self._timestamps.append(timestamp_us)
        values.append(value)
        if value is None:
            self._null_values = True
        if key is not None:
            keys = self._keys
            if len(keys) < number:
                keys.extend(repeat(None, number - len(keys)))
                self._null_keys = True
            keys.append(key)
        if headers:
            rows = self._headers
            if len(rows) < number:
                rows.extend(repeat(None, number - len(rows)))
            rows.append(headers)
        return number

    def append_value(self, value: bytes, timestamp_us: int) -> int:
        """``append`` for a record without key and headers."""
        values = self._values
        number = len(values)
        self._timestamps.append(timestamp_us)
        values.append(value)
        return number

    def extend_values(self, values: list[bytes], times_ns: list[int]) -> None:
        """``append_value`` for many records, whose times are in ns."""
        times_us = (np.array(times_ns, np.int64) // 1000).tobytes()
        self._timestamps.frombytes(times_us)
        self._values += values

    def encoded(self, compression: Compression) -> memoryview:
        """The record batch of its records, ready to append, as ``arrow.encode`` makes it."""
        count = len(self._values)
        if count == 1 and not (self._headers or self._keys or self._null_values):
            return encode_value(self._timestamps[0], self._values[0])
        is_compressed = compression is not Compression.NONE and count >= MIN_RECORDS_TO_COMPRESS
        if self._headers or is_compressed or (count > FEW_RECORDS and self._has_nulls()):
            return encode(self.build(), compression=compression)
        return encode_rows(self._timestamps, self._all_keys(), self._values)

    def _has_nulls(self) -> bool:
        missing = len(self._keys) not in (0, len(self._values))
        return missing or self._null_keys or self._null_values

    def _all_keys(self) -> list[bytes | None]:
        """Keys, one for each record, or none if no record has one."""
        missing = len(self._values) - len(self._keys) if self._keys else 0
        return self._keys + [None] * missing

    def build(self) -> pa.RecordBatch:
        """The arrow batch in canonical form; the builder keeps its records."""
        return self._with_values(pa.array(self._values, pa.binary()))

    def _with_values(self, values: pa.Array) -> pa.RecordBatch:
        count = len(values)
        columns = [integers(self._timestamps, TIMESTAMP)]
        if self._keys:
            columns.append(pa.array(self._all_keys(), pa.binary()))
        columns.append(values)
        if self._headers:
            rows = [
                None if row is None else [{"key": name, "value": data} for name, data in row]
                for row in self._headers
            ]
            columns.append(pa.array(rows + [None] * (count - len(rows)), HEADERS))
        schema = payload_schema(has_key=bool(self._keys), has_headers=bool(self._headers))
        if values.type != pa.binary():
            number = schema.get_field_index("value")
            schema = schema.set(number, pa.field("value", values.type))
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
    """Estimates the payload bytes that one record takes."""
    size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
    for name, data in headers or ():
        size += len(name) + len(data or b"") + 16
    return size
