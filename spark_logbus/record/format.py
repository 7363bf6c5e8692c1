"""Record batch, version 1: the constants of the format, in one place.

The same bytes on disk and on the wire. Little-endian::

    byte  0        8        12       16         24    25       26         28
          +--------+--------+--------+----------+-----+--------+----------+-------+
          | base   | batch  | leader | append   |magic|reserved|attributes| crc32c|
          | offset | length | epoch  | time µs  |     |        |          |       |
          | i64    | u32    | i32    | i64      | u8  | u8     | u16      | u32   |
          +--------+--------+--------+----------+-----+--------+----------+-------+
    byte  32       36        40        48        56       64       66       70       74      80
          +--------+---------+---------+---------+--------+--------+--------+--------+-------+
          | record | last    | base    | max     |producer|producer| base   | schema |padding|
          | count  | offset  | timest. | timest. | id     | epoch  |sequence| id     | 0     |
          | u32    | delta   | i64 µs  | i64 µs  | i64    | i16    | i32    | u32    | 6 B   |
          +--------+---------+---------+---------+--------+--------+--------+--------+-------+
    byte  80: payload, ``batch_length - 68`` bytes, a multiple of 8

``batch_length`` counts the bytes after itself. The first three stamped fields (base offset,
leader epoch, append time) stand before the checksum and outside it, so that the leader stamps
them without touching the rest. The checksum covers bytes 24-27 (magic, reserved, attributes)
and everything from byte 32 on. The padding makes a record batch's payload start 8-byte
aligned, so Arrow buffers decode in place. A payload of ``LAYOUT_COLUMNS`` begins with a directory
of its columns, each of which has a checksum of its own; there the one of the header ends where the
first column begins. See ``docs/formats/record-batch.md``.
"""

from __future__ import annotations

import struct
from typing import Final

MAGIC_V1: Final = 1

# One struct for the whole header; "6x" is the padding, checked separately to be zero.
HEADER: Final = struct.Struct("<qIiqBBHIIIqqqhiI6x")
HEADER_SIZE: Final = HEADER.size  # 80
LENGTH_FIELD_END: Final = 12  # batch_length counts from here

STAMPED_OFFSET: Final = struct.Struct("<q")  # base_offset at byte 0
STAMPED_EPOCH_TIME: Final = struct.Struct("<iq")  # leader_epoch, append_time at byte 12
STAMPED_EPOCH_TIME_AT: Final = 12
STAMPS: Final = struct.Struct("<qIiq")  # all of them, and the length that lies between
PRODUCER: Final = struct.Struct("<qhi")  # producer_id, producer_epoch, base_sequence at byte 56
PRODUCER_AT: Final = 56
SIZE_PREFIX: Final = struct.Struct("<qI")  # base_offset, batch_length: enough to skip a batch
LENGTH: Final = struct.Struct("<I")  # batch_length at byte 8
LENGTH_AT: Final = 8

ATTRIBUTES: Final = struct.Struct("<H")  # at byte 26
ATTRIBUTES_AT: Final = 26
SCHEMA_ID: Final = struct.Struct("<I")  # at byte 70
SCHEMA_ID_AT: Final = 70

CHECKED_PREFIX: Final = slice(24, 28)
ATTRIBUTES_SHIFT: Final = 16  # within the checked prefix as one u32
CRC: Final = struct.Struct("<I")
CRC_AT: Final = 28
CHECKED_FROM: Final = 32
PADDING: Final = slice(74, 80)

ALIGNMENT: Final = 8

# No log gets there, and whatever is computed from such an offset still fits 64 bits.
MAX_OFFSET: Final = 1 << 62
NO_END: Final = (1 << 63) - 1  # past every offset: the end of a range that is open

MAX_RECORD_BATCH_BYTES: Final = 0xFFFF_FFF8  # what batch_length can say, kept 8-byte aligned

# What a compressed record batch may take when decoded. zstd shrinks zeros 30,000 times, so the
# stored size bounds nothing: without this, 16 MiB could ask a reader for 500 GiB. 256 MiB is 16
# times the largest record batch that a topic takes by default, and still fits an executor.
MAX_DECODED_BYTES: Final = 256 << 20

# attributes, bit by bit
COMPRESSION_MASK: Final = 0b0000_0000_0111
LAYOUT_SHIFT: Final = 3
LAYOUT_MASK: Final = 0b0000_0001_1000
HAS_KEY: Final = 1 << 5
HAS_HEADERS: Final = 1 << 6
LOG_APPEND_TIME: Final = 1 << 7
CONTROL: Final = 1 << 8
HAS_OFFSET_DELTA: Final = 1 << 9
HAS_TOMBSTONES: Final = 1 << 10  # only with LAYOUT_COLUMNS
KNOWN_ATTRIBUTES: Final = (1 << 11) - 1

LAYOUT_ARROW_BATCH: Final = 0
LAYOUT_COLUMNS: Final = 1  # see spark_logbus.record.chunks

# The beginning of a payload of LAYOUT_COLUMNS, and an entry for each of its columns.
DIRECTORY: Final = struct.Struct("<II")  # column_count, body_start
DIRECTORY_AT: Final = HEADER_SIZE
CHUNK: Final = struct.Struct("<II")  # length, crc32c
CHUNKS_AT: Final = DIRECTORY_AT + DIRECTORY.size
MAX_CHUNKS: Final = 1 << 14  # more than the columns of any schema that has columns
MAX_BEGINNING_BYTES: Final = 4 << 20  # what stands before the columns; brokers read that much

NO_PRODUCER: Final = -1
NO_SEQUENCE: Final = -1
MAX_SEQUENCE: Final = (1 << 31) - 1
MAX_PRODUCER_EPOCH: Final = (1 << 15) - 1
PLAIN_BYTES_SCHEMA: Final = 0
