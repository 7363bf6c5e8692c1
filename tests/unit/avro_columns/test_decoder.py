"""Datums into columns: what is made of each type, and what is told of values that are none."""

from __future__ import annotations

import struct
import tracemalloc
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from avro_columns.decode.decoder import Decoded, Decoder
from avro_columns.errors import (
    BatchTooLargeError,
    UndecodableDatumError,
    UnsupportedTypeError,
    ValueMismatchError,
)
from tests.builders.avro import datum

RECORD = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["A", "B"]}},
        {"name": "price", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": ["null", "int", "string"]}},
    ],
}
ROW = {
    "id": 1 << 40,
    "who": "somebody",
    "kind": "B",
    "price": 1.5,
    "paid": True,
    "tags": ["a", "bc"],
    "sizes": {"x": 3, "y": None},
}


def decode(schema: Any, *datums: bytes | None, **options: Any) -> Decoded:
    return Decoder(schema).decode(pa.array(datums, pa.binary()), **options)


def reason(schema: Any, one: bytes) -> str:
    """Returns the reason why ``one`` is no datum, beside sound neighbours, for few cursors and for
    many."""
    sound = {"long": b"\2", "string": b"\2a"}.get(str(schema), b"")
    found = set()
    for copies in (1, 40):
        decoded = decode(schema, *[sound, one] * copies)
        mine = {each.reason for each in decoded.undecodable if each.row % 2}
        assert [each.row for each in decoded.undecodable if each.row % 2] == [
            2 * copy + 1 for copy in range(copies)
        ]
        found |= mine
    assert len(found) == 1, found
    return found.pop()


LOGICAL = [
    ({"type": "int", "logicalType": "date"}, b"\x02", date(1970, 1, 2)),
    ({"type": "int", "logicalType": "time-millis"}, b"\x02", time(0, 0, 0, 1000)),
    ({"type": "long", "logicalType": "time-micros"}, b"\x02", time(0, 0, 0, 1)),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        b"\x01",
        datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
    ),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        b"\x02",
        datetime(1970, 1, 1, 0, 0, 0, 1, UTC).replace(tzinfo=None),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        b"\x04\xff\x00",
        Decimal("-2.56"),
    ),
    (
        {"type": "fixed", "name": "f", "size": 20, "logicalType": "decimal", "precision": 38},
        b"\xff" * 20,
        Decimal(-1),
    ),
    ({"type": "string", "logicalType": "uuid"}, b"\x02x", "x"),
    (
        {"type": "fixed", "name": "f", "size": 12, "logicalType": "duration"},
        struct.pack("<III", 1, 2, 0xFFFFFFFF),
        {"months": 1, "days": 2, "millis": 0xFFFFFFFF},
    ),
    ({"type": "fixed", "name": "f", "size": 2}, b"ab", b"ab"),
    ({"type": "bytes", "logicalType": "unheard-of"}, b"\x02a", b"a"),
    (["null", "int", "string"], b"\x04\x02a", {"member0": None, "member1": "a"}),
    (["null", "int"], b"\x02\x02", 1),
    (["int"], b"\x00\x02", 1),
    (["null"], b"\x00", None),
    ("null", b"", None),
    ({"type": "record", "name": "r", "fields": []}, b"", {}),
]


@pytest.mark.parametrize(("schema", "one", "value"), LOGICAL)
def test_each_type_becomes_what_it_means(schema: Any, one: bytes, value: Any) -> None:
    assert decode(schema, one).checked().to_pylist() == [value]


@pytest.mark.parametrize("number", [0, -1, 63, -64, 64, 1 << 31, -(1 << 55), 1 << 56, (1 << 63) - 1,
                                    -(1 << 63)])  # fmt: skip
def test_numbers_of_all_sizes(number: int) -> None:
    assert decode("long", datum("long", number)).checked().to_pylist() == [number]


