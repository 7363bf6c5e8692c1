"""Arbitrary records, and what is done to their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from spark_logbus.model import Compression
from spark_logbus.record import stamp
from spark_logbus.record.rows.arrow import ProducerStamp, encode
from spark_logbus.record.rows.builder import ArrowBatchBuilder

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
OFFSETS = st.integers(0, (1 << 62))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)  # surrogates: not UTF-8
DATA = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=200, max_size=300))
HEADERS = st.one_of(
    st.none(),
    st.lists(st.tuples(st.one_of(TEXT, st.just("again")), DATA), max_size=4),
)


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes | None
    key: bytes | None
    timestamp_us: int
    headers: list[tuple[str, bytes | None]] | None


RECORDS = st.builds(Record, value=DATA, key=DATA, timestamp_us=INT64, headers=HEADERS)
STAMPS = st.builds(
    ProducerStamp,
    producer_id=INT64,
    producer_epoch=st.integers(-(1 << 15), (1 << 15) - 1),
    base_sequence=st.integers(-(1 << 31), (1 << 31) - 1),
)


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 12) -> list[Record]:
    """Lists of records, at times repeated so often that compression sets in."""
    few = draw(st.lists(RECORDS, min_size=1, max_size=max_size))
    return few * draw(st.sampled_from([1, 1, 8, 60]))


def build(records: list[Record]) -> pa.RecordBatch:
    builder = ArrowBatchBuilder()
    for record in records:
        builder.add(
            value=record.value,
            key=record.key,
            timestamp_us=record.timestamp_us,
            headers=record.headers,
        )
    return builder.build()


def rows(arrow_batch: pa.RecordBatch) -> list[Record]:
    """The records of an arrow batch, through Python values."""
    count = arrow_batch.num_rows
    names = arrow_batch.schema.names

    def column(name: str) -> list[Any]:
        return arrow_batch[name].to_pylist() if name in names else [None] * count

    headers = [
        None if row is None else [(entry["key"], entry["value"]) for entry in row]
        for row in column("headers")
    ]
    times = arrow_batch["timestamp"].view(pa.int64()).to_pylist()
    return [
        Record(*fields)
        for fields in zip(column("value"), column("key"), times, headers, strict=True)
    ]


@st.composite
def record_batches(draw: st.DrawFn) -> bytes:
    """The bytes of one record batch as a leader stored it."""
    encoded = encode(
        build(draw(record_lists(max_size=4))),
        compression=draw(st.sampled_from(Compression)),
        stamp=draw(STAMPS),
    )
    stamp(
        encoded,
        base_offset=draw(OFFSETS),
        leader_epoch=draw(st.integers(0, (1 << 31) - 1)),
        append_time_us=draw(INT64),
    )
    return bytes(encoded)
