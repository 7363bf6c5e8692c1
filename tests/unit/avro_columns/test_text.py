from __future__ import annotations

import json

import fastavro.schema
import pytest

from avro_columns.errors import SchemaSyntaxError
from avro_columns.model import Record
from avro_columns.parse import parse
from avro_columns.text import (
    canonical_text,
    fingerprint,
    normalized_text,
    parsing_form,
    self_contained,
)

ORDER = """{
  "fields": [
    {"type": "long", "name": "id", "x": 1, "aliases": ["key"], "doc": "d", "default": 0},
    {"name": "at", "type": {"logicalType": "date", "type": "int"}, "order": "ignore"},
    {"name": "next", "type": ["null", "shop.Order"]},
    {"name": "kind", "type": {"symbols": ["A"], "type": "enum", "name": "Kind", "default": "A"}}
  ],
  "namespace": "shop", "aliases": ["Purchase"], "name": "Order", "type": "record", "doc": "é"
}"""


def test_the_canonical_text_is_in_avros_order_and_keeps_all() -> None:
    assert canonical_text(parse(ORDER)) == (
        '{"type":"record","name":"Order","namespace":"shop","doc":"é","fields":['
        '{"name":"id","type":"long","doc":"d","default":0,"aliases":["key"],"x":1},'
        '{"name":"at","type":{"type":"int","logicalType":"date"},"order":"ignore"},'
        '{"name":"next","type":["null","Order"]},'
        '{"name":"kind","type":{"type":"enum","name":"Kind","symbols":["A"],"default":"A"}}'
        '],"aliases":["Purchase"]}'
    )


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('{"type": "string"}', '"string"'),
        ('{"type": "int", "logicalType": "date"}', '{"type":"int","logicalType":"date"}'),
        (
            '{"type": "record", "name": "a.R", "fields": [{"name": "x", "type": {"type": "fixed", '
            '"name": "F", "namespace": "", "size": 1}}]}',
            '{"type":"record","name":"R","namespace":"a","fields":[{"name":"x","type":'
            '{"type":"fixed","name":"F","namespace":"","size":1}}]}',
        ),
    ],
)
def test_canonical_texts(text: str, canonical: str) -> None:
    assert canonical_text(parse(text)) == canonical
    assert canonical_text(parse(canonical)) == canonical


def test_normalized_texts_are_one_for_schemas_that_mean_the_same() -> None:
    one = '{"type": "record", "name": "R", "namespace": "n", "fields": [], "b": {"y": 1, "x": 2}, '
    other = '{"b": {"x": 2, "y": 1}, "type": "record", "name": "n.R", "fields": [], '
    one, other = one + '"aliases": ["A", "m.B"]}', other + '"aliases": ["m.B", "A"]}'
    assert canonical_text(parse(one)) != canonical_text(parse(other))
    assert normalized_text(parse(one)) == normalized_text(parse(other))
    assert normalized_text(parse(normalized_text(parse(one)))) == normalized_text(parse(one))


def test_a_type_of_a_reference_stays_a_name() -> None:
    known = parse('{"type": "record", "name": "n.A", "fields": []}')
    assert isinstance(known, Record)
    text = '{"type": "record", "name": "n.B", "fields": [{"name": "a", "type": "n.A"}]}'
    schema = parse(text, known=[known])
    assert canonical_text(schema, known=["n.A"]) == (
        '{"type":"record","name":"B","namespace":"n","fields":[{"name":"a","type":"A"}]}'
    )
    whole = self_contained(schema)
    assert whole["fields"][0]["type"] == {"type": "record", "name": "A", "fields": []}
    fastavro.schema.parse_schema(whole)


def test_the_parsing_form_and_its_fingerprint_are_avros() -> None:
    schema = parse('{"type": "int", "doc": "of no matter"}')
    assert parsing_form(schema) == '"int"'
    assert fingerprint(schema) == "8f5c393f1ad57572"  # as the tests of Avro's own libraries have it
    assert parsing_form(parse(ORDER)) == fastavro.schema.to_parsing_canonical_form(
        json.loads(ORDER)
    )


def test_a_chain_of_references_that_nests_too_deeply_is_refused() -> None:
    last = parse('{"type": "record", "name": "R0", "fields": []}')
    for number in range(1, 200):
        assert isinstance(last, Record)
        text = (
            f'{{"type": "record", "name": "R{number}", "fields": '
            f'[{{"name": "a", "type": "R{number - 1}"}}]}}'
        )
        last = parse(text, known=[last])
    with pytest.raises(SchemaSyntaxError, match="nested in more than"):
        self_contained(last)