def test_a_null_is_null_and_no_fault() -> None:
    decoded = decode(RECORD, None, datum(RECORD, ROW), None)
    assert [value is None for value in decoded.checked().to_pylist()] == [True, False, True]


def test_records_without_fields_may_be_null_too() -> None:
    empty = {"type": "record", "name": "r", "fields": []}
    decoded = decode(empty, b"", None, b"a")
    assert decoded.values.to_pylist() == [{}, None, None]
    assert [one.row for one in decoded.undecodable] == [2]


def test_datums_begin_where_it_is_said() -> None:
    decoded = decode("long", b"\0\0\0\0\7\2", b"\0\0", start=5)
    assert decoded.values.to_pylist() == [1, None]
    assert "3 bytes too few" in decoded.undecodable[0].reason


def test_blocks_of_negative_counts_have_their_size() -> None:
    schema = {"type": "array", "items": "string"}
    blocks = b"\x03\x08\x02a\x02b" + b"\x02\x02c" + b"\x00"
    assert decode(schema, blocks).checked().to_pylist() == [["a", "b", "c"]]
    assert decode(schema, *[blocks] * 50).checked().to_pylist() == [["a", "b", "c"]] * 50


def test_arrays_of_very_different_lengths_stand_beside_each_other() -> None:
    schema = {"type": "array", "items": {"type": "array", "items": "string"}}
    rows = [[["x"] * (number % 3)] * number for number in [0, 3, 500, 1] * 30]
    decoded = decode(schema, *[datum(schema, row) for row in rows])
    assert decoded.checked().to_pylist() == rows


ARRAY = {"type": "array", "items": "string"}
NUMBERS = {"type": "array", "items": "long"}
HOSTILE = [
    ("long", b"", "the value ends"),
    ("long", b"\x80", "the value ends"),
    ("long", b"\x80" * 10 + b"\0", "more than 64 bits"),
    ("long", b"\x80" * 9 + b"\2", "more than 64 bits"),
    ("long", b"\2\0", "1 bytes follow the value"),
    ("int", datum("long", 1 << 31), "2147483648 is out of the range of int"),
    ("string", b"\x01", "the length -1 is negative"),
    ("string", datum("long", 1 << 62), "ends 4611686018427387904 bytes too early"),
    ("string", datum("long", (1 << 63) - 1), "bytes too early"),
    ("string", datum("long", -(1 << 63)), "is negative"),
    ("string", b"\x04\xc3\x28", "not UTF-8"),
    ("boolean", b"\2", "the boolean is 2"),
    ("double", b"1234567", "ends 1 bytes too early"),
    ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\2", "the index 1 is none of the enum's"),
    ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\1", "the index -1 is none of the enum's"),
    (["null", "int"], b"\4", "the index 2 is none of the union's"),
    (["null", "int", "string"], b"\1", "the index -1 is none of the union's"),
    (ARRAY, datum("long", 1 << 61), "a block of 2305843009213693952 items"),
    (ARRAY, datum("long", -(1 << 63)) + b"\0", "a block of"),
    (ARRAY, b"\x01\x01\x00", "-1 bytes is negative"),
    (ARRAY, b"\2\1\0", "the length -1 is negative"),
    (ARRAY, b"\2\2a", "the value ends"),
    (NUMBERS, b"\4\2\x80", "the value ends"),
    (NUMBERS, b"\4\2\2", "the value ends"),
    (NUMBERS, b"\2" + b"\x80" * 10 + b"\0\0", "more than 64 bits"),
    ({"type": "map", "values": "int"}, b"\2\2\xff\2\0", "not UTF-8"),
    ({"type": "int", "logicalType": "time-millis"}, b"\1", "out of the range of time-millis"),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        datum("long", 1 << 62),
        "out of the range of timestamp-millis",
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 2},
        b"\x02\x64",
        "more than 2 digits",
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 38},
        b"\x22\x01" + bytes(16),
        "more than 38 digits",
    ),
]


