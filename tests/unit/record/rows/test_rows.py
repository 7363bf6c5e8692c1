"""Records written without Arrow: the bytes are Arrow's own."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_logbus.model import Compression
from spark_logbus.record import verify
from spark_logbus.record.rows.arrow import (
    MIN_RECORDS_TO_COMPRESS,
    canonical,
    decode,
    encode,
    encode_column,
)
from spark_logbus.record.rows.builder import ArrowBatchBuilder
from spark_logbus.record.rows.rows import FEW_RECORDS

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
BYTES = st.one_of(st.none(), st.binary(max_size=40))
RECORDS = st.lists(st.tuples(INT64, BYTES, BYTES), min_size=1, max_size=30)


def builder_of(records: list[tuple[int, bytes | None, bytes | None]]) -> ArrowBatchBuilder:
    builder = ArrowBatchBuilder()
    for time_us, key, value in records:
        builder.append(value, key, time_us, None)
    return builder


@settings(max_examples=300)
@given(RECORDS)
@example([(0, None, None)])
@example([(-(1 << 63), None, b"")])
@example([((1 << 63) - 1, None, b"1234567")])
@example([(7, None, b"12345678")])
@example([(0, b"", b"")])
@example([(0, b"k", None)] * 9)
@example([(0, None, b"v"), (1, b"k", None)] * (FEW_RECORDS // 2))
@example([(5, None, b"%d" % number) for number in range(FEW_RECORDS + 1)])
@example([(-number, b"k" * (number % 9), b"v") for number in range(FEW_RECORDS + 7)])
@example([(5, b"k", b"v")] * FEW_RECORDS + [(5, b"k", None)])
@example([(5, None, b"v")] * FEW_RECORDS + [(5, b"k", b"v")])
@example([(5, b"k", b"v")] * FEW_RECORDS + [(5, None, b"v")])
@example([(5, None, b"")] * (FEW_RECORDS + 1))
def test_the_bytes_are_those_that_arrow_writes(
    records: list[tuple[int, bytes | None, bytes | None]],
) -> None:
    builder = builder_of(records)
    written = builder.encoded(Compression.NONE)
    assert bytes(written) == bytes(encode(builder.build()))
    values = decode(verify(written), written).column("value").to_pylist()
    assert values == [value for _, _, value in records]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=80), st.data(), INT64)
def test_a_column_of_values_is_written_as_it_lies_there(
    values: list[bytes], data: st.DataObject, time_us: int
) -> None:
    column = pa.array(values, pa.binary())
    whole = canonical(pa.RecordBatch.from_arrays([column], ["value"]), now_us=time_us)
    assert bytes(encode_column(time_us, column)) == bytes(encode(whole))
    start = data.draw(st.integers(0, len(values) - 1))
    stop = data.draw(st.integers(start + 1, len(values)))
    written = encode_column(time_us, column[start:stop])  # Arrow's own bytes of one are more
    found = decode(verify(written), written)
    assert found.equals(whole[start:stop])


@pytest.mark.parametrize("count", [1, FEW_RECORDS, FEW_RECORDS + 1])
@pytest.mark.parametrize("compression", list(Compression))
def test_whichever_way_the_records_are_the_same(count: int, compression: Compression) -> None:
    builder = builder_of([(number, None, b"%d" % number) for number in range(count)])
    written = builder.encoded(compression)
    header = verify(written)
    small = count < MIN_RECORDS_TO_COMPRESS
    assert header.compression is (Compression.NONE if small else compression)
    assert decode(header, written).equals(builder.build())


def test_headers_are_kept() -> None:
    builder = ArrowBatchBuilder()
    builder.append(b"v", None, 1, [("trace", b"7")])
    written = builder.encoded(Compression.NONE)
    rows = decode(verify(written), written).to_pylist()
    assert rows[0]["headers"] == [{"key": "trace", "value": b"7"}]


def test_the_first_records_of_a_process_wait_for_no_pandas() -> None:
    program = """
import sys
from spark_logbus.model import Compression
from spark_logbus.record.rows.builder import ArrowBatchBuilder
builder = ArrowBatchBuilder()
builder.append(b"v", b"k", 1, None)
builder.encoded(Compression.NONE)
assert "pandas" not in sys.modules
builder.build()
assert "pandas" in sys.modules  # or this test says nothing
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
