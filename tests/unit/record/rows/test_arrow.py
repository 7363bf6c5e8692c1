"""Payloads: what encode promises about its bytes, and what decode refuses."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    RecordBatchTooLargeError,
)
from spark_logbus.model import Compression, TimestampType
from spark_logbus.record import HEADER_SIZE, parse_header, verify
from spark_logbus.record import format as fmt
from spark_logbus.record.rows.arrow import (
    HEADERS,
    MIN_RECORDS_TO_COMPRESS,
    TIMESTAMP,
    canonical,
    decode,
    encode,
    payload_schema,
)
from tests.builders.forged import body_start, encoded, mixed_records, timestamps

ALL = list(Compression)


def values(*items: bytes | None) -> pa.RecordBatch:
    return canonical(pa.record_batch({"value": pa.array(items, pa.binary())}), now_us=1)


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("count", [1, 49, 50, 500])
def test_round_trip(count: int, compression: Compression) -> None:
    records = mixed_records(count)
    record_batch = encode(records, compression=compression)
    header = verify(record_batch)
    assert decode(header, record_batch).equals(records)
    assert header.record_count == count
    compressed = count >= MIN_RECORDS_TO_COMPRESS
    assert header.compression is (compression if compressed else Compression.NONE)


@pytest.mark.parametrize("compression", ALL)
def test_the_result_is_writable_and_aligned(compression: Compression) -> None:
    record_batch = encode(mixed_records(77), compression=compression)
    assert not record_batch.readonly
    assert record_batch.format == "B"
    assert len(record_batch) % fmt.ALIGNMENT == 0
    assert pa.py_buffer(record_batch).address % fmt.ALIGNMENT == 0


@pytest.mark.parametrize("value_bytes", [0, 60 << 10, 200 << 10])  # copied, and not
def test_a_payload_is_what_arrows_stream_writer_makes(value_bytes: int) -> None:
    arrow_batch = canonical(
        pa.RecordBatch.from_pydict({"value": [None, b"v" * value_bytes], "key": [b"k", None]}),
        now_us=1,
    )
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, arrow_batch.schema) as writer:
        writer.write_batch(arrow_batch)
    payload = bytes(encode(arrow_batch))[HEADER_SIZE:]
    assert payload in stream.getvalue().to_pybytes()
    assert len(payload) == pa.ipc.get_record_batch_size(arrow_batch)


@pytest.mark.parametrize("count", [1, 64, 65, 500])  # counted in Python, and by Arrow
def test_time_bounds_of_a_slice(count: int) -> None:
    times = pa.array([9_999, *range(count, 0, -1), -9_999], TIMESTAMP)
    whole = pa.RecordBatch.from_pydict({"value": [b""] * len(times), "timestamp": times})
    header = verify(encode(canonical(whole, now_us=0).slice(1, count)))
    assert (header.base_timestamp_us, header.max_timestamp_us) == (1, count)


def test_decode_copies_nothing() -> None:
    record_batch = encode(mixed_records(500))
    whole = pa.py_buffer(record_batch)
    arrow_batch = decode(verify(record_batch), record_batch)
    buffers = [b for column in arrow_batch.columns for b in column.buffers() if b and b.size]
    assert buffers
    for buffer in buffers:
        assert whole.address <= buffer.address < whole.address + whole.size


def test_columns_that_are_absent_take_no_room() -> None:
    plain = verify(encode(values(b"a", None)))
    assert not plain.has_key
    assert not plain.has_headers
    full = verify(encode(mixed_records(2)))
    assert full.has_key
    assert full.has_headers


def test_header_holds_the_smallest_and_the_largest_timestamp() -> None:
    low, high = -(1 << 63), (1 << 63) - 1
    records = pa.record_batch({"timestamp": timestamps(5, high, low), "value": pa.array([b""] * 3)})
    header = verify(encode(records))
    assert (header.base_timestamp_us, header.max_timestamp_us) == (low, high)


def test_timestamp_type() -> None:
    appended = encode(values(b"a"), timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert verify(appended).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert verify(encode(values(b"a"))).timestamp_type is TimestampType.CREATE_TIME


@pytest.mark.parametrize("compression", ALL)
def test_a_slice_is_encoded_alone(compression: Compression) -> None:
    records = mixed_records(300).slice(111, 100)
    record_batch = encode(records, compression=compression)
    assert decode(verify(record_batch), record_batch).equals(records)
    alone = pa.RecordBatch.from_pylist(records.to_pylist(), schema=records.schema)
    # A slice may keep a validity bitmap that a fresh column leaves out; never its parent's data.
    assert len(record_batch) <= len(encode(alone, compression=compression)) + 200


def test_offset_deltas_after_compaction() -> None:
    schema = payload_schema(has_key=False, has_headers=False, has_offset_delta=True)
    deltas = pa.array([0, 4, 9], pa.int32())
    records = pa.RecordBatch.from_arrays(
        [timestamps(1, 2, 3), pa.array([b"a", b"b", None]), deltas], schema=schema
    )
    record_batch = encode(records)
    header = verify(record_batch)
    assert header.has_offset_delta
    assert header.last_offset_delta == 9
    assert header.next_offset == 10
    assert decode(header, record_batch).equals(records)


def test_a_record_batch_covers_removed_offsets_at_its_end() -> None:
    schema = payload_schema(has_key=False, has_headers=False, has_offset_delta=True)
    records = pa.RecordBatch.from_arrays(
        [timestamps(1, 2), pa.array([b"a", None]), pa.array([3, 4], pa.int32())], schema=schema
    )
    record_batch = encode(records, last_offset_delta=1000, control=True)
    header = verify(record_batch)
    assert header.next_offset == 1001
    assert header.is_control
    assert decode(header, record_batch).equals(records)
    assert verify(encode(records, last_offset_delta=2)).next_offset == 5  # never before the last


def test_nested_names_and_metadata_leave_no_trace() -> None:
    records = mixed_records(3)
    noted = records.replace_schema_metadata({"pandas": "x" * 1000})
    assert encode(noted) == encode(records)
    element = pa.list_(pa.field("element", HEADERS.value_type))
    renamed = pa.record_batch(
        {"value": records["value"], "headers": records["headers"].cast(element)}
    )
    record_batch = encode(canonical(renamed, now_us=0))
    assert decode(verify(record_batch), record_batch)["headers"].equals(records["headers"])


@pytest.mark.parametrize(
    "columns",
    [
        {"value": pa.array([b"a"])},
        {"timestamp": timestamps(1)},
        {"timestamp": pa.array([1]), "value": pa.array([b"a"])},
        {"timestamp": timestamps(1), "value": pa.array(["a"])},
        {"value": pa.array([b"a"]), "timestamp": timestamps(1)},
        {"timestamp": pa.array([1], pa.timestamp("us")), "value": pa.array([b"a"])},
        {"timestamp": timestamps(1), "value": pa.array([b"a"]), "more": pa.array([1])},
    ],
)
def test_only_the_canonical_form_is_encoded(columns: dict[str, pa.Array]) -> None:
    with pytest.raises(InvalidRequestError, match="canonical"):
        encode(pa.record_batch(columns))


def test_no_records_and_no_timestamps_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at least one record"):
        encode(values())
    records = pa.record_batch({"timestamp": timestamps(None, 1), "value": pa.array([b"a"] * 2)})
    with pytest.raises(InvalidRequestError, match="timestamp, 1 have none"):
        encode(records)


def test_what_no_reader_would_decode_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    records = values(*[bytes(1000)] * 100)
    monkeypatch.setattr(fmt, "MAX_DECODED_BYTES", 100_000)
    with pytest.raises(RecordBatchTooLargeError, match="uncompressed"):
        encode(records, compression=Compression.ZSTD)
    assert encode(records, compression=Compression.NONE)
    monkeypatch.setattr(fmt, "MAX_RECORD_BATCH_BYTES", 100_000)
    with pytest.raises(RecordBatchTooLargeError, match="100000"):
        encode(records)


def test_decoding_stops_exactly_at_the_limit() -> None:
    records = values(*[bytes(1000)] * 100)
    record_batch = encode(records, compression=Compression.ZSTD)
    # timestamps 800 bytes, offsets 404, values 100,000
    assert decode(verify(record_batch), record_batch, max_decoded_bytes=101_204)
    with pytest.raises(CorruptRecordBatchError, match="101204 bytes when decoded"):
        decode(verify(record_batch), record_batch, max_decoded_bytes=101_203)


def test_the_limit_is_for_compressed_payloads_only() -> None:
    record_batch = encode(values(bytes(1000)))
    assert decode(verify(record_batch), record_batch, max_decoded_bytes=0)


@pytest.mark.parametrize("compression", ALL)
def test_the_environment_does_not_change_the_format(compression: Compression) -> None:
    code = (
        "from tests.builders.forged import encoded\n"
        "from spark_logbus.model import Compression\n"
        "import sys\n"
        f"sys.stdout.buffer.write(encoded(60, Compression({int(compression)})))"
    )
    environment = {"ARROW_PRE_0_15_IPC_FORMAT": "1", "ARROW_PRE_1_0_METADATA_VERSION": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    )
    assert done.stdout == bytes(encoded(60, compression))


def test_the_measured_overhead_of_the_documentation() -> None:
    """500 records of 200 bytes: what is not value bytes, per record."""
    record_batch = encode(values(*[bytes(200)] * 500))
    assert (len(record_batch) - 500 * 200) / 500 == pytest.approx(12.592)
    assert body_start(record_batch) - HEADER_SIZE == 208
    assert parse_header(record_batch).size == 106_296


def test_timestamp_type_of_the_column() -> None:
    record_batch = encode(values(b"a"))
    assert decode(verify(record_batch), record_batch).schema.field("timestamp").type == TIMESTAMP
