"""The header of a record batch: parse, check and stamp.

Pure functions over bytes, without Arrow: this is all that the log and the broker need.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
from crc32c import crc32c

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.model import Compression, TimestampType
from spark_logbus.record import format as fmt
from spark_logbus.record.chunks import (
    ChunkError,
    Directory,
    body_start_of,
    check_chunk,
    read_directory,
)

Buffer = bytes | bytearray | memoryview


_NO_PADDING = bytes(fmt.PADDING.stop - fmt.PADDING.start)


class RecordBatchHeader(msgspec.Struct, frozen=True, gc=False):
    """All header fields of one record batch; times in µs since the Unix epoch.

    A struct, which is made in a fifth of a dataclass's time: brokers make one for each record batch
    that comes, and some hold one record.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    append_time_us: int
    attributes: int
    crc: int
    record_count: int
    last_offset_delta: int
    base_timestamp_us: int
    max_timestamp_us: int
    producer_id: int = fmt.NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = fmt.NO_SEQUENCE
    schema_id: int = fmt.PLAIN_BYTES_SCHEMA

    @property
    def size(self) -> int:
        """Bytes of the whole record batch, header included."""
        return self.batch_length + fmt.LENGTH_FIELD_END

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The last record's; only for record batches of an idempotent producer."""
        return self.base_sequence + self.last_offset_delta

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & fmt.COMPRESSION_MASK)

    @property
    def layout(self) -> int:
        return (self.attributes & fmt.LAYOUT_MASK) >> fmt.LAYOUT_SHIFT

    @property
    def has_key(self) -> bool:
        return bool(self.attributes & fmt.HAS_KEY)

    @property
    def has_headers(self) -> bool:
        return bool(self.attributes & fmt.HAS_HEADERS)

    @property
    def has_offset_delta(self) -> bool:
        return bool(self.attributes & fmt.HAS_OFFSET_DELTA)

    @property
    def has_tombstones(self) -> bool:
        return bool(self.attributes & fmt.HAS_TOMBSTONES)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & fmt.CONTROL)

    @property
    def timestamp_type(self) -> TimestampType:
        appended = self.attributes & fmt.LOG_APPEND_TIME
        return TimestampType.LOG_APPEND_TIME if appended else TimestampType.CREATE_TIME


class ProducerStamp(msgspec.Struct, frozen=True):
    """Fields that an idempotent producer writes into its record batches' headers."""

    producer_id: int = fmt.NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = fmt.NO_SEQUENCE


NO_STAMP = ProducerStamp()


def write_header(
    record_batch: bytearray | memoryview,
    attributes: int,
    count: int,
    last_offset_delta: int,
    first_us: int,
    last_us: int,
    *,
    stamp: ProducerStamp = NO_STAMP,
    schema_id: int = fmt.PLAIN_BYTES_SCHEMA,
    keep_gil: bool = False,
) -> None:
    """Write the header of a record batch in front of its payload, and the checksum of both.

    Base offset, leader epoch and append time are 0, for the leader to stamp.
    """
    fmt.HEADER.pack_into(
        record_batch, 0, 0, len(record_batch) - fmt.LENGTH_FIELD_END, 0, 0, fmt.MAGIC_V1, 0,
        attributes, 0, count, last_offset_delta, first_us, last_us, stamp.producer_id,
        stamp.producer_epoch, stamp.base_sequence, schema_id,
    )  # fmt: skip
    fmt.CRC.pack_into(record_batch, fmt.CRC_AT, checksum(record_batch, keep_gil=keep_gil))


def checksum(record_batch: Buffer, *, keep_gil: bool = False) -> int:
    """CRC-32C of the bytes of one record batch that the header's checksum covers: of the whole,
    or of what stands before the columns in layout 1.

    With ``keep_gil`` the interpreter is not let go of meanwhile: to have it back takes a thread
    5 ms where another one is busy, and a megabyte 50 µs.
    """
    view = memoryview(record_batch)
    attributes = fmt.ATTRIBUTES.unpack_from(view, fmt.ATTRIBUTES_AT)[0]
    typed = attributes & fmt.LAYOUT_MASK and len(view) >= fmt.CHUNKS_AT
    end = body_start_of(view) if typed else None
    seed = crc32c(view[fmt.CHECKED_PREFIX])
    return int(crc32c(view[fmt.CHECKED_FROM : end], seed, 0 if keep_gil else -1))


