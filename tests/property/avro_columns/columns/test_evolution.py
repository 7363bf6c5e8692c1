"""Values of one schema read by another are what fastavro makes of them, record by record."""

from __future__ import annotations

import itertools
from typing import Any

import fastavro
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from avro_columns.decode.decoder import Decoded, Decoder
from avro_columns.decode.evolution import Resolver
from avro_columns.encode.encoder import Encoder
from avro_columns.errors import ResolutionError
from tests.builders.avro import without_logical
from tests.property.avro_columns.columns.evolved import evolved_record, read, reads_as_fastavro
from tests.property.avro_columns.columns.strategies import Case, cases
from tests.property.examples import examples

DEFAULT = settings(max_examples=examples(200))


@DEFAULT
@given(cases(max_rows=5), st.data())
def test_resolution_is_that_of_fastavro(case: Case, data: st.DataObject) -> None:
    reader = data.draw(evolved_record(case.schema, itertools.count()))
    assume(reads_as_fastavro(case.schema, reader))
    try:
        resolver = Resolver(case.schema, reader)
    except ResolutionError:
        return  # which fastavro tells when it meets such a value
    values = Decoder(case.schema).decode(case.datums).checked()
    resolved = resolver.resolve(values)
    resolved.values.validate(full=True)
    assert resolved.values.type == resolver.arrow_type
    plain = fastavro.parse_schema(without_logical(reader))
    told = {one.row for one in resolved.undecodable}
    expected = [read(one, case.plain, plain) for one in case.datums.to_pylist()]
    assert told == {row for row, one in enumerate(expected) if one is None}
    again = Encoder(reader).encode(resolved.values.drop_null()).to_pylist()
    sound = [one for one in expected if one is not None]
    assert [read(one, plain, None) for one in again] == sound
    check_chosen(case, reader, data, resolved)


def check_chosen(case: Case, reader: Any, data: st.DataObject, whole: Decoded) -> None:
    """Checks that chosen fields of the reader's have the same values as beside all others."""
    names = [one["name"] for one in reader["fields"]]
    chosen = data.draw(st.lists(st.sampled_from(names))) if names else []
    resolver = Resolver(case.schema, reader, fields=chosen)
    values = Decoder(case.schema, fields=resolver.writer_fields).decode(case.datums).checked()
    resolved = resolver.resolve(values)
    resolved.values.validate(full=True)
    assert {one.row for one in resolved.undecodable} <= {one.row for one in whole.undecodable}
    sound = whole.values.is_valid()
    for name in chosen:
        got = resolved.values.filter(sound).field(name)
        assert got.equals(whole.values.filter(sound).field(name))


@DEFAULT
@given(cases(max_rows=2))
def test_a_schema_resolves_to_itself_without_a_step(case: Case) -> None:
    assert Resolver(case.schema, case.schema).changes_nothing
