"""The header: every field in its place, every impossible header refused."""

from __future__ import annotations

import struct

import pytest
from msgspec.structs import asdict

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.model import Compression, TimestampType
from spark_logbus.record import (
    HEADER_SIZE,
    LENGTH_FIELD_END,
    MAGIC_V1,
    RecordBatchHeader,
    checksum,
    parse_header,
    peek_size,
    stamp,
    verify,
)
from spark_logbus.record import format as fmt
from spark_logbus.record.rows.arrow import ProducerStamp, encode
from tests.builders.forged import encoded, forge, mixed_records, reseal

# name -> (byte, struct code, value); written down by hand from docs/formats/record-batch.md.
FIELDS = {
    "base_offset": (0, "<q", 123_456_789_012),
    "batch_length": (8, "<I", 132),
    "leader_epoch": (12, "<i", 17),
    "append_time_us": (16, "<q", 1_700_000_000_000_001),
    "attributes": (26, "<H", fmt.HAS_KEY | Compression.LZ4),
    "crc": (28, "<I", 0xDEADBEEF),
    "record_count": (32, "<I", 3),
    "last_offset_delta": (36, "<I", 2),
    "base_timestamp_us": (40, "<q", -5),
    "max_timestamp_us": (48, "<q", 6),
    "producer_id": (56, "<q", 99),
    "producer_epoch": (64, "<h", 4),
    "base_sequence": (66, "<i", 1_000),
    "schema_id": (70, "<I", 4_000_000_000),
}


def put(record_batch: bytearray, name: str, value: int) -> None:
    at, code, _ = FIELDS[name]
    struct.pack_into(code, record_batch, at, value)


def test_every_field_is_where_the_documentation_says() -> None:
    data = bytearray(144)
    data[24] = MAGIC_V1
    for name, (_, _, value) in FIELDS.items():
        put(data, name, value)
    assert asdict(parse_header(data)) == {name: value for name, (_, _, value) in FIELDS.items()}
    assert HEADER_SIZE == 80
    assert LENGTH_FIELD_END == 12


def test_derived_values() -> None:
    header = RecordBatchHeader(
        base_offset=100, batch_length=132, leader_epoch=0, append_time_us=0,
        attributes=fmt.HAS_HEADERS | fmt.LOG_APPEND_TIME | fmt.CONTROL | Compression.ZSTD,
        crc=0, record_count=5, last_offset_delta=4, base_timestamp_us=0, max_timestamp_us=0,
    )  # fmt: skip
    assert header.size == 144
    assert (header.last_offset, header.next_offset) == (104, 105)
    assert header.compression is Compression.ZSTD
    assert header.layout == fmt.LAYOUT_ARROW_BATCH
    assert (header.has_key, header.has_headers, header.has_offset_delta) == (False, True, False)
    assert header.is_control
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME


def test_parse_at_a_position() -> None:
    first, second = encoded(1), encoded(2)
    run = bytes(first + second)
    assert parse_header(run, len(first)) == parse_header(second)
    assert peek_size(run, len(first)) == len(second)


@pytest.mark.parametrize("length", [0, 1, 11, 12, 79])
def test_a_short_header_is_refused(length: int) -> None:
    data = encoded()[:length]
    with pytest.raises(CorruptRecordBatchError, match="80 bytes"):
        parse_header(data)
    assert peek_size(data) == (None if length < 12 else len(encoded()))


