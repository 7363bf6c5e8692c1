"""Schema ids before datums, read and written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from avro_columns.confluent import (
    NO_ID,
    PREFIX_BYTES,
    confluent_ids,
    with_confluent_id,
)
from avro_columns.decode.decoder import Decoder
from avro_columns.encode.encoder import Encoder
from avro_columns.errors import ValueMismatchError


def test_records_are_grouped_by_their_schemas() -> None:
    longs = with_confluent_id(Encoder("long").encode(pa.array([1, 2])), 7)
    texts = with_confluent_id(Encoder("string").encode(pa.array(["a"])), (1 << 31) - 1)
    column = pa.concat_arrays([longs, texts, longs])
    found = confluent_ids(column)
    assert found.undecodable == []
    groups = found.groups()
    assert {key: rows.tolist() for key, rows in groups.items()} == {
        7: [0, 1, 3, 4],
        (1 << 31) - 1: [2],
    }
    numbers = Decoder("long").decode(column.take(pa.array(groups[7])), start=PREFIX_BYTES)
    assert numbers.checked().to_pylist() == [1, 2, 1, 2]


def test_what_is_not_of_the_format_is_told() -> None:
    column = pa.array([b"\0\0\0\1\0x", None, b"", b"\0\0\0\0", b"\1\0\0\0\1"], pa.binary())
    for values in (column, column.cast(pa.large_binary())):
        found = confluent_ids(values)
        assert found.ids.tolist() == [256, NO_ID, NO_ID, NO_ID, NO_ID]
        assert [one.row for one in found.undecodable] == [2, 3, 4]
        assert "has 4 bytes, fewer than the 5" in found.undecodable[1].reason
        assert "the first byte is 1" in found.undecodable[2].reason
        assert list(found.groups()) == [256]


def test_slices_and_nulls_keep_their_rows() -> None:
    column = pa.array([b"\0\0\0\0\1", None, b"\0\0\0\0\2"], pa.binary()).slice(1)
    assert confluent_ids(column).ids.tolist() == [NO_ID, 2]
    assert confluent_ids(column.slice(0, 0)).groups() == {}
    assert with_confluent_id(pa.array([None, b""], pa.binary()), 1).to_pylist() == [
        None,
        b"\0\0\0\0\1",
    ]


@pytest.mark.parametrize("schema_id", [-1, 1 << 31])
def test_an_id_that_does_not_fit_is_refused(schema_id: int) -> None:
    with pytest.raises(ValueMismatchError, match="expected 0 to 2147483647"):
        with_confluent_id(pa.array([b""]), schema_id)
