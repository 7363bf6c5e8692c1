"""Whatever goes in comes out: any records, any compression, whole or sliced."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_logbus.model import Compression, TimestampType
from spark_logbus.record import parse_header, peek_size, split, stamp, verify
from spark_logbus.record.rows.arrow import (
    MIN_RECORDS_TO_COMPRESS,
    NO_STAMP,
    ProducerStamp,
    canonical,
    decode,
    encode,
)
from spark_logbus.record.timestamps import decode_timestamps
from tests.property.examples import examples
from tests.property.record.strategies import (
    INT64,
    OFFSETS,
    STAMPS,
    Record,
    build,
    record_batches,
    record_lists,
    rows,
)

DEFAULT = settings(max_examples=examples(60))
COMPRESSIONS = st.sampled_from(Compression)


def check_round_trip(
    records: list[Record], compression: Compression, producer: ProducerStamp, schema_id: int
) -> None:
    record_batch = encode(
        build(records), compression=compression, stamp=producer, schema_id=schema_id
    )
    header = verify(record_batch)
    assert rows(decode(header, record_batch)) == [
        Record(r.value, r.key, r.timestamp_us, r.headers or None) for r in records
    ]
    assert header.record_count == len(records)
    times_alone = decode_timestamps(header, record_batch)
    assert times_alone.equals(decode(header, record_batch).column("timestamp"))
    assert header.size == len(record_batch) == peek_size(record_batch)
    assert header.size % 8 == 0
    times = [record.timestamp_us for record in records]
    assert (header.base_timestamp_us, header.max_timestamp_us) == (min(times), max(times))
    assert header.has_key == any(record.key is not None for record in records)
    assert header.has_headers == any(record.headers for record in records)
    found = ProducerStamp(header.producer_id, header.producer_epoch, header.base_sequence)
    assert (found, header.schema_id) == (producer, schema_id)
    small = len(records) < MIN_RECORDS_TO_COMPRESS
    assert header.compression is (Compression.NONE if small else compression)


@DEFAULT
@given(record_lists(), COMPRESSIONS, STAMPS, st.integers(0, (1 << 32) - 1))
def test_round_trip(
    records: list[Record], compression: Compression, producer: ProducerStamp, schema_id: int
) -> None:
    check_round_trip(records, compression, producer, schema_id)


@pytest.mark.slow
@settings(max_examples=2_000)
@given(record_lists(max_size=60), COMPRESSIONS)
def test_round_trip_of_many(records: list[Record], compression: Compression) -> None:
    check_round_trip(records, compression, NO_STAMP, 0)


@DEFAULT
@given(record_lists(), COMPRESSIONS, st.data())
def test_slices_are_encoded_as_if_they_stood_alone(
    records: list[Record], compression: Compression, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(records) - 1))
    count = data.draw(st.integers(1, len(records) - start))
    arrow_slice = canonical(build(records).slice(start, count), now_us=0)
    record_batch = encode(arrow_slice, compression=compression)
    assert rows(decode(verify(record_batch), record_batch)) == [
        Record(r.value, r.key, r.timestamp_us, r.headers or None)
        for r in records[start : start + count]
    ]


@DEFAULT
@given(record_lists(max_size=4), OFFSETS, st.integers(0, (1 << 31) - 1), INT64)
def test_stamping_keeps_all_else(
    records: list[Record], base_offset: int, leader_epoch: int, append_time_us: int
) -> None:
    record_batch = encode(build(records), timestamp_type=TimestampType.LOG_APPEND_TIME)
    arrow_batch = decode(verify(record_batch), record_batch)
    stamp(
        record_batch,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        append_time_us=append_time_us,
    )
    header = verify(record_batch)
    assert (header.base_offset, header.leader_epoch) == (base_offset, leader_epoch)
    assert header.append_time_us == append_time_us
    assert header.next_offset == base_offset + len(records)
    assert decode(header, record_batch).equals(arrow_batch)


@DEFAULT
@given(st.lists(record_batches(), max_size=4))
def test_a_run_splits_into_its_record_batches(run: list[bytes]) -> None:
    pieces = list(split(b"".join(run), allow_tail=False))
    assert [bytes(view) for _, view in pieces] == run
    assert [header for header, _ in pieces] == [parse_header(one) for one in run]
