"""Some of a record's fields: the others are skipped, and not made into columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from avro_columns.decode.decoder import Decoded, Decoder
from avro_columns.decode.evolution import Resolver
from avro_columns.encode.encoder import Encoder
from avro_columns.errors import (
    ResolutionError,
    UnsupportedTypeError,
    ValueMismatchError,
)
from avro_columns.values.rows import columns_of

FIELDS: dict[str, Any] = {
    "id": "int",
    "paid": "boolean",
    "price": "double",
    "name": "string",
    "kind": {"type": "enum", "name": "kind", "symbols": ["A", "B"]},
    "weight": ["null", "double"],
    "code": ["int", "null", "string"],
    "tags": {"type": "array", "items": "string"},
    "sizes": {"type": "map", "values": ["null", "long"]},
    "place": {"type": "record", "name": "place", "fields": [{"name": "x", "type": "long"}]},
    "last": "long",
}


def record(fields: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "order",
        "fields": [
            {"name": name, "type": kind} | ({"default": defaults[name]} if name in defaults else {})
            for name, kind in fields.items()
        ],
    }


SCHEMA = record(FIELDS)
ROWS = [
    {
        "id": number,
        "paid": number % 2 == 0,
        "price": number / 2,
        "name": "n" * (number % 5),
        "kind": "AB"[number % 2],
        "weight": None if number % 3 else 1.5,
        "code": (None, number, "text")[number % 3],
        "tags": ["t"] * (number % 4),
        "sizes": {"a": number} if number % 2 else {},
        "place": {"x": 1 << number},
        "last": -number,
    }
    for number in range(50)
]
COLUMNS = columns_of(ROWS, SCHEMA)
DATUMS = Encoder(SCHEMA).encode(COLUMNS)


@pytest.mark.parametrize("names", [[name] for name in FIELDS] + [["last", "name"], ["price", "id"]])
def test_chosen_fields_are_those_of_the_whole_record(names: list[str]) -> None:
    decoder = Decoder(SCHEMA, fields=names)
    made = decoder.decode(DATUMS).checked()
    made.validate(full=True)
    assert made.type == decoder.arrow_type
    assert [one.name for one in made.type] == [name for name in FIELDS if name in names]
    for name in names:
        assert made.field(name).equals(COLUMNS.field(name))


def test_no_fields_at_all_tell_which_values_are_sound() -> None:
    datums = pa.array([DATUMS[0].as_py(), DATUMS[1].as_py()[:-1], None])
    decoded = Decoder(SCHEMA, fields=[]).decode(datums)
    assert decoded.values.to_pylist() == [{}, None, None]
    assert [one.row for one in decoded.undecodable] == [1]


def test_what_is_no_field_is_refused_with_the_fields() -> None:
    with pytest.raises(ValueMismatchError, match=r"'nam' is no field of order; choose among id, "):
        Decoder(SCHEMA, fields=["id", "nam"])
    with pytest.raises(ValueMismatchError, match="'nam' is no field"):
        Resolver(SCHEMA, SCHEMA, fields=["nam"])
    for schema in ("int", ["null", SCHEMA]):
        with pytest.raises(UnsupportedTypeError, match="not a record"):
            Decoder(schema, fields=[])


DAMAGED = record(
    {
        "text": "string",
        "flag": "boolean",
        "number": "int",
        "kind": FIELDS["kind"],
        "union": ["null", "double"],
        "items": {"type": "array", "items": "string"},
        "kept": "long",
    }
)
# Text, flag, number, kind, union, items, kept.
SOUND = (b"\2a", b"\1", b"\2", b"\0", b"\0", b"\0", b"\2")
UNSEEN = [(0, b"\2\xff"), (1, b"\7"), (2, b"\x80\x80\x80\x80\x20"), (3, b"\x08"),
          (5, b"\2\2\xff\0")]  # fmt: skip
HIDING = [
    (0, b"\1", "text: the length -1 is negative"),
    (2, b"\x80" * 10 + b"\1", "number: a number takes more than 64 bits"),
    (4, b"\4", "union: the index 2 is none of the union's members"),
    (4, b"\2", "union: the value ends"),
    (5, b"\x7e", "items: a block of 63 items is longer"),
    (6, b"\2\2", "the value itself: 1 bytes follow the value"),
    (6, b"", "kept: the value ends 1 bytes too early"),
]


def damaged(part: int, other: bytes) -> Decoded:
    parts = [other if number == part else one for number, one in enumerate(SOUND)]
    datums = [b"".join(SOUND), b"".join(parts)]
    return Decoder(DAMAGED, fields=["kept"]).decode(pa.array(datums * 30))


@pytest.mark.parametrize(("part", "other"), UNSEEN)
def test_a_fault_in_a_skipped_field_is_not_looked_for(part: int, other: bytes) -> None:
    assert damaged(part, other).checked().to_pylist() == [{"kept": 1}] * 60


@pytest.mark.parametrize(("part", "other", "reason"), HIDING)
def test_a_fault_that_hides_a_values_end_is_told(part: int, other: bytes, reason: str) -> None:
    decoded = damaged(part, other)
    assert decoded.values.to_pylist() == [{"kept": 1}, None] * 30
    assert [one.row for one in decoded.undecodable] == list(range(1, 60, 2))
    assert all(reason in one.reason for one in decoded.undecodable)


PASSED = record(
    {
        "a": "int",
        "b": "int",
        "c": "int",
        "d": FIELDS["kind"],
        "e": "int",
        "f": ["null", "double"],
        "g": ["boolean", "null"],
        "kept": "int",
        "h": "string",
        "i": ["null", "string"],
        "j": ["int", "null"],
        "k": "bytes",
    }
)
PASSED_ROWS = [
    {
        "a": (0, -1, 70, 1 << 14, -(1 << 31))[number % 5],
        "b": number,
        "c": 300 * number,
        "d": "A",
        "e": number % 7,
        "f": (None, 0.5)[number % 2],
        "g": (None, False, True)[number % 3],
        "kept": number,
        "h": "text" * (number % 30),
        "i": (None, "", "t" * 100, "text")[number % 4],
        "j": (None, 1 << number)[number % 2],
        "k": b"" if number == 1 else b"k" * number,
    }
    for number in range(30)
]
PASSED_DATUMS = Encoder(PASSED).encode(columns_of(PASSED_ROWS, PASSED)).to_pylist()
UNSEEN_FAULTS = ("not UTF-8", "out of the range", "symbols", "boolean")


def both(datums: list[bytes]) -> tuple[Decoded, Decoded]:
    """Decodes one of the fields, passing over the others several at a time; and all of them."""
    column = pa.array(datums, pa.binary())
    return Decoder(PASSED, fields=["kept"]).decode(column), Decoder(PASSED).decode(column)


def test_fields_are_passed_over_as_they_are_read() -> None:
    chosen, _ = both(PASSED_DATUMS)
    assert chosen.checked().field("kept").to_pylist() == list(range(30))


@pytest.mark.parametrize("whole", PASSED_DATUMS[::4])
def test_every_truncation_is_told_as_by_who_reads_all_fields(whole: bytes) -> None:
    cut = [whole[:end] for end in range(len(whole))]
    chosen, every = both([*cut, whole])
    assert len(chosen.undecodable) == len(cut)
    assert chosen.undecodable == every.undecodable


@pytest.mark.parametrize("byte", [0, 1, 3, 4, 0x7F, 0x80, 0xFF])
def test_any_other_byte_is_told_as_by_who_reads_all_fields(byte: int) -> None:
    changed = [
        whole[:at] + bytes([byte]) + whole[at + 1 :]
        for whole in PASSED_DATUMS[::4]
        for at in range(len(whole))
    ]
    chosen, every = both(changed)
    told = {one.row: one.reason for one in every.undecodable}
    for one in chosen.undecodable:
        if not any(fault in told[one.row] for fault in UNSEEN_FAULTS):
            assert one.reason == told[one.row]
    kept = chosen.values.field("kept").to_pylist()
    for row, value in enumerate(every.values.to_pylist()):
        assert value is None or kept[row] == value["kept"]


# -- of a reader's schema -----------------------------------------------------------------

READER = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "remark", "type": "string", "default": "none"},
        {"name": "label", "type": "string", "aliases": ["name"]},
        {"name": "id", "type": "long"},
        {"name": "last", "type": "string"},  # which was a long
    ],
}


def test_the_readers_choice_needs_some_of_the_writers_fields() -> None:
    resolver = Resolver(SCHEMA, READER, fields=["id", "remark", "label"])
    assert resolver.writer_fields == ("id", "name")
    values = Decoder(SCHEMA, fields=resolver.writer_fields).decode(DATUMS).checked()
    made = resolver.resolve(values).checked()
    made.validate(full=True)
    assert made.type == resolver.arrow_type
    assert made.to_pylist() == [
        {"remark": "none", "label": row["name"], "id": row["id"]} for row in ROWS
    ]
    assert resolver.resolve(COLUMNS).checked().equals(made)
    assert resolver.resolve(COLUMNS.slice(7)).checked().equals(made.slice(7))


def test_a_field_that_does_not_resolve_has_to_if_it_is_chosen() -> None:
    for chosen in (None, ["last"]):
        with pytest.raises(ResolutionError, match="last was written as long"):
            Resolver(SCHEMA, READER, fields=chosen)


def test_nulls_stay_when_fields_are_left_out() -> None:
    resolver = Resolver(SCHEMA, SCHEMA, fields=["id"])
    values = COLUMNS.take(pa.array([1, None, 2]))
    assert resolver.resolve(values).checked().to_pylist() == [{"id": 1}, None, {"id": 2}]
    assert not resolver.changes_nothing
    assert Resolver(SCHEMA, SCHEMA, fields=list(FIELDS)).changes_nothing
    nothing = Resolver(SCHEMA, SCHEMA, fields=[])
    assert nothing.writer_fields == ()
    assert nothing.resolve(values).checked().to_pylist() == [{}, None, {}]


def test_other_types_have_no_fields_to_choose_from() -> None:
    resolver = Resolver(["null", "int"], ["null", "long"])
    assert resolver.writer_fields is None
    assert resolver.resolve(pa.array([1, None], pa.int32())).checked().to_pylist() == [1, None]