def peek_size(data: Buffer, position: int = 0) -> int | None:
    """Size in bytes of the record batch at ``position``, or None if 12 bytes are not there."""
    if len(data) - position < fmt.LENGTH_FIELD_END:
        return None
    return int(fmt.SIZE_PREFIX.unpack_from(data, position)[1]) + fmt.LENGTH_FIELD_END


def parse_header(data: Buffer, position: int = 0) -> RecordBatchHeader:
    """Parse and structurally check the 80-byte header at ``position``.

    The checksum is not verified here (see ``verify``). Raises CorruptRecordBatchError, or
    UnsupportedVersionError for a magic byte of another release.
    """
    if len(data) - position < fmt.HEADER_SIZE:
        raise CorruptRecordBatchError(
            f"A record batch header takes {fmt.HEADER_SIZE} bytes, "
            f"only {len(data) - position} are there."
        )
    (
        base_offset, batch_length, leader_epoch, append_time, magic, reserved, attributes, crc,
        record_count, last_delta, base_ts, max_ts, producer_id, producer_epoch, base_seq, schema_id,
    ) = fmt.HEADER.unpack_from(data, position)  # fmt: skip
    if magic != fmt.MAGIC_V1:
        raise UnsupportedVersionError(
            f"The record batch at offset {base_offset} has format version {magic}, "
            f"this release knows {fmt.MAGIC_V1}; upgrade, or check that these are record batches."
        )
    header = RecordBatchHeader(
        base_offset, batch_length, leader_epoch, append_time, attributes, crc, record_count,
        last_delta, base_ts, max_ts, producer_id, producer_epoch, base_seq, schema_id,
    )  # fmt: skip
    problem = _structural_problem(header, reserved)
    if problem:
        raise CorruptRecordBatchError(f"Record batch at offset {base_offset}: {problem}.")
    return header


def _structural_problem(header: RecordBatchHeader, reserved: int) -> str | None:
    if reserved:
        return f"reserved byte is {reserved}, expected 0"
    return _payload_problem(header) or _records_problem(header)


def _payload_problem(header: RecordBatchHeader) -> str | None:
    attributes = header.attributes
    if attributes & ~fmt.KNOWN_ATTRIBUTES:
        return f"unknown attributes {attributes:#06x}"
    if attributes & fmt.COMPRESSION_MASK > Compression.ZSTD:
        return f"unknown compression {attributes & fmt.COMPRESSION_MASK}"
    least_size = fmt.HEADER_SIZE
    if attributes & (fmt.LAYOUT_MASK | fmt.HAS_TOMBSTONES):
        if header.layout != fmt.LAYOUT_COLUMNS:
            return f"unknown payload layout {header.layout}, or attributes of another one"
        if header.schema_id == fmt.PLAIN_BYTES_SCHEMA:
            return "columns without a schema"
        least_size = fmt.CHUNKS_AT + fmt.CHUNK.size
    if header.size < least_size or header.size % fmt.ALIGNMENT:
        return f"impossible length {header.batch_length}"
    return None


def _records_problem(header: RecordBatchHeader) -> str | None:
    if not 0 <= header.base_offset <= fmt.MAX_OFFSET:
        return "impossible base offset"
    if header.record_count < 1:
        return "no records"
    expected = header.record_count - 1
    if header.last_offset_delta < expected or (
        header.last_offset_delta != expected and not header.has_offset_delta
    ):
        return f"last offset delta {header.last_offset_delta}, expected {expected}"
    if header.base_timestamp_us > header.max_timestamp_us:
        return "base timestamp after max timestamp"
    return None


def verify(record_batch: Buffer) -> RecordBatchHeader:
    """Check one whole record batch, length and checksum included, and return its header."""
    header = parse_header(record_batch)
    verify_against(header, record_batch)
    return header


