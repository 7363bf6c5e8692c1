"""Record batches that release 0.1 wrote are still read, field by field and byte by byte."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.record import RecordBatchHeader, split
from spark_logbus.record.rows.arrow import decode
from tests.compat import make_record_batches as made

STORED = made.BINARY.read_bytes()
EXPECTED: dict[str, Any] = json.loads(made.EXPECTED.read_text())
SAMPLES = EXPECTED["record_batches"]
NAMES = [sample["name"] for sample in SAMPLES]


@pytest.fixture(scope="module")
def stored() -> list[tuple[RecordBatchHeader, memoryview]]:
    return list(split(STORED, allow_tail=False))


def test_the_sample_is_the_one_that_was_stored() -> None:
    assert hashlib.sha256(STORED).hexdigest() == EXPECTED["sha256"]


def test_the_sample_is_complete(stored: list[tuple[RecordBatchHeader, memoryview]]) -> None:
    assert [header.size for header, _ in stored] == [sample["size"] for sample in SAMPLES]
    assert {header.compression.name for header, _ in stored} == {"NONE", "LZ4", "ZSTD"}
    assert {header.has_key for header, _ in stored} == {True, False}
    assert {header.has_headers for header, _ in stored} == {True, False}
    assert {header.has_offset_delta for header, _ in stored} == {True, False}


@pytest.mark.parametrize("number", range(len(SAMPLES)), ids=NAMES)
def test_headers(number: int, stored: list[tuple[RecordBatchHeader, memoryview]]) -> None:
    header, _ = stored[number]
    expected = SAMPLES[number]["header"]
    assert {name: getattr(header, name) for name in expected} == expected


@pytest.mark.parametrize("number", range(len(SAMPLES)), ids=NAMES)
def test_records(number: int, stored: list[tuple[RecordBatchHeader, memoryview]]) -> None:
    header, record_batch = stored[number]
    arrow_batch = decode(header, record_batch)
    names = arrow_batch.schema.names
    count = arrow_batch.num_rows

    def column(name: str) -> list[Any]:
        return arrow_batch[name].to_pylist() if name in names else [None] * count

    def text(data: bytes | None) -> str | None:
        return None if data is None else data.hex()

    deltas = column("offset_delta") if header.has_offset_delta else range(count)
    times = arrow_batch["timestamp"].view(pa.int64()).to_pylist()
    fields = zip(deltas, times, column("key"), column("value"), column("headers"), strict=True)
    assert [
        {
            "offset_delta": delta,
            "timestamp_us": timestamp,
            "key": text(key),
            "value": text(value),
            "headers": row and [[entry["key"], text(entry["value"])] for entry in row],
        }
        for delta, timestamp, key, value, row in fields
    ] == SAMPLES[number]["records"]
