"""Columns and datums are the same values: what fastavro writes is read, and written alike."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from avro_columns.decode.decoder import Decoder
from avro_columns.encode.encoder import Encoder
from tests.property.avro_columns.columns.strategies import Case, cases
from tests.property.examples import examples

DEFAULT = settings(max_examples=examples(150))


@DEFAULT
@given(cases())
def test_datums_of_fastavro_decode_to_its_values(case: Case) -> None:
    values = Decoder(case.schema).decode(case.datums).checked()
    values.validate(full=True)
    assert values.type == case.expected.type
    assert values.equals(case.expected)


@DEFAULT
@given(cases())
def test_columns_encode_to_the_datums_of_fastavro(case: Case) -> None:
    assert Encoder(case.schema).encode(case.expected).equals(case.datums)


@DEFAULT
@given(cases(), st.data())
def test_chosen_fields_are_those_of_whole_records(case: Case, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([one.name for one in case.expected.type])))
    values = Decoder(case.schema, fields=names).decode(case.datums).checked()
    values.validate(full=True)
    assert {one.name for one in values.type} == set(names)
    for name in names:
        assert values.field(name).equals(case.expected.field(name))


@DEFAULT
@given(cases(), st.data())
def test_slices_and_nulls_are_kept(case: Case, data: st.DataObject) -> None:
    missing = data.draw(st.lists(st.booleans(), min_size=len(case.datums),
                                 max_size=len(case.datums)))  # fmt: skip
    start = data.draw(st.integers(0, len(case.datums)))
    nulls = [
        None if out else one for out, one in zip(missing, case.datums.to_pylist(), strict=True)
    ]
    column = pa.array(nulls, pa.large_binary()).slice(start)
    got = Decoder(case.schema).decode(column).checked()
    assert got.is_null().to_pylist() == missing[start:]
    present = case.expected.filter(pa.array([not out for out in missing], pa.bool_()))
    kept = present.slice(sum(not out for out in missing[:start]))
    assert got.drop_null().equals(kept)
    assert Encoder(case.schema).encode(case.expected.slice(start)).equals(case.datums.slice(start))