@pytest.mark.parametrize("magic", [0, 2, 255])
def test_other_format_versions_are_named(magic: int) -> None:
    data = encoded()
    data[24] = magic
    with pytest.raises(UnsupportedVersionError, match=f"version {magic}"):
        verify(reseal(data))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("attributes", 1 << 10, "attributes of another one"),
        ("attributes", 1 << 11, "unknown attributes"),
        ("attributes", 1 << 15, "unknown attributes"),
        ("attributes", 3, "unknown compression 3"),
        ("attributes", 7, "unknown compression 7"),
        ("attributes", 1 << 3, "columns without a schema"),
        ("attributes", 2 << 3, "unknown payload layout 2"),
        ("attributes", 3 << 3, "unknown payload layout 3"),
        ("batch_length", 0, "impossible length"),
        ("batch_length", 60, "impossible length"),
        ("batch_length", 67, "impossible length"),
        ("batch_length", 69, "impossible length"),
        ("batch_length", 0xFFFFFFFF, "impossible length"),
        ("base_offset", -1, "impossible base offset"),
        ("base_offset", -(1 << 63), "impossible base offset"),
        ("base_offset", (1 << 62) + 1, "impossible base offset"),
        ("record_count", 0, "no records"),
        ("last_offset_delta", 0, "last offset delta 0, expected 59"),
        ("last_offset_delta", 60, "last offset delta 60, expected 59"),
        ("base_timestamp_us", (1 << 63) - 1, "base timestamp after max"),
        ("max_timestamp_us", -(1 << 63), "base timestamp after max"),
    ],
)
def test_impossible_headers_with_right_checksums_are_refused(
    name: str, value: int, why: str
) -> None:
    data = encoded()
    put(data, name, value)
    with pytest.raises(CorruptRecordBatchError, match=why):
        verify(reseal(data))


def test_reserved_byte_and_padding_must_be_zero() -> None:
    data = encoded()
    data[25] = 1
    with pytest.raises(CorruptRecordBatchError, match="reserved byte is 1"):
        verify(reseal(data))
    for at in range(74, 80):
        data = encoded()
        data[at] = 0x80
        with pytest.raises(CorruptRecordBatchError, match="padding"):
            verify(reseal(data))


def test_gaps_between_offsets_need_the_attribute() -> None:
    attributes = fmt.HAS_OFFSET_DELTA
    gaps = verify(forge(b"", record_count=2, last_offset_delta=9, attributes=attributes))
    assert gaps.next_offset == 10
    with pytest.raises(CorruptRecordBatchError, match="last offset delta 9, expected 1"):
        verify(forge(b"", record_count=2, last_offset_delta=9))
    with pytest.raises(CorruptRecordBatchError, match="last offset delta 0, expected 1"):
        verify(forge(b"", record_count=2, last_offset_delta=0, attributes=attributes))


def test_checksum_is_crc32c() -> None:
    # The check value of CRC-32C (RFC 3720): 0xE3069283 for "123456789". The checked bytes are
    # 24-27 and 32 on; here "1234" and "56789".
    data = bytearray(32) + b"56789"
    data[24:28] = b"1234"
    assert checksum(data) == 0xE3069283


def test_a_wrong_checksum_names_both_values() -> None:
    data = encoded()
    right = parse_header(data).crc
    data[-1] ^= 1
    with pytest.raises(CorruptRecordBatchError, match=f"expected {right:#010x}"):
        verify(data)


def test_stamping_keeps_the_checksum() -> None:
    data = encoded()
    before = bytes(data)
    stamp(data, base_offset=(1 << 61) + 1, leader_epoch=2_000_000_000, append_time_us=1 << 61)
    header = verify(data)
    assert header.base_offset == (1 << 61) + 1
    assert header.leader_epoch == 2_000_000_000
    assert header.append_time_us == 1 << 61
    assert data[8:12] == before[8:12]
    assert data[24:] == before[24:]


def test_the_producer_stamp_and_the_schema_id_are_kept() -> None:
    producer = ProducerStamp(producer_id=1 << 40, producer_epoch=-3, base_sequence=(1 << 31) - 1)
    header = verify(encode(mixed_records(2), stamp=producer, schema_id=(1 << 32) - 1))
    assert header.producer_id == producer.producer_id
    assert header.producer_epoch == producer.producer_epoch
    assert header.base_sequence == producer.base_sequence
    assert header.schema_id == (1 << 32) - 1


@pytest.mark.parametrize("extra", [-8, -1, 1, 8])
def test_verify_wants_exactly_one_record_batch(extra: int) -> None:
    data = encoded()
    data = data[:extra] if extra < 0 else data + bytes(extra)
    with pytest.raises(CorruptRecordBatchError, match="expected"):
        verify(data)
