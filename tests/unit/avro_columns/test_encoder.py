"""Columns into datums, and the values that have none."""

from __future__ import annotations

import pyarrow as pa

from avro_columns.decode.decoder import Decoder
from avro_columns.encode.encoder import Encoder
from avro_columns.values.rows import columns_of
from tests.builders.avro import datum


def test_columns_are_conformed_first() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "long"}]}
    table = pa.table({"x": pa.array([1, 300], pa.int16())})
    assert Encoder(schema).encode(table).to_pylist() == [
        datum(schema, {"x": 1}),
        datum(schema, {"x": 300}),
    ]


def test_many_rows_are_encoded_in_chunks() -> None:
    numbers = pa.array(range(40_000))
    datums = Encoder("long").encode(numbers)
    assert len(datums) == 40_000
    assert datums[39_999].as_py() == datum("long", 39_999)
    assert Encoder("long").encode(numbers.slice(0, 0)).to_pylist() == []


def test_a_union_of_many_members_has_long_indices() -> None:
    members = [{"type": "fixed", "name": f"f{i}", "size": i + 1} for i in range(70)]
    names = [f"member{i}" for i in range(70)]
    rows = [{"member69": b"x" * 70}, {"member1": b"ab"}]
    array = pa.array(rows, pa.struct([(name, pa.binary(i + 1)) for i, name in enumerate(names)]))
    assert Encoder(members).encode(array).to_pylist() == [b"\x8a\x01" + b"x" * 70, b"\x02ab"]


DURATION = {"type": "fixed", "name": "f", "size": 12, "logicalType": "duration"}


def test_maps_of_every_type_of_values_are_encoded_whole_or_sliced() -> None:
    inner = {"type": "map", "values": "boolean"}
    schema = {"type": "map", "values": [inner, "string", DURATION, "int"]}
    rows = [
        {"a": {"x": True}, "b": "text"},
        {},
        {"c": {"months": 1, "days": 2, "millis": 3}, "d": 5},
    ]
    columns = columns_of(rows, schema)
    datums = Encoder(schema).encode(columns)
    assert Decoder(schema).decode(datums).checked().equals(columns)
    assert Encoder(schema).encode(columns.slice(1)).equals(datums.slice(1))