@pytest.mark.parametrize(("schema", "one", "text"), HOSTILE)
def test_a_value_that_is_no_datum_is_told(schema: Any, one: bytes, text: str) -> None:
    assert text in reason(schema, one)


def test_every_cut_of_a_datum_is_told_and_names_the_place() -> None:
    whole = datum(RECORD, ROW)
    cuts = [whole[:size] for size in range(len(whole))]
    decoded = decode(RECORD, whole, *cuts, whole)
    assert [one.row for one in decoded.undecodable] == list(range(1, len(whole) + 1))
    assert {one.reason.split(":")[0] for one in decoded.undecodable} >= {
        "id",
        "who",
        "tags",
        "price",
    }
    assert decoded.values.drop_null().to_pylist() == [decode(RECORD, whole).values[0].as_py()] * 2
    with pytest.raises(
        UndecodableDatumError, match=r"of \d+ records do not decode; the first is row 1"
    ):
        decoded.checked()


def test_an_item_of_a_record_in_an_array_that_is_wrong_spoils_its_row_only() -> None:
    schema = {"type": "array", "items": RECORD}
    row = datum(schema, [ROW, ROW])
    wrong = row.replace(b"somebody", b"some\xffody", 1)
    decoded = decode(schema, row, wrong, row)
    assert [(one.row, one.reason) for one in decoded.undecodable] == [
        (1, "[].who: the text is not UTF-8")
    ]
    assert decoded.values.to_pylist()[0] == decoded.values.to_pylist()[2]


def test_memory_is_bounded_whatever_is_announced() -> None:
    schema = {"type": "array", "items": ["null", RECORD]}
    huge = [datum("long", 1 << bits) + b"\0" * 20 for bits in range(5, 62)]
    decoder = Decoder(schema)
    column = pa.array(huge * 20, pa.binary())
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    decoded = decoder.decode(column)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(decoded.undecodable) == len(column)
    assert peak < 20 << 20
    assert pa.total_allocated_bytes() - before < 20 << 20


def test_items_that_would_take_too_much_are_told() -> None:
    schema = {"type": "array", "items": ["null", RECORD]}
    many = datum("long", 50_000) + b"\0" * 50_001
    decoded = decode(schema, many, b"\2\0\0", many, max_decoded_bytes=3_000_000)
    assert [one.row for one in decoded.undecodable] == [2]
    assert "more than is left" in decoded.undecodable[0].reason


def test_rows_that_would_take_too_much_are_refused() -> None:
    schema = {"type": "fixed", "name": "f", "size": 60_000}
    with pytest.raises(BatchTooLargeError, match="decode fewer at a time"):
        decode(["null", schema], *[b"\0"] * 100, max_decoded_bytes=1_000_000)


def test_a_column_that_is_not_binary_is_refused() -> None:
    with pytest.raises(ValueMismatchError, match="of type binary; got string"):
        Decoder("int").decode(pa.array(["a"]))


def test_chunks_and_slices_are_read_alike() -> None:
    column = pa.array([datum("long", number) for number in range(40_000)], pa.binary())
    expected = pa.array(np.arange(40_000))
    decoder = Decoder("long")
    assert decoder.decode(column).checked().equals(expected)
    chunked = pa.chunked_array([column.slice(0, 7), column.slice(7)])
    assert decoder.decode(chunked).checked().equals(expected)
    assert decoder.decode(column.cast(pa.large_binary()).slice(5)).checked().equals(expected[5:])
    assert decoder.decode(column.slice(0, 0)).checked().to_pylist() == []


@pytest.mark.parametrize("items", ["null", {"type": "record", "name": "r", "fields": []}])
def test_items_that_take_no_bytes_are_refused(items: Any) -> None:
    with pytest.raises(UnsupportedTypeError, match="tags take no bytes"):
        Decoder({"type": "record", "name": "o", "fields": [
            {"name": "tags", "type": {"type": "array", "items": items}}]})  # fmt: skip
