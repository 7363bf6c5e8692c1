"""Arrow values that are made without Arrow's conversion of Python values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP
from spark_logbus.record.rows.plain import integers, scalar

I32, I64 = (1 << 31) - 1, (1 << 63) - 1


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (pa.int32(), [0, -1, I32, -I32 - 1]),
        (pa.int64(), [0, -1, I64, -I64 - 1]),
        (TIMESTAMP, [0, 1_700_000_000_123_456, -1]),
        (pa.int64(), []),
    ],
    ids=str,
)
def test_integers_are_what_arrow_makes_of_them(kind: pa.DataType, numbers: list[int]) -> None:
    made = integers(iter(numbers), kind)
    made.validate(full=True)
    assert made.equals(pa.array(numbers, kind))
    assert made.type == kind


@pytest.mark.parametrize(("kind", "number"), [(pa.int32(), I32 + 1), (pa.int64(), I64 + 1)])
def test_integers_that_do_not_fit(kind: pa.DataType, number: int) -> None:
    with pytest.raises(OverflowError):
        integers([number], kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 7),
        (pa.int64(), -I64),
        (TIMESTAMP, 1_700_000_000_123_456),
        (pa.string(), "flüge"),
        (pa.string(), ""),
        (pa.string(), None),
        (pa.binary(), None),
        (HEADERS, None),
    ],
    ids=str,
)
def test_scalars_are_what_arrow_makes_of_them(kind: pa.DataType, value: int | str | None) -> None:
    made = scalar(value, kind)
    assert made.equals(pa.scalar(value, kind))
    assert made.type == kind
    assert pa.repeat(made, 3).to_pylist() == [made.as_py()] * 3
