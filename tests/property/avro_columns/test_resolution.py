"""What is said to be readable, fastavro reads; of what is not, it refuses some of the data."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import fastavro
import pytest
from fastavro.schema import SchemaParseException
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from avro_columns.compatibility import faults
from avro_columns.differences import differences
from avro_columns.errors import SchemaSyntaxError
from avro_columns.parse import parse, parse_value
from avro_columns.text import (
    canonical_text,
    check_readable,
    normalized_text,
    parsing_form,
    self_contained,
)
from tests.property.avro_columns.strategies import covering, evolved, schemas
from tests.property.examples import examples

EXAMPLES = settings(max_examples=examples(250), suppress_health_check=[HealthCheck.too_slow])
MORE = settings(EXAMPLES, max_examples=examples(2_000))
MANY = settings(EXAMPLES, max_examples=20_000)
# What fastavro raises for data that does not fit the reader's schema.
REFUSED = (fastavro.read.SchemaResolutionError, SchemaParseException, ValueError, TypeError,
           KeyError, IndexError, AttributeError)  # fmt: skip


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    """A writer's schema and a reader's."""
    writer = draw(schemas())
    return writer, draw(evolved(writer))


def read_back(writer: Any, reader: Any, datum: Any) -> None:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(writer), datum)
    written.seek(0)
    fastavro.schemaless_reader(
        written, fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    )
    assert written.read() == b""


def resolution_agrees(pair: tuple[Any, Any]) -> None:
    writer, reader = pair
    found = faults(parse_value(reader), parse_value(writer))
    data = covering(writer)
    assume(data)
    refused = 0
    for datum in data:
        try:
            read_back(writer, reader, datum)
        except REFUSED:
            refused += 1
    assert bool(found) == bool(refused), [str(each) for each in found]


@MORE
@given(pairs())
def test_resolution_is_fastavros(pair: tuple[Any, Any]) -> None:
    resolution_agrees(pair)


@pytest.mark.slow
@MANY
@given(pairs())
def test_resolution_is_fastavros_for_many_schemas(pair: tuple[Any, Any]) -> None:
    resolution_agrees(pair)


@EXAMPLES
@given(schemas())
def test_every_schema_reads_its_own_data(schema: Any) -> None:
    parsed = parse_value(schema)
    assert faults(parsed, parsed) == []
    assert faults(parsed, parse_value(schema)) == []
    assert differences(parsed, parse_value(schema)) == []


@EXAMPLES
@given(schemas())
def test_texts_of_a_schema_describe_the_same_schema(schema: Any) -> None:
    parsed = parse(json.dumps(schema))
    for text in (canonical_text(parsed), normalized_text(parsed)):
        again = parse(text)
        assert normalized_text(again) == normalized_text(parsed)
        assert canonical_text(again) == canonical_text(parse(canonical_text(again)))
        assert faults(again, parsed) == []
    assert parsing_form(parsed) == fastavro.schema.to_parsing_canonical_form(schema)
    fastavro.parse_schema(self_contained(parsed))


@EXAMPLES
@given(pairs())
def test_differences_are_there_where_texts_differ(pair: tuple[Any, Any]) -> None:
    older, newer = map(parse_value, pair)
    assert bool(differences(older, newer)) == (normalized_text(older) != normalized_text(newer))


@EXAMPLES
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["int", "record", "array", "R", "union"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size", "default",
                         "namespace", "aliases", "doc", "order", "logicalType", "precision"]),
        inner | st.sampled_from(["record", "enum", "fixed", "array", "map", "int", "bytes",
                                 "decimal"]), max_size=6),
    max_leaves=20,
))  # fmt: skip
def test_no_json_breaks_the_parser(value: Any) -> None:
    with contextlib.suppress(SchemaSyntaxError):
        check_readable(parse(json.dumps(value)))
