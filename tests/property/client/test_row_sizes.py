"""Sizes of typed rows: what a record batch of them takes is never more than was reckoned."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from avro_columns.values.resolved_tree import parse
from avro_columns.values.row_check import RowCheck
from spark_logbus.client.producer.values import ValueWriter
from spark_logbus.client.schemas.topic import WriterSchema
from spark_logbus.model import Compression
from spark_logbus.topic_schemas import Encoding
from tests.property.avro_columns.columns.strategies import schemas
from tests.property.avro_columns.columns.test_row_check import DEFAULT, given_for, taken


@DEFAULT
@given(schemas(), st.data())
def test_a_record_batch_is_no_larger_than_was_reckoned(schema: Any, data: st.DataObject) -> None:
    node = parse(schema)
    check = RowCheck(node)
    rows = data.draw(st.lists(given_for(node), min_size=1, max_size=5))
    kept = [taken_row for is_taken, taken_row in (taken(check, row) for row in rows) if is_taken]
    assume(kept)
    for encoding in Encoding:
        writer = ValueWriter(WriterSchema(encoding, 1, json.dumps(schema)))
        builder = writer.new_builder()
        size = writer.overhead_bytes
        for row in kept:
            builder.append(row, None, 0, None)
            size += 20 + writer.row_bytes(row)
        assert len(builder.encoded(Compression.NONE)) <= size
