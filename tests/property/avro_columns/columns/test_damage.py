"""Datums that are cut, changed or made up: each is told, or is what fastavro says it is."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from avro_columns.decode.decoder import Decoded, Decoder
from avro_columns.decode.evolution import Resolver
from avro_columns.encode.encoder import Encoder
from tests.property.avro_columns.columns.strategies import Case, cases
from tests.property.examples import examples

DEFAULT = settings(max_examples=examples(120))

#: What fastavro lets pass.
STRICTER = (
    "follow the value",
    "is out of the range",
    "not 0 or 1",
    "more than 64 bits",
    "more than",  # digits of a decimal
    "is none of the enum's",  # fastavro takes negative indices
    "is none of the union's",
    "a block",
)

#: What hides where a value ends, and is told whichever fields are wanted.
HIDING = (
    "ends",
    "follow the value",
    "negative",
    "more than 64 bits",
    "is none of the union's",
    "is longer than the rest",
)


def hides_an_end(reason: str) -> bool:
    """Numbers of an array that nobody wants are counted by their last bytes, however long."""
    if "[]" in reason and "more than 64 bits" in reason:
        return False
    return any(text in reason for text in HIDING)


def check(case: Case, datums: list[bytes]) -> None:
    """Decodes all ``datums`` beside each other, so that what one does to another is found too."""
    decoded = Decoder(case.schema).decode(pa.array(datums, pa.binary()))
    decoded.values.validate(full=True)
    told = {one.row: one.reason for one in decoded.undecodable}
    assert decoded.values.is_null().to_pylist() == [row in told for row in range(len(datums))]
    sound = [one for row, one in enumerate(datums) if row not in told]
    again = Encoder(case.schema).encode(decoded.values.drop_null()).to_pylist()
    padded = "decimal" in str(case.schema)  # decimals may have zeros before them, ours have none
    for one, other in zip(sound, again, strict=True):
        assert padded or repr(read(case.plain, one)) == repr(read(case.plain, other))
    for row, reason in told.items():
        assert any(text in reason for text in STRICTER) or not readable(case.plain, datums[row])
    check_chosen(case, datums, decoded)


def check_chosen(case: Case, datums: list[bytes], whole: Decoded) -> None:
    """Every second field alone has the values that it has in whole records."""
    schema = {**case.schema, "fields": case.schema["fields"][::2]}
    resolver = Resolver(case.schema, schema)
    decoder = Decoder(case.schema, fields=resolver.writer_fields)
    chosen = decoder.decode(pa.array(datums, pa.binary()))
    chosen.values.validate(full=True)
    told = {one.row for one in chosen.undecodable}
    assert told <= {one.row for one in whole.undecodable}
    assert told >= {one.row for one in whole.undecodable if hides_an_end(one.reason)}
    sound = whole.values.is_valid()
    expected = resolver.resolve(whole.values.filter(sound)).checked()
    # As datums, where a number that is none is equal to itself.
    encoder = Encoder(schema)
    assert encoder.encode(chosen.values.filter(sound)).equals(encoder.encode(expected))


def read(plain: Any, datum: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(datum), plain, None)


def readable(plain: Any, datum: bytes) -> bool:
    try:
        read(plain, datum)
    except (EOFError, ValueError, IndexError, OverflowError, MemoryError):
        return False
    return True


@DEFAULT
@given(cases(max_rows=3), st.data())
def test_cut_datums(case: Case, data: st.DataObject) -> None:
    datums = [
        one[: data.draw(st.integers(0, len(one)))] + data.draw(st.sampled_from([b"", b"\0"]))
        for one in case.datums.to_pylist()
    ]
    check(case, datums)


@DEFAULT
@given(cases(max_rows=3), st.data())
def test_changed_datums(case: Case, data: st.DataObject) -> None:
    datums = []
    for one in case.datums.to_pylist():
        changed = bytearray(one)
        for _ in range(data.draw(st.integers(0, 3)) if one else 0):
            changed[data.draw(st.integers(0, len(one) - 1))] = data.draw(st.integers(0, 255))
        datums.append(bytes(changed))
    check(case, datums)


@DEFAULT
@given(cases(max_rows=0), st.lists(st.binary(max_size=30), max_size=40))
def test_made_up_datums(case: Case, datums: list[bytes]) -> None:
    check(case, datums)
