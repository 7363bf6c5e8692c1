"""Arbitrary record batches of a schema's columns: what goes in, and its bytes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.resolved_tree import Node, parse
from spark_logbus.model import Compression
from spark_logbus.record.columns.encoder import encode_columns
from spark_logbus.record.columns.layout import ColumnSelection, fields_of
from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP
from tests.property.avro_columns.columns.strategies import for_arrow, types, values
from tests.property.avro_columns.columns.strategies import schemas as record_schemas
from tests.property.record.strategies import DATA, INT64, TEXT

MAX_GAP = 1 << 20


@dataclass(frozen=True)
class Typed:
    """An arrow batch with a value of a schema in each row, and the record batch of it."""

    schema: Any
    arrow_batch: pa.RecordBatch
    record_batch: bytes

    @property
    def value_type(self) -> pa.DataType:
        return self.arrow_batch.schema.field("value").type

    @property
    def field_count(self) -> int:
        return len(fields_of(self.value_type))


@st.composite
def roots(draw: st.DrawFn) -> Any:
    """Schemas of all kinds; records most often."""
    if draw(st.integers(0, 3)):
        return draw(record_schemas())
    return draw(types((f"N{number}" for number in itertools.count()), 2))


def rows(node: Node) -> st.SearchStrategy[Any]:
    """Values in the form that Arrow takes; None for a tombstone."""
    there = values(node).map(lambda value: for_arrow(node, value))
    return st.one_of(there, there, there, st.none())


@st.composite
def typed(draw: st.DrawFn, *, max_rows: int = 6) -> Typed:
    schema = draw(roots())
    node = parse(schema)
    there = values(node).map(lambda value: for_arrow(node, value))
    row = draw(st.sampled_from([there, st.one_of(there, there, there, st.none())]))
    few = draw(st.lists(row, min_size=1, max_size=max_rows))
    count = len(few)

    def of_each(strategy: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(strategy, min_size=count, max_size=count))

    columns = {"timestamp": pa.array(of_each(INT64), pa.int64()).cast(TIMESTAMP)}
    if draw(st.booleans()):
        columns["key"] = pa.array(of_each(DATA), pa.binary())
    columns["value"] = pa.array(few, arrow_type(node))
    if draw(st.booleans()):
        entries = st.fixed_dictionaries({"key": TEXT, "value": DATA})
        columns["headers"] = pa.array(
            of_each(st.one_of(st.none(), st.lists(entries, max_size=3))), HEADERS
        )
    # Often enough for compression to set in.
    arrow_batch = pa.concat_batches(
        [pa.record_batch(columns)] * draw(st.sampled_from([1, 1, 9, 60]))
    )
    start = draw(st.integers(0, min(count - 1, arrow_batch.num_rows - 1)))
    arrow_batch = arrow_batch.slice(start)
    if draw(st.booleans()):
        arrow_batch = arrow_batch.slice(0, draw(st.integers(1, arrow_batch.num_rows)))
    if draw(st.integers(0, 2)) == 0:
        gaps = draw(st.lists(st.integers(1, MAX_GAP), min_size=1, max_size=3))
        steps = itertools.islice(itertools.cycle(gaps), arrow_batch.num_rows)
        deltas = pa.array(list(itertools.accumulate(steps)), pa.int32())
        arrow_batch = arrow_batch.append_column("offset_delta", deltas)
    record_batch = encode_columns(
        arrow_batch,
        schema_id=draw(st.integers(1, (1 << 32) - 1)),
        compression=draw(st.sampled_from(Compression)),
    )
    return Typed(schema, arrow_batch, bytes(record_batch))


@st.composite
def selections(draw: st.DrawFn, field_count: int) -> ColumnSelection:
    columns = draw(st.sets(st.sampled_from(["timestamp", "key", "headers"])))
    places = draw(
        st.one_of(st.none(), st.sets(st.integers(0, field_count + 1), max_size=field_count + 2))
    )
    return ColumnSelection(frozenset(columns), None if places is None else tuple(sorted(places)))
