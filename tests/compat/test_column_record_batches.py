"""Record batches of columns that earlier releases wrote are still read, whole and cut."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from avro_columns.values.arrow_types import arrow_type
from spark_logbus.record import RecordBatchHeader, split
from spark_logbus.record.columns.decoder import decode_columns, verify_selected
from spark_logbus.record.columns.layout import ColumnSelection
from tests.builders.typed import cut, rows_of
from tests.compat import make_column_record_batches as made

STORED = made.BINARY.read_bytes()
EXPECTED: dict[str, Any] = json.loads(made.EXPECTED.read_text())
SAMPLES = EXPECTED["record_batches"]
NAMES = [sample["name"] for sample in SAMPLES]
each_sample = pytest.mark.parametrize("number", range(len(SAMPLES)), ids=NAMES)
Stored = list[tuple[RecordBatchHeader, memoryview]]


@pytest.fixture(scope="module")
def stored() -> Stored:
    return list(split(STORED, allow_tail=False))


def schema_of(header: RecordBatchHeader) -> Any:
    return EXPECTED["schemas"][str(header.schema_id)]


def test_the_sample_is_the_one_that_was_stored() -> None:
    assert hashlib.sha256(STORED).hexdigest() == EXPECTED["sha256"]


def test_the_sample_is_complete(stored: Stored) -> None:
    assert [header.size for header, _ in stored] == [sample["size"] for sample in SAMPLES]
    assert {header.compression.name for header, _ in stored} == {"NONE", "LZ4", "ZSTD"}
    for has in ("has_key", "has_headers", "has_offset_delta", "has_tombstones"):
        assert {getattr(header, has) for header, _ in stored} == {True, False}


@each_sample
def test_headers(number: int, stored: Stored) -> None:
    header, _ = stored[number]
    expected = SAMPLES[number]["header"]
    assert {name: getattr(header, name) for name in expected} == expected


@each_sample
def test_columns(number: int, stored: Stored) -> None:
    header, record_batch = stored[number]
    found = decode_columns(header, record_batch, arrow_type(json.dumps(schema_of(header))))
    expected = {name: each for name, each in SAMPLES[number]["columns"].items() if each is not None}
    assert {name: made.plain(rows_of(array)) for name, array in found.items()} == expected


@each_sample
def test_columns_of_a_cut_one(number: int, stored: Stored) -> None:
    header, record_batch = stored[number]
    schema = schema_of(header)
    if not isinstance(schema, dict) or not schema.get("fields"):
        return
    names = [field["name"] for field in schema["fields"]][::3]
    selection = ColumnSelection(frozenset({"key"}), tuple(range(0, len(schema["fields"]), 3)))
    part = cut(bytes(record_batch), selection)
    verify_selected(header, part, selection)
    found = decode_columns(
        header, part, arrow_type(json.dumps(schema)), selection=selection, is_selected=True
    )
    assert made.plain(rows_of(found["value"])) == [
        row and {name: row[name] for name in names} for row in SAMPLES[number]["columns"]["value"]
    ]
    assert "timestamp" not in found