def verify_against(header: RecordBatchHeader, record_batch: Buffer) -> Directory | None:
    """Check a record batch, as ``verify`` does, whose header has just been parsed from it, and
    return its directory if it has one."""
    if header.size != len(record_batch):
        raise _corrupt(header, f"expected {header.size} bytes, got {len(record_batch)}")
    _check_covered(header, record_batch)
    if header.layout != fmt.LAYOUT_COLUMNS:
        return None
    directory = directory_of(header, record_batch)
    view = memoryview(record_batch)
    for number, (start, stop) in enumerate(pairwise(directory.bounds)):
        verify_chunk(header, directory, number, view[start:stop])
    return directory


def directory_of(header: RecordBatchHeader, beginning: Buffer) -> Directory:
    """The directory of a record batch of layout 1, of which no more need be there than stands
    before the columns. Raises CorruptRecordBatchError."""
    try:
        return read_directory(beginning, header.size)
    except ChunkError as error:
        raise _corrupt(header, error) from error


def verify_chunk(
    header: RecordBatchHeader, directory: Directory, number: int, chunk: Buffer
) -> None:
    """Raises CorruptRecordBatchError unless ``chunk`` holds that column as it was written."""
    try:
        check_chunk(directory, number, chunk)
    except ChunkError as error:
        raise _corrupt(header, error) from error


def verify_beginning(header: RecordBatchHeader, beginning: Buffer) -> Directory:
    """Check what stands before the columns of a record batch of layout 1, whose header has just
    been parsed from there, and return the directory. Raises CorruptRecordBatchError."""
    directory = directory_of(header, beginning)
    view = memoryview(beginning)[: directory.body_start]
    _check_covered(header, view)
    return directory


def _check_covered(header: RecordBatchHeader, record_batch: Buffer) -> None:
    if memoryview(record_batch)[fmt.PADDING] != _NO_PADDING:
        raise _corrupt(header, "padding is not zero")
    actual = checksum(record_batch)
    if actual != header.crc:
        raise _corrupt(header, f"checksum {actual:#010x}, expected {header.crc:#010x}")


def _corrupt(header: RecordBatchHeader, problem: object) -> CorruptRecordBatchError:
    return CorruptRecordBatchError(f"Record batch at offset {header.base_offset}: {problem}.")


def stamp(
    record_batch: bytearray | memoryview,
    *,
    base_offset: int,
    leader_epoch: int,
    append_time_us: int,
) -> None:
    """Write the leader's fields into a record batch, in place; the checksum stays right."""
    fmt.STAMPED_OFFSET.pack_into(record_batch, 0, base_offset)
    fmt.STAMPED_EPOCH_TIME.pack_into(
        record_batch, fmt.STAMPED_EPOCH_TIME_AT, leader_epoch, append_time_us
    )


def stamps_of(
    header: RecordBatchHeader, *, base_offset: int, leader_epoch: int, append_time_us: int
) -> bytes:
    """The first 24 bytes of a record batch with the leader's fields in them, for one that is
    stamped where it lies in a file."""
    return fmt.STAMPS.pack(base_offset, header.batch_length, leader_epoch, append_time_us)


def stamp_producer(
    record_batch: bytearray | memoryview,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> None:
    """Write an idempotent producer's fields into a record batch, in place, and the checksum."""
    fmt.PRODUCER.pack_into(
        record_batch, fmt.PRODUCER_AT, producer_id, producer_epoch, base_sequence
    )
    fmt.CRC.pack_into(record_batch, fmt.CRC_AT, checksum(record_batch, keep_gil=True))


def for_another_log(record_batch: Buffer, *, schema_id: int | None = None) -> memoryview:
    """A copy of a verified record batch, as its producer would append it to another log: without
    what the leader stamped, and without a producer id. ``schema_id`` is that of the same schema
    there. The payload is the same to the byte; only the header and its checksum are made anew.
    """
    copy = memoryview(bytearray(record_batch))
    if schema_id is not None:
        fmt.SCHEMA_ID.pack_into(copy, fmt.SCHEMA_ID_AT, schema_id)
    stamp(copy, base_offset=0, leader_epoch=0, append_time_us=0)
    stamp_producer(
        copy, producer_id=fmt.NO_PRODUCER, producer_epoch=-1, base_sequence=fmt.NO_SEQUENCE
    )
    return copy
