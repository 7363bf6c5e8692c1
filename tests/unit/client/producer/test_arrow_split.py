"""Arrow data that needs nothing done to it goes to the encoder as it is; the rest does not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_logbus.client.producer.arrow_split import lone_values
from spark_logbus.record.rows.arrow import encode_column

VALUES = pa.array([b"one", b"two", b"three"], pa.binary())


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def test_values_alone_are_found() -> None:
    found = lone_values(batch(value=VALUES), limit=1 << 20)
    assert found is not None
    assert found.to_pylist() == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    "data",
    [
        batch(key=VALUES, value=VALUES),
        batch(value=VALUES.cast(pa.string())),
        batch(value=VALUES.cast(pa.large_binary())),
        batch(value=pa.array([b"v", None], pa.binary())),
        batch(value=VALUES[:0]),
        batch(other=VALUES),
        pa.Table.from_batches([batch(value=VALUES)]),
        [b"v"],
    ],
)
def test_all_else_is_not(data: pa.RecordBatch | pa.Table) -> None:
    assert lone_values(data, limit=1 << 20) is None


@pytest.mark.parametrize("count", [1, 7, 100])
def test_what_is_found_is_within_the_limit(count: int) -> None:
    data = batch(value=pa.array([b"%d" % number for number in range(count)], pa.binary()))
    limit = next(limit for limit in range(1 << 14) if lone_values(data, limit=limit) is not None)
    values = lone_values(data, limit=limit)
    assert values is not None
    assert len(encode_column(0, values)) <= limit
