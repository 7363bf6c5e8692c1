"""Sequences of records' parts as columns, without work in Python for each record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from spark_logbus.client.arguments import Headers, as_bytes, as_headers, as_timestamp_us
from spark_logbus.errors import InvalidRequestError
from spark_logbus.record.rows.columns import HEADERS, TIMESTAMP

Values: TypeAlias = Sequence[bytes | None] | pa.Array | pa.ChunkedArray


def record_columns(
    values: Any,
    *,
    keys: Values | None = None,
    timestamps_us: Sequence[int] | pa.Array | None = None,
    headers: Sequence[Headers | None] | None = None,
) -> pa.Table:
    """A table of the records. InvalidRequestError names the argument, and the place in it."""
    columns = {"value": _binary("values", values)}
    if keys is not None:
        columns["key"] = _binary("keys", keys)
    if timestamps_us is not None:
        columns["timestamp"] = _timestamps(timestamps_us)
    if headers is not None:
        columns["headers"] = _headers(headers)
    count = len(columns["value"])
    for name, column in columns.items():
        if len(column) != count:
            raise InvalidRequestError(
                f"There are {count} values and {len(column)} for the column {name}; each record "
                "needs one of each (None where it has none)."
            )
    return pa.table(columns)


def _binary(what: str, values: Any) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    require_sequence(what, values)
    try:
        column = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError):
        column = None
    if column is not None and column.type in (pa.binary(), pa.null()):
        return column if column.type == pa.binary() else column.cast(pa.binary())
    return pa.array(
        [None if each is None else as_bytes(f"{what}[{n}]", each) for n, each in enumerate(values)],
        pa.binary(),
    )


def _timestamps(timestamps_us: Any) -> Any:
    if isinstance(timestamps_us, pa.Array | pa.ChunkedArray):
        return timestamps_us
    require_sequence("timestamps_us", timestamps_us)
    try:
        column = pa.array(timestamps_us)
    except (pa.ArrowException, TypeError, ValueError):
        column = None
    if column is None or column.type != pa.int64():
        checked = [None if each is None else as_timestamp_us(each) for each in timestamps_us]
        column = pa.array(checked, pa.int64())
    return column.cast(TIMESTAMP)


def _headers(headers: Any) -> Any:
    require_sequence("headers", headers)
    pairs = [
        None if each is None else [{"key": name, "value": data} for name, data in as_headers(each)]
        for each in headers
    ]
    return pa.array(pairs, HEADERS)


def require_sequence(what: str, values: Any) -> None:
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Sequence):
        raise InvalidRequestError(
            f"{what} must be a sequence with one for each record, or an Arrow array, got "
            f"{type(values).__name__}."
        )
