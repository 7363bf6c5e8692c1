"""Record batches that a log accepts."""

from __future__ import annotations

from spark_logbus.record import HEADER_SIZE, checksum
from spark_logbus.record import format as fmt
from tests.fakes.clock import NOW_US


def record_batch(
    count: int = 1,
    *,
    payload: bytes = b"payload!",
    timestamps: tuple[int, int] = (NOW_US, NOW_US),
) -> memoryview:
    """A record batch that the log accepts; it never looks into the payload."""
    payload += bytes(-len(payload) % fmt.ALIGNMENT)
    length = HEADER_SIZE + len(payload) - fmt.LENGTH_FIELD_END
    header = fmt.HEADER.pack(
        0, length, 0, 0, fmt.MAGIC_V1, 0, 0, 0, count, count - 1, *timestamps, -1, -1, -1, 0
    )
    data = bytearray(header + payload)
    fmt.CRC.pack_into(data, fmt.CRC_AT, checksum(data))
    return memoryview(data)


def joined(*record_batches: memoryview) -> memoryview:
    return memoryview(bytearray(b"".join(record_batches)))
